"""Predictions on disk: the seam between whatever made them and everything that measures them."""

from pathlib import Path

from counterpoise._extras import require

require("pyarrow", extra="report", purpose="reading and writing predictions")

from counterpoise.predictions.columns import AmbiguousInputError, Columns, Layout, Reading  # noqa: E402
from counterpoise.predictions.formats import open_predictions  # noqa: E402
from counterpoise.predictions.parquet import PredictionWriter, write_predictions  # noqa: E402
from counterpoise.predictions.prediction_file import PredictionFile  # noqa: E402
from counterpoise.predictions.shards import Location, ShardSet, find_shards, write_manifest  # noqa: E402
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
    "AmbiguousInputError",
    "Category",
    "Columns",
    "Header",
    "Layout",
    "Location",
    "PredictionFile",
    "PredictionFileError",
    "PredictionWriter",
    "Predictions",
    "Reading",
    "ShardSet",
    "find_shards",
    "open_predictions",
    "read_predictions",
    "write_manifest",
    "write_predictions",
]


def read_predictions(path: str | Path, columns: Columns | None = None) -> Predictions:
    """Read a whole file into memory; raises as `open_predictions` does."""
    return concatenated(list(open_predictions(path, columns).batches()))
