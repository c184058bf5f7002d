"""The same predictions through other libraries: `python -m benchmarks.comparison [--short]`.

Every measure that counterpoise shares with torchmetrics, torch-uncertainty, net:cal, scikit-learn or relplot, on
predictions where all must agree; inputs on which they are known not to, each with its reason; what each does with
predictions that are not valid; and how often an interval for ECE contains the truth. The limits hold agreement and
disagreement alike, so that a change in another library is noticed.
"""

import argparse
import logging
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import netcal.metrics
import netcal.scaling
import numpy as np
import relplot
import sklearn.metrics
import torch
import torch_uncertainty.metrics as tu
import torchmetrics.classification
import torchmetrics.functional.classification as tm
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torch_uncertainty.post_processing import TemperatureScaler
from torchmetrics.wrappers import BootStrapper

from benchmarks.comparison_cases import (
    BINS,
    CLASSES,
    SAMPLES,
    Case,
    differences,
    invalid_inputs,
    miscalibrated,
    netcal_ece,
    updated,
)
from benchmarks.reporting import Check, finish, progress
from counterpoise import Stream
from counterpoise.calibrators import TemperatureScaling
from counterpoise.metrics import Key, TopLabelCalibration

LIBRARIES = ("torchmetrics", "torch-uncertainty", "netcal", "scikit-learn", "relplot")
TOLERANCE = 1e-6
"""Largest difference between two libraries: some sum in float32."""
LOOSER = {Key.EQUAL_MASS_ECE: 1e-3, Key.SMOOTH_ECE: 1e-3, Key.AURC: 1e-4}
"""Where the definition leaves something open: `tools.comparison_tables` says what."""
TRIALS, TRIAL_SAMPLES, RESAMPLES = 20, 1_000, 100


def main() -> None:
    """Measure and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="without the intervals, for CI")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    case = miscalibrated()
    progress("measures on which all agree")
    agreement = agreements(case)
    progress("temperatures")
    temperature = temperatures(case)
    progress("inputs on which they differ")
    differing = differences(case)
    figures = {
        "libraries": {name: version(name) for name in LIBRARIES},
        "samples": SAMPLES,
        "classes": CLASSES,
        "agreement": agreement,
        "temperature": temperature,
        "differences": [asdict(row) for row in differing],
        "invalid": invalid_inputs(),
    }
    if not options.short:
        contains = {f"{error:g}": intervals(error) for error in (0.0, 0.1)}
        figures["intervals"] = {"trials": TRIALS, "samples": TRIAL_SAMPLES, "contains": contains}
    checks = [
        Check(f"{key}: difference to {name}", difference, at_most=LOOSER.get(Key(key), TOLERANCE))
        for key, row in agreement.items()
        for name, difference in row["differences"].items()
    ]
    checks += [
        Check(f"NLL lost by the temperature of {name}", found["excess_nll"], at_most=1e-6)
        for name, found in temperature.items()
    ]
    checks += [
        Check(f"{row.about}: {name} still differs", abs(value - row.ours), at_least=1e-4)
        for row in differing
        for name, value in row.theirs.items()
    ]
    finish("python -m benchmarks.comparison" + (" --short" if options.short else ""), figures, checks)


def class_by_class(binary: Callable[[Tensor, Tensor], float], case: Case) -> float:
    """Mean over classes of a binary measure."""
    return float(np.mean([binary(case.probabilities[:, k], (case.labels == k).long()) for k in range(CLASSES)]))


def sklearn_fpr(case: Case) -> float:
    """The library has the curve, but no function for a point of it."""
    fpr, tpr, _ = sklearn.metrics.roc_curve(case.correct, case.confidence, drop_intermediate=False)
    return float(fpr[tpr >= 0.95].min())


OTHERS: dict[Key, dict[str, Callable[[Case], float]]] = {
    Key.ECE: {
        "torchmetrics": lambda c: float(tm.multiclass_calibration_error(c.probabilities, c.labels, CLASSES, BINS)),
        "torch-uncertainty": lambda c: updated(
            tu.CalibrationError("multiclass", num_bins=BINS, num_classes=CLASSES), c.probabilities, c.labels
        ),
        "netcal": lambda c: netcal_ece(*c.arrays),
        "relplot": lambda c: float(relplot.metrics.binnedECE(*c.top_arrays, nbins=BINS)),
    },
    Key.CLASSWISE_ECE: {
        "torchmetrics": lambda c: class_by_class(lambda p, y: float(tm.binary_calibration_error(p, y, BINS)), c),
        "torch-uncertainty": lambda c: updated(
            tu.ClasswiseCalibrationError(CLASSES, num_bins=BINS), c.probabilities, c.labels
        ),
        "netcal": lambda c: class_by_class(lambda p, y: netcal_ece(p.numpy(), y.numpy()), c),
    },
    Key.EQUAL_MASS_ECE: {
        "torch-uncertainty": lambda c: updated(
            tu.AdaptiveCalibrationError("multiclass", num_bins=BINS, num_classes=CLASSES), c.probabilities, c.labels
        ),
        "netcal": lambda c: float(netcal.metrics.ECE(BINS, equal_intervals=False).measure(*c.arrays)),
    },
    Key.SMOOTH_ECE: {
        # It takes float32 only.
        "torch-uncertainty": lambda c: updated(
            tu.SmoothCalibrationError(kernel_type="reflected"), c.probabilities.float(), c.labels
        ),
        "relplot": lambda c: float(relplot.smECE(*c.top_arrays)),
    },
    Key.NLL: {
        "torch-uncertainty": lambda c: updated(tu.CategoricalNLL(), c.probabilities, c.labels),
        "scikit-learn": lambda c: float(sklearn.metrics.log_loss(c.labels, c.probabilities)),
    },
    Key.BRIER: {
        "torch-uncertainty": lambda c: updated(tu.BrierScore(CLASSES), c.probabilities, c.labels),
        "scikit-learn": lambda c: float(sklearn.metrics.brier_score_loss(c.labels, c.probabilities)),
    },
    Key.AUROC: {
        "torchmetrics": lambda c: float(tm.binary_auroc(c.confidence, c.correct)),
        "scikit-learn": lambda c: float(sklearn.metrics.roc_auc_score(c.correct, c.confidence)),
    },
    Key.FPR_AT_TPR95: {
        "torchmetrics": lambda c: (
            1 - float(tm.binary_specificity_at_sensitivity(c.confidence, c.correct, min_sensitivity=0.95)[0])
        ),
        "torch-uncertainty": lambda c: updated(tu.FPR95(pos_label=1), c.confidence, c.correct),
        "scikit-learn": sklearn_fpr,
    },
    Key.AURC: {"torch-uncertainty": lambda c: updated(tu.AURC(), c.probabilities, c.labels)},
}
"""Which library has which measure, and how it is called there."""


def agreements(case: Case) -> dict[str, dict[str, Any]]:
    """By measure: our value, and how far each other library is from it."""
    return {
        str(key): {
            "ours": case.scores[key].value,
            "differences": {name: abs(value(case) - case.scores[key].value) for name, value in row.items()},
        }
        for key, row in OTHERS.items()
    }


class PassedOn(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logits in, logits out: what scikit-learn's calibration needs around them."""

    def fit(self, logits: NDArray[Any], labels: NDArray[Any]) -> "PassedOn":
        """Take note of the classes."""
        del logits
        self.classes_ = np.unique(labels)
        return self

    def decision_function(self, logits: NDArray[Any]) -> NDArray[Any]:
        """The logits."""
        return logits

    def predict(self, logits: NDArray[Any]) -> NDArray[Any]:
        """The class of the largest."""
        return np.asarray(self.classes_[logits.argmax(-1)])


