"""A method of your own for the benchmark: `counterpoise-study run STUDY --scale SCALE --methods brier.py`."""

import torch

from counterpoise.objectives import SupervisedObjective
from counterpoise.recipes import Method


def brier(logits, labels, *, weight):
    """Cross-entropy plus a Brier score."""
    target = torch.nn.functional.one_hot(labels, logits.shape[-1])
    score = (torch.softmax(logits, -1) - target).square().sum(-1)
    return (torch.nn.functional.cross_entropy(logits, labels, reduction="none") + weight * score).mean()


def build(models, *, weight):
    """The objective, from the models and one value of each hyper-parameter."""
    return SupervisedObjective(models[0], lambda logits, labels: brier(logits, labels, weight=weight))


METHODS = {"brier": Method("CE + Brier", models=1, build=build, grid={"weight": (0.5, 1.0)}, source="this file")}
