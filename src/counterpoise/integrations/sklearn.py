"""A mutual-transport ensemble as a scikit-learn classifier: for pipelines, searches and cross-validation."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoise._arrays import as_tensor
from counterpoise._extras import require
from counterpoise.calibrators import FitState, TemperatureScaling
from counterpoise.metrics import Scores, evaluate
from counterpoise.objectives import AlphaSchedule, MutualTransport
from counterpoise.objectives.models import call_for_logits

_require = partial(require, extra="sklearn", purpose="the scikit-learn classifier")
_base = _require("sklearn.base")
_model_selection = _require("sklearn.model_selection")
_multiclass = _require("sklearn.utils.multiclass")
_validation = _require("sklearn.utils.validation")

ModuleFactory = Callable[[int, int], nn.Module]
"""Makes a model from the number of features and the number of classes: `[n, features]` to logits `[n, classes]`."""

_PREDICTED_TOGETHER = 4096
"""Rows in one pass of the network."""


def multilayer_perceptron(features: int, classes: int, *, width: int = 128) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )


class MutualTransportClassifier(_base.ClassifierMixin, _base.BaseEstimator):  # type: ignore[misc, name-defined]
    """A network trained by `MutualTransport` with SGD; the auxiliaries are gone after `fit`.

    Features should be scaled (`StandardScaler`), as for any network. The same data and integer `random_state` give the
    same model, on one machine with one number of threads; torch's global random state is left as it was.

    Args:
        primary: factory of the model that predicts, called with the numbers of features and classes; by default
            `multilayer_perceptron`.
        auxiliaries: a factory, or a sequence of them; by default one perceptron of half the width. An empty sequence
            is plain cross-entropy.
        alpha: weight of the pull towards the auxiliaries; a number, or a function of progress in [0, 1].
        lr: learning rate of the primary.
        auxiliary_lr: learning rate of the auxiliaries.
        momentum: of SGD.
        weight_decay: of SGD.
        epochs: passes over the data.
        batch_size: samples a step, at most.
        validation_fraction: share of the samples, stratified by class, that are not trained on: a temperature is fitted
            to them. 0 for none.
        device: that is trained and predicted on.
        random_state: decides initial weights, order of samples, dropout, and which samples are for validation.

    Attributes:
        classes_: the labels, sorted.
        n_features_in_: number of features.
        primary_: the trained model, in evaluation mode.
        calibrator_: the fitted `TemperatureScaling`, or None.

    >>> X, y = np.random.default_rng(0).normal(size=(60, 2)), ["left", "right"] * 30
    >>> classifier = MutualTransportClassifier(epochs=2, random_state=0).fit(X, y)
    >>> classifier.predict_proba(X).shape, classifier.classes_.tolist()
    ((60, 2), ['left', 'right'])
    """

    def __init__(
        self,
        *,
        primary: ModuleFactory | None = None,
        auxiliaries: ModuleFactory | Sequence[ModuleFactory] | None = None,
        alpha: float | AlphaSchedule = 0.8,
        lr: float = 0.1,
        auxiliary_lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        epochs: int = 100,
        batch_size: int = 100,
        validation_fraction: float = 0.0,
        device: str | torch.device = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.primary = primary
        self.auxiliaries = auxiliaries
        self.alpha = alpha
        self.lr = lr
        self.auxiliary_lr = auxiliary_lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.epochs = epochs
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on `[n, features]` and `[n]`; a sample of weight 0 is as good as absent.

        Weights act on every term of the loss. The temperature is fitted to validation samples of equal weight.
        """
        self._forget_last_fit()
        _require_at_least_one("epochs", self.epochs)
        _require_at_least_one("batch_size", self.batch_size)
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction is a share of the samples, at least 0 and below 1, got {self.validation_fraction}"
            )
        samples, y = _validation.validate_data(self, X, y, dtype=np.float32)
        _multiclass.check_classification_targets(y)
        weight = _validation._check_sample_weight(sample_weight, samples, dtype=np.float32)
        if weight.min() < 0 or weight.max() == 0:
            raise ValueError("sample_weight must be at least 0 everywhere, and above 0 somewhere")
        counted = weight > 0
        self.classes_, labels = np.unique(y[counted], return_inverse=True)
        columns = [samples[counted], labels, weight[counted]]
        seed = _validation.check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        validation = None
        if self.validation_fraction:
            if len(self.classes_) < 2:
                raise ValueError(
                    "a temperature is fitted to the validation samples, which one class alone does not need: set "
                    "validation_fraction=0"
                )
            split = _model_selection.train_test_split(
                *columns, test_size=self.validation_fraction, stratify=labels, random_state=seed
            )
            columns, validation = split[0::2], split[1::2]
        # Every device is forked, because `torch.manual_seed` seeds every one.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            objective = self._objective(features=samples.shape[1])
            _require_logits(objective, samples[:1], classes=len(self.classes_))
            optimizer = torch.optim.SGD(
                objective.parameter_groups(lr=self.lr, auxiliary_lr=self.auxiliary_lr),
                momentum=self.momentum,
                weight_decay=self.weight_decay,
            )
            tensors = [as_tensor(column, "samples").to(self.device) for column in columns]
            train(objective, optimizer, *tensors, epochs=self.epochs, batch_size=self.batch_size)
        primary = objective.primary.eval()
        self.calibrator_ = (
            None if validation is None else _fitted_temperature(_logits(primary, validation[0]), validation[1])
        )
        self.primary_ = primary
        return self

    def _forget_last_fit(self) -> None:
        """So that a fit that fails leaves no classifier, and not the network of one fit with the classes of another."""
        for name in ("primary_", "calibrator_", "classes_"):
            if hasattr(self, name):
                delattr(self, name)

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Log-probabilities `[n, classes]`, at the fitted temperature if there is one."""
        _validation.check_is_fitted(self, "primary_")
        logits = _logits(self.primary_, _validation.validate_data(self, X, dtype=np.float32, reset=False))
        log_probabilities = torch.log_softmax(logits, -1) if self.calibrator_ is None else self.calibrator_(logits)
        return log_probabilities.numpy()

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities `[n, classes]`, in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each sample."""
        most_probable = self.predict_log_proba(X).argmax(-1)
        predicted: NDArray[Any] = self.classes_[most_probable]
        return predicted

    def evaluate(self, X: Any, y: Any) -> Scores:
        """Accuracy, calibration and misclassification detection, with intervals, on samples that were not fitted to."""
        log_probabilities = self.predict_log_proba(X)
        y = _validation.column_or_1d(y)
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            row = int(unknown.argmax())
            raise ValueError(f"y row {row} is {y[row]!r}, a class that the classifier was not fitted to")
        if len(self.classes_) < 2:
            raise ValueError("the classifier was fitted to one class alone: there is nothing to evaluate")
        names = np.array([str(name) for name in self.classes_])
        # By name: of classes such as 1 to 3, a label 1 could also be a place.
        return evaluate(
            logits=log_probabilities, labels=names[np.searchsorted(self.classes_, y)], class_names=names.tolist()
        )

    def _objective(self, *, features: int) -> MutualTransport:
        auxiliaries = self.auxiliaries if self.auxiliaries is not None else partial(multilayer_perceptron, width=64)
        factories = [auxiliaries] if callable(auxiliaries) else auxiliaries
        primary = (self.primary or multilayer_perceptron)(features, len(self.classes_))
        built = [factory(features, len(self.classes_)) for factory in factories]
        return MutualTransport(primary, built, alpha=self.alpha).to(self.device)


