"""After training: `fit(logits, labels)`, then logits in, log-probabilities out; and sets and decisions that hold."""

from counterpoise.calibrators.binning import HistogramBinning, IsotonicRegression
from counterpoise.calibrators.conformal import ConformalSets
from counterpoise.calibrators.convex import Penalties
from counterpoise.calibrators.dirichlet import DirichletCalibration
from counterpoise.calibrators.keyed import keyed_uniforms, second_half
from counterpoise.calibrators.linear import MatrixScaling, VectorScaling
from counterpoise.calibrators.protocol import Calibrator, FitState
from counterpoise.calibrators.registry import CALIBRATORS, load_calibrator
from counterpoise.calibrators.selective import SelectiveThreshold
from counterpoise.calibrators.temperature import TemperatureScaling

__all__ = [
    "CALIBRATORS",
    "Calibrator",
    "ConformalSets",
    "DirichletCalibration",
    "FitState",
    "HistogramBinning",
    "IsotonicRegression",
    "MatrixScaling",
    "Penalties",
    "SelectiveThreshold",
    "TemperatureScaling",
    "VectorScaling",
    "keyed_uniforms",
    "load_calibrator",
    "second_half",
]
