"""Whether a run of MTE did what its equations say: `python -m benchmarks.diagnosis [--results FOLDER] [--cell ID]`.

A cell of a kept study is trained again, which gives the same run, bit for bit on the same kind of machine; the loss and
the validation NLL of every epoch are compared with the kept learning curve. Meanwhile

- the loss of every step, and its gradients with respect to the logits of every model, are compared with the closed form
  in float64: `CE(f, y) + alpha (1/N) sum_i KL(g_i || f) + sum_i KL(f || g_i)`, constants first;
- the accuracy and NLL of all models on training batches and validation images are recorded, epoch by epoch.

By default the cell is MTE-1 in the setting of the study's figures, at the chosen alpha and the first seed.
"""

import argparse
import csv
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from benchmarks.reporting import Check, finish, progress
from counterpoise.objectives import is_objective
from counterpoise.recipes.config import Recipe
from counterpoise.training.data import named_data
from counterpoise.training.folder import RunFolder
from counterpoise.training.progress import quiet
from counterpoise.training.run import train
from counterpoise_study.collected import collect
from counterpoise_study.record import CellRecord
from counterpoise_study.scales import smoke
from counterpoise_study.store import Store

Array = npt.NDArray[np.float64]

STUDY, METHOD = "scatter", "mte1"
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = {"bfloat16": 2.0**-7, "float32": 1e-5}
"""Of the largest entry; gradients of logits are rounded to the precision of training."""


@dataclass(frozen=True)
class Curve:
    """How far a model is after an epoch: on the batches of that epoch, as they were trained on, and held out."""

    training_accuracy: float
    training_nll: float
    validation_accuracy: float
    validation_nll: float


@dataclass(frozen=True)
class Diagnosis:
    """What came of watching a run.

    Attributes:
        steps: that were watched.
        loss_deviation: largest difference of a loss to its closed form, relative to it.
        gradient_deviation: largest difference of a gradient to its closed form, relative to the largest entry.
        curves: of every model, the primary first; one for each epoch.
        epochs: rows of the learning curve that the run itself has written.
    """

    steps: int
    loss_deviation: float
    gradient_deviation: float
    curves: list[list[Curve]]
    epochs: list[dict[str, str]]


