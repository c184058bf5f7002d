"""An evaluation as HTML for a notebook: a reliability diagram of each model beside the key metrics, without a script.

Text has the colour of what is around it, and the few colours read on white and on black alike (a contrast of at least
4 to either), so a light and a dark theme need no telling apart.
"""

from html import escape

from counterpoise._text import readable, shown
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.estimates import Key, percent
from counterpoise.metrics.scores import Scores, verdict
from counterpoise.report import numbers
from counterpoise.report.data import name_of, reliability_bins, size_of
from counterpoise.report.tables import Cell, Table

_STYLE = """
.counterpoise{font-size:13px;line-height:1.5}
.counterpoise p{margin:.3em 0}
.counterpoise .cp-row{display:flex;flex-wrap:wrap;gap:8px 28px;align-items:flex-start}
.counterpoise svg{width:230px;height:auto;overflow:visible}
.counterpoise table{border-collapse:collapse;margin:.4em 0;font-variant-numeric:tabular-nums}
.counterpoise th,.counterpoise td{padding:2px 10px;text-align:right;white-space:nowrap;border:0;background:none}
.counterpoise th:first-child,.counterpoise td:first-child{text-align:left;padding-left:0}
.counterpoise thead th,.counterpoise .cp-head th{border-bottom:1px solid rgba(128,128,128,.45)}
.counterpoise .cp-head th{padding-top:8px}
.counterpoise .cp-better{color:#0a8a66;font-weight:600}
.counterpoise .cp-worse{color:#d1570a;font-weight:600}
.counterpoise small{opacity:.75}
"""
_BLUE = "#2f7fc1"
_SIDE, _LEFT, _TOP, _FOOT = 200, 34, 18, 44
"""Of a diagram in its own units: the square, and the room to its left, above it, and below it for the histogram."""


def as_html(evaluation: Evaluation) -> str:
    """The verdicts, the diagrams and the tables; every text is escaped."""
    models = evaluation.models
    said = [f"{escape(readable(name_of(each)))}: " if len(models) > 1 else "" for each in models]
    verdicts = "".join(
        f"<p>{name}{escape(verdict(model))}</p>"
        for name, model in zip(said, models, strict=True)
        if Key.MEAN_GAP in model and Key.ACCURACY in model
    )
    diagrams = "".join(reliability_svg(model) for model in models if sum(model.top_label.count))
    summary = numbers.summary(evaluation, key_metrics=True)
    if len(models) == 1:
        summary = Table("", ("", f"value ({percent(models[0].level)} interval)"), summary.rows)
    differences = numbers.paired_differences(evaluation, key_metrics=True)
    sizes = sorted({size_of(model) for model in models})
    body = f"<div>{_table(summary)}<small>{'; '.join(sizes)}</small></div>"
    if differences is not None:
        note = f"✓ better than {escape(readable(name_of(models[0])))}, ✗ worse, beyond chance"
        body += f"<div>{_table(differences)}<small>{note}</small></div>"
    diagrams = f'<div class="cp-row">{diagrams}</div>'
    notes = "".join(f"<p><small>Note: {escape(readable(notice))}</small></p>" for notice in evaluation.notices)
    row = f'<div class="cp-row">{diagrams}{body}</div>'
    return f'<div class="counterpoise"><style>{_STYLE}</style>{verdicts}{row}{notes}</div>'


def _table(source: Table) -> str:
    def row(cells: tuple[Cell, ...]) -> str:
        if len(cells) == 1:
            return f'<tr class="cp-head"><th colspan="{len(source.columns)}">{_text(cells[0].text)}</th></tr>'
        return f"<tr>{''.join(map(_cell, cells))}</tr>"

    head = "".join(f"<th>{_text(name)}</th>" for name in source.columns)
    title = f"<p>{escape(readable(source.title))}</p>" if source.title else ""
    return f"{title}<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(row, source.rows))}</tbody></table>"


def _cell(cell: Cell) -> str:
    if cell.best or cell.worse:
        kind, mark = ("better", "✓") if cell.best else ("worse", "✗")
        return f'<td class="cp-{kind}">{_text(cell.text)} {mark}</td>'
    return f"<td>{'&nbsp;&nbsp;' if cell.part else ''}{_text(cell.text.strip())}</td>"


def _text(text: str) -> str:
    return escape(shown(text, most=40))


def reliability_svg(scores: Scores) -> str:
    """Accuracy against confidence with the interval of each bin, above a histogram of confidences."""
    bins = reliability_bins(scores.top_label, level=scores.level)
    top, foot = _TOP + _SIDE, _TOP + _SIDE + _FOOT
    largest = max(row.share for row in bins)
    parts = []
    for row in bins:
        left, wide = _x(row.lower), _x(row.upper) - _x(row.lower) - 1
        tall = (_FOOT - 8) * row.share / largest
        centre = _x(row.confidence)
        bar = f'fill="{_BLUE}" fill-opacity=".28"'
        parts.append(f'<rect x="{left:.1f}" y="{_y(row.accuracy):.1f}" width="{wide:.1f}"'
                     f' height="{top - _y(row.accuracy):.1f}" {bar}></rect>')  # fmt: skip
        parts.append(f'<rect x="{left:.1f}" y="{foot - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" {bar}></rect>')
        parts.append(f'<line x1="{centre:.1f}" x2="{centre:.1f}" y1="{_y(row.low):.1f}" y2="{_y(row.high):.1f}"'
                     f' stroke="{_BLUE}" stroke-width="1.4"></line>')  # fmt: skip
        parts.append(f'<circle cx="{centre:.1f}" cy="{_y(row.accuracy):.1f}" r="3" fill="{_BLUE}"></circle>')
    faint = 'stroke="currentColor" stroke-opacity=".45"'
    parts.append(f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" {faint} stroke-dasharray="4 3"></line>')
    parts.append(f'<path d="M{_x(0)} {_TOP}V{top}H{_x(1)}M{_x(0)} {foot}H{_x(1)}" fill="none" {faint}></path>')
    for share in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{_x(share)}" y="{foot + 12}" text-anchor="middle">{share:g}</text>')
        parts.append(f'<text x="{_x(0) - 4}" y="{_y(share) + 4}" text-anchor="end">{share:g}</text>')
    middle = _TOP + _SIDE / 2
    parts.append(f'<text x="{_x(0.5)}" y="{foot + 26}" text-anchor="middle">confidence</text>')
    parts.append(f'<text x="9" y="{middle}" text-anchor="middle" transform="rotate(-90 9 {middle})">accuracy</text>')
    name = shown(name_of(scores), most=30)
    parts.append(f'<text x="{_x(0.5)}" y="11" text-anchor="middle" font-size="12">{escape(name)}</text>')
    size = f"0 0 {_LEFT + _SIDE + 12} {foot + 32}"
    label = escape(f"Reliability diagram of {name}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" aria-label="{label}" '
        f'font-family="sans-serif" font-size="10.5" fill="currentColor">{"".join(parts)}</svg>'
    )


def _x(share: float) -> float:
    return _LEFT + _SIDE * share


def _y(share: float) -> float:
    return _TOP + _SIDE * (1 - share)