def temperatures(case: Case) -> dict[str, dict[str, float]]:
    """By library: the temperature T it fits, and the mean NLL at T beyond that of the best T."""
    logits, labels = case.logits.numpy(), case.labels.numpy()
    scaler = TemperatureScaler()
    scaler.fit(DataLoader(TensorDataset(case.logits, case.labels), batch_size=SAMPLES), progress=False)
    sklearn_model = CalibratedClassifierCV(FrozenEstimator(PassedOn().fit(logits, labels)), method="temperature")
    sklearn_model.fit(logits, labels)
    found = {
        "counterpoise": float(TemperatureScaling().fit(case.logits, case.labels).temperature),
        "torch-uncertainty": float(scaler.temperature[0].detach()),
        "netcal": 1 / float(netcal.scaling.TemperatureScaling().fit(*case.arrays).temperature[0]),
        "scikit-learn": 1 / float(sklearn_model.calibrated_classifiers_[0].calibrators[0].beta_),
    }
    nll = {name: float(torch.nn.functional.cross_entropy(case.logits / t, case.labels)) for name, t in found.items()}
    best = min(nll.values())
    return {name: {"temperature": found[name], "excess_nll": nll[name] - best} for name in found}


def intervals(error: float) -> dict[str, int]:
    """In how many trials the 95% interval of ECE contains the truth; each right with probability confidence - error."""
    progress(f"intervals at a true ECE of {error:.0%}")
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    covered = {"counterpoise": 0, "torchmetrics": 0}
    for _ in range(TRIALS):
        confidence = 0.6 + 0.4 * torch.rand(TRIAL_SAMPLES, generator=generator)
        labels = (torch.rand(TRIAL_SAMPLES, generator=generator) >= confidence - error).long()
        probabilities = torch.stack([confidence, 1 - confidence], -1)
        stream = Stream(TopLabelCalibration(bins=BINS))
        stream.update(probabilities=probabilities, labels=labels)
        ours = stream.compute()[Key.ECE]
        covered["counterpoise"] += ours.low <= error <= ours.high
        bootstrap = BootStrapper(
            torchmetrics.classification.MulticlassCalibrationError(2, n_bins=BINS),
            num_bootstraps=RESAMPLES,
            quantile=torch.tensor([0.025, 0.975]),
            sampling_strategy="multinomial",
        )
        bootstrap.update(probabilities, labels)
        low, high = bootstrap.compute()["quantile"].tolist()
        covered["torchmetrics"] += low <= error <= high
    return covered


if __name__ == "__main__":
    main()