class Observer:
    """Looks at every pass of the models of a run, and changes nothing."""

    def __init__(self, validation_labels: Tensor, *, epochs: int) -> None:
        self.labels, self.epochs = validation_labels, epochs
        self.models: Sequence[nn.Module] = ()
        self.steps, self.loss_deviation, self.gradient_deviation = 0, 0.0, 0.0
        self.curves: list[list[Curve]] = []
        self._handles: list[RemovableHandle] = []
        self._logits: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._trained: list[list[tuple[int, float, int]]] = []
        self._validated: list[list[Tensor]] = []

    def begin(self, module: nn.Module, _inputs: Any) -> None:
        """Before a pass of any module: the first of an objective shows which models there are."""
        if not is_objective(module) or self.models:
            return
        self.models = list(module.models)  # type: ignore[arg-type]
        self.curves = [[] for _ in self.models]
        self._forget()
        for index, model in enumerate(self.models):
            self._handles.append(model.register_forward_hook(partial(self._passed, index)))

    def _forget(self) -> None:
        self._trained = [[] for _ in self.models]
        self._validated = [[] for _ in self.models]

    def _passed(self, index: int, model: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        if model.training:
            self._logits[index] = logits.detach()
            logits.register_hook(partial(self._gradients.__setitem__, index))  # type: ignore[no-untyped-call]
            return
        self._validated[index].append(logits.detach().float())
        if index == 0:
            # Validation runs the primary alone; the others see the same images in the same mode.
            for other in self.models[1:]:
                other(*inputs)
            if sum(map(len, self._validated[0])) == len(self.labels):
                self._end_epoch()

    def end(self, module: nn.Module, _inputs: Any, named: dict[str, Any], output: Any) -> None:
        """After a pass of any module: the loss of an objective, and, when they are there, its gradients."""
        if not is_objective(module) or not module.training:
            return
        labels, loss = named["labels"], output["loss"]
        logits = [self._logits[index] for index in range(len(self.models))]
        alpha = output.parts["alpha"].item()
        expected, gradients = closed_form([each.double().numpy() for each in logits], labels.numpy(), alpha=alpha)
        # By NumPy's maximum, which passes NaN on.
        self.loss_deviation = float(np.maximum(self.loss_deviation, abs(loss.item() - expected) / expected))
        # Gradients of logits are known when the backward pass is over, which begins with that of the loss.
        engine = torch.autograd.Variable._execution_engine
        loss.register_hook(lambda _: engine.queue_callback(lambda: self._compare(gradients)))
        for model, each in enumerate(logits):
            hits = int((each.argmax(-1) == labels).sum())
            nll = nn.functional.cross_entropy(each.float(), labels, reduction="sum").item()
            self._trained[model].append((hits, nll, len(labels)))
        self.steps += 1

    def _compare(self, expected: list[Array]) -> None:
        for index, gradient in enumerate(expected):
            found = self._gradients[index].double().numpy()
            deviation = np.abs(found - gradient).max() / np.abs(gradient).max()
            self.gradient_deviation = float(np.maximum(self.gradient_deviation, deviation))

    def _end_epoch(self) -> None:
        for index in range(len(self.models)):
            logits = torch.cat(self._validated[index])
            hits, nll, count = (sum(column) for column in zip(*self._trained[index], strict=True))
            self.curves[index].append(
                Curve(
                    training_accuracy=hits / count,
                    training_nll=nll / count,
                    validation_accuracy=(logits.argmax(-1) == self.labels).double().mean().item(),
                    validation_nll=nn.functional.cross_entropy(logits.double(), self.labels).item(),
                )
            )
        self._forget()
        if len(self.curves[0]) == self.epochs:  # what follows are predictions
            for handle in self._handles:
                handle.remove()
        progress(f"epoch {len(self.curves[0])}: {asdict(self.curves[0][-1])}")


def closed_form(logits: Sequence[Array], labels: Array, *, alpha: float) -> tuple[float, list[Array]]:
    """The loss of a batch and its gradients with respect to logits `[n, K]`, in float64, the primary first."""
    logs = [each - np.logaddexp.reduce(each, axis=-1, keepdims=True) for each in logits]
    primary, *auxiliaries = (np.exp(each) for each in logs)
    count = len(labels)
    rows = np.arange(count)
    loss = -logs[0][rows, labels].mean()
    gradient = primary.copy()
    gradient[rows, labels] -= 1
    gradients = [gradient]
    for probabilities, log in zip(auxiliaries, logs[1:], strict=True):
        share = alpha / len(auxiliaries)
        loss += share * (probabilities * (log - logs[0])).sum(-1).mean()
        loss += (primary * (logs[0] - log)).sum(-1).mean()
        gradient += share * (primary - probabilities)
        gradients.append(probabilities - primary)
    return float(loss), [each / count for each in gradients]


def diagnose(recipe: Recipe) -> Diagnosis:
    """Train, and watch; nothing is predicted or scored afterwards."""
    data = replace(named_data(recipe), test=None, ood={})
    observer = Observer(data.validation.labels, epochs=recipe.epochs)
    handles = [
        register_module_forward_pre_hook(observer.begin),
        register_module_forward_hook(observer.end, with_kwargs=True),
    ]
    try:
        with tempfile.TemporaryDirectory() as temporary, quiet():
            train(recipe, temporary, data=data, page=False)
            epochs = read_curve(RunFolder(Path(temporary)))
    finally:
        for handle in handles:
            handle.remove()
    return Diagnosis(observer.steps, observer.loss_deviation, observer.gradient_deviation, observer.curves, epochs)


def read_curve(run: RunFolder) -> list[dict[str, str]]:
    """The rows of `epochs.csv`."""
    with run.epochs.open() as file:
        return list(csv.DictReader(file))


def difference(first: Sequence[dict[str, str]], second: Sequence[dict[str, str]]) -> float:
    """Largest difference of two learning curves: losses of training, and NLL of the validation images."""
    names = ("training_loss", "validation_nll")
    pairs = [(float(a[name]), float(b[name])) for a, b in zip(first, second, strict=True) for name in names]
    return float(np.abs(np.subtract(*np.transpose(pairs))).max())


def first_cell(store: Store, method: str) -> str:
    """The run of a method with the chosen hyper-parameters and the first seed, in the setting of the figures."""
    (study,) = collect(store, studies=[STUDY])
    (row,) = (row for row in study.groups[0].rows if row.line.method == method)
    return row.runs[0].cell.id


def main() -> None:
    """Train again and watch, print JSON, compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("study/results"), help="folder of a kept study")
    parser.add_argument("--cell", help="id of the cell; it must be a complete one, of MTE")
    parser.add_argument("--short", action="store_true", help="a run of the smoke scale, beside which nothing is kept")
    options = parser.parse_args()
    if options.short:
        cell, kept = "", None
        recipe = replace(smoke().figures[0].recipe, method=METHOD)
    else:
        store = Store(options.results)
        cell = options.cell or first_cell(store, METHOD)
        recipe = CellRecord.from_json(store.record_file(cell).read_text()).recipe
        kept = read_curve(store.run_folder(cell))
    found = diagnose(recipe)
    figures = {
        "cell": cell,
        "method": recipe.method,
        "hyper": recipe.choice,
        "seed": recipe.seed,
        "steps": found.steps,
        "curves": [[asdict(each) for each in model] for model in found.curves],
    }
    checks = [
        Check("loss against its closed form, relative", found.loss_deviation, at_most=LOSS_TOLERANCE),
        Check(
            "gradients of logits against their closed form, relative to the largest",
            found.gradient_deviation,
            at_most=GRADIENT_TOLERANCE[recipe.engine.precision],
        ),
    ]
    if kept is not None:
        checks.append(Check("learning curve against the kept one", difference(found.epochs, kept), at_most=0.0))
    finish("python -m benchmarks.diagnosis", figures, checks)


if __name__ == "__main__":
    main()
