"""Modules that take a batch and return one scalar loss, the logits and named parts, over any models."""

from counterpoise.objectives.deep_mutual_learning import DeepMutualLearning
from counterpoise.objectives.mutual_transport import MutualTransport
from counterpoise.objectives.output import ObjectiveOutput
from counterpoise.objectives.protocol import Objective, is_objective
from counterpoise.objectives.schedules import AlphaSchedule, linear_warmup
from counterpoise.objectives.supervised import Loss, LossSum, SupervisedObjective

__all__ = [
    "AlphaSchedule",
    "DeepMutualLearning",
    "Loss",
    "LossSum",
    "MutualTransport",
    "Objective",
    "ObjectiveOutput",
    "SupervisedObjective",
    "is_objective",
    "linear_warmup",
]
