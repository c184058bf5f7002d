"""The contracts of losses, objectives and metrics, as checks that anybody can run on their own."""

from counterpoise.testing.losses import check_loss
from counterpoise.testing.metrics import check_metric
from counterpoise.testing.objectives import check_objective

__all__ = ["check_loss", "check_metric", "check_objective"]
