"""The contracts of losses, objectives and metrics, and requirements of models, as checks that anybody can run."""

from counterpoise.testing.calibration import assert_calibrated
from counterpoise.testing.losses import check_loss
from counterpoise.testing.metrics import check_metric
from counterpoise.testing.objectives import check_objective

__all__ = ["assert_calibrated", "check_loss", "check_metric", "check_objective"]
