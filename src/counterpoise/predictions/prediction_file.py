"""`PredictionFile`: an opened file of predictions, whatever its format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from counterpoise._blocks import rows_at_a_time
from counterpoise._files import FilePath
from counterpoise._text import some
from counterpoise.predictions.columns import AmbiguousInputError, Columns, Layout, Reading
from counterpoise.predictions.descriptive import column_called
from counterpoise.predictions.digest import Source
from counterpoise.predictions.from_arrow import without_decimals
from counterpoise.predictions.layout import models_of, tables
from counterpoise.predictions.names import GROUPED, KNOWN, is_found, normal_name
from counterpoise.predictions.recognition import find_layout
from counterpoise.predictions.table import Header, Kind, PredictionFileError, Predictions

_FEW = 10


@dataclass(frozen=True)
class PredictionFile:
    """What a file says before its rows are read; `batches` reads them.

    Attributes:
        layout: which columns hold what.
        rows: number of rows, or None where only reading tells.
        group_rows: of each row group, where it can be read by these.
        header: where the predictions come from.
        source: the file as it was when it was opened.
        notices: what a reader should know, such as a missing digest.
        read: the format's own reader.
        models: names of the models whose rows it holds, where it has a column of them.
    """

    layout: Layout
    rows: int | None
    group_rows: tuple[int, ...]
    header: Header
    source: Source
    notices: tuple[str, ...]
    read: Callable[[range | None], Iterator[Predictions]] = field(repr=False)
    models: Callable[[], list[str]] = field(repr=False)

    @property
    def path(self) -> FilePath:
        return self.source.path

    @property
    def digest(self) -> str | None:
        """SHA-256 of the file that was verified, or None where there was none to verify."""
        return self.source.digest

    @property
    def kind(self) -> Kind:
        return self.layout.kind

    @property
    def classes(self) -> int:
        return self.layout.classes

    @property
    def members(self) -> int | None:
        """M, or None without a member axis."""
        return self.layout.members

    @property
    def has_ids(self) -> bool:
        """Whether it has ids; if not, rows are numbered."""
        return self.layout.id is not None

    def batches(self, groups: range | None = None) -> Iterator[Predictions]:
        """The rows in order, in batches of some megabytes; all of them, or those of some row groups.

        Raises:
            PredictionFileError: a row is damaged or malformed, or the file was replaced since it was opened.
        """
        return self.read(groups)


@dataclass(frozen=True)
class RawTable:
    """A file as its format reads it: named columns, of which nobody has said yet what they are.

    Attributes:
        source: the file.
        what: a file of this format, in messages.
        sample: the first rows.
        rows: number of rows, or None where only reading tells.
        group_rows: of each row group, of a format whose `batches` takes a range of them.
        batches: reads the columns of these names; formats that leave it open take the types from the layout.
        members: M of the columns of lists that hold M predictions each.
        class_names: where the file names them.
        layout: which columns hold what, where the file says it.
        header: where the predictions come from, where the file says it.
        others: the columns of other numbers of rows, as tables of their own.
        unnamed: whether one more column has no name, as the index that pandas writes.
    """

    source: Source
    what: str
    sample: pa.RecordBatch
    rows: int | None
    batches: Callable[..., Iterator[pa.RecordBatch]]
    group_rows: tuple[int, ...] = ()
    members: Mapping[str, int] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    layout: Layout | None = None
    header: Header | None = None
    others: tuple["RawTable", ...] = ()
    unnamed: bool = False

    @property
    def names(self) -> list[str]:
        names: list[str] = self.sample.schema.names
        return names

    def column(self, name: str) -> pa.Array:
        with refusing(self.source.path, what=self.what):
            column = pa.chunked_array([batch.column(0) for batch in self.batches([name], None)]).combine_chunks()
            self.source.require_unchanged()
            return column


def table_of_batches(source: Source, read: Callable[[Source], Iterator[pa.RecordBatch]], *, what: str) -> RawTable:
    """Of a format that gives a file as batches of all columns; the types that the first has are those of all."""
    with refusing(source.path, what=what):
        sample = next(read(source), None)
        if sample is None:
            raise PredictionFileError("it has no rows")

    def batches(wanted: Sequence[str], _layout: Layout | None) -> Iterator[pa.RecordBatch]:
        chosen = {*wanted}
        names = [name for name in sample.schema.names if name in chosen]
        step = rows_at_a_time(max(1, sample.nbytes // sample.num_rows))
        for batch in read(source):
            yield from (batch.slice(row, step).select(names) for row in range(0, batch.num_rows, step))

    return RawTable(source=source, what=what, sample=sample, rows=None, batches=batches)


def prediction_file(raw: RawTable, reading: Reading) -> PredictionFile:
    """The predictions in a table, found by what its columns are called unless the file says it."""
    source, path = raw.source, raw.source.path
    with refusing(path, what=raw.what):
        raw, layout = _meant(raw, reading)
        if reading.like is None:  # of a file of OOD samples, which are one set
            layout = _grouped(layout, reading.by, raw.sample.schema)
    header = raw.header or Header(class_names=layout.class_names)

    def read(groups: range | None) -> Iterator[Predictions]:
        row, columns = 0, [*layout.read]
        declared = raw.rows if groups is None else sum(raw.group_rows[group] for group in groups)
        first_row = 0 if groups is None else sum(raw.group_rows[: groups.start])
        with refusing(path, what=raw.what):
            batches = raw.batches(columns, layout) if groups is None else raw.batches(columns, layout, groups=groups)
            for table in tables(
                map(without_decimals, batches), layout=layout, header=header, reading=reading, first_row=first_row
            ):
                row += len(table)
                yield table
            source.require_unchanged()
            if row == 0:
                raise PredictionFileError("it has no rows")
            if declared not in (None, row) and reading.only is None:
                raise PredictionFileError(f"it declares {declared:,} rows and holds {row:,}; write it again")

    def models() -> list[str]:
        if layout.model is None:
            return []
        with refusing(path, what=raw.what):
            return models_of(raw.column(layout.model), layout.model)

    return PredictionFile(
        layout=layout,
        rows=raw.rows if reading.only is None else None,
        group_rows=raw.group_rows if reading.only is None else (),
        header=header,
        source=source,
        notices=_notices(raw, layout),
        read=read,
        models=models,
    )


def named_table(raw: RawTable, chosen: Columns) -> RawTable:
    """Of the tables of a file the one that holds the columns that were chosen, with the others beside it."""
    patterns = (chosen.logits, chosen.probabilities, chosen.confidence, chosen.label, chosen.prediction, chosen.correct)
    given, tables = [pattern for pattern in (*patterns, chosen.id) if pattern is not None], (raw, *raw.others)
    if len(tables) == 1 or not given:
        return raw
    holding = [[table for table in tables if is_found(table.names, pattern)] for pattern in given]
    if not all(holding):
        return raw  # what is not there is said where it is looked for
    for table in tables:
        if all(table in found for found in holding):
            return replace(table, others=tuple(other for other in tables if other is not table))
    first, *rest = holding
    other = next(place for place, found in enumerate(rest, 1) if first[0] not in found)
    raise _unequal(first[0], given[0], holding[other][0], given[other])


def _meant(raw: RawTable, reading: Reading) -> tuple[RawTable, Layout]:
    """The table whose names tell what its columns are, and that; what is asked about each, where none does."""
    tables, found, questions = (raw, *raw.others), dict[int, Layout](), list[PredictionFileError]()
    for place, table in enumerate(tables):
        try:
            sample = without_decimals(table.sample)
            found[place] = table.layout or find_layout(
                sample, reading, members=table.members, class_names=table.class_names
            )
            break
        except PredictionFileError as question:
            questions.append(question)
    if not found:
        raise _joint(questions)
    ((place, layout),) = found.items()
    others = tuple(table for table in tables if table is not tables[place])
    for table in others if reading.like is None else ():
        # A table of labels alone belongs to one that has none.
        wrong = [name for name in table.names if name in KNOWN]
        if wrong and not (layout.label or layout.correct):
            raise _unequal(tables[place], layout.values[0], table, wrong[0])
    return replace(tables[place], others=others), layout


def _joint(questions: Sequence[PredictionFileError]) -> PredictionFileError:
    """The first, with the choices of all, each with its column of values."""
    asked = [question for question in questions if isinstance(question, AmbiguousInputError)]
    if not asked:
        return questions[0]
    more = [
        (choice, reason)
        for question in asked[1:]
        for choice, reason in question.choices
        if {"logits", "probabilities", "confidence"} & choice.keys()
    ]
    return AmbiguousInputError(asked[0].problem, [*asked[0].choices, *more])


def _unequal(one: RawTable, name: str, other: RawTable, wrong: str) -> PredictionFileError:
    return PredictionFileError(f"array {wrong!r} has {other.rows:,} rows and {name!r} has {one.rows:,}")


def _grouped(layout: Layout, by: Sequence[str], schema: pa.Schema) -> Layout:
    groups = {layout.descriptive[known] for known in GROUPED if known in layout.descriptive}
    chosen = []
    for asked in by:
        name = column_called(schema.names, asked)
        if name is None:
            raise PredictionFileError(f"it has no column {asked!r} (--by); its columns are {some(schema.names)}")
        if pa.types.is_nested(schema.field(name).type):
            raise PredictionFileError(
                f"column {name!r} (--by) holds {schema.field(name).type}, not a value for each row"
            )
        if normal_name(name) == "severity" and name not in groups:
            raise PredictionFileError(f"column {name!r} (--by) holds text, not whole numbers; rename it to group by it")
        chosen.append(name)
    ignored = tuple(name for name in layout.ignored if name not in chosen)
    return replace(layout, by=tuple(name for name in chosen if name not in groups), ignored=ignored)


def _notices(raw: RawTable, layout: Layout) -> tuple[str, ...]:
    """What was taken for what, in files of other programs; of our own, that the digest is missing."""
    path = raw.source.path
    if raw.layout is None:
        left = [f"{name!r} ({table.rows:,})" for table in raw.others for name in table.names]
        notices = [f"{path}: left out, as it has not {raw.rows:,} rows: {', '.join(left[:_FEW])}"] if left else []
        return (f"{path}: {layout.described()}", *notices)
    missing = raw.source.digest is None
    return (f"{path}: there is no digest beside it, so damage may go unnoticed",) if missing else ()


@contextmanager
def refusing(path: FilePath, *, what: str) -> Iterator[None]:
    """Every way in which a file can be unreadable becomes one exception that names the file."""
    try:
        yield
    except AmbiguousInputError as question:
        raise question.at(path) from None
    except PredictionFileError as error:
        raise PredictionFileError(f"{path}: {error}") from None
    except (FileNotFoundError, PermissionError, ConnectionError):
        raise
    except MemoryError as error:
        raise PredictionFileError(
            f"{path}: it does not fit into memory ({error}); write it with smaller row groups, and without long texts"
        ) from None
    except Exception as error:
        # What a parser raises for damaged bytes is nowhere listed: besides Arrow's own, KeyError, RecursionError,
        # struct.error, TokenError and more.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PredictionFileError(f"{path}: not a readable {what} of predictions: {reason}") from None
