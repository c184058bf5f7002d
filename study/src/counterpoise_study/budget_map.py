"""The map of data and budget: where does a method pay? Each cell is one training in a plain loop and one JSON row.

`python -m counterpoise_study.budget_map run STORE` trains what is left to train; several at a time share the work.
Hyper-parameters are chosen at the tuning seed, by the NLL of the validation images after temperature scaling.
"""

import argparse
import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from counterpoise import evaluate
from counterpoise.calibrators import TemperatureScaling
from counterpoise.data import Augmentation, Images, MemoryLoader, Mixing, hold_out, load_images
from counterpoise.data.augment import normalised
from counterpoise.models import Backbone, build_model
from counterpoise.recipes.methods import METHODS
from counterpoise.recipes.savings import with_savings

BATCH, VALIDATION, MIXUP, AVERAGING = 100, 5000, 0.2, 0.999
LEARNING_RATE, AUXILIARY_RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.01, 0.9, 5e-4
MILESTONES = (150 / 350, 200 / 350, 250 / 350, 300 / 350)
"""Shares of the training after which the learning rate is multiplied by 0.1, as in the paper."""

LOOKS = 25
"""Times that the validation images are predicted in a training."""

LARGEST_ALPHA = 1.2
TUNING_SEED = 100
SEEDS = (0, 1, 2)
ALPHAS = (0.2, 0.4, 0.8, 1.2)
GRIDS: Mapping[str, tuple[float, ...]] = {
    "pskd": (0.5, 0.7, 0.9),
    "dml": ALPHAS,
    "mte1": ALPHAS,
    "mte-lite": ALPHAS,
    "mte-lite-gap": (0.2, 0.4, 0.8),
}
"""Values to choose from: PS-KD's weight; alpha; the gap in nats at which an alpha that follows it is at its largest."""

METHOD_NAMES = ("ce", "mixup", *GRIDS)
SCHEMA = "counterpoise.budget-map/1"


@dataclass(frozen=True)
class MapSetting:
    """What methods are compared in.

    Attributes:
        images: that are trained on.
        presented: images over all epochs, each as often as it is presented.
        size: side of an image in pixels.
        primary: name of the network that ships.
        auxiliary: name of the network of auxiliaries and peers.
    """

    images: int
    presented: int = 500_000
    size: int = 16
    primary: str = "resnet10"
    auxiliary: str = "resnet10"

    @property
    def steps(self) -> int:
        return self.presented // BATCH


@dataclass(frozen=True)
class MapCell:
    """One training; `value` is that of its method's hyper-parameter, None where there is none."""

    setting: MapSetting
    method: str
    value: float | None
    seed: int

    @property
    def id(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        value = "" if self.value is None else f" {self.value:g}"
        return f"{self.setting.images:,} images, {self.method}{value}, seed {self.seed}"


SETTINGS = (
    MapSetting(10_000),
    MapSetting(2_500),
    MapSetting(40_000),
    MapSetting(10_000, presented=2_000_000),
)
"""In the order in which they are run."""


def cells_of(setting: MapSetting, rows: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]) -> Iterator[MapCell]:
    """Cells of a setting that can be named now: what chooses a hyper-parameter, then seed by seed."""
    for method, grid in GRIDS.items():
        yield from (MapCell(setting, method, value, TUNING_SEED) for value in grid)
    for seed in seeds:
        for method in METHOD_NAMES:
            if method not in GRIDS:
                yield MapCell(setting, method, None, seed)
            elif (value := chosen_value(setting, method, rows)) is not None:
                yield MapCell(setting, method, value, seed)


