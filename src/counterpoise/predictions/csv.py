"""Predictions from CSV: a header line, then one sample a line; every cell read as the type its column must have."""

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from counterpoise.predictions.columns import Layout
from counterpoise.predictions.compression import opened, read_bytes
from counterpoise.predictions.digest import Source
from counterpoise.predictions.names import KNOWN, TEXT_NAMES, normal_name
from counterpoise.predictions.prediction_file import RawTable, refusing
from counterpoise.predictions.table import PredictionFileError

_BLOCK_BYTES, _SAMPLE_BYTES = 1 << 23, 1 << 20
_LONGEST_MESSAGE = 300
_WHAT = "CSV file"
_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
_SURELY_64_BITS = 18
_LINES, _COMPARED = 100, 20
"""Read for the decimal point, and for each separator."""
_SEPARATORS = ",;\t|"
_FRACTION = r"-?[0-9]*[{}][0-9]+([eE][+-]?[0-9]+)?\s*%?"
_ENCODINGS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_UTF32 = (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")
_IN_UTF8 = "save it as UTF-8, which spreadsheets call CSV UTF-8"


@dataclass(frozen=True)
class _Way:
    """How the cells of a column are written, in which Arrow sees but text.

    Attributes:
        what: a cell is, in messages.
        read: of cells and the decimal point, their values, or nothing where a cell is written otherwise; and which are
            written so.
    """

    what: str
    read: Callable[[pa.Array, str], tuple[pa.Array, pa.Array]]


@dataclass(frozen=True)
class _Dialect:
    """How the cells of a file are written.

    Attributes:
        names: of the columns.
        first: cells of the first row.
        separator: between cells.
        decimal_point: of numbers.
        encoding: of the text.
        skipped: lines before the header line, or before the first row.
        is_named: whether the names are given to Arrow: the header line was a comment, as `numpy.savetxt` writes it, or
            lacked a name, as R's `write.table` leaves it.
        written: columns of values in which Arrow sees but text.
    """

    names: tuple[str, ...]
    first: tuple[str, ...]
    separator: str
    decimal_point: str
    encoding: str
    skipped: int
    is_named: bool
    written: Mapping[str, _Way]


def open_csv(source: Source) -> RawTable:
    """Read the header line and some rows; the rows are read later, block by block.

    Separator, decimal point, encoding, percent signs and lists are found from the first lines.
    """
    with refusing(source.path, what=_WHAT):
        dialect = _dialect(source)
        sample = _sample(source, dialect)

    def batches(wanted: Sequence[str], layout: Layout | None) -> Iterator[pa.RecordBatch]:
        names = [name for name in dialect.names if name in wanted]
        types = dict.fromkeys(names, pa.string())
        values = () if layout is None else layout.values
        types |= {name: pa.string() if name in dialect.written else pa.float64() for name in values}
        ids = None if layout is None else layout.id
        numbered = ids in names and _is_integer(dialect.first[dialect.names.index(ids)])
        written = [name for name in values if name in dialect.written]
        row = 0
        labels = [name for name in names if layout is not None and name in (*layout.label, layout.prediction)]
        # Labels that lack a value somewhere are written with a point: 1.0 is the number 1 unless a class is called so.
        whole = r"\1" if layout is None or layout.class_names is None else r"\1.0"
        with opened(source) as handle:
            for batch in _batches(handle, dialect, types, names):
                for name in written:
                    batch = _with_values(batch, name, row, dialect)
                for name in labels:
                    place = batch.schema.get_field_index(name)
                    pattern = rf"^\s*([+-]?[0-9]+)[{dialect.decimal_point}]0+\s*$"
                    cells = pc.replace_substring_regex(batch.column(place), pattern, whole)
                    batch = batch.set_column(place, name, cells)
                yield _with_numbers(batch, ids, row) if numbered and ids is not None else batch
                row += batch.num_rows

    unnamed = dialect.names.count("") == 1
    return RawTable(source=source, what=_WHAT, sample=sample, rows=None, batches=batches, unnamed=unnamed)


def _dialect(source: Source) -> _Dialect:
    with opened(source) as handle:
        head = read_bytes(handle, _BLOCK_BYTES)
    encoding = _ENCODINGS.get(head[:2], "utf-8-sig")
    text = head.decode(encoding, errors="replace")
    comments = list(itertools.takewhile(re.compile(r'#|"?sep=."?$').match, _lines(text)))
    lines = [line for line in itertools.islice(_lines(text), len(comments), len(comments) + _LINES) if line.strip()]
    in_comment = bool(comments and lines) and _has_number(lines[0])
    if in_comment:
        lines.insert(0, comments[-1].removeprefix("#").strip())
    if not lines:
        raise PredictionFileError("it is empty; write it again")
    if head[:4] in _UTF32:
        raise PredictionFileError(f"it is UTF-32; {_IN_UTF8}")
    if (place := lines[0].find("\N{REPLACEMENT CHARACTER}")) >= 0:
        raise PredictionFileError(f"its header line is not UTF-8 after {lines[0][:place][-20:]!r}; {_IN_UTF8}")
    separator, names, rows = _first_cells(lines)
    first = rows[0] if rows else ()
    lacking = len(first) == len(names) + 1
    if lacking:  # at the end where lines end with a separator, else the names of rows
        names = ("", *names) if any(row[-1] for row in rows[:_COMPARED]) else (*names, "")
    comma = separator != "," and _has_decimal_commas(names, rows)
    _require_no_thousands(names, rows, "," if comma else ".")
    return _Dialect(
        names=names,
        first=first,
        separator=separator,
        decimal_point="," if comma else ".",
        encoding="utf8" if encoding == "utf-8-sig" else encoding,
        skipped=len(comments) + (lacking and not in_comment),
        is_named=in_comment or lacking,
        written={
            name: way
            for name, cell in zip(names, first, strict=False)
            for pattern, way in _WAYS
            if re.fullmatch(pattern, cell, re.DOTALL)
        },
    )


def _first_cells(lines: list[str]) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """The separator, and the cells of the header line and of lines after it."""
    found = [_split(lines[:_COMPARED], separator) for separator in _SEPARATORS]
    # The one by which lines are as long as the header line, which names with commas are not, and that makes most of it;
    # a space only where no other makes anything.
    separator, names, _ = max(found, key=lambda each: (len(each[1]) > 1 and _agree(*each[1:]), len(each[1])))
    if len(names) == 1:  # a space, unless it stands within the only name or its texts
        spaced = _split(lines[:_COMPARED], " ")
        is_one = len(spaced[1]) == 1 or normal_name(names[0]) in KNOWN or not _agree(*spaced[1:])
        separator = separator if is_one else " "
    separator, names, rows = _split(lines, separator)
    if number := _fraction(names):
        raise PredictionFileError(
            f"its first line holds numbers, such as {number!r:.40}, where names of columns are due; write a header "
            "line above it, such as prob_0,prob_1,label"
        )
    return separator, names, rows


def _agree(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> bool:
    """Whether lines have a cell for each name, or all one more; of several, the last may be a part of one."""
    lengths = {len(row) for row in rows[: max(1, len(rows) - 1)]}
    return lengths in ({len(names)}, {len(names) + 1})


def _has_decimal_commas(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> bool:
    """Whether more columns have numbers with commas than with points: a price or a version may be written otherwise.

    One whose name is known counts twice.
    """
    columns = list(zip(names, itertools.zip_longest(*rows, fillvalue=""), strict=False))
    commas, points = (
        sum(
            1 + (normal_name(name) in KNOWN)
            for name, cells in columns
            if any(point in cell and re.fullmatch(_FRACTION.format(point), cell) for cell in cells)
        )
        for point in ",."
    )
    return commas > points


def _require_no_thousands(names: tuple[str, ...], rows: list[tuple[str, ...]], point: str) -> None:
    """Reject numbers that are whole or have three digits after each point, which may stand between thousands."""
    for name, cells in zip(names, itertools.zip_longest(*rows, fillvalue=""), strict=False):
        numbers = [cell.strip() for cell in cells if re.fullmatch(rf"\s*-?[0-9]+([{point}][0-9]+)*\s*", cell)]
        grouped = [number for number in numbers if re.fullmatch(rf"-?[1-9][0-9]{{0,2}}([{point}][0-9]{{3}})+", number)]
        plain = [number for number in numbers if re.fullmatch(r"-?[0-9]{1,3}", number)]
        if grouped and plain and len(grouped) + len(plain) == len(numbers) and normal_name(name) not in TEXT_NAMES:
            whole = grouped[0].replace(point, "")
            raise PredictionFileError(
                f"column {name!r} has numbers such as {grouped[0]!r} and {plain[0]!r}: {grouped[0]!r} may be {whole}; "
                "write numbers without separators between thousands, and fractions with other than three digits"
            )


def _lines(text: str) -> Iterator[str]:
    return (line.removesuffix("\n") for line in io.StringIO(text, newline=None))


def _has_number(line: str) -> bool:
    return any(_fraction(_split([line], separator)[1]) is not None for separator in (*_SEPARATORS, " "))


def _fraction(cells: Sequence[str]) -> str | None:
    """The first cell that is a number and could not be a name; a whole number could."""
    return next((cell for cell in cells if re.fullmatch(r"\s*[+-]?[0-9]*[.][0-9]+([eE][+-]?[0-9]+)?\s*", cell)), None)


def _split(lines: list[str], separator: str) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """The cells of the header line and of the lines after it."""
    found = list[tuple[str, ...]]()
    try:
        found.extend(tuple(row) for row in csv.reader(io.StringIO("\n".join(lines)), delimiter=separator) if row)
    except csv.Error as error:  # such as a text that is too long, about which Arrow is right
        if len(found) < 2:
            raise PredictionFileError(
                f"row {max(0, len(found) - 1)} cannot be split into cells ({error}); close its quotation marks, or "
                "write long lists as Parquet"
            ) from None
    names, *rows = found or [()]
    return separator, names, rows


def _sample(source: Source, dialect: _Dialect) -> pa.RecordBatch:
    """The first rows, each column of the type that its cells have."""
    with opened(source) as handle:
        # Arrow reads several blocks ahead, and short rows make a million of a large one.
        line = sum(map(len, (*dialect.names, *dialect.first))) + len(dialect.names)
        block = min(_BLOCK_BYTES, max(_SAMPLE_BYTES, 100 * line))
        batches = _batches(handle, dialect, {}, [name for name in dialect.names if name], block=block)
        batch = next(batches, None)
    if batch is None:
        raise PredictionFileError("it has a header line and no rows")
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_text = pa.types.is_string(column.type) and normal_name(name) not in TEXT_NAMES
        if is_text and name in dialect.written:
            values, found = _values(column, name, dialect)
            column = values if found[0].as_py() else column
        elif is_text and _is_number(column[0].as_py()):
            column = _as_numbers(column)
        columns.append(column)
    return pa.record_batch(columns, names=batch.schema.names)


def _percentages(texts: pa.Array, decimal_point: str) -> tuple[pa.Array, pa.Array]:
    """Of cells such as 22.75 % the hundredth, or nothing where a cell is no percentage; and which cells are."""
    found = _fitting(texts, rf"^{_NUMBER.replace('.', decimal_point)}\pZ*%$")
    numbers = pc.utf8_trim_whitespace(pc.utf8_rtrim(pc.if_else(found, texts, None), "%"))
    return pc.divide(pc.replace_substring(numbers, decimal_point, ".").cast(pa.float64()), 100), found


def _lists(texts: pa.Array, _: str) -> tuple[pa.Array, pa.Array]:
    """Of cells such as [0.25, 0.75], or [0.25 0.75] as NumPy writes it, the numbers, or nothing; and which are such.

    What NumPy, torch and Spark write around them is left out: np.float64(0.25), tensor([0.25, 0.75]).
    """
    plain = pc.replace_substring_regex(texts, r"^\w+\((\[[^\]]*\])[^\[\]]*\)$", r"\1")
    plain = pc.replace_substring_regex(plain, r"np\.float[0-9]+\(([^()]*)\)", r"\1")
    found = _fitting(plain, rf"^\[\s*{_NUMBER}([,\s]+{_NUMBER})*\s*\]$")
    inside = pc.utf8_trim(pc.if_else(found, plain, None), "[] \t\r\n")
    return pc.split_pattern_regex(inside, r"[,\s]+").cast(pa.list_(pa.float64())), found


def _fitting(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.fill_null(pc.match_substring_regex(texts, pattern), False)


_NUMBER = r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+|inf|nan)([eE][+-]?[0-9]+)?"
_WAYS: tuple[tuple[str, _Way], ...] = (
    (r".*%\s*", _Way("a percentage with its sign", _percentages)),
    (r"\s*(\w+\()?\[.*\].*", _Way("a list of all its numbers", _lists)),
)


def _values(column: pa.Array, name: str, dialect: _Dialect) -> tuple[pa.Array, pa.Array]:
    return dialect.written[name].read(pc.utf8_trim_whitespace(column), dialect.decimal_point)


def _as_numbers(column: pa.Array) -> pa.Array:
    """A column whose first cell is a number, so that one that is not is refused by row when it is read."""
    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:  # one that is not is missing here
        return pa.array([float(cell) if _is_number(cell) else None for cell in column.to_pylist()], pa.float64())


def _is_number(cell: str | None) -> bool:
    try:
        float(cell or "")
    except ValueError:
        return False
    return True


def _batches(
    handle: pa.NativeFile,
    dialect: _Dialect,
    types: dict[str, pa.DataType],
    wanted: list[str],
    *,
    block: int | None = None,
) -> Iterator[pa.RecordBatch]:
    try:
        with pa_csv.open_csv(
            handle,
            read_options=pa_csv.ReadOptions(
                use_threads=False,
                block_size=block or _BLOCK_BYTES,
                encoding=dialect.encoding,
                skip_rows=dialect.skipped,
                column_names=list(dialect.names) if dialect.is_named else None,
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, delimiter=dialect.separator),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=wanted,
                null_values=[""],
                strings_can_be_null=True,
                decimal_point=dialect.decimal_point,
            ),
        ) as batches:
            yield from (batch for batch in batches if batch.num_rows)
    except pa.ArrowInvalid as error:
        raise PredictionFileError(_placed(str(error), dialect)) from None


def _placed(message: str, dialect: _Dialect) -> str:
    """Arrow's message with rows counted from the first below the header line, and columns by name."""
    line = message.splitlines()[0][:_LONGEST_MESSAGE]
    named = re.sub(r"CSV column #(\d+)", lambda found: f"column {dialect.names[int(found[1])]!r}", line)
    first = dialect.skipped + (1 if dialect.is_named else 2)
    placed = re.sub(r"Row #(\d+)", lambda found: f"row {int(found[1]) - first}", named)
    if again := re.search(r"column '(.*)': (row \d+): .* invalid value '\1'$", placed):
        return f"{again[2]} is the header line again, as where files were put one after another; leave it out"
    return f"{placed}; {_IN_UTF8 if 'UTF8' in placed else 'mend it'}"


def _with_values(batch: pa.RecordBatch, name: str, first_row: int, dialect: _Dialect) -> pa.RecordBatch:
    """The same with a column of text as values; a cell that is written in another way, and not empty, is refused."""
    place = batch.schema.get_field_index(name)
    texts = batch.column(place)
    values, found = _values(texts, name, dialect)
    wrong = pc.index(pc.and_(pc.is_valid(texts), pc.invert(found)), True).as_py()
    if wrong >= 0:
        raise PredictionFileError(
            f"row {first_row + wrong}, column {name!r} is {texts[wrong].as_py()!r:.60}; write "
            f"{dialect.written[name].what}, as in the first row"
        )
    return batch.set_column(place, name, values)


def _with_numbers(batch: pa.RecordBatch, name: str, first_row: int) -> pa.RecordBatch:
    """The same with ids as integers, as the first one is; one that is not as an integer is written is refused."""
    place = batch.schema.get_field_index(name)
    texts = pc.utf8_trim_whitespace(batch.column(place))
    short = pc.less_equal(pc.utf8_length(texts), _SURELY_64_BITS)
    sure = pc.fill_null(pc.and_(short, pc.match_substring_regex(texts, _INTEGER)), True)
    for row in pc.indices_nonzero(pc.invert(sure)).to_pylist():
        if not _is_integer(texts[row].as_py()):
            raise PredictionFileError(
                f"row {first_row + row}, column {name!r} is {texts[row].as_py()!r}; ids are all integers of 64 bits or "
                "all text, as the first one is"
            )
    return batch.set_column(place, name, texts.cast(pa.int64()))


def _is_integer(cell: str) -> bool:
    """Whether a cell is an integer of 64 bits, as it stands: 007 is a name."""
    text = cell.strip()
    return re.fullmatch(_INTEGER, text) is not None and abs(int(text)) <= np.iinfo(np.int64).max
