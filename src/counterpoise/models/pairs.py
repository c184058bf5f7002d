"""Models that learn from the same batch: whether they can, before the first step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""With which networks turn down a shape; timm asserts."""


class Normalisation(NamedTuple):
    """What weights expect of images: `(x - mean) / std` of each channel, for x in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        return f"mean {self.mean} and std {self.std}"


def normalisation_of(model: nn.Module) -> Normalisation | None:
    """What timm wrote into the model's `pretrained_cfg`; None for a model that says nothing, and so takes anything."""
    config = getattr(model, "pretrained_cfg", None)
    if not isinstance(config, dict) or not config.get("mean") or not config.get("std"):
        return None
    return Normalisation(tuple(config["mean"]), tuple(config["std"]))


def require_same_images(models: Sequence[nn.Module], *, shape: Sequence[int], classes: int | None = None) -> None:
    """Refuse models that cannot learn from one batch, such as a primary and its auxiliaries.

    Differing normalisation is refused: images that are right for one model would be shifted and scaled for the other,
    and nothing would fail. A size is refused only where a model cannot take it, which each model shows on one image of
    zeros, in evaluation mode; modes and statistics of the models are left as they were.

    Args:
        models: all that get the batch.
        shape: of an image: channels, height, width.
        classes: how many outputs each must have, where it is known.

    >>> require_same_images([nn.Conv2d(3, 8, 3), nn.Flatten()], shape=(3, 32, 32))
    >>> require_same_images([nn.Conv2d(3, 8, 3), nn.Linear(64, 8)], shape=(3, 32, 32))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: model 1 (Linear) cannot take images of 3x32x32: ...
    """
    _require_one_normalisation(models)
    for index, model in enumerate(models):
        try:
            output = _run_on_zeros(model, shape)
        except _REFUSALS as error:
            size = "x".join(str(length) for length in shape)
            raise ValueError(
                f"{_name(index, model)} cannot take images of {size}: {str(error).rstrip('.')}; "
                "resize the images, or build the model for this size (timm: img_size=, or dynamic_img_size=True)"
            ) from error
        found = output.shape[-1] if isinstance(output, Tensor) and output.ndim else classes
        if classes is not None and found != classes:
            raise ValueError(f"{_name(index, model)} has {found} outputs, and there are {classes} classes")


class Renormalised(nn.Module):
    """A model that gets images normalised for another one, and normalises them for itself.

    Wrap the auxiliary, which does not ship: `Renormalised(auxiliary, given=normalisation_of(primary))`.

    Args:
        model: whose `pretrained_cfg` says what it expects.
        given: normalisation of the images that come in.
    """

    holds_network = True
    scale: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, *, given: Normalisation | None) -> None:
        super().__init__()
        wanted = normalisation_of(model)
        if given is None or wanted is None:
            raise ValueError("both normalisations must be known: that of the images, and the model's by pretrained_cfg")
        given_mean, given_std, mean, std = (torch.tensor(values)[:, None, None] for values in (*given, *wanted))
        self.model = model
        self.pretrained_cfg = given._asdict()  # what `normalisation_of` reads: the images that it must get
        self.register_buffer("scale", given_std / std, persistent=False)
        self.register_buffer("shift", (given_mean - mean) / std, persistent=False)

    @property
    def network(self) -> nn.Module:
        """The model itself: what knows its layers and its head."""
        return self.model

    def forward(self, images: Tensor) -> Any:
        """Images `[n, C, H, W]` to what the model returns."""
        return self.model(images * self.scale + self.shift)


def _require_one_normalisation(models: Sequence[nn.Module]) -> None:
    known = [
        (_name(index, model), normalisation)
        for index, model in enumerate(models)
        if (normalisation := normalisation_of(model)) is not None
    ]
    for name, normalisation in known[1:]:
        first_name, first = known[0]
        if normalisation != first:
            raise ValueError(
                f"{first_name} expects images of {first}, {name} of {normalisation}, and both get the same batch: wrap "
                "one with counterpoise.models.Renormalised; or, if the weights start at random, create both with "
                "timm's pretrained_cfg_overlay={'mean': ..., 'std': ...} of your data"
            )


def _run_on_zeros(model: nn.Module, shape: Sequence[int]) -> Any:
    parameter = next(model.parameters(), torch.zeros(()))
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            return model(torch.zeros(1, *shape, dtype=parameter.dtype, device=parameter.device))
    finally:
        for module, mode in modes.items():
            module.training = mode


def _name(index: int, model: nn.Module) -> str:
    config = getattr(model, "pretrained_cfg", None)
    architecture = config.get("architecture") if isinstance(config, dict) else None
    return f"model {index} ({architecture or type(model).__name__})"
