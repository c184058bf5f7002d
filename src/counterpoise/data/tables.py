"""A table of image paths and labels: CSV, TSV or Parquet, with columns found by their names, never by a guess.

A choice that names leave open is made in the address: `photos.csv?label=species`.
"""

import csv
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from counterpoise._extras import require

PATHS: Final = ("path", "file", "filename", "file_name", "filepath", "image_path", "image", "img")
LABELS: Final = ("label", "class", "target", "y", "category", "label_name", "class_name")
SPLITS: Final = ("split",)
SUFFIXES: Final = (".csv", ".tsv")

SPLIT_NAMES: Final = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
"""What people call splits, and what they are called here."""

Values = Callable[[int], Iterable[Any]]
"""The values of a column, by its place."""

_ROLES = {"path": PATHS, "label": LABELS, "split": SPLITS}
_DELIMITERS = ",;\t|"


class AmbiguousTableError(ValueError):
    """Columns that can be read in more than one way, and the addresses that say how."""

    def __init__(self, problem: str, address: str, addresses: Sequence[str]) -> None:
        self.problem, self.address, self.addresses = problem, address, tuple(addresses)
        super().__init__(f"{problem}; name the table as {' or '.join(map(repr, addresses))}")

    def as_commands(self, arguments: Sequence[str]) -> str:
        """The question with complete commands: the arguments that were given, with each address in place of the one."""
        commands = (
            shlex.join(["counterpoise", *(self._with(other, word) for word in arguments)]) for other in self.addresses
        )
        return "\n".join([f"{self.problem}. Run", *(f"  {command}" for command in commands)])

    def _with(self, other: str, word: str) -> str:
        """A word of a command, which may be `--option=ADDRESS`, with another address."""
        option, is_one, value = word.partition("=")
        if is_one and option.startswith("--") and value == self.address:
            return f"{option}={other}"
        return other if word == self.address else word


