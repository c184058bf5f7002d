"""Predictions for `benchmarks.comparison`: those on which libraries agree, do not agree, and that are not valid."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import netcal.metrics
import netcal.scaling
import numpy as np
import relplot
import sklearn.metrics
import torch
import torch_uncertainty.metrics as tu
import torchmetrics.functional.classification as tm
from numpy.typing import NDArray
from torch import Tensor

from counterpoise import Scores, evaluate
from counterpoise.calibrators import TemperatureScaling

BINS, CLASSES, SAMPLES = 15, 10, 10_000


@dataclass(frozen=True)
class Case:
    """Predictions in the forms that libraries take."""

    logits: Tensor
    labels: Tensor

    @cached_property
    def scores(self) -> Scores:
        """What counterpoise measures."""
        return evaluate(logits=self.logits, labels=self.labels)

    @cached_property
    def probabilities(self) -> Tensor:
        """`[N, K]`."""
        return torch.softmax(self.logits, -1)

    @cached_property
    def confidence(self) -> Tensor:
        """Of the predicted class, `[N]`."""
        return self.probabilities.max(-1).values

    @cached_property
    def correct(self) -> Tensor:
        """1 where the prediction is right, `[N]`."""
        return (self.probabilities.argmax(-1) == self.labels).long()

    @cached_property
    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Probabilities and labels for NumPy."""
        return self.probabilities.numpy(), self.labels.numpy()

    @cached_property
    def top_arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Confidence and correctness for NumPy."""
        return self.confidence.numpy(), self.correct.double().numpy()


def miscalibrated(*, seed: int = 0) -> Case:
    """Logits 3 x standard normal, float64; labels that make them too sure above 60% and not sure enough below."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(SAMPLES, CLASSES, generator=generator, dtype=torch.float64)
    sure = torch.softmax(logits, -1).max(-1, keepdim=True).values > 0.6
    truth = torch.softmax(torch.where(sure, 0.6, 1.6) * logits, -1)
    return Case(logits, torch.multinomial(truth, 1, generator=generator).squeeze(-1))


def updated(metric: Any, *inputs: Tensor) -> float:
    """What a metric with the life cycle of torchmetrics gives for one batch."""
    metric.update(*inputs)
    return float(metric.compute())


def netcal_ece(confidence: NDArray[Any], outcome: NDArray[Any]) -> float:
    """From `[N]` of a binary problem, or `[N, K]` and labels."""
    return float(netcal.metrics.ECE(BINS).measure(confidence, outcome))


@dataclass(frozen=True)
class Difference:
    """An input on which libraries do not agree, and why."""

    about: str
    measure: str
    ours: float
    theirs: dict[str, float]
    reason: str


