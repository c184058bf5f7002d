"""Many files as one table of one model: a folder, a glob, a list, or a manifest that names them."""

import glob
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from counterpoise._addresses import Address, as_path, naming, read_text, regular
from counterpoise._documents import CHANGED, is_changed, with_digest
from counterpoise._files import FilePath, digest_of, write_text
from counterpoise._json import parsed
from counterpoise.predictions.columns import Reading
from counterpoise.predictions.digest import Source
from counterpoise.predictions.formats import FORMATS, is_prediction_file, is_shard, open_as, open_predictions, source_of
from counterpoise.predictions.prediction_file import PredictionFile
from counterpoise.predictions.table import PredictionFileError

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = "counterpoise.shards"
MANIFEST_VERSION = 2
_BEGINNING = 100
"""Bytes of a JSON file that tell a document of ours."""

Location = str | FilePath | Sequence[str | FilePath]
"""A file, a folder, a glob such as `shards/*.parquet`, a manifest, or a list of files, each here or in a store."""


@dataclass(frozen=True)
class Shard:
    """One file of a set, or some row groups of it, with what a manifest says of it.

    Attributes:
        path: of the file.
        rows: of the file, where a manifest says it.
        digest: SHA-256 of it, likewise.
        size: in bytes, likewise.
        source: the file, where it has been checked already.
        groups: the row groups, where they are not all.
    """

    path: FilePath
    rows: int | None = None
    digest: str | None = None
    size: int | None = None
    source: Source | None = None
    groups: range | None = None

    def opened(self, reading: Reading = Reading(), *, first: "Form | None" = None) -> PredictionFile:  # noqa: B008
        """The file, held to what is known of it.

        Raises:
            PredictionFileError: it is damaged, or does not belong to the first file of its set.
        """
        file = open_as(self.source or source_of(self.path, digest=self.digest, size=self.size), reading)
        if self.rows is not None and file.rows not in (None, self.rows):
            raise PredictionFileError(f"{file.path}: it has {file.rows:,} rows, the manifest says {self.rows:,}")
        if first is not None:
            first.require(Form.of(file))
        return file

    def divided(self, reading: Reading, wanted: int) -> Iterator[tuple["Shard", int]]:
        """Parts of about so many bytes, if it is much larger, each with the row that it starts at."""
        size = self.size or (self.path.identity()[0] if isinstance(self.path, Address) else self.path.stat().st_size)
        if size < 2 * wanted or self.path.suffix.lower() != ".parquet":
            yield self, 0
            return
        file = self.opened(reading)
        groups, first_row = len(file.group_rows), 0
        step = max(1, round(wanted * groups / size))
        if step >= groups:  # also of a file that cannot be divided
            yield replace(self, source=file.source), 0
            return
        for start in range(0, groups, step):
            own = range(start, min(start + step, groups))
            yield replace(self, source=file.source, groups=own), first_row
            first_row += sum(file.group_rows[group] for group in own)


@dataclass(frozen=True)
class Form:
    """What the files of one table have in common."""

    path: FilePath
    kind: str
    classes: int
    members: int | None
    class_names: tuple[str, ...] | None
    has_ids: bool

    @classmethod
    def of(cls, file: PredictionFile) -> "Form":
        return cls(file.path, file.kind, file.classes, file.members, file.header.class_names, file.has_ids)

    def require(self, other: "Form") -> None:
        if replace(other, path=self.path, has_ids=self.has_ids) != self:
            raise PredictionFileError(
                f"{other.path}: it holds {other.described()}, {self.path} holds {self.described()}: they are not "
                "shards of one table"
            )
        if self.has_ids != other.has_ids:
            with_ids, without = (self, other) if self.has_ids else (other, self)
            raise PredictionFileError(f"{without.path}: it has no ids, and {with_ids.path} has; write both alike")

    def described(self) -> str:
        members = "" if self.members is None else f" of {self.members} members"
        more = ", ..." if self.classes > 3 else ""
        names = "" if self.class_names is None else f" ({', '.join(self.class_names[:3])}{more})"
        return f"{self.kind}{members} for {self.classes} classes{names}"


