"""Labels in a file of their own, as one more column of the predictions: by ids that both files have, or row by row."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise._files import FilePath
from counterpoise._text import some
from counterpoise.predictions.columns import AmbiguousInputError, Choice, Columns, Layout, one_of
from counterpoise.predictions.names import IDS, LABELS, normal_name
from counterpoise.predictions.prediction_file import RawTable, refusing
from counterpoise.predictions.sample import is_floating, is_list, repeats
from counterpoise.predictions.table import PredictionFileError

_Find = Callable[[pa.RecordBatch, int], tuple[pa.Array, int]]
"""Of a batch, and the row that it begins with, its labels, and for how many rows there is one."""


def with_labels(raw: RawTable, beside: RawTable, chosen: Columns) -> tuple[RawTable, Columns, str]:
    """The table with the labels of another one, which of its columns they are then, and how they were found."""
    path = beside.source.path
    with refusing(path, what=beside.what):
        label = _label_column(beside.names, {*raw.names, chosen.id})
    with refusing(raw.source.path, what=raw.what):
        ids = _ids(raw, beside, label, chosen)
    labels = _plain(beside.column(label))
    name = f"{label} of {path.name}"
    own = None if ids is None else ids[0]
    find = _in_order(labels, path) if ids is None else _by_id(beside, ids, labels)

    def batches(wanted: Sequence[str], layout: Layout | None) -> Iterator[pa.RecordBatch]:
        if name not in wanted:
            yield from raw.batches(wanted, layout)
            return
        row, count = 0, 0
        for batch in raw.batches([*wanted] if own is None else [*wanted, own], layout):
            found, known = find(batch, row)
            row, count = row + len(batch), count + known
            yield batch.append_column(name, found)
        if own is None and row != len(labels):
            raise PredictionFileError(f"{path} has {len(labels):,} labels for the {row:,} rows")
        if ids is not None and not count:
            shown = ", ".join(map(repr, _texts(beside.column(ids[1]).slice(0, 3))))
            raise PredictionFileError(f"none of the ids in {path}, such as {shown}, is one of those in {own!r}")

    if own is None and raw.rows not in (None, len(labels)):
        raise PredictionFileError(f"{raw.source.path}: {path} has {len(labels):,} labels for the {raw.rows:,} rows")
    with refusing(raw.source.path, what=raw.what):
        first = raw.sample if own is None else _first_rows(raw, [own])
        sample = raw.sample.append_column(name, find(first, 0)[0])
    layout = None if raw.layout is None else replace(raw.layout, label=(name,))
    joined = replace(raw, sample=sample, batches=batches, group_rows=(), layout=layout)
    columns = replace(chosen, label=name, labels=None, row_by_row=False, id=own or chosen.id)
    return joined, columns, f"labels from {path}, {'row by row' if own is None else f'by {own!r}'}"


def _label_column(names: Sequence[str], others: AbstractSet[str | None]) -> str:
    """The column of a known name, or the only one that is neither of ids nor one that the predictions have as well."""
    known = [name for name in names if normal_name(name) in LABELS]
    free = [name for name in names if normal_name(name) not in IDS]
    found = known or [name for name in free if name not in others] or free
    if len(found) != 1:
        raise PredictionFileError(
            f"it needs one column of labels, such as 'label', and may have ids; its columns are {some(names)}"
        )
    return found[0]


def _ids(raw: RawTable, beside: RawTable, label: str, chosen: Columns) -> tuple[str, str] | None:
    """The columns of ids in both tables; None where labels are in the order of the rows."""
    if chosen.row_by_row:
        return None
    path = beside.source.path
    names = raw.names
    own = one_of(names, IDS, chosen.id, option="id") if raw.layout is None else raw.layout.id
    others = [name for name in beside.names if name != label]
    theirs = [name for name in others if normal_name(name) in IDS]
    found = [] if own is None else [name for name in others if normal_name(name) == normal_name(own)] or theirs
    if not found:
        telling = _telling(beside, [*others, *[""] * beside.unnamed])
        if own is None or chosen.id is None:
            _require_no_ids(raw, beside, label, telling, theirs)
            return None
        chosen_ids = {*_texts(_first_rows(raw, [own]).column(own))}
        found = [name for name, texts in telling.items() if chosen_ids.intersection(texts)]
        if not found:
            raise PredictionFileError(f"{path} has no column {own!r} (--id); its columns are {some([*others, label])}")
    if len(found) > 1:
        raise PredictionFileError(f"{' and '.join(map(repr, found))} of {path} could each hold its ids; leave one")
    assert own is not None  # noqa: S101 - else nothing is found
    return own, found[0]


def _telling(beside: RawTable, names: Sequence[str]) -> dict[str, list[str]]:
    """The columns whose texts tell all rows apart, as names of samples do, and numbers that are measured do not."""
    perhaps = [name for name in names if not name or _may_be_ids(beside.sample, name)]
    known = {name: _texts(beside.column(name)) for name in perhaps}
    return {name: texts for name, texts in known.items() if len(set(texts)) == len(texts)}


def _require_no_ids(
    raw: RawTable, beside: RawTable, label: str, telling: dict[str, list[str]], theirs: Sequence[str]
) -> None:
    """Ask how labels belong to rows where a column tells the labels apart, unless it numbers them in their order."""
    path, names = beside.source.path, [name for name in raw.names if name and _may_be_ids(raw.sample, name)]
    first = _first_rows(raw, names) if telling and names else raw.sample
    own = {name: _texts(first.column(name)) for name in names if telling}
    shared = [
        name
        for name, texts in own.items()
        if any({*other}.intersection(texts) and not _count(texts, other) for other in telling.values())
    ]
    choices: list[tuple[Choice, str]] = [({"id": name}, "by this column") for name in shared]
    if raw.rows in (None, len(beside.column(label))):
        choices.append(({"row_by_row": True}, "if both files have the same order"))
    if shared:
        raise AmbiguousInputError(f"{some(shared)} may tell which label of {path} belongs to which row", choices)
    alone = [name for name, texts in telling.items() if name in theirs or not _count(texts)]
    if alone and choices:
        where = repr(alone[0]) if alone[0] else "a column without a name"
        raise AmbiguousInputError(f"{path} has ids in {where}, and here are none of them", choices)


def _count(*columns: Sequence[str]) -> bool:
    """Whether all of these number their rows, from 0 or from 1, and so say nothing but their order."""
    return all(
        texts == [*map(str, range(first, first + len(texts)))]
        for texts in columns
        for first in [1 if texts[0] == "1" else 0]
    )


def _first_rows(raw: RawTable, names: Sequence[str]) -> pa.RecordBatch:
    """The rows of the sample as they are read: 007 is a name there, and 7 in the sample."""
    rows, found = len(raw.sample), list[pa.RecordBatch]()
    for batch in raw.batches(names, raw.layout):
        found.append(batch)
        rows -= len(batch)
        if rows <= 0:
            break
    table = pa.Table.from_batches(found).slice(0, len(raw.sample)).combine_chunks()
    return table.to_batches()[0]


def _may_be_ids(sample: pa.RecordBatch, name: str) -> bool:
    return not is_list(sample, name) and not is_floating(sample, name) and not repeats(sample, name)


def _in_order(labels: pa.Array, path: FilePath) -> _Find:
    def find(batch: pa.RecordBatch, row: int) -> tuple[pa.Array, int]:
        if row + len(batch) > len(labels):
            raise PredictionFileError(f"{path} has {len(labels):,} labels, and here are more rows")
        return labels.slice(row, len(batch)), len(batch)

    return find


def _by_id(beside: RawTable, ids: tuple[str, str], labels: pa.Array) -> _Find:
    """Rows whose id has no label have none; labels of other ids are of other predictions."""
    own, other = ids
    theirs = _texts(beside.column(other))
    places = {each: place for place, each in enumerate(theirs)}
    if len(places) != len(theirs):
        repeated = Counter(theirs).most_common(1)[0][0]
        raise PredictionFileError(f"{beside.source.path}: the id {repeated!r} is there twice; keep one label for each")

    def find(batch: pa.RecordBatch, _: int) -> tuple[pa.Array, int]:
        found = pa.array([places.get(each) for each in _texts(batch.column(own))], pa.int64())
        return labels.take(found), len(found) - found.null_count

    return find


def _texts(ids: pa.Array) -> list[str]:
    """Ids as text: one program writes a number where another writes its digits."""
    return [str(each) for each in ids.to_pylist()]


def _plain(labels: pa.Array) -> pa.Array:
    """Texts as such: the order of a dictionary is how they were met."""
    return pc.cast(labels, labels.type.value_type) if pa.types.is_dictionary(labels.type) else labels
