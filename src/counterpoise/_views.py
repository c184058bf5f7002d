"""How results show themselves, by the room `report`: it is above theirs, and is asked for by name when needed."""

from collections.abc import Callable
from typing import Any, Literal

from counterpoise._extras import require

View = Literal["text", "html", "figure", "page", "table"]


def view(name: View) -> Callable[..., Any]:
    """A function of `counterpoise.report.views`, loaded as any extra is: nothing below `report` imports it."""
    views = require("counterpoise.report.views", extra="report", purpose="showing results")
    found: Callable[..., Any] = getattr(views, name)
    return found
