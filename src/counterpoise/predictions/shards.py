"""Many files as one table of one model: a folder, a glob, a list, or a manifest that names them."""

import glob
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise._files import digest_of, write_text
from counterpoise.predictions.columns import Reading
from counterpoise.predictions.formats import FORMATS, is_prediction_file, open_as, open_predictions
from counterpoise.predictions.prediction_file import PredictionFile
from counterpoise.predictions.table import PredictionFileError

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = "counterpoise.shards"
MANIFEST_VERSION = 1

Location = str | Path | Sequence[str | Path]
"""A file, a folder, a glob such as `shards/*.parquet`, a manifest, or a list of files."""


@dataclass(frozen=True)
class Shard:
    """One file of a set, with what a manifest says of it."""

    path: Path
    rows: int | None = None
    digest: str | None = None


@dataclass(frozen=True)
class ShardSet:
    """The files of one table, in order.

    Attributes:
        name: what they are called together: the path that was given.
        shards: at least one.
    """

    name: str
    shards: tuple[Shard, ...]

    def opened(self, reading: Reading = Reading()) -> Iterator[PredictionFile]:  # noqa: B008 - frozen
        """The files one after the other, each held to the kind, classes and members of the first.

        Raises:
            PredictionFileError: a file is damaged, or does not belong to the others.
        """
        if reading.columns.labels is not None and len(self.shards) > 1:
            raise PredictionFileError(f"{self.name}: labels of a file of their own belong to one file, not to shards")
        first: PredictionFile | None = None
        for shard in self.shards:
            file = open_as(shard.path, reading)
            first = first or file
            if _form(file) != _form(first):
                raise PredictionFileError(
                    f"{file.path}: it holds {_described(file)}, {first.path} holds {_described(first)}: they are not "
                    "shards of one table"
                )
            if file.has_ids != first.has_ids:
                with_ids, without = (file, first) if file.has_ids else (first, file)
                raise PredictionFileError(f"{without.path}: it has no ids, and {with_ids.path} has; write both alike")
            if shard.rows is not None and file.rows not in (None, shard.rows):
                raise PredictionFileError(f"{file.path}: it has {file.rows:,} rows, the manifest says {shard.rows:,}")
            if shard.digest is not None and (file.digest or digest_of(file.path)) != shard.digest:
                raise PredictionFileError(f"{file.path}: it is not the file that the manifest names; write it again")
            yield file


def find_shards(location: Location) -> ShardSet:
    """The files that a path, a glob or a list stands for, in the order of their names; numbers in names count.

    A folder that has a manifest holds the files that it names; without one, all of its files of predictions.

    Raises:
        PredictionFileError: there is no file of predictions there, or one of a manifest is missing.
        FileNotFoundError: there is no such path.
    """
    if not isinstance(location, str | Path):
        paths = [Path(each) for each in location]
        if not paths:
            raise PredictionFileError("the list of files is empty")
        return ShardSet(str(paths[0].parent if len(paths) > 1 else paths[0]), tuple(Shard(path) for path in paths))
    path = Path(location)
    if path.is_dir():
        return _folder(path)
    if path.suffix.lower() == ".json":
        return _manifest(path)
    if not path.exists() and glob.has_magic(str(location)):
        found = sorted((Path(each) for each in glob.glob(str(location))), key=_natural)  # noqa: PTH207 - it may be absolute
        found = [each for each in found if is_prediction_file(each)]
        if not found:
            raise PredictionFileError(f"{location}: no file of predictions ({', '.join(FORMATS)}) has such a name")
        return ShardSet(str(location), tuple(Shard(each) for each in found))
    return ShardSet(str(path), (Shard(path),))


def write_manifest(folder: str | Path) -> Path:
    """Write the manifest of a folder's files of predictions, atomically: once it is there, the set is whole.

    Returns:
        Its path, which stands for the set as the folder does.
    """
    root = Path(folder)
    files = _files(root)
    if not files:
        raise PredictionFileError(f"{root}: it holds no file of predictions ({', '.join(FORMATS)})")
    shards = []
    for path in files:
        file = open_predictions(path)
        rows = file.rows if file.rows is not None else sum(len(batch) for batch in file.batches())
        shards.append({"name": path.name, "rows": rows, "sha256": file.digest or digest_of(path)})
    document = {"schema": MANIFEST_SCHEMA, "schema_version": MANIFEST_VERSION, "shards": shards}
    write_text(root / MANIFEST, json.dumps(document, indent=1))
    return root / MANIFEST


def _folder(path: Path) -> ShardSet:
    if (path / MANIFEST).is_file():
        return _manifest(path / MANIFEST)
    files = _files(path)
    if not files:
        inside = path / "predictions" / "test.parquet"
        hint = f"a run's predictions are {inside}" if inside.is_file() else "name a file, or a folder that holds some"
        raise PredictionFileError(f"{path}: this folder holds no file of predictions ({', '.join(FORMATS)}): {hint}")
    return ShardSet(str(path), tuple(Shard(each) for each in files))


def _files(folder: Path) -> list[Path]:
    found = (each for each in folder.iterdir() if is_prediction_file(each) and not each.name.startswith("."))
    return sorted(found, key=_natural)


def _manifest(path: Path) -> ShardSet:
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != MANIFEST_SCHEMA or document["schema_version"] != MANIFEST_VERSION:
            raise ValueError(f"its schema is {document['schema']!r}, version {document['schema_version']!r}")
        entries = [(str(each["name"]), int(each["rows"]), str(each["sha256"])) for each in document["shards"]]
    except (ValueError, KeyError, TypeError) as error:
        raise PredictionFileError(f"{path}: not a manifest of shards: {error}") from None
    if not entries:
        raise PredictionFileError(f"{path}: the manifest names no file")
    for name, _, _ in entries:
        if Path(name).name != name:
            raise PredictionFileError(f"{path}: the manifest names {name!r}, which is not a file beside it")
        if not (path.parent / name).is_file():
            raise PredictionFileError(f"{path}: the manifest names {name}, which is missing; restore it")
    return ShardSet(str(path.parent), tuple(Shard(path.parent / name, rows, digest) for name, rows, digest in entries))


def _form(file: PredictionFile) -> tuple[object, ...]:
    return file.kind, file.classes, file.members, file.header.class_names


def _described(file: PredictionFile) -> str:
    members = "" if file.members is None else f" of {file.members} members"
    names = "" if file.header.class_names is None else f" ({', '.join(file.header.class_names[:3])}, ...)"
    return f"{file.kind}{members} for {file.classes} classes{names}"


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Numbers by their size, so that shard 10 comes after shard 9."""
    parts = re.split(r"(\d+)", str(path))
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
