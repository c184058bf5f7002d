"""The memory of this process: what it has resident, and the most it had since a moment of one's choice."""

import sys
from contextlib import suppress
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What makes Linux forget the peak of a process so far."""


def reset_peak() -> None:
    """Count the peak from now on; only Linux can, elsewhere it stays that of the whole process."""
    with suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)


def peak_memory() -> int | None:
    """Bytes at the largest since the last reset; None on Windows, which does not say."""
    if (found := _of_status("VmHWM")) is not None:
        return found
    if sys.platform == "win32":
        return None
    import resource

    # Kilobytes but on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident_memory() -> int | None:
    """Bytes now; None where only the peak is known."""
    return _of_status("VmRSS")


def _of_status(name: str) -> int | None:
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            _, kilobytes, _ = line.split()
            return 1024 * int(kilobytes)
    return None
