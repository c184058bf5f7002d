"""What the README shows of the reduced-scale study: methods that can be compared, as trained and scaled."""

from counterpoise.metrics.estimates import KEY_INFO, Key
from counterpoise.report.numbers import metric_title
from tools.markdown import markdown_table
from tools.study_tables import NOT_RUN, Study, column_of, spread

SCALED = (Key.ECE, Key.NLL)
"""What temperature scaling changes; it leaves accuracy as it is."""


def headline_section(study: Study) -> str:
    """Means over seeds in setting A, with half the width of their 95% t intervals; emulated kernels are left out."""
    group = study.group("cifar10")
    rows = []
    for row in group.rows if group is not None else ():
        if group is None or not row.records:
            continue
        if study.kernels([run.cell for run in row.runs if run.record is not None]) != {"native"}:
            continue
        cells = [spread(row, column_of(group, Key.ACCURACY), scaled=False)]
        cells += [spread(row, column_of(group, key), scaled=scaled) for key in SCALED for scaled in (False, True)]
        rows.append([row.label, *cells, str(len(row.records))])
    heads = ["", metric_title(KEY_INFO[Key.ACCURACY])]
    heads += [f"{metric_title(KEY_INFO[key])}{after}" for key in SCALED for after in ("", ", scaled")]
    return markdown_table([*heads, "seeds"], rows) if rows else NOT_RUN