def train(
    objective: MutualTransport,
    optimizer: torch.optim.Optimizer,
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    *,
    epochs: int,
    batch_size: int,
) -> None:
    """Pass over the samples `epochs` times, in an order drawn from torch's global random state.

    Batches of an epoch differ by at most one sample, and have at least two where there are two and `batch_size` is not
    1: a batch of one would break batch normalisation. The loss of a batch is a weighted mean; times the mean weight
    of the batch, relative to that of all samples, it counts each sample as its weight says, whatever its batch.
    """
    objective.train()
    batches = -(-len(features) // batch_size)
    if batch_size > 1:
        batches = min(batches, max(1, len(features) // 2))
    relative = weight / weight.mean()
    for epoch in range(epochs):
        order = torch.randperm(len(features)).to(features.device)
        for batch, rows in enumerate(order.tensor_split(batches)):
            objective.set_progress((epoch + batch / batches) / epochs)
            loss = objective(features[rows], labels=labels[rows], sample_weight=weight[rows]).loss
            assert loss is not None  # noqa: S101
            (loss * relative[rows].mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    if not all(bool(parameter.isfinite().all()) for parameter in objective.primary.parameters()):
        raise ValueError("training diverged: scale the features (StandardScaler in a Pipeline), or lower lr")


def _logits(model: nn.Module, samples: NDArray[np.float32]) -> Tensor:
    """On the host, and in float64, in which confidences near 1 are still told apart."""
    device = next(model.parameters(), torch.zeros(())).device
    with torch.no_grad():
        parts = torch.split(as_tensor(samples, "X"), _PREDICTED_TOGETHER)
        logits = [call_for_logits(model, [part.to(device)], {}).cpu() for part in parts]
    return torch.cat(logits).double()


def _require_logits(objective: MutualTransport, sample: NDArray[np.float32], *, classes: int) -> None:
    """Refuse a primary that has not one logit for each class, as that of a factory that was not asked how many."""
    objective.eval()
    for name, model in (("primary", objective.primary), *(("auxiliary", each) for each in objective.auxiliaries)):
        shape = list(_logits(model, sample).shape)
        if shape != [1, classes]:
            raise ValueError(
                f"the {name} returned logits of shape {shape} for one sample, expected [1, {classes}]: its factory "
                "is called with the number of features and the number of classes"
            )


def _fitted_temperature(logits: Tensor, labels: NDArray[Any]) -> TemperatureScaling:
    scaling = TemperatureScaling().fit(logits, labels)
    if scaling.state == FitState.AT_LOWEST_TEMPERATURE:
        raise ValueError(
            f"of {len(labels)} validation samples so many are classified correctly that every lower temperature, "
            "down to the lowest allowed, fits them better: hold out more samples, or none with validation_fraction=0"
        )
    return scaling


def _require_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