def differences(case: Case) -> list[Difference]:
    """Small inputs, each with the value of the definition used here and those of others."""

    def ece(probabilities: list[list[float]], labels: list[int], bins: int = BINS) -> float:
        return evaluate(probabilities=probabilities, labels=labels, bins=bins)["ece"].value

    def torchmetrics_ece(values: list[list[float]], labels: list[int], bins: int = BINS) -> float:
        return float(tm.multiclass_calibration_error(torch.tensor(values), torch.tensor(labels), 2, bins))

    def torch_uncertainty_ece(values: list[list[float]], labels: list[int], bins: int = BINS) -> float:
        metric = tu.CalibrationError("multiclass", num_bins=bins, num_classes=2)
        return updated(metric, torch.tensor(values), torch.tensor(labels))

    certain, half_right = [[0.95, 0.05], [1.0, 0.0]], [0, 1]
    on_edge, small_logits = [[0.75, 0.25], [0.8, 0.2]], [[0.9, 0.1], [0.2, 0.8]]
    two_classes = [[0.9, 0.1], [0.1, 0.9]]
    tied = torch.tensor([[0.9, 0.1]]).repeat(100, 1)
    wrong_last = torch.tensor([0] * 50 + [1] * 50)
    large = 3 * case.logits.float()
    netcal_scaling = netcal.scaling.TemperatureScaling().fit(*case.arrays)
    return [
        Difference(
            "a confidence of exactly 1",
            "ECE of 0.95 (right) and 1.0 (wrong)",
            ece(certain, half_right),
            {
                "torchmetrics": torchmetrics_ece(certain, half_right),
                "torch-uncertainty": torch_uncertainty_ece(certain, half_right),
                "relplot": float(relplot.metrics.binnedECE(np.array([0.95, 1.0]), np.array([1.0, 0.0]), BINS)),
            },
            "1.0 gets a bin of its own, a 16th; here it belongs to the last bin",
        ),
        Difference(
            "a confidence on an edge",
            "ECE in 4 bins of 0.75 (right) and 0.8 (wrong)",
            ece(on_edge, half_right, 4),
            {
                "torchmetrics": torchmetrics_ece(on_edge, half_right, 4),
                "torch-uncertainty": torch_uncertainty_ece(on_edge, half_right, 4),
                "netcal": float(netcal.metrics.ECE(4).measure(np.array([0.75, 0.8]), np.array([1, 0]))),
                "relplot": float(relplot.metrics.binnedECE(np.array([0.75, 0.8]), np.array([1.0, 0.0]), 4)),
            },
            "a convention: bins are [lo, hi) there and (lo, hi] here",
        ),
        Difference(
            "logits between 0 and 1",
            "ECE of logits (0.9, 0.1) and (0.2, 0.8), both right",
            evaluate(logits=small_logits, labels=[0, 1])["ece"].value,
            {
                "torchmetrics": torchmetrics_ece(small_logits, [0, 1]),
                "torch-uncertainty": torch_uncertainty_ece(small_logits, [0, 1]),
            },
            "whether they are logits is decided by the range of the batch; here by the name of the argument",
        ),
        Difference(
            "scores outside 0 and 1",
            "AUROC of errors by the largest logit, logits 9 x standard normal",
            evaluate(logits=large, labels=case.labels, score="max_logit")["auroc"].value,
            {"torchmetrics": float(tm.binary_auroc(large.max(-1).values, case.correct))},
            "they go through a sigmoid, which in float32 is 1 from about 17 on and makes ties",
        ),
        Difference(
            "two classes",
            "ECE of (0.9, 0.1) and (0.1, 0.9), both of class 1",
            ece(two_classes, [1, 1]),
            {"netcal": netcal_ece(np.array(two_classes), np.array([1, 1]))},
            "two columns are a binary problem there: the probability of class 1, not of the predicted class",
        ),
        Difference(
            "equal confidences",
            "AURC of 100 samples with one confidence, the right half first",
            evaluate(probabilities=tied, labels=wrong_last)["aurc"].value,
            {"torch-uncertainty": updated(tu.AURC(), tied, wrong_last)},
            "the order within ties counts there; here it is averaged over",
        ),
        Difference(
            "the kernel of smooth ECE",
            "the predictions above, all defaults",
            case.scores["smooth_ece"].value,
            {"torch-uncertainty": updated(tu.SmoothCalibrationError(), case.probabilities.float(), case.labels)},
            "a Gaussian over log-odds by default; relplot and counterpoise reflect one at 0 and 1",
        ),
        Difference(
            "what `temperature` says",
            "temperature scaling of the predictions above",
            float(TemperatureScaling().fit(case.logits, case.labels).temperature),
            {"netcal": float(netcal_scaling.temperature[0])},
            "the attribute holds 1/T; the calibrated probabilities are the same",
        ),
    ]


def invalid_inputs() -> dict[str, dict[str, str]]:
    """By fault and library: what happens to predictions that are none."""
    rows = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.5, 0.3, 0.2]]
    labels = [0, 1, 2, 0]
    faults = {
        "a NaN": ([[float("nan"), 0.2, 0.1], *rows[1:]], labels),
        "a row that sums to 1.3": ([[0.9, 0.3, 0.1], *rows[1:]], labels),
        "label 7 of 3 classes": (rows, [*labels[:3], 7]),
    }
    readers: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "counterpoise": lambda p, y: evaluate(probabilities=p, labels=y)["ece"].value,
        "torchmetrics": lambda p, y: tm.multiclass_calibration_error(p, y, 3, BINS),
        "torch-uncertainty": lambda p, y: updated(
            tu.CalibrationError("multiclass", num_bins=BINS, num_classes=3), p, y
        ),
        "netcal": lambda p, y: netcal_ece(p.numpy(), y.numpy()),
        "scikit-learn": lambda p, y: sklearn.metrics.brier_score_loss(y, p, labels=[0, 1, 2]),
        "relplot": lambda p, y: relplot.smECE(
            *relplot.multiclass_logits_to_confidences(p.numpy(), y.numpy(), probs=True)
        ),
    }
    return {
        fault: {name: outcome(partial(read, torch.tensor(p), torch.tensor(y))) for name, read in readers.items()}
        for fault, (p, y) in faults.items()
    }


def outcome(call: Callable[[], Any]) -> str:
    """Whether a call gives a number, and says that it should not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = call()
        except Exception:
            return "error"
    if any(issubclass(warning.category, UserWarning) for warning in caught):
        return "number, with a warning"
    return "NaN" if math.isnan(float(value)) else "number"
