"""Modules that take a batch and return one scalar loss, the logits and named parts, over any models."""

from counterpoise.objectives.auxiliaries import Cached, OwnView, Seldom, Step
from counterpoise.objectives.deep_mutual_learning import DeepMutualLearning
from counterpoise.objectives.kept import KeptPredictions
from counterpoise.objectives.mutual_transport import MutualTransport
from counterpoise.objectives.output import ObjectiveOutput
from counterpoise.objectives.protocol import Objective, is_objective
from counterpoise.objectives.remote import Link, Remote, RemoteAuxiliary, Role, assign_roles
from counterpoise.objectives.schedules import AlphaSchedule, linear_warmup
from counterpoise.objectives.self_distillation import SelfDistillation
from counterpoise.objectives.supervised import Loss, LossSum, SupervisedObjective
from counterpoise.objectives.trunk import SharedTrunk, halfway

__all__ = [
    "AlphaSchedule",
    "Cached",
    "DeepMutualLearning",
    "KeptPredictions",
    "Link",
    "Loss",
    "LossSum",
    "MutualTransport",
    "Objective",
    "ObjectiveOutput",
    "OwnView",
    "Remote",
    "RemoteAuxiliary",
    "Role",
    "Seldom",
    "SelfDistillation",
    "SharedTrunk",
    "Step",
    "SupervisedObjective",
    "assign_roles",
    "halfway",
    "is_objective",
    "linear_warmup",
]
