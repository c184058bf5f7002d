"""`PredictionFile`: an opened file of predictions, whatever its format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from counterpoise._blocks import rows_at_a_time
from counterpoise.predictions.columns import DESCRIPTIVE, GROUPED, AmbiguousInputError, Layout, Reading, some
from counterpoise.predictions.digest import Source, verified
from counterpoise.predictions.layout import models_of, tables
from counterpoise.predictions.recognition import find_layout
from counterpoise.predictions.table import Header, Kind, PredictionFileError, Predictions


@dataclass(frozen=True)
class PredictionFile:
    """What a file says before its rows are read; `batches` reads them.

    Attributes:
        path: of the file.
        layout: which columns hold what.
        rows: number of rows, or None where only reading tells.
        header: where the predictions come from.
        digest: SHA-256 of the file that was verified, or None where there was none to verify.
        notices: what a reader should know, such as a missing digest.
        read: the format's own reader.
        models: names of the models whose rows it holds, where it has a column of them.
    """

    path: Path
    layout: Layout
    rows: int | None
    header: Header
    digest: str | None
    notices: tuple[str, ...]
    read: Callable[[], Iterator[Predictions]] = field(repr=False)
    models: Callable[[], list[str]] = field(repr=False)

    @property
    def kind(self) -> Kind:
        """What the values are."""
        return self.layout.kind

    @property
    def classes(self) -> int:
        """K."""
        return self.layout.classes

    @property
    def members(self) -> int | None:
        """M, or None without a member axis."""
        return self.layout.members

    @property
    def has_ids(self) -> bool:
        """Whether it has ids; if not, rows are numbered."""
        return self.layout.id is not None

    def batches(self) -> Iterator[Predictions]:
        """The rows in order, in batches of some megabytes.

        Raises:
            PredictionFileError: a row is damaged or malformed, or the file was replaced since it was opened.
        """
        return self.read()


@dataclass(frozen=True)
class RawTable:
    """A file as its format reads it: named columns, of which nobody has said yet what they are.

    Attributes:
        source: the file.
        what: a file of this format, in messages.
        sample: the first rows.
        rows: number of rows, or None where only reading tells.
        batches: reads the columns of these names; formats that leave it open take the types from the layout.
        members: M of the columns of lists that hold M predictions each.
        class_names: where the file names them.
        layout: which columns hold what, where the file says it.
        header: where the predictions come from, where the file says it.
    """

    source: Source
    what: str
    sample: pa.RecordBatch
    rows: int | None
    batches: Callable[[Sequence[str], Layout | None], Iterator[pa.RecordBatch]]
    members: Mapping[str, int] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    layout: Layout | None = None
    header: Header | None = None

    def column(self, name: str) -> pa.Array:
        """A whole column."""
        with refusing(self.source.path, what=self.what):
            return pa.chunked_array([batch.column(0) for batch in self.batches([name], None)]).combine_chunks()


def table_of_batches(path: Path, read: Callable[[Source], Iterator[pa.RecordBatch]], *, what: str) -> RawTable:
    """Of a format that gives a file as batches of all columns; the types that the first has are those of all."""
    with refusing(path, what=what), verified(path) as (source, _):
        sample = next(read(source), None)
        if sample is None:
            raise PredictionFileError("it has no rows")

    def batches(wanted: Sequence[str], _layout: Layout | None) -> Iterator[pa.RecordBatch]:
        names = [name for name in sample.schema.names if name in wanted]
        step = rows_at_a_time(max(1, sample.nbytes // sample.num_rows))
        for batch in read(source):
            yield from (batch.slice(row, step).select(names) for row in range(0, batch.num_rows, step))

    return RawTable(source=source, what=what, sample=sample, rows=None, batches=batches)


def prediction_file(raw: RawTable, reading: Reading) -> PredictionFile:
    """The predictions in a table, found by what its columns are called unless the file says it."""
    source, path = raw.source, raw.source.path
    with refusing(path, what=raw.what):
        layout = raw.layout or find_layout(raw.sample, reading, members=raw.members, class_names=raw.class_names)
        if reading.like is None:  # of a file of OOD samples, which are one set
            layout = _grouped(layout, reading.by, raw.sample.schema)
    header = raw.header or Header(class_names=layout.class_names)

    def read() -> Iterator[Predictions]:
        row = 0
        with refusing(path, what=raw.what):
            batches = raw.batches([*layout.read, *DESCRIPTIVE], layout)
            for table in tables(batches, layout=layout, header=header, reading=reading):
                row += len(table)
                yield table
            if row == 0:
                raise PredictionFileError("it has no rows")
            if raw.rows not in (None, row) and reading.only is None:
                raise PredictionFileError(f"it declares {raw.rows:,} rows and holds {row:,}; write it again")

    def models() -> list[str]:
        return [] if layout.model is None else models_of(raw.column(layout.model))

    return PredictionFile(
        path=path,
        layout=layout,
        rows=raw.rows if reading.only is None else None,
        header=header,
        digest=source.digest,
        notices=_notices(raw, layout),
        read=read,
        models=models,
    )


def _grouped(layout: Layout, by: Sequence[str], schema: pa.Schema) -> Layout:
    for name in by:
        if name not in schema.names:
            raise PredictionFileError(f"it has no column {name!r} (--by); its columns are {some(schema.names)}")
        if pa.types.is_nested(schema.field(name).type):
            raise PredictionFileError(
                f"column {name!r} (--by) holds {schema.field(name).type}, not a value for each row"
            )
    ignored = tuple(name for name in layout.ignored if name not in by)
    return replace(layout, by=tuple(name for name in by if name not in GROUPED), ignored=ignored)


def _notices(raw: RawTable, layout: Layout) -> tuple[str, ...]:
    """What was taken for what, in files of other programs; of our own, that the digest is missing."""
    path = raw.source.path
    if raw.layout is None:
        return (f"{path}: {layout.described()}",)
    missing = raw.source.digest is None
    return (f"{path}: there is no digest beside it, so damage may go unnoticed",) if missing else ()


@contextmanager
def refusing(path: Path, *, what: str) -> Iterator[None]:
    """Every way in which a file can be unreadable becomes one exception that names the file."""
    try:
        yield
    except AmbiguousInputError as question:
        raise question.at(path) from None
    except PredictionFileError as error:
        raise PredictionFileError(f"{path}: {error}") from None
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as error:
        # What a parser raises for damaged bytes is nowhere listed: besides Arrow's own, KeyError, RecursionError,
        # struct.error, TokenError and more.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PredictionFileError(f"{path}: not a readable {what} of predictions: {reason}") from None
