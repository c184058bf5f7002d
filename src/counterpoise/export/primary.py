"""What the formats share: the primary as it ships, its metadata, and the check that a file gives the same outputs."""

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from counterpoise import __version__
from counterpoise.export.guarantees import NONE, Guarantees
from counterpoise.export.temperature import Deployed
from counterpoise.objectives import is_objective

DYNAMIC_BATCH = ({0: torch.export.Dim("batch")},)
"""The first dimension of the only input may have any size."""

CHECKED_BATCHES = (1, 5)
TOLERANCE = 1e-4
"""Largest difference between the logits of a file and of its model, over the largest logit."""
PROBABILITY_TOLERANCE = 1e-5
"""Largest difference between the probabilities of a file and the softmax of its logits."""


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


def uncompiled(model: nn.Module) -> nn.Module:
    """The model that `torch.compile` wrapped: names of its weights are its own."""
    return getattr(model, "_orig_mod", model)


def require_primary(model: nn.Module) -> None:
    """Refuse an objective: its auxiliaries and its loss do not ship."""
    if is_objective(model):
        raise ValueError(f"{type(model).__name__} is for training; what ships is its primary: export objective.primary")


def shipped(model: nn.Module, *, temperature: float, guarantees: Guarantees = NONE) -> Deployed:
    """A copy in evaluation mode, of float32, on the CPU; the model itself and its training flags stay as they are."""
    require_primary(model)
    primary = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    return Deployed(primary, temperature=temperature, guarantees=guarantees).eval()


def traced(model: Deployed, example: Tensor) -> torch.export.ExportedProgram:
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
    logits = model.primary(rows)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise ValueError(f"{type(model.primary).__name__} must return a tensor of logits [n, classes] to be exported")
    model.guaranteed.guarantees.require_classes(logits.shape[-1])
    with warnings.catch_warnings(action="ignore"):  # the exporter's own, about its insides
        program = torch.export.export(model, (rows,), dynamic_shapes=DYNAMIC_BATCH)
    for graph in program.graph_module.modules():  # one for each block, such as one without autocast
        if isinstance(graph, torch.fx.GraphModule):
            for node in graph.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def random_rows(example: Tensor, count: int) -> Tensor:
    """Standard normal rows in the shape of the example's, the same ones each time."""
    return torch.randn(count, *example.shape[1:], generator=torch.Generator().manual_seed(0))


def check_same_outputs(
    run: Callable[[Tensor], Mapping[str, Tensor]], model: Deployed, example: Tensor, path: str | Path
) -> None:
    """Refuse a file whose outputs are not those of its model, on random rows of two batch sizes."""
    for count in CHECKED_BATCHES:
        rows = random_rows(example, count)
        expected, outputs = model(rows)["logits"], run(rows)
        found = outputs["logits"]
        # A class that is masked by an infinite logit is so in both, and takes no part in the difference.
        same = found == expected
        size = torch.where(expected.isinf(), 0.0, expected).abs().max().clamp_min(torch.finfo().tiny)
        difference = torch.where(same, 0.0, found - expected).abs().max() / size
        # So written because a comparison with NaN is false.
        if not (difference <= TOLERANCE and torch.equal(found.argmax(-1), expected.argmax(-1))):
            raise ValueError(
                f"{path} is not written: on {count} random rows its logits differ from the model's by {difference:.2g} "
                f"of the largest, at most {TOLERANCE:.0e} is right; does the model give NaN, or random outputs?"
            )
        # With the file's own logits: where these are large, their rounding alone may move a probability by more.
        apart = (outputs["probabilities"] - torch.softmax(found.double(), -1)).abs().max()
        if not apart <= PROBABILITY_TOLERANCE:
            raise ValueError(
                f"{path} is not written: on {count} random rows its probabilities differ from the softmax of its "
                f"logits by {apart:.2g}, at most {PROBABILITY_TOLERANCE:.0e} is right"
            )
        for name, decisions in model.guaranteed(found).items():
            if not torch.equal(outputs[name], decisions):
                raise ValueError(
                    f"{path} is not written: on {count} random rows its output {name!r} is not what its logits give"
                )