@dataclass(frozen=True)
class ShardSet:
    """The files of one table, in order.

    Attributes:
        name: what they are called together: the path that was given.
        shards: at least one.
    """

    name: str
    shards: tuple[Shard, ...]

    def with_first(self, source: Source) -> "ShardSet":
        """The same, of which the first file need not be checked again."""
        first, *others = self.shards
        return replace(self, shards=(replace(first, source=source), *others))

    def opened(self, reading: Reading = Reading()) -> Iterator[PredictionFile]:  # noqa: B008 - frozen
        """The files one after the other, each held to the kind, classes and members of the first."""
        if reading.columns.labels is not None and len(self.shards) > 1:
            raise PredictionFileError(f"{self.name}: labels of a file of their own belong to one file, not to shards")
        form: Form | None = None
        for shard in self.shards:
            file = shard.opened(reading, first=form)
            form = form or Form.of(file)
            yield file


def find_shards(location: Location) -> ShardSet:
    """The files that a path, a glob or a list stands for, in the order of their names; numbers in names count.

    A folder that has a manifest holds the files that it names; without one, all of its files of predictions.

    Raises:
        PredictionFileError: there is no file of predictions there, or one of a manifest is missing.
        FileNotFoundError: there is no such path.
    """
    if not isinstance(location, str | Path | Address):
        paths = [as_path(each) for each in location]
        if not paths:
            raise PredictionFileError("the list of files is empty")
        return ShardSet(str(paths[0].parent if len(paths) > 1 else paths[0]), tuple(Shard(path) for path in paths))
    path = as_path(location)
    if glob.has_magic(str(path)) and not path.exists():
        # A local pattern may be absolute, and have patterns for folders.
        matches = path.matches() if isinstance(path, Address) else [(Path(each), None) for each in glob.glob(str(path))]  # noqa: PTH207
        found = _shards(matches, is_prediction_file)
        if not found:
            raise PredictionFileError(f"{path}: no file of predictions ({', '.join(FORMATS)}) has such a name")
        return ShardSet(str(path), found)
    if path.suffix.lower() == ".json" and _is_document(path):
        return _manifest(path, _listed(path.parent) if path.is_file() else [])
    # A file is told by its suffix, so that nobody asks a store about each of many.
    if is_prediction_file(path) and (isinstance(path, Address) or not path.is_dir()):
        return ShardSet(str(path), (Shard(path),))
    if path.is_dir():
        return _folder(path)
    if isinstance(path, Address) and not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file or folder in the store")
    return ShardSet(str(path), (Shard(path),))


def write_manifest(folder: str | FilePath, shards: Iterable[Shard] | None = None) -> FilePath:
    """Write the manifest of a folder's files of predictions, atomically: once it is there, the set is whole.

    Args:
        folder: of the files.
        shards: with rows, digests and sizes, where they are known; by default each file is read for them.

    Returns:
        Its path, which stands for the set as the folder does.
    """
    root = as_path(folder)
    found = [_described(each.path) for each in _shards(_listed(root), is_shard)] if shards is None else list(shards)
    if not found:
        raise PredictionFileError(f"{root}: it holds no file of predictions ({', '.join(FORMATS)})")
    entries = [{"name": each.path.name, "rows": each.rows, "bytes": each.size, "sha256": each.digest} for each in found]
    document = {"schema": MANIFEST_SCHEMA, "schema_version": MANIFEST_VERSION, "shards": entries}
    write_text(root / MANIFEST, json.dumps(with_digest(document), indent=1))
    return root / MANIFEST


def _described(path: FilePath) -> Shard:
    file = open_predictions(path)
    rows = file.rows if file.rows is not None else sum(len(batch) for batch in file.batches())
    return Shard(path, rows, file.digest or digest_of(path), file.source.size)