def chosen_value(setting: MapSetting, method: str, rows: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The value with the lowest validation NLL after scaling; None while a training that chooses is missing."""
    cells = [MapCell(setting, method, value, TUNING_SEED) for value in GRIDS[method]]
    if not all(cell.id in rows for cell in cells):
        return None
    return min(cells, key=lambda cell: float(rows[cell.id]["models"]["last"]["validation"]["scaled_nll"])).value


def run_cell(cell: MapCell, *, root: Path | None) -> dict[str, Any]:
    """Train, and measure the last weights and their moving average."""
    training, validation, test = _parts(cell.setting, cell.seed, root)
    objective = _objective(cell, classes=len(training.classes))
    average = AveragedModel(objective.primary, multi_avg_fn=get_ema_multi_avg_fn(AVERAGING), use_buffers=True)  # type: ignore[no-untyped-call]
    curve = _train(cell, objective, average, training, validation)
    models = {"last": objective.primary}
    if cell.method == "ce":
        models["averaged"] = average.module
    return {
        "curve": curve,
        "models": {name: _measured(model, training, validation, test) for name, model in models.items()},
    }


def _parts(setting: MapSetting, seed: int, root: Path | None) -> tuple[Images, Images, Images]:
    """Images for training, validation and test; the seed decides which are which."""
    images, test = _loaded("train", setting.size, root), _loaded("test", setting.size, root)
    rest, held = hold_out(len(images), size=VALIDATION, seed=seed)
    _, kept = hold_out(len(rest), size=setting.images, seed=seed)
    return images.take(rest[kept]), images.take(held), test


@cache
def _loaded(split: str, size: int, root: Path | None) -> Images:
    return load_images("cifar10", split, root=root, size=size)


def _objective(cell: MapCell, *, classes: int) -> Any:
    """The method over networks whose first weights the seed decides, those of the primary alike for all methods."""
    method = METHODS[{"mixup": "ce", "mte-lite-gap": "mte-lite"}.get(cell.method, cell.method)]
    names = [cell.setting.primary, *[cell.setting.auxiliary] * (method.models - 1)]
    networks = [
        build_model(Backbone(name, width=16), classes=classes, seed=1000 * index + cell.seed)
        for index, name in enumerate(names)
    ]
    models = with_savings(networks, method.savings) if method.savings is not None else networks
    if cell.method in ("mte1", "mte-lite", "mte-lite-gap"):
        alpha = 0.0 if cell.method == "mte-lite-gap" else cell.value
        return method.build(models, alpha=alpha, alpha_warmup=0.0)
    hyper = {} if cell.value is None else {"weight" if cell.method == "pskd" else "alpha": cell.value}
    return method.build(models, **hyper)


def _train(
    cell: MapCell, objective: Any, average: AveragedModel, training: Images, validation: Images
) -> list[dict[str, float]]:
    """A plain loop; one entry of the curve for each look at the validation images."""
    steps = cell.setting.steps
    optimizer = _optimizer(cell, objective)
    curve: list[dict[str, float]] = []
    losses: list[Tensor] = []
    objective.train()
    for step, batch in enumerate(_batches(cell, training, steps)):
        factor = 0.1 ** sum(step / steps >= milestone for milestone in MILESTONES)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * (factor if group["follows"] else 1.0)
        if hasattr(objective, "set_progress"):
            objective.set_progress(step / steps)
        told = {"ids": batch.ids} if getattr(objective, "needs_ids", False) else {}
        output = objective(batch.images, labels=batch.labels, **told)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        average.update_parameters(objective.primary)
        losses.append(F.cross_entropy(output.logits.detach(), batch.labels))
        if (step + 1) % (steps // LOOKS) == 0:
            seen = {"step": step + 1.0, "training_nll": float(torch.stack(losses).mean())}
            seen["validation_nll"] = _nll(_logits(objective.primary, validation), validation.labels)
            curve.append(seen)
            losses.clear()
            objective.train()
            if cell.method == "mte-lite-gap":
                gap = seen["validation_nll"] - seen["training_nll"]
                objective.alpha = LARGEST_ALPHA * min(1.0, max(0.0, gap / (cell.value or 1.0)))
    return curve


def _optimizer(cell: MapCell, objective: Any) -> torch.optim.Optimizer:
    """Auxiliaries of MTE as published have a small constant rate; those of `mte-lite` that of the primary."""
    follows = cell.method != "mte1"
    groups = objective.parameter_groups(lr=LEARNING_RATE, auxiliary_lr=LEARNING_RATE if follows else AUXILIARY_RATE)
    for group in groups:
        group["initial_lr"] = group["lr"]
        group["follows"] = follows or group["lr"] == LEARNING_RATE
    return torch.optim.SGD(groups, lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)


def _batches(cell: MapCell, training: Images, steps: int) -> Iterator[Any]:
    mixing = Mixing(MIXUP, 0.0, len(training.classes)) if cell.method == "mixup" else None
    loader = MemoryLoader(
        training,
        batch=BATCH,
        seed=cell.seed,
        augmentation=Augmentation(padding=0, flip=True),
        shuffle=True,
        drop_last=True,
        mixing=mixing,
    )
    for epoch in range(-(-steps // len(loader))):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            if epoch * len(loader) + number < steps:
                yield batch


@torch.no_grad()
def _logits(model: nn.Module, images: Images) -> Tensor:
    model.eval()
    pixels = torch.split(images.pixels, 500)
    return torch.cat([model(normalised(each, images.mean, images.std)) for each in pixels])


def _nll(logits: Tensor, labels: Tensor) -> float:
    return float(F.cross_entropy(logits.double(), labels))


def _measured(model: nn.Module, training: Images, validation: Images, test: Images) -> dict[str, Any]:
    """What a user can see beforehand, and what test images say, with and without temperature scaling."""
    parts = {"training": training.take(torch.arange(min(len(training), 10_000))), "validation": validation}
    logits = {name: _logits(model, images) for name, images in (parts | {"test": test}).items()}
    scaling = TemperatureScaling().fit(logits["validation"], validation.labels)
    found: dict[str, Any] = {
        "temperature": scaling.temperature,
        "test": scores_of(logits["test"], test.labels, scaling),
    }
    for name, images in parts.items():
        hits = logits[name].argmax(-1) == images.labels
        found[name] = {
            "accuracy": float(hits.double().mean()),
            "nll": _nll(logits[name], images.labels),
            "scaled_nll": _nll(scaling(logits[name]), images.labels),
        }
    return found | {"logits": logits["test"]}


def scores_of(logits: Tensor, labels: Tensor, scaling: TemperatureScaling) -> dict[str, float]:
    """Metrics of test images; AURC does not change by scaling but where it changes the order of confidences."""
    plain, scaled = (evaluate(logits=each, labels=labels) for each in (logits, scaling(logits)))
    return {
        "accuracy": plain.estimates["accuracy"].value,
        "ece": plain.estimates["ece"].value,
        "nll": plain.estimates["nll"].value,
        "brier": plain.estimates["brier"].value,
        "aurc": plain.misclassification.estimates["aurc"].value,
        "scaled_ece": scaled.estimates["ece"].value,
        "scaled_nll": scaled.estimates["nll"].value,
        "scaled_aurc": scaled.misclassification.estimates["aurc"].value,
    }


def rows_in(store: Path) -> dict[str, dict[str, Any]]:
    """Rows of finished cells by id."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(store.glob("*/row.json"))}


def run(store: Path, *, root: Path | None, commit: str, seeds: Sequence[int]) -> None:
    """Train until no cell is left that no other process has."""
    while (cell := _next_cell(store, seeds)) is not None:
        started, used = time.time(), time.process_time()
        found = run_cell(cell, root=root)
        seconds = {"seconds": time.time() - started, "processor_seconds": time.process_time() - used}
        folder = store / cell.id
        for name, model in found["models"].items():
            torch.save(model.pop("logits").half(), folder / f"{name}.pt")
        provenance = {"commit": commit, "torch": torch.__version__, "processor": platform.processor(), **seconds}
        row = {"schema": SCHEMA, "cell": asdict(cell), **found, "provenance": provenance}
        (folder / "row.json.part").write_text(json.dumps(row, indent=1, sort_keys=True) + "\n")
        (folder / "row.json.part").rename(folder / "row.json")
        tested = json.dumps(found["models"]["last"]["test"])
        print(f"{cell.title}: {tested} ({seconds['processor_seconds']:.0f} s)", flush=True)


def _next_cell(store: Path, seeds: Sequence[int]) -> MapCell | None:
    """The first cell that is neither finished nor claimed by a process that lives."""
    rows = rows_in(store)
    for setting in SETTINGS:
        for cell in cells_of(setting, rows, seeds):
            if cell.id not in rows and _claimed(store / cell.id):
                return cell
    return None


def _claimed(folder: Path) -> bool:
    """Whether this process got the claim; one of a process that has ended is taken over."""
    folder.mkdir(parents=True, exist_ok=True)
    claim = folder / "claim"
    if claim.exists() and not Path(f"/proc/{claim.read_text()}").exists():
        claim.unlink(missing_ok=True)
    try:
        with claim.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def main(arguments: Iterable[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["run"])
    parser.add_argument("store", type=Path)
    parser.add_argument("--commit", required=True, help="of the checkout, for the record")
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    asked = parser.parse_args(None if arguments is None else list(arguments))
    torch.set_num_threads(1)
    run(asked.store, root=asked.data_root, commit=asked.commit, seeds=asked.seeds)


if __name__ == "__main__":
    main()
