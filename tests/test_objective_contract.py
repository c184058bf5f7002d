"""The contract of objectives finds what breaks it."""

from types import SimpleNamespace

import pytest
import torch
import torch._dynamo.testing

from counterpoise import MutualTransport
from counterpoise.testing import check_objective
from test_objectives import X, Y, net


class Broken:
    """Objectives that break their contract, each in one way."""

    class AuxiliaryInEvaluation(MutualTransport):
        def forward(self, *inputs, labels=None):
            self.auxiliaries[0](*inputs)
            return super().forward(*inputs, labels=labels)

    class AuxiliaryWithoutLabels(MutualTransport):
        def forward(self, *inputs, labels=None):
            if labels is None and self.training:
                self.auxiliaries[0](*inputs)
            return super().forward(*inputs, labels=labels)

    class MissingGroup(MutualTransport):
        def parameter_groups(self, *, lr, auxiliary_lr):
            return super().parameter_groups(lr=lr, auxiliary_lr=auxiliary_lr)[:1]

    class PlainDictionary(MutualTransport):
        def forward(self, *inputs, labels=None):
            return dict(super().forward(*inputs, labels=labels))

    class LossInEvaluation(MutualTransport):
        def forward(self, *inputs, labels=None):
            output = super().forward(*inputs, labels=labels)
            if labels is not None and not self.training:
                output["loss"] = output["loss"] * 2
            return output

    class AuxiliaryFirst(MutualTransport):
        models = property(lambda self: [*self.auxiliaries, self.primary])

    class HiddenModel(MutualTransport):
        models = property(lambda self: [self.primary, net()])

    class SharedModel(MutualTransport):
        models = property(lambda self: [self.primary, self.primary])

    class NamelessGroup(MutualTransport):
        def parameter_groups(self, *, lr, auxiliary_lr):
            return [{**group, "name": "all"} for group in super().parameter_groups(lr=lr, auxiliary_lr=auxiliary_lr)]

    class LossOverAllSteps(MutualTransport):
        accepts_loss_kwargs = True

    class SilentAtTheEnd(MutualTransport):
        def set_progress(self, progress):
            self.finished = progress == 1

        def forward(self, *inputs, labels=None):
            output = super().forward(*inputs, labels=labels)
            if self.finished and labels is not None:
                output["loss"] = output["loss"] * torch.inf
            return output


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (Broken.AuxiliaryInEvaluation, "run beside the primary"),
        (Broken.AuxiliaryWithoutLabels, "or without labels, .* run beside the primary"),
        (Broken.MissingGroup, "do not hold exactly"),
        (Broken.PlainDictionary, "not ObjectiveOutput"),
        (Broken.LossInEvaluation, "not the cross-entropy"),
        (Broken.AuxiliaryFirst, "not the first"),
        (Broken.HiddenModel, "no submodule"),
        (Broken.SharedModel, "share a parameter"),
        (Broken.NamelessGroup, "have one name"),
        (Broken.LossOverAllSteps, "accumulation steps"),
        (Broken.SilentAtTheEnd, "its loss is inf"),
    ],
)
def test_the_check_finds_what_is_broken(kind, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_objective(kind(net(), [net()], 0.8), X, Y)


@pytest.mark.parametrize(
    ("thing", "complaint"), [(net(), "lacks a member"), (SimpleNamespace(primary=net()), "no nn.Module")]
)
def test_the_check_refuses_what_is_no_objective(thing, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_objective(thing, X, Y)
