"""Predictions from CSV: a header line, then one sample a line; every cell read as the type its column must have."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from counterpoise.predictions.digest import verified
from counterpoise.predictions.layout import Layout, find_layout, predictions_of
from counterpoise.predictions.prediction_file import PredictionFile, notices_of, refusing
from counterpoise.predictions.table import CATEGORIES, Header, PredictionFileError, Predictions

_BLOCK_BYTES = 1 << 23
_LONGEST_LINE = 1 << 22
_LONGEST_MESSAGE = 300
_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
_SURELY_64_BITS = 18


def open_csv(path: Path) -> PredictionFile:
    """Read the header line; rows are read later, block by block.

    Value columns are `logit_NAME` or `probability_NAME`, one a class; `label` holds class indices or names, and is
    empty for samples that have none; `id` holds integers or text. The descriptive columns are those of `Predictions`.
    """
    with refusing(path, what="CSV file"), verified(path) as (source, file):
        names, first = _first_lines(file)
        layout = find_layout(names)
        if layout.columns == (layout.kind,):
            raise PredictionFileError(f"column {layout.kind!r} cannot hold lists; give each class a column")
        types, cells = _types(layout), dict(zip(names, first, strict=False))
        has_numbers = _is_integer(cells.get("id", ""))
    header, classes = Header(class_names=layout.class_names), len(layout.columns)

    def read() -> Iterator[Predictions]:
        wanted = [name for name in names if name in types]
        numbered = has_numbers and "id" in wanted
        row = 0
        with refusing(path, what="CSV file"), source.reopened() as handle:
            for batch in _batches(handle, names, types, wanted):
                if numbered:
                    batch = _with_numbers(batch, row)
                yield predictions_of(batch, layout=layout, header=header, classes=classes, members=None, first_row=row)
                row += batch.num_rows
            if row == 0:
                raise PredictionFileError("it has a header line and no rows")

    return PredictionFile(
        path=path,
        kind=layout.kind,
        classes=classes,
        members=None,
        rows=None,
        header=header,
        has_ids="id" in names,
        digest=source.digest,
        notices=notices_of(source, layout.ignored),
        read=read,
    )


def _batches(
    handle: pa.OSFile, names: list[str], types: dict[str, pa.DataType], wanted: list[str]
) -> Iterator[pa.RecordBatch]:
    try:
        with pa_csv.open_csv(
            handle,
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=types, include_columns=wanted, null_values=[""], strings_can_be_null=True
            ),
        ) as batches:
            yield from (batch for batch in batches if batch.num_rows)
    except pa.ArrowInvalid as error:
        raise PredictionFileError(_placed(str(error), names)) from None


def _placed(message: str, names: list[str]) -> str:
    """Arrow's message with rows counted from the first below the header line, and columns by name."""
    line = message.splitlines()[0][:_LONGEST_MESSAGE]
    named = re.sub(r"CSV column #(\d+)", lambda found: f"column {names[int(found[1])]!r}", line)
    placed = re.sub(r"Row #(\d+)", lambda found: f"row {int(found[1]) - 2}", named)
    return f"{placed}; mend it"


def _first_lines(file: io.BufferedReader) -> tuple[list[str], list[str]]:
    """The cells of the header line, and of the line after it; empty lines do not count."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        lines = filter(None, csv.reader(iter(lambda: text.readline(_LONGEST_LINE), "")))
        return next(lines, []), next(lines, [])
    finally:
        text.detach()


def _types(layout: Layout) -> dict[str, pa.DataType]:
    """The type of each column that is read."""
    types = dict.fromkeys(layout.columns, pa.float64())
    types |= dict.fromkeys((*CATEGORIES, "label", "id"), pa.string())
    return types | {"severity": pa.int64(), "in_distribution": pa.bool_()}


def _with_numbers(batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
    """The same with ids as integers, as the first one is; one that is not as an integer is written is refused."""
    place = batch.schema.get_field_index("id")
    texts = pc.utf8_trim_whitespace(batch.column(place))
    short = pc.less_equal(pc.utf8_length(texts), _SURELY_64_BITS)
    sure = pc.fill_null(pc.and_(short, pc.match_substring_regex(texts, _INTEGER)), True)
    for row in np.flatnonzero(~sure.to_numpy(zero_copy_only=False)):
        if not _is_integer(texts[row].as_py()):
            raise PredictionFileError(
                f"row {first_row + row}, column 'id' is {texts[row].as_py()!r}; ids are all integers of 64 bits or all "
                "text, as the first one is"
            )
    return batch.set_column(place, "id", texts.cast(pa.int64()))


def _is_integer(cell: str) -> bool:
    """Whether a cell is an integer of 64 bits, as it stands: 007 is a name."""
    text = cell.strip()
    return re.fullmatch(_INTEGER, text) is not None and abs(int(text)) <= np.iinfo(np.int64).max