def _folder(path: FilePath) -> ShardSet:
    within = _listed(path)
    if MANIFEST in (each.name for each, _ in within):
        return _manifest(path / MANIFEST, within)
    shards = _shards(within, is_shard)
    if not shards:
        inside = path / "predictions" / "test.parquet"
        hint = f"a run's predictions are {inside}" if inside.is_file() else "name a file, or a folder that holds some"
        raise PredictionFileError(f"{path}: this folder holds no file of predictions ({', '.join(FORMATS)}): {hint}")
    return ShardSet(str(path), shards)


Listed = Sequence[tuple[FilePath, int | None]]
"""Paths with their sizes, where a store has told these along with the names."""


def _listed(folder: FilePath) -> Listed:
    return folder.listed() if isinstance(folder, Address) else [(each, None) for each in folder.iterdir()]


def _shards(listed: Listed, holds: Callable[[FilePath], bool]) -> tuple[Shard, ...]:
    found = [(path, size) for path, size in listed if holds(path) and not path.name.startswith(".")]
    return tuple(Shard(path, size=size) for path, size in sorted(found, key=lambda each: _natural(each[0])))


def _is_document(path: FilePath) -> bool:
    """Whether a JSON file is a manifest, or another of our documents, which all begin with their schema."""
    if path.name == MANIFEST:
        return True
    with naming(path), regular(path).open("rb") as file:
        return re.match(rb'\s*\{\s*"schema"\s*:\s*"', file.read(_BEGINNING)) is not None


def vouched_files(path: Path) -> dict[str, str]:
    """SHA-256 of the files that a manifest names."""
    return {name: digest for name, _, digest, _ in _entries(path)}


def _entries(path: FilePath) -> list[tuple[str, int, str, int | None]]:
    """Name, rows, SHA-256 and, since version 2, bytes of each file that a manifest names."""
    try:
        document: Any = parsed(read_text(path))
        if not isinstance(document, dict) or "schema" not in document:
            raise ValueError("it has no schema")
        if is_changed(document):
            raise ValueError(f"{CHANGED}, or write it again (write_manifest)")
        if document["schema"] != MANIFEST_SCHEMA or document["schema_version"] not in (1, MANIFEST_VERSION):
            raise ValueError(f"its schema is {document['schema']!r}, version {document['schema_version']!r}")
        entries = [
            (str(each["name"]), int(each["rows"]), str(each["sha256"]), int(each["bytes"]) if "bytes" in each else None)
            for each in document["shards"]
        ]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise PredictionFileError(f"{path}: not a manifest of shards: {error}") from None
    if not entries:
        raise PredictionFileError(f"{path}: the manifest names no file")
    if len({name for name, *_ in entries}) < len(entries):
        raise PredictionFileError(f"{path}: the manifest names a file twice; write it again")
    for name, *_ in entries:
        if PurePosixPath(name).name != name or Path(name).name != name:
            raise PredictionFileError(f"{path}: the manifest names {name!r}, which is not a file beside it")
    return entries


def _manifest(path: FilePath, beside: Listed) -> ShardSet:
    """The set that a manifest describes, of the files beside it."""
    sizes, entries = {each.name: size for each, size in beside}, _entries(path)
    for name, *_ in entries:
        if name not in sizes:
            raise PredictionFileError(f"{path}: the manifest names {name}, which is missing; restore it")
    for name, _, _, size in entries:
        if None not in (size, sizes[name]) and size != sizes[name]:
            raise PredictionFileError(
                f"{path.parent / name}: it has {sizes[name]:,} bytes, the manifest says {size:,}; write it again"
            )
    shards = (Shard(path.parent / name, rows, digest, size or sizes[name]) for name, rows, digest, size in entries)
    return ShardSet(str(path.parent), tuple(shards))


def _natural(path: FilePath) -> list[tuple[bool, int, str]]:
    """Numbers by their size, so that shard 10 comes after shard 9."""
    parts = re.split(r"(\d+)", str(path))
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
