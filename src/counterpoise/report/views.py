"""The functions behind the methods of `Scores` and `Evaluation` that show them, which find this module by name."""

from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise._extras import require
from counterpoise.metrics.comparison import Evaluation, as_evaluation
from counterpoise.metrics.scores import Scores
from counterpoise.metrics.selective import DEFAULT_RISK
from counterpoise.report import notebook, numbers, terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

Results = Scores | Evaluation


def text(results: Results) -> str:
    """The key metrics, as wide as the terminal; without colour, because text may go anywhere."""
    evaluation, screen = as_evaluation(results), terminal.Screen(terminal.this_screen().width)
    shown = terminal.as_text(evaluation, risk=DEFAULT_RISK, screen=screen, rest="to_pandas() has them")
    return "\n\n".join([shown, *terminal.notices(evaluation, screen=screen)])


def html(results: Results) -> str:
    """What a notebook shows."""
    return notebook.as_html(as_evaluation(results))


def figure(results: Results) -> "Figure":
    """The reliability diagrams."""
    from counterpoise.report.figures import reliability

    return reliability(as_evaluation(results).models)


def page(results: Results, path: str | Path) -> None:
    """The report."""
    for module in ("matplotlib", "jinja2"):
        require(module, extra="report", purpose="the report")
    from counterpoise.report.page import write_report

    write_report(path, as_evaluation(results))


def table(results: Results) -> "DataFrame":
    """Every estimate as a row of a table."""
    pandas = require("pandas", extra="notebook", purpose="to_pandas()")
    rows = numbers.estimate_rows(as_evaluation(results))
    found: DataFrame = pandas.DataFrame(rows, columns=numbers.ESTIMATE_COLUMNS)
    return found
