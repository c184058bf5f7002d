"""From predictions on disk to scores: streamed, grouped, compared in pairs, and tried with a temperature."""

from counterpoise._extras import require

require("pyarrow", extra="report", purpose="scoring files of predictions")

from counterpoise._engines import Processes, Ray  # noqa: E402
from counterpoise.scoring.files import score_files  # noqa: E402
from counterpoise.scoring.recalibration import fit_temperature  # noqa: E402
from counterpoise.scoring.units import Progress  # noqa: E402

__all__ = ["Processes", "Progress", "Ray", "fit_temperature", "score_files"]
