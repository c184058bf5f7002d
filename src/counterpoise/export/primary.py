"""What the formats share: the primary as it ships, its metadata, and the check that a file gives the same logits."""

import copy
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from counterpoise import __version__
from counterpoise.objectives import DeepMutualLearning, MutualTransport, SupervisedObjective

DYNAMIC_BATCH = ({0: torch.export.Dim("batch")},)
"""The first dimension of the only input may have any size."""

CHECKED_BATCHES = (1, 5)
TOLERANCE = 1e-4
"""Largest difference between the logits of a file and of its model, over the largest logit."""


def describe(*, class_names: Sequence[str], mean: Sequence[float], std: Sequence[float]) -> dict[str, str]:
    """Metadata that a file needs to be used alone: what the logits stand for, and how images are normalised.

    `mean` and `std` have one value for each channel, for pixels in [0, 1]. Each value is JSON, in every format.

    >>> describe(class_names=["cat", "dog"], mean=[0.5], std=[0.25])
    {'class_names': '["cat", "dog"]', 'mean': '[0.5]', 'std': '[0.25]'}
    """
    lists: dict[str, Sequence[str] | Sequence[float]] = {"class_names": class_names, "mean": mean, "std": std}
    return {name: json.dumps(list(values), ensure_ascii=False) for name, values in lists.items()}


def with_version(metadata: dict[str, str]) -> dict[str, str]:
    """The metadata, and which counterpoise wrote them."""
    return metadata | {"counterpoise_version": __version__}


def require_primary(model: nn.Module) -> None:
    """Refuse an objective: its auxiliaries and its loss do not ship."""
    if isinstance(model, DeepMutualLearning | MutualTransport | SupervisedObjective):
        raise ValueError(f"{type(model).__name__} is for training; what ships is its primary: export objective.primary")


def shipped(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, of float32, on the CPU; the model itself and its training flags stay as they are."""
    require_primary(model)
    return copy.deepcopy(model).cpu().float().eval().requires_grad_(False)


def traced(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """The program of a shipped model, for batches of any size of rows like those of `example`.

    Files keep the rows it is traced with, and where in the source each step stands: so the rows are random, and the
    places, which are paths on this machine, are removed.
    """
    if example.ndim < 2 or not example.is_floating_point():
        raise ValueError(
            "example must be a batch of normalised images, floating point [n, channels, height, width]; "
            f"it is {example.dtype} {list(example.shape)}"
        )
    rows = random_rows(example, 2)  # one row would fix the size of the batch
    logits = model(rows)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise ValueError(f"{type(model).__name__} must return a tensor of logits [n, classes] to be exported")
    with warnings.catch_warnings(action="ignore"):  # the exporter's own, about its insides
        program = torch.export.export(model, (rows,), dynamic_shapes=DYNAMIC_BATCH)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def random_rows(example: Tensor, count: int) -> Tensor:
    """Standard normal rows in the shape of the example's, the same ones each time."""
    return torch.randn(count, *example.shape[1:], generator=torch.Generator().manual_seed(0))


def check_same_logits(run: Callable[[Tensor], Tensor], model: nn.Module, example: Tensor, path: str | Path) -> None:
    """Refuse a file whose logits are not those of its model, on random rows of two batch sizes."""
    for count in CHECKED_BATCHES:
        rows = random_rows(example, count)
        expected, found = model(rows), run(rows)
        difference = (found - expected).abs().max() / expected.abs().max().clamp_min(torch.finfo().tiny)
        # So written because a comparison with NaN is false.
        if not (difference <= TOLERANCE and torch.equal(found.argmax(-1), expected.argmax(-1))):
            raise RuntimeError(
                f"{path} is not written: on {count} random rows its logits differ from the model's by {difference:.2g} "
                f"of the largest, at most {TOLERANCE:.0e} is right; does the model give NaN, or random outputs?"
            )
