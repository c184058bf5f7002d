"""Predictions on disk: the seam between whatever made them and everything that measures them."""

from collections.abc import Callable
from pathlib import Path

from counterpoise._extras import require

require("pyarrow", extra="report", purpose="reading and writing predictions")

from counterpoise.predictions.csv import open_csv  # noqa: E402
from counterpoise.predictions.file import PredictionFile  # noqa: E402
from counterpoise.predictions.npz import open_npz  # noqa: E402
from counterpoise.predictions.parquet import PredictionWriter, open_parquet, write_predictions  # noqa: E402
from counterpoise.predictions.table import (  # noqa: E402
    MISSING_LABEL,
    MISSING_SEVERITY,
    Category,
    Header,
    PredictionFileError,
    Predictions,
    concatenated,
)

__all__ = [
    "MISSING_LABEL",
    "MISSING_SEVERITY",
    "Category",
    "Header",
    "PredictionFile",
    "PredictionFileError",
    "PredictionWriter",
    "Predictions",
    "open_predictions",
    "read_predictions",
    "write_predictions",
]

FORMATS: dict[str, Callable[[Path], PredictionFile]] = {".parquet": open_parquet, ".csv": open_csv, ".npz": open_npz}


def open_predictions(path: str | Path) -> PredictionFile:
    """Open a Parquet, CSV or NPZ file, told by its suffix. What it says is checked now; its rows are read in batches.

    Raises:
        PredictionFileError: the file is damaged or malformed, or larger in memory than its bytes can justify.
        FileNotFoundError: there is no such file.
    """
    source = Path(path)
    opener = FORMATS.get(source.suffix.lower())
    if opener is None:
        raise PredictionFileError(f"{source}: predictions are read from {', '.join(FORMATS)}, told by the suffix")
    return opener(source)


def read_predictions(path: str | Path) -> Predictions:
    """Read a whole file into memory; raises as `open_predictions` does."""
    return concatenated(list(open_predictions(path).batches()))
