"""The watch over a run: it sees what is wrong, and changes nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.diagnosis import Observer, closed_form, diagnose, difference, read_curve
from counterpoise.objectives import MutualTransport
from counterpoise.training.data import named_data
from counterpoise.training.folder import RunFolder
from counterpoise.training.run import train
from counterpoise_study.scales import smoke

ROW = {"training_loss": "1", "validation_nll": "1"}


def test_the_closed_form_has_the_gradient_of_its_loss():
    rng = np.random.default_rng(0)
    logits, labels = [2 * rng.normal(size=(4, 3)) for _ in range(3)], np.array([0, 2, 1, 1])
    _, gradients = closed_form(logits, labels, alpha=0.7)

    def loss(model, moved):
        """Of the terms in which this model is not a constant."""
        probabilities = [np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in logits]
        p = np.exp(moved) / np.exp(moved).sum(-1, keepdims=True)
        if model:
            return -(probabilities[0] * np.log(p)).sum(-1).mean()
        pull = sum((q * np.log(q / p)).sum(-1).mean() for q in probabilities[1:]) / 2
        return -np.log(p[range(4), labels]).mean() + 0.7 * pull

    for model, gradient in enumerate(gradients):
        for place in np.ndindex(4, 3):
            step = np.zeros((4, 3))
            step[place] = 1e-6
            slope = (loss(model, logits[model] + step) - loss(model, logits[model] - step)) / 2e-6
            assert gradient[place] == pytest.approx(slope, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mte1", "mte2"])
def test_a_run_that_is_watched_is_the_same_run(real_data, tmp_path, monkeypatch, method):
    root = real_data("cifar10")
    monkeypatch.setenv("COUNTERPOISE_DATA", str(root))
    recipe = replace(smoke().figures[0].recipe, method=method, epochs=2)
    found = diagnose(recipe)
    assert found.steps == 10
    assert found.loss_deviation < 1e-6
    assert found.gradient_deviation < 1e-5
    assert [len(curve) for curve in found.curves] == [2] * (3 if method == "mte2" else 2)
    train(recipe, tmp_path, data=replace(named_data(recipe), test=None, ood={}), page=False)
    plain = read_curve(RunFolder(tmp_path))
    assert difference(found.epochs, plain) == 0.0
    last = found.curves[0][-1]
    assert last.validation_nll == pytest.approx(float(plain[-1]["validation_nll"]), rel=1e-6)
    assert last.validation_accuracy == float(plain[-1]["validation_accuracy"])


@pytest.mark.slow
def test_a_wrong_loss_is_seen(real_data, monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_DATA", str(real_data("cifar10")))
    monkeypatch.setattr(MutualTransport, "set_progress", lambda self, _: setattr(self, "_alpha", torch.tensor(0.0)))
    recipe = replace(smoke().figures[0].recipe, method="mte1", epochs=1)
    honest = diagnose(recipe)
    assert honest.loss_deviation < 1e-6

    forward = MutualTransport.forward

    def without_half(self, *inputs, **named):
        output = forward(self, *inputs, **named)
        output["loss"] = output["loss"] * 0.5
        return output

    monkeypatch.setattr(MutualTransport, "forward", without_half)
    wrong = diagnose(recipe)
    assert wrong.loss_deviation > 0.4
    assert wrong.gradient_deviation > 0.4


def test_a_loss_of_nan_is_seen():
    assert math.isnan(difference([{"training_loss": "1", "validation_nll": "nan"}], [ROW]))
    assert difference([ROW | {"training_loss": "3"}], [ROW]) == 2.0
    observer = Observer(torch.zeros(1, dtype=torch.int64), epochs=1)
    observer._gradients = {0: torch.full((1, 2), torch.nan)}
    observer._compare([np.ones((1, 2))])
    observer._gradients = {0: torch.ones(1, 2)}
    observer._compare([np.ones((1, 2))])
    assert math.isnan(observer.gradient_deviation)
