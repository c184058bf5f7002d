"""One file of predictions, in any of the formats."""

from collections.abc import Callable
from pathlib import Path

from counterpoise.predictions.csv import open_csv
from counterpoise.predictions.npz import open_npz
from counterpoise.predictions.parquet import open_parquet
from counterpoise.predictions.prediction_file import PredictionFile
from counterpoise.predictions.table import PredictionFileError

FORMATS: dict[str, Callable[[Path], PredictionFile]] = {".parquet": open_parquet, ".csv": open_csv, ".npz": open_npz}


def is_prediction_file(path: Path) -> bool:
    """Whether the suffix is that of a format."""
    return path.suffix.lower() in FORMATS


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
