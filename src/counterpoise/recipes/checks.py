"""What options check of themselves, in words that name the field."""

import math
from collections.abc import Iterable, Mapping

from counterpoise._choices import EXTRA_CORRUPTIONS, STANDARD_CORRUPTIONS


def refuse(problems: Iterable[str]) -> None:
    """Raise a `ValueError` with all problems, if there are any."""
    if message := "; ".join(problems):
        raise ValueError(message)


def not_positive(values: Mapping[str, float | None]) -> list[str]:
    """Problems of values that must be positive and finite; None is no value.

    >>> not_positive({"epochs": 0, "optimizer.lr": math.inf, "data.limit": None})
    ['epochs must be positive, got 0', 'optimizer.lr must be finite, got inf']
    """
    return [
        f"{name} must be {'finite' if value == math.inf else 'positive'}, got {value}"
        for name, value in values.items()
        if value is not None and not 0 < value < math.inf
    ]


def negative(values: Mapping[str, float]) -> list[str]:
    """Problems of values that must be finite and not below 0."""
    return [
        f"{name} must {'be finite' if value == math.inf else 'not be negative'}, got {value}"
        for name, value in values.items()
        if not 0 <= value < math.inf
    ]


def not_between_0_and_1(values: Mapping[str, float | None]) -> list[str]:
    """Problems of values that must lie between 0 and 1, ends excluded; None is no value."""
    return [
        f"{name} must lie between 0 and 1, got {value}"
        for name, value in values.items()
        if value is not None and not 0 < value < 1
    ]


def corruption_names(given: tuple[str, ...]) -> list[str]:
    """The corruptions that are meant, `standard` and `all` spelt out.

    >>> corruption_names(("fog", "standard"))[:2]
    ['fog', 'gaussian_noise']
    """
    known = (*STANDARD_CORRUPTIONS, *EXTRA_CORRUPTIONS)
    groups = {"standard": STANDARD_CORRUPTIONS, "all": known}
    names = [name for entry in given for name in groups.get(entry, (entry,))]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no corruption {', '.join(unknown)}; there are {', '.join(known)}")
    return list(dict.fromkeys(names))