@dataclass(frozen=True)
class PathTable:
    """The rows of a table.

    Attributes:
        paths: of the image files, those of the table's own folder if they are relative.
        labels: text as it is written; "" where a row has none; empty where no column holds labels.
        splits: the split of each row; empty where the table is not divided.
    """

    paths: list[Path]
    labels: list[str]
    splits: list[str]

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels that there are: numbers in their order, other text as Python sorts it."""
        found = set(self.labels) - {""}
        return tuple(sorted(found, key=int) if all(map(_is_number, found)) else sorted(found))


def parts_of(address: str) -> tuple[str, dict[str, str]]:
    """The path of a table, and the columns that its address chooses.

    >>> parts_of("photos.csv?label=species&path=file")
    ('photos.csv', {'label': 'species', 'path': 'file'})
    >>> parts_of("what?/photos")
    ('what?/photos', {})
    """
    path, mark, query = address.rpartition("?")
    chosen = dict(parse_qsl(query)) if mark else {}
    return (path, chosen) if chosen and set(chosen) <= set(_ROLES) else (address, {})


def is_table(path: Path) -> bool:
    """Whether a file holds paths of images instead of the images: by its suffix, or of Parquet by its columns."""
    if path.suffix.lower() in SUFFIXES:
        return True
    arrow = require("pyarrow", extra="train", purpose="reading Parquet files")
    parquet = require("pyarrow.parquet", extra="train", purpose="reading Parquet files")
    try:
        schema = parquet.read_schema(path)
    except (OSError, arrow.ArrowException):
        return False  # said where it is read
    text = [name for name in schema.names if _is_text(schema.field(name).type)]
    return any(name.strip().lower() in PATHS for name in text) and not any(
        arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind) or arrow.types.is_struct(kind)
        for kind in (schema.field(name).type for name in schema.names if name in ("image", "img"))
    )


def read_table(address: str, *, labelled: bool = False) -> PathTable:
    """Read a table; columns by the address, else by their names. No image is opened.

    One that must be `labelled` is asked about where no column is known to hold labels.
    """
    name, _ = parts_of(address)
    path = Path(name).expanduser()
    header, values = _text(path) if path.suffix.lower() in SUFFIXES else _parquet(path)
    needed = {"path", "label"} if labelled else {"path"}
    places = {role: _column(header, role, address, needed=role in needed) for role in _ROLES}
    columns = {role: list(map(_cell, values(place))) for role, place in places.items() if place is not None}
    if not columns["path"]:
        raise ValueError(f"{name} has no rows")
    if "" in columns["path"]:
        raise ValueError(f"{name}, row {columns['path'].index('')}: there is no path of an image")
    paths = [_found(path.parent, text) for text in columns["path"]]
    return PathTable(paths, columns.get("label", []), _splits(columns.get("split", []), name))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def require_files(table: PathTable, address: str) -> None:
    """Refuse paths that lead nowhere, by the row of the first."""
    missing = [(row, path) for row, path in enumerate(table.paths) if not _is_file(path)]
    if missing:
        row, path = missing[0]
        remedy = "mend them, or leave these rows out"
        if folder := next((each for each in sorted(path.parent.glob("*/")) if _is_file(each / path.name)), None):
            remedy = f"write them as {folder.name}/{path.name}, or move the table there"
        raise ValueError(
            f"{parts_of(address)[0]}, row {row}: there is no file {path} ({len(missing):,} of {len(table.paths):,} are "
            f"missing); paths are absolute, or start from the folder of the table: {remedy}"
        )


def _text(path: Path) -> tuple[list[str], Values]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}; save it as CSV UTF-8"
        ) from None
    first, _, rest = text.partition("\n")
    delimiter = max(_DELIMITERS, key=first.count) if path.suffix.lower() == ".csv" else "\t"
    if (stated := first.strip()).startswith("sep=") and len(stated) == len("sep=") + 1:  # as Excel writes it
        text, delimiter = rest, stated[-1]
    try:
        rows = [row for row in csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True) if any(row)]
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from None
    if not rows:
        raise ValueError(f"{path} is empty; its first line names the columns, such as path{delimiter}label")
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:]):
        if len(row) != len(header):
            raise ValueError(f"{path}, row {number} has {len(row)} values for {len(header)} columns")
    return header, lambda place: [row[place] for row in rows[1:]]


def _parquet(path: Path) -> tuple[list[str], Values]:
    file = require("pyarrow.parquet", extra="train", purpose="reading Parquet files").ParquetFile(path)
    names = list(file.schema_arrow.names)
    return names, lambda place: file.read(columns=[names[place]], use_threads=False).column(0).to_pylist()


def _column(header: Sequence[str], role: str, address: str, *, needed: bool) -> int | None:
    """Which column has a role; None where there is none and none is needed."""
    name, chosen = parts_of(address)
    if role in chosen:
        if chosen[role] not in header:
            raise ValueError(f"{name} has no column {chosen[role]!r}; its columns are {', '.join(map(repr, header))}")
        return header.index(chosen[role])
    fitting = [place for place, column in enumerate(header) if column.strip().lower() in _ROLES[role]]
    if len(fitting) == 1 or not (fitting or needed):
        return fitting[0] if fitting else None
    if not fitting:
        problem = (
            f"{name}: no column is called {', '.join(_ROLES[role])}, which would hold the {role}s; "
            f"its columns are {', '.join(map(repr, header))}"
        )
        if not (others := _addresses(address, role, [each for each in header if each.strip().lower() not in PATHS])):
            raise ValueError(problem)
        raise AmbiguousTableError(problem, address, others)
    several = [header[place] for place in fitting]
    problem = f"{name}: {' and '.join(map(repr, several))} may each hold the {role}s"
    raise AmbiguousTableError(problem, address, _addresses(address, role, several))


def _addresses(address: str, role: str, columns: Iterable[str]) -> list[str]:
    name, chosen = parts_of(address)
    return [f"{name}?{urlencode(chosen | {role: column})}" for column in columns if column not in chosen.values()]


def _splits(values: Sequence[str], name: str) -> list[str]:
    for row, value in enumerate(values):
        if value.lower() not in SPLIT_NAMES:
            raise ValueError(f"{name}, row {row}: the split is {value!r}; there are train, validation and test")
    return [SPLIT_NAMES[value.lower()] for value in values]


def _found(folder: Path, text: str) -> Path:
    path = folder / Path(text)
    # Written on Windows.
    return folder / Path(text.replace("\\", "/")) if "\\" in text and not path.exists() else path


def _cell(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit() and str(int(text)) == text


def _is_text(kind: Any) -> bool:
    types = require("pyarrow", extra="train", purpose="reading Parquet files").types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner))
