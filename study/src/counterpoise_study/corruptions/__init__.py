"""The 19 corruptions of CIFAR-C at five severities: made here, "CIFAR-C-style"."""

from counterpoise._choices import EXTRA_CORRUPTIONS as EXTRA
from counterpoise._choices import STANDARD_CORRUPTIONS as STANDARD
from counterpoise_study.corruptions.cifar_c import (
    CORRUPTIONS,
    SEVERITIES,
    TITLE,
    Corruption,
    corrupted,
    require_corruptible,
)

__all__ = [
    "CORRUPTIONS",
    "EXTRA",
    "SEVERITIES",
    "STANDARD",
    "TITLE",
    "Corruption",
    "corrupted",
    "require_corruptible",
]
