"""After training: `fit(logits, labels)`, then logits in, log-probabilities out."""

from counterpoise.calibrators.binning import HistogramBinning, IsotonicRegression
from counterpoise.calibrators.convex import Penalties
from counterpoise.calibrators.dirichlet import DirichletCalibration
from counterpoise.calibrators.linear import MatrixScaling, VectorScaling
from counterpoise.calibrators.protocol import Calibrator, FitState
from counterpoise.calibrators.registry import CALIBRATORS, load_calibrator
from counterpoise.calibrators.temperature import TemperatureScaling

__all__ = [
    "CALIBRATORS",
    "Calibrator",
    "DirichletCalibration",
    "FitState",
    "HistogramBinning",
    "IsotonicRegression",
    "MatrixScaling",
    "Penalties",
    "TemperatureScaling",
    "VectorScaling",
    "load_calibrator",
]
