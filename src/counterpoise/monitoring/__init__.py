"""Is the model still fine? Counts of a stream of predictions, window by window, and alarms that hold at every look."""

from counterpoise._extras import require

require("pyarrow", extra="report", purpose="monitoring predictions")

from counterpoise.monitoring.folder import Updated, begin, show, update  # noqa: E402
from counterpoise.monitoring.standing import Alarm, Line, Measured, Standing  # noqa: E402
from counterpoise.monitoring.store import Reference  # noqa: E402

__all__ = ["Alarm", "Line", "Measured", "Reference", "Standing", "Updated", "begin", "show", "update"]
