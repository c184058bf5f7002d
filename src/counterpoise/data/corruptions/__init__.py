"""The 19 corruptions of CIFAR-C at five severities: made here ("CIFAR-C-style"), or read from the published files."""

from counterpoise._choices import EXTRA_CORRUPTIONS as EXTRA
from counterpoise._choices import STANDARD_CORRUPTIONS as STANDARD
from counterpoise.data.corruptions.cifar_c import (
    CORRUPTIONS,
    SEVERITIES,
    TITLE,
    Corruption,
    corrupted,
    require_corruptible,
)
from counterpoise.data.corruptions.official import official_corrupted

__all__ = [
    "CORRUPTIONS",
    "EXTRA",
    "SEVERITIES",
    "STANDARD",
    "TITLE",
    "Corruption",
    "corrupted",
    "official_corrupted",
    "require_corruptible",
]
