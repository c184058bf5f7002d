"""Defaults, names and limits of options: here, because the command line checks them before torch is imported."""

import math
from typing import Literal, get_args

DEFAULT_BINS = 15
"""As in the code of the methods that calibration papers compare."""

DEFAULT_LEVEL = 0.95

DEFAULT_RISK = 0.05
"""Accepted predictions may be wrong this often, unless the user says otherwise."""

DEFAULT_ALPHA = 0.1
"""Prediction sets may miss the label this often."""

DEFAULT_DELTA = 0.1
"""How often a threshold that was fitted to other samples may allow a larger risk than it promises."""

PROBABILITY_SCORES = ("max_softmax", "negative_entropy", "margin")
"""Scores that probabilities suffice for."""

LOGIT_SCORES = (*PROBABILITY_SCORES, "max_logit", "energy")
"""All scores."""

STANDARD_CORRUPTIONS: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The 15 that results on CIFAR-10-C and CIFAR-100-C are averaged over."""

EXTRA_CORRUPTIONS: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Published for choosing hyper-parameters without a look at the standard ones."""

SEVERITIES = (1, 2, 3, 4, 5)

SUM_TOLERANCE = 0.05
"""How far from 1 a row of probabilities may sum, arithmetic aside; beyond, it is rejected. It is what rounding can do
to ten classes of two decimals, or a hundred of three."""

LOGARITHM_FACTORS = {
    "to base 2": math.log(2),
    "to base 10": math.log(10),
    "negative": -1.0,
    "negative, to base 2": -math.log(2),
    "negative, to base 10": -math.log(10),
}
"""What log-probabilities may be, and the factor that makes natural logarithms of them."""

TRANSFORMS: tuple[str, ...] = (
    "RandomResizedCrop",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
    "RandomRotation",
    "RandomAffine",
    "RandomPerspective",
    "ColorJitter",
    "RandomGrayscale",
    "GaussianBlur",
    "AutoAugment",
    "RandAugment",
    "TrivialAugment",
    "TrivialAugmentWide",
    "AugMix",
    "RandomErasing",
)
"""Of `torchvision.transforms.v2`, by its own names, but TrivialAugment, which is short for TrivialAugmentWide."""

Every = Literal["hour", "day", "week"]
"""Length of a window that a monitor counts predictions by."""
EVERY: tuple[Every, ...] = get_args(Every)


def require_score(score: str) -> None:
    """Refuse what is not the name of a confidence score."""
    if score not in LOGIT_SCORES:
        raise ValueError(f"unknown confidence score {score!r}; choose from {', '.join(LOGIT_SCORES)}")


def require_count(value: object, name: str, *, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def require_level(level: object) -> None:
    """Refuse what is no nominal coverage."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")


def require_corruption(name: str, severity: int) -> None:
    """Reject a corruption or a severity that CIFAR-C does not have."""
    known = (*STANDARD_CORRUPTIONS, *EXTRA_CORRUPTIONS)
    if name not in known:
        raise ValueError(f"no corruption is called {name!r}; known are {', '.join(known)}")
    if severity not in SEVERITIES:
        raise ValueError(f"the severity must be one of {SEVERITIES}, got {severity!r}")
