"""Samples of one WebDataset shard: a tar file in which `KEY.jpg`, `KEY.cls` and others of one key follow each other.

The key of a file is its name up to the first dot, the rest is its extension. Headers are parsed here, so that reading
can begin at any sample, sizes are bounded before anything is read, and a shard that is cut off is never taken for a
whole one. Names are compared and shown; they are never used as paths. Links and other special files are passed over.

A tar file does not say how many samples it has, so all headers are read before the first epoch, unless an index beside
the shard, which `index_shards` writes, says where its groups of samples begin.
"""

import errno
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from counterpoise._addresses import as_path
from counterpoise._documents import from_document, to_document
from counterpoise._files import write_text
from counterpoise._json import parsed
from counterpoise._text import printable
from counterpoise.data.chunks import UNLABELLED, Chunk
from counterpoise.data.sources import PICTURES, DataSource, open_file, resolve

GROUP: Final = 1000
"""Consecutive samples that stand for a row group: they are read one after the other, and found by their first byte."""

LARGEST_IMAGE: Final = 1 << 30
LARGEST_LABEL: Final = 1 << 24
"""Bytes of a file that are read; JSON may hold more than the label."""

LABEL_FIELDS: Final = ("label", "cls", "class_index")
"""Of `KEY.json`, where there is no `KEY.cls`: the first of them that is there."""

INDEX: Final = ".index"
"""What the name of an index has after that of its shard."""

SCHEMA, SCHEMA_VERSION = "counterpoise.shard_index", 1

_BLOCK = 512
_LARGEST_NAME = 1 << 20
_LARGEST_FILE = 1 << 62
_REGULAR = (b"0", b"\0", b"7")
_PAX, _LONG_NAME, _OTHER_METADATA = b"x", b"L", (b"K", b"g")
_KEY = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.DOTALL)


class Member(NamedTuple):
    """A regular file of a tar: its name, the first byte of its headers, that of its content, and its bytes."""

    name: str
    begin: int
    data: int
    size: int


class Sample(NamedTuple):
    """Files of one key, by their extensions in lower case."""

    key: str
    begin: int
    parts: dict[str, Member]


@dataclass(frozen=True)
class ShardIndex:
    """Where the samples of a shard are.

    Attributes:
        bytes: of the shard, which has changed if it has another size.
        samples: all of them.
        group: how many make a group, the last one aside.
        places: first byte of each group.
    """

    bytes: int
    samples: int
    group: int
    places: list[int]

    def __post_init__(self) -> None:
        groups = -(-self.samples // self.group) if self.group > 0 <= self.samples else -1
        edges = [-1, *self.places, self.bytes]
        if (
            self.samples * _BLOCK > self.bytes
            or len(self.places) != groups
            or any(one >= other for one, other in pairwise(edges))
        ):
            raise ValueError("its groups are not those of a shard")

    def to_json(self) -> str:
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION)

    @classmethod
    def from_json(cls, text: str) -> "ShardIndex":
        """Read what `to_json` wrote; anything else is a `ValueError` that names the place."""
        return from_document(cls, text, schema=SCHEMA, version=SCHEMA_VERSION)


def index_shards(name_or_path: str | Path) -> list[str]:
    """Write an index beside each tar file of a WebDataset, and say what was written.

    Shards with an index are opened without reading their headers. An index of a file of another size is refused.

    Args:
        name_or_path: of the WebDataset, see `resolve`; in an object store, too.
    """
    source = resolve(name_or_path)
    if source.kind != "webdataset":
        raise ValueError(f"{source.location} is no WebDataset; only tar shards need an index")
    written = []
    for name in dict.fromkeys(file for files in source.files.values() for file in files):
        shard = as_path(name)
        path = shard.with_name(shard.name + INDEX)
        write_text(path, TarRows(source, name).scanned().to_json())
        written.append(str(path))
    return written


