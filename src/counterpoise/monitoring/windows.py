"""Windows of time, and times as files write them."""

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from counterpoise._choices import Every

STAMP = r"[0-9]{8}T[0-9]{2}"
"""The start of a window in the name of a file: day and hour."""

TIMES = ("time", "timestamp", "datetime", "date", "ts", "event_time", "created_at", "predicted_at")
"""What a column of times is called where nobody says it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS: dict[Every, int] = {"hour": 3600, "day": 86_400, "week": 604_800}
_FIRST: dict[Every, int] = {"hour": 0, "day": 0, "week": 4 * 86_400}
"""Seconds from the epoch, a Thursday, to the start of window 0: weeks begin on Mondays."""

_LAST = (date(9999, 12, 1) - _EPOCH.date()).days * 86_400
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]*)?([eE]\+?[0-9]{1,2})?")
MICROSECONDS = 1_000_000


def window_of(microseconds: NDArray[np.int64], every: Every) -> NDArray[np.int64]:
    """Number of the window that each time is in."""
    return (microseconds // MICROSECONDS - _FIRST[every]) // _SECONDS[every]


def start_of(window: int, every: Every) -> datetime:
    """The time at which a window begins."""
    return _EPOCH + timedelta(seconds=_FIRST[every] + window * _SECONDS[every])


def stamp_of(window: int, every: Every) -> str:
    """A window's start in the name of a file.

    >>> stamp_of(0, "hour"), stamp_of(0, "week")
    ('19700101T00', '19700105T00')
    """
    return start_of(window, every).strftime("%Y%m%dT%H")


def window_at(stamp: str, every: Every) -> int:
    """The window of a stamp; `ValueError` where no window begins there.

    >>> window_at("19700112T00", "week")
    1
    """
    begin = datetime.strptime(stamp, "%Y%m%dT%H").replace(tzinfo=UTC)
    window = window_at_time(begin, every)
    if window < 0 or stamp_of(window, every) != stamp:
        raise ValueError(f"no {every} begins at {stamp}")
    return window


def window_at_time(time: datetime, every: Every) -> int:
    """The window that a time is in."""
    seconds = (time - _EPOCH) // timedelta(seconds=1)
    return (seconds - _FIRST[every]) // _SECONDS[every]


def coarser(window: int, every: Every, *, shown: Every) -> int:
    """The longer window that a window begins in."""
    return window_at_time(start_of(window, every), shown)


def shown_start(window: int, every: Every) -> str:
    """The start of a window in ISO 8601 and UTC, as it is shown.

    >>> shown_start(5, "hour"), shown_start(0, "day")
    ('1970-01-01T05:00Z', '1970-01-01')
    """
    return start_of(window, every).strftime("%Y-%m-%dT%H:%MZ" if every == "hour" else "%Y-%m-%d")


def microseconds_of(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Times in microseconds since 1970, and which of the texts are times.

    A time is ISO 8601, or Unix seconds; where no time zone is stated, it is UTC.

    >>> microseconds_of(["1970-01-01T01:00:00+01:00", "0.5", "1970-01-01", "noon"])
    (array([     0, 500000,      0,      0]), array([ True,  True,  True, False]))
    """
    found = [_microseconds(text) for text in texts]
    given = np.array([each is not None for each in found], bool)
    return np.array([each or 0 for each in found], np.int64), given


def time_of(text: str) -> datetime:
    """One time, such as one of a command line."""
    found = _microseconds(text)
    if found is None:
        raise ValueError(f"{text!r} is no time; write ISO 8601, such as 2026-03-01 or 2026-03-01T05:00+01:00")
    return _EPOCH + timedelta(microseconds=found)


def _microseconds(text: str) -> int | None:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        # An eight-digit number is more likely a day without dashes than a second of 1970.
        if len(text) != 8 or not text.isdecimal():
            return round(seconds * MICROSECONDS) if math.isfinite(seconds) and seconds < _LAST else None
    try:
        time = datetime.fromisoformat(text)
        elapsed = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        return None
    found = elapsed // timedelta(microseconds=1)
    return found if 0 <= found < _LAST * MICROSECONDS else None
