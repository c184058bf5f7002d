"""Sizes that a file declares, checked before memory is taken for them."""

from counterpoise.predictions.table import PredictionFileError

LARGEST_EXPANSION = 100
"""Bytes that one byte of a file may stand for. Predictions hardly compress; a bomb does little else."""

ALWAYS_ALLOWED = 1 << 26
"""Bytes that any file may unpack to."""


def largest_expansion(stored: int) -> int:
    """Bytes that a file of `stored` bytes may unpack to."""
    return max(ALWAYS_ALLOWED, LARGEST_EXPANSION * stored)


def check_expansion(*, declared: int, stored: int, what: str) -> None:
    """Refuse `stored` bytes that claim to unpack to more than `LARGEST_EXPANSION` times as many."""
    if declared < 0 or declared > largest_expansion(stored):
        raise PredictionFileError(
            f"{what} declares {declared:,} bytes and stores {stored:,}: refused, no more than {LARGEST_EXPANSION} for "
            "1 are read. If it is genuine, write it without compression"
        )
