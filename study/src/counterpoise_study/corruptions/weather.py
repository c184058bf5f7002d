"""Snow, fog and spatter. Images are floats in [0, 1], `[n, 3, size, size]`; layers over them `[n, 1, size, size]`."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from counterpoise._extras import require
from counterpoise_study.corruptions.draws import Draws
from counterpoise_study.corruptions.filters import correlated, line_blurred, separable, smoothed, zoom_matrix
from counterpoise_study.corruptions.levels import quantised

_LUMA = (0.299, 0.587, 0.114)
_WATER, _MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
_FARTHEST = 20
"""Pixels: beyond it, the distance to the edge of a drop no longer counts."""

_EMBOSS = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]], dtype=torch.float32)
_BOX = torch.full((3, 3), 1 / 9)


def snow(
    images: Tensor,
    draws: Draws,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: int,
    streak: float,
    keep: float,
) -> Tensor:
    """Normal noise, enlarged, only its bright flakes kept, drawn into streaks that fall; the picture pales to white.

    The layer is added twice, once turned by 180 degrees.
    """
    size = images.shape[-1]
    flakes = separable(mean + deviation * draws.normal(1, size, size), zoom_matrix(size, zoom))
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1)
    streaks = line_blurred(flakes, draws.uniform(1, low=-135.0, high=-45.0), radius=radius, deviation=streak)
    grey = (images * torch.tensor(_LUMA, dtype=torch.float32).view(1, 3, 1, 1)).sum(1, keepdim=True)
    paled = keep * images + (1 - keep) * torch.maximum(images, 1.5 * grey + 0.5)
    return paled + streaks + streaks.flip(2, 3)


def fog(images: Tensor, draws: Draws, density: float, decay: float) -> Tensor:
    """`(x + density p) m / (m + density)`, p a plasma fractal and m the image's brightest value."""
    brightest = images.amax((1, 2, 3), keepdim=True)
    size = images.shape[-1]
    haze = plasma(draws, size, decay)[:, None, :size, :size]
    return (images + density * haze) * brightest / (brightest + density)


def plasma(draws: Draws, size: int, decay: float) -> Tensor:
    """Heights in [0, 1] by the diamond-square algorithm on a torus whose side is a power of two, at least `size`.

    From one corner, each round fills the middle of the squares, then of the diamonds, by the mean of their four corners
    plus uniform noise, whose width falls by `decay^2` from round to round.
    """
    side = 1 << (size - 1).bit_length()
    noise, used = draws.uniform(side * side, low=-1.0, high=1.0), 0
    heights = torch.zeros(len(noise), side, side, dtype=torch.float32)
    step, width = side, 100.0**2
    while step > 1:
        half, count = step // 2, (side // step) ** 2
        corners = heights[:, ::step, ::step]
        squares, above, left = (width * noise[:, used : used + 3 * count]).view(-1, 3, *corners.shape[1:]).unbind(1)
        across = corners + corners.roll(-1, 2)
        down = corners + corners.roll(-1, 1)
        middles = squares + (across + across.roll(-1, 1)) / 4
        heights[:, half::step, half::step] = middles
        heights[:, ::step, half::step] = above + (middles + middles.roll(1, 1) + across) / 4
        heights[:, half::step, ::step] = left + (middles + middles.roll(1, 2) + down) / 4
        step, width, used = half, width / decay**2, used + 3 * count
    heights -= heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)


def spatter(
    images: Tensor,
    draws: Draws,
    mean: float,
    deviation: float,
    spread: float,
    threshold: float,
    light: float,
    softness: float,
) -> Tensor:
    """Smoothed noise above a threshold is liquid: drops of water that add up to `light`, or splashes of mud.

    Mud has a `softness`, the deviation of the Gaussian that smooths the edges of its splashes; water has none.
    """
    size = images.shape[-1]
    liquid = smoothed(mean + deviation * draws.normal(1, size, size), spread)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    if softness:
        cover = smoothed((liquid > 0).float(), softness)
        cover = torch.where(cover < 0.8, 0.0, cover)
        return images * (1 - cover) + cover * torch.tensor(_MUD, dtype=torch.float32).view(1, 3, 1, 1)
    glint = liquid * _lit(liquid > 0)
    brightest = glint.amax((2, 3), keepdim=True).clamp(min=torch.finfo(glint.dtype).tiny)
    return images + light * glint / brightest * torch.tensor(_WATER, dtype=torch.float32).view(1, 3, 1, 1)


def _lit(wet: Tensor) -> Tensor:
    """Light from one side on drops, from the distance to their edges, equalised and embossed; in grey levels."""
    distance = correlated(_distance_to_edge(wet).clamp(max=_FARTHEST), _BOX)
    relief = correlated(_equalised(quantised(distance / 255)).float(), _EMBOSS).clamp(0, 255)
    return correlated(relief, _BOX)


def _distance_to_edge(wet: Tensor) -> Tensor:
    """Pixels to the nearest one that is wet and beside a dry one; far where an image has none."""
    ndimage = require("scipy.ndimage", extra="train", purpose="the spatter corruption")
    beside = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float32)
    edge = wet & (correlated(wet.float(), beside) < 4)
    # One call for all: the images lie so far apart that the nearest edge is the image's own, or beyond what counts.
    planes = F.pad(~edge[:, 0], (0, 0, 0, 0, 0, 1), value=False)
    return torch.from_numpy(ndimage.distance_transform_edt(planes, sampling=(1e6, 1, 1))[:-1, None]).float()


def _equalised(levels: Tensor) -> Tensor:
    """Histogram equalisation of bytes `[n, 1, size, size]`: the lowest level present becomes 0, the highest 255."""
    flat = levels.flatten(1).long()
    counts = torch.zeros(len(flat), 256, dtype=torch.int64).scatter_add_(1, flat, torch.ones_like(flat))
    total = counts.cumsum(1)
    lowest = counts.gather(1, flat.amin(1, keepdim=True))
    table = 255 * (total - lowest) / (flat.shape[1] - lowest).clamp(min=1)
    return table.round().gather(1, flat).view(levels.shape)
