"""The sizes that the footer of a Parquet file declares, read before Arrow is given the file.

Arrow takes memory for what a footer says, and its Python bindings end the process on some damaged ones (a C++ exception
in `RowGroupMetaData.column` is not caught), so they cannot be asked. The footer is a Thrift struct in the compact
protocol; what is not a size is skipped.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from counterpoise.predictions.table import PredictionFileError

_LONGEST_FOOTER = 1 << 26
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_FIXED_BYTES: Final = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, _UUID: 16}
_VARINTS: Final = (_I16, _I32, _I64)
_PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


@dataclass(frozen=True)
class Chunk:
    """One column of one row group.

    Attributes:
        path: names from the column down to the leaf.
        physical_type: as Parquet calls it.
        values: how many.
        unpacked: bytes after decompression.
    """

    path: tuple[str, ...]
    physical_type: str
    values: int
    unpacked: int


@dataclass(frozen=True)
class Footer:
    """What a footer declares.

    Attributes:
        rows: of the file.
        group_rows: of each row group.
        chunks: of all row groups.
    """

    rows: int
    group_rows: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def read_footer(file: pa.NativeFile, size: int) -> Footer:
    """The declared sizes of an opened Parquet file of `size` bytes."""
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > size - 12:
        raise PredictionFileError("it does not end as a Parquet file does: it was cut off, damaged, or is none")
    if length > _LONGEST_FOOTER:
        raise PredictionFileError(f"its footer has {length:,} bytes; write it with larger row groups")
    file.seek(-8 - length, os.SEEK_END)
    try:
        return _footer(_Compact(file.read(length)))
    except (IndexError, KeyError, RecursionError, UnicodeDecodeError):
        raise PredictionFileError("its footer is damaged; restore the file or write it again") from None


class _Compact:
    """A position in a Thrift struct."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def unsigned(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise IndexError

    def integer(self) -> int:
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def text(self) -> str:
        return self._take(self.unsigned()).decode()

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field; the value must be read or skipped before the next is asked for."""
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 0xF

    def items(self) -> Iterator[int]:
        """The type of each element of a list, to be read or skipped likewise."""
        head = self.byte()
        for _ in range(head >> 4 if head >> 4 < 15 else self.unsigned()):
            yield head & 0xF

    def skip(self, kind: int, *, element: bool = False) -> None:
        if kind in _VARINTS:
            self.unsigned()
        elif kind == _BINARY:
            self._take(self.unsigned())
        elif kind == _STRUCT:
            for _, field in self.fields():
                self.skip(field)
        elif kind in (_LIST, _SET):
            for item in self.items():
                self.skip(item, element=True)
        elif kind == _MAP:
            entries = self.unsigned()
            kinds = self.byte() if entries else 0
            for _ in range(entries):
                self.skip(kinds >> 4, element=True)
                self.skip(kinds & 0xF, element=True)
        else:
            # A boolean is a part of a field's head, and a byte in a list.
            self._take(1 if element and kind in (_TRUE, _FALSE) else _FIXED_BYTES[kind])

    def _take(self, length: int) -> bytes:
        if self._at + length > len(self._data):
            raise IndexError
        self._at += length
        return self._data[self._at - length : self._at]


# Below, a case is the number of a field in parquet.thrift, and its type.


def _footer(data: _Compact) -> Footer:
    rows, group_rows, chunks = -1, list[int](), list[Chunk]()
    for field in data.fields():
        match field:
            case (3, 6):
                rows = data.integer()
            case (4, 9):
                for kind in data.items():
                    _expect(kind == _STRUCT)
                    group_rows.append(_row_group(data, chunks))
            case _:
                data.skip(field[1])
    return Footer(rows, tuple(group_rows), tuple(chunks))


def _row_group(data: _Compact, chunks: list[Chunk]) -> int:
    rows = -1
    for field in data.fields():
        match field:
            case (1, 9):
                for kind in data.items():
                    _expect(kind == _STRUCT)
                    chunks.append(_chunk(data))
            case (3, 6):
                rows = data.integer()
            case _:
                data.skip(field[1])
    return rows


def _chunk(data: _Compact) -> Chunk:
    found: Chunk | None = None
    for field in data.fields():
        if field == (3, _STRUCT):
            found = _column(data)
        else:
            data.skip(field[1])
    if found is None:
        raise PredictionFileError("it has columns that are encrypted or damaged; write it without encryption")
    return found


def _column(data: _Compact) -> Chunk:
    physical_type, path, values, unpacked = -1, list[str](), -1, -1
    for field in data.fields():
        match field:
            case (1, 5):
                physical_type = data.integer()
            case (3, 9):
                for kind in data.items():
                    _expect(kind == _BINARY)
                    path.append(data.text())
            case (5, 6):
                values = data.integer()
            case (6, 6):
                unpacked = data.integer()
            case _:
                data.skip(field[1])
    _expect(bool(path) and values >= 0 and unpacked >= 0 and 0 <= physical_type < len(_PHYSICAL_TYPES))
    return Chunk(tuple(path), _PHYSICAL_TYPES[physical_type], values, unpacked)


def _expect(condition: bool) -> None:  # noqa: FBT001
    if not condition:
        raise IndexError
