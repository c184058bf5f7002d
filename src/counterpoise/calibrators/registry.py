"""The calibrators by name, and how a file becomes one of them again."""

from pathlib import Path

from counterpoise.calibrators.binning import HistogramBinning, IsotonicRegression
from counterpoise.calibrators.dirichlet import DirichletCalibration
from counterpoise.calibrators.linear import MatrixScaling, VectorScaling
from counterpoise.calibrators.protocol import Calibrator
from counterpoise.calibrators.records import read_record
from counterpoise.calibrators.temperature import TemperatureScaling

_KINDS: tuple[type[Calibrator], ...] = (
    TemperatureScaling,
    VectorScaling,
    MatrixScaling,
    DirichletCalibration,
    HistogramBinning,
    IsotonicRegression,
)
CALIBRATORS = {each.kind: each for each in _KINDS}


def load_calibrator(path: str | Path) -> Calibrator:
    """The calibrator that `save` wrote; `ValueError` that names the file if it holds anything else."""
    record = read_record(path)
    if record.kind not in CALIBRATORS:
        raise ValueError(f"{path} holds a calibrator of the kind {record.kind!r}; known are {', '.join(CALIBRATORS)}")
    try:
        return CALIBRATORS[record.kind].from_record(record)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} does not hold a {record.kind} calibrator: {error}") from None