class TarRows:
    """One shard of a source."""

    def __init__(self, source: DataSource, name: str) -> None:
        self.name = str(as_path(name))
        self._location = name
        self.classes = source.info.classes

    def index(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Samples of each group of consecutive ones, and what `chunks` finds it by: its first byte."""
        found = self._stated() or self.scanned()
        firsts = range(0, found.samples, found.group)
        return np.array([min(found.group, found.samples - first) for first in firsts], np.int64), np.array(
            found.places, np.int64
        )

    def scanned(self) -> ShardIndex:
        places, samples = [], 0
        with self._opened() as file:
            for sample in self._samples(file, 0):
                self._image(sample)
                if samples % GROUP == 0:
                    places.append(sample.begin)
                samples += 1
            return ShardIndex(file.seek(0, io.SEEK_END), samples, GROUP, places)

    def _stated(self) -> ShardIndex | None:
        """What the index beside the shard says, if there is one."""
        shard = as_path(self._location)
        path = shard.with_name(shard.name + INDEX)
        if not path.is_file():
            return None
        with self._opened() as file:
            size = file.seek(0, io.SEEK_END)
        remedy = "remove it, or write it anew: counterpoise.data.index_shards(...)"
        try:
            found = ShardIndex.from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}; {remedy}") from None
        if found.bytes != size:
            raise ValueError(f"{path} is of a file of {found.bytes:,} bytes, {shard.name} has {size:,}; {remedy}")
        return found

    def chunks(self, place: int, rows: npt.NDArray[np.int64], *, most: int) -> Iterator[Chunk]:
        """Some samples of a group, by their sorted numbers in it, which are the chunks' ids too."""
        with self._opened() as file:
            samples = enumerate(self._samples(file, place))
            for first in range(0, len(rows), most):
                some, images, labels = rows[first : first + most], [], []
                for row in some.tolist():
                    sample = next((each for number, each in samples if number == row), None)
                    if sample is None:
                        raise ValueError(f"{self.name} has fewer samples than when it was opened; has it changed?")
                    images.append(self._read(file, self._image(sample), LARGEST_IMAGE))
                    labels.append(self._label(file, sample))
                yield Chunk([*images], np.array(labels, np.int64), some, [self.name] * len(some))

    def labels(self) -> npt.NDArray[np.int64]:
        with self._opened() as file:
            return np.array([self._label(file, sample) for sample in self._samples(file, 0)], np.int64)

    def domains(self) -> list[str | None]:
        """None: no set of domains is stored so."""
        return []

    def _opened(self) -> BinaryIO:
        try:
            return open_file(self._location)
        except OSError as error:
            raise ValueError(f"{self.name} cannot be read: {error}") from None

    def _samples(self, file: BinaryIO, start: int) -> Iterator[Sample]:
        held: Sample | None = None
        for member in members(file, start, where=self.name):
            parts = _KEY.fullmatch(member.name)
            if parts is None:
                continue
            key, extension = parts[1], parts[2].lower()
            if held is None or held.key != key:
                if held is not None:
                    yield held
                held = Sample(key, member.begin, {})
            if extension in held.parts:
                raise ValueError(f"{self._where(held)} has two files .{printable(extension)}; give each sample its key")
            held.parts[extension] = member
        if held is not None:
            yield held

    def _image(self, sample: Sample) -> Member:
        found = [extension for extension in sample.parts if f".{extension}" in PICTURES]
        if len(found) == 1:
            return sample.parts[found[0]]
        what = f"several images, {', '.join(found)}" if found else f"no image: {printable(', '.join(sample.parts))}"
        raise ValueError(f"{self._where(sample)} has {what}; a sample is one image, such as KEY.jpg, and its KEY.cls")

    def _label(self, file: BinaryIO, sample: Sample) -> int:
        if "cls" in sample.parts:
            text = self._read(file, sample.parts["cls"], LARGEST_LABEL).strip()
            if not re.fullmatch(rb"-?\d{1,18}", text):
                raise ValueError(f"{self._where(sample)}: its cls is {text[:40]!r}; it must be the index of a class")
            return int(text)
        if "json" not in sample.parts:
            return UNLABELLED
        try:
            document = parsed(self._read(file, sample.parts["json"], LARGEST_LABEL))
            stated = next((document[field] for field in LABEL_FIELDS if field in document), UNLABELLED)
        except (ValueError, TypeError):
            raise ValueError(f"{self._where(sample)}: its json is no JSON object") from None
        if type(stated) is not int or abs(stated) >= 1 << 63:
            raise ValueError(f"{self._where(sample)}: its label is {str(stated)[:40]!r}, no index of a class")
        return stated

    def _read(self, file: BinaryIO, member: Member, most: int) -> bytes:
        if member.size > most:
            raise ValueError(f"{self.name}: {printable(member.name)} has {member.size:,} bytes, more than {most:,}")
        return _exactly(file, member.data, member.size, where=self.name)

    def _where(self, sample: Sample) -> str:
        return f"{self.name}: sample {printable(repr(sample.key))}"


def members(file: BinaryIO, start: int, *, where: str) -> Iterator[Member]:
    """The regular files of a tar from one of its headers on; contents are not read.

    The formats are those of POSIX: ustar, with pax headers or GNU's for long names.
    """
    position = begin = start
    extended: dict[str, str] = {}
    while (header := _exactly(file, position, _BLOCK, where=where)) != bytes(_BLOCK):
        if _octal(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise ValueError(f"{where} is not a tar file, or damaged: there is no header at byte {position:,}")
        kind, size = header[156:157], _octal(header[124:136])
        if kind in (_PAX, _LONG_NAME):
            if size > _LARGEST_NAME:
                raise ValueError(f"{where}: a name has {size:,} bytes, at byte {position:,}")
            content = _exactly(file, position + _BLOCK, size, where=where)
            extended |= _pax_fields(content) if kind == _PAX else {"path": _text(content)}
        elif kind not in _OTHER_METADATA and "size" in extended:
            size = int(extended["size"]) if extended["size"].isdecimal() else -1
        if not 0 <= size < _LARGEST_FILE:
            raise ValueError(f"{where} is damaged: a file has no possible size, at byte {position:,}")
        data, position = position + _BLOCK, position + _BLOCK + -(-size // _BLOCK) * _BLOCK
        if kind in (_PAX, _LONG_NAME, *_OTHER_METADATA):
            continue
        if kind in _REGULAR:
            yield Member(extended.get("path") or _name_of(header), begin, data, size)
        begin, extended = position, {}


def _exactly(file: BinaryIO, start: int, size: int, *, where: str) -> bytes:
    try:
        file.seek(start)
        found = file.read(size)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place that no file system has
            raise
        found = b""
    if len(found) < size:
        end = file.seek(0, io.SEEK_END)
        raise ValueError(f"{where} is cut off: it ends at byte {end:,}, before its end mark; copy it anew")
    return found


def _octal(digits: bytes) -> int:
    """A number of a header, in octal digits or, where it is large, in binary; -1 where it is none."""
    if digits[0] & 0x80:
        return int.from_bytes(digits, "big") & ~(0x80 << 8 * (len(digits) - 1))
    try:
        return int(digits.strip(b" \0") or b"0", 8)
    except ValueError:
        return -1


def _name_of(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _pax_fields(content: bytes) -> dict[str, str]:
    r"""Records `LENGTH NAME=VALUE\n`, as far as they are whole.

    >>> _pax_fields(b"16 path=a/b.jpg\n")
    {'path': 'a/b.jpg'}
    """
    found = {}
    while match := re.match(rb"(\d{1,7}) ([^=]+)=", content):
        length = int(match[1])
        if length <= match.end():
            break
        found[_text(match[2])] = _text(content[match.end() : length - 1])
        content = content[length:]
    return found


def _text(name: bytes) -> str:
    return name.split(b"\0", 1)[0].decode(errors="surrogateescape")
