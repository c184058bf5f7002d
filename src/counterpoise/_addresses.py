"""Files and folders in object stores, through `pyarrow.fs`, with the part of `pathlib.Path` that readers need.

Credentials come from where each store's own tools take them, the environment as a rule. Those that an address names are
kept in memory, and are never shown.
"""

import io
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from counterpoise._extras import require

if TYPE_CHECKING:
    import pyarrow.fs

T = TypeVar("T")
AnyPath = TypeVar("AnyPath", bound="Path | Address")

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts to reach a store."""
SILENCE = 7.0
"""Seconds without a byte from S3 that end an attempt."""
PATIENCE = 60.0
"""Seconds after which no further attempt begins."""
_PIECE = 1 << 23
"""Bytes of a request, where a whole file is not fetched at once."""
_URI = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}([^/?]+)/*(.*?)(\?[a-z_]+=.*)?", re.DOTALL)
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "HADOOP_", "HF_")
_REFUSED = re.compile(
    r"ACCESS_DENIED|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|HTTP status 40[13]|Forbidden"
)


class _Info(NamedTuple):
    """What a store says of a name: File, Directory or NotFound, bytes, and nanoseconds of the last change."""

    kind: str
    size: int
    changed: int


@dataclass(frozen=True)
class Address:
    """A file or folder in a store, such as `s3://bucket/predictions/part-0.parquet`.

    Attributes:
        store: the address of the store, with credentials and settings if they were given.
        key: where in it.

    >>> address = as_path("s3://KEY:SECRET@bucket/predictions/part-0.parquet?region=eu-west-1")
    >>> print(address)
    s3://bucket/predictions/part-0.parquet
    >>> address.suffix, str(address.with_name("manifest.json"))
    ('.parquet', 's3://bucket/predictions/manifest.json')
    """

    store: str = field(repr=False)
    key: PurePosixPath

    def __str__(self) -> str:
        scheme, host = self.store.partition("?")[0].split("://")
        user, _, place = host.rpartition("@")
        shown = host if ":" not in user else place  # of abfs:// the container is written as a user is
        return f"{scheme}://{shown}" + ("" if self.key == PurePosixPath() else f"/{self.key}")

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    @property
    def name(self) -> str:
        """The last part of it."""
        return self.key.name

    @property
    def stem(self) -> str:
        """Its name without the suffix."""
        return self.key.stem

    @property
    def suffix(self) -> str:
        """Of its name."""
        return self.key.suffix

    @property
    def parent(self) -> "Address":
        """The folder that it is in."""
        return Address(self.store, self.key.parent)

    def with_name(self, name: str) -> "Address":
        """One beside it."""
        return Address(self.store, self.key.with_name(name))

    def __truediv__(self, name: str) -> "Address":
        return Address(self.store, self.key / name)

    def exists(self) -> bool:
        """Whether it is a file, or the beginning of the names of some."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._info().kind == "File"

    def is_dir(self) -> bool:
        """Whether it is the beginning of the names of some files."""
        return self._info().kind == "Directory"

    def identity(self) -> tuple[int, int, bytes]:
        """Size in bytes, time of the last change in nanoseconds, and ETag; 0 or empty if the store has none."""
        info = self._info()
        if info.kind != "File":
            raise FileNotFoundError(f"{self}: there is no such file in the store")
        filesystem, own = self._place()
        return info.size, info.changed, self._reached(lambda: _etag(filesystem, own))

    def iterdir(self) -> Iterator["Address"]:
        """What the folder holds, in the order of names; one request for about a thousand names."""
        return (each for each, _ in self.listed())

    def listed(self) -> list[tuple["Address", int | None]]:
        """What the folder holds, in the order of names, with sizes of files and None of folders."""
        from pyarrow.fs import FileSelector

        filesystem, own = self._place()

        def names() -> list[tuple[Address, int | None]]:
            found = filesystem.get_file_info(FileSelector(own, allow_not_found=True))
            ordered = sorted(found, key=lambda info: info.path)
            return [(self / info.base_name, info.size if info.is_file else None) for info in ordered]

        return self._agreed(names)

    def matches(self) -> list[tuple["Address", int | None]]:
        """As `listed`, of the files whose names match the last part of this address as a pattern."""
        return [(each, size) for each, size in self.parent.listed() if fnmatchcase(each.name, self.name)]

    def open(self, _mode: str = "rb") -> io.BufferedReader:
        """Its bytes, in pieces that are fetched again if a connection is lost."""
        return io.BufferedReader(self.open_unbuffered(), _PIECE)

    def open_unbuffered(self) -> "_Pieces":
        """The same, where every read is a request."""
        return _Pieces(self)

    def read_bytes(self) -> bytes:
        """All of it, fetched once."""
        filesystem, own = self._place()

        def read() -> bytes:
            with filesystem.open_input_file(own) as file:
                data: bytes = file.read()
                if len(data) != file.size():
                    raise OSError(f"{len(data):,} of {file.size():,} bytes came")
                return data

        return self._reached(read)

    def read_text(self, encoding: str = "utf-8") -> str:
        """All of it as text."""
        return self.read_bytes().decode(encoding)

    def upload(self, path: Path) -> None:
        """Put a local file here. In an object store it appears when its last byte has come, never in part."""
        filesystem, own = self._place()

        def write() -> None:
            sink = filesystem.open_output_stream(own)
            try:
                with path.open("rb") as file:
                    while piece := file.read(_PIECE):
                        sink.write(piece)
                sink.close()
            except KeyboardInterrupt:
                sink.close()  # Arrow completes an upload that nobody closes, and has no word to abandon it
                filesystem.delete_file(own)
                raise

        self._reached(write)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete it."""
        filesystem, own = self._place()
        if self.is_file():
            with suppress(FileNotFoundError):  # of a second attempt
                self._reached(lambda: filesystem.delete_file(own))
        elif not missing_ok:
            raise FileNotFoundError(f"{self}: there is no such file in the store")

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing, as stores have no folders without files; here so that callers need not ask."""

    def _info(self) -> "_Info":
        filesystem, own = self._place()

        def asked() -> _Info:
            info = filesystem.get_file_info(own)
            return _Info(info.type.name, info.size or 0, info.mtime_ns or 0)

        found = self._reached(asked)
        doubtful = found.kind == "NotFound" or (found.kind == "File" and not found.size)
        return self._agreed(asked) if doubtful else found

    def _agreed(self, request: Callable[[], T]) -> T:
        """What a request gives twice in a row: Arrow takes the answer of a lost connection for an empty one."""
        found = self._reached(request)
        for _ in PAUSES:
            again = self._reached(request)
            if again == found:
                return found
            found = again
        raise ConnectionError(f"{self}: the store says something else each time it is asked what there is")

    def _place(self) -> tuple["pyarrow.fs.FileSystem", str]:
        settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS)))
        filesystem, root = self._reached(lambda: _filesystem(self.store, settings, os.getpid()))
        return filesystem, root if self.key == PurePosixPath() else f"{root.rstrip('/')}/{self.key}"

    def _reached(self, request: Callable[[], T]) -> T:
        """What a request gives, tried again while the store cannot be reached; one clear error in the end."""
        began = time.monotonic()
        for attempts, pause in enumerate((*PAUSES, None), 1):
            try:
                return request()
            except FileNotFoundError:
                raise FileNotFoundError(f"{self}: there is no such file in the store") from None
            except OSError as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                if isinstance(error, PermissionError) or _REFUSED.search(str(error)):
                    raise PermissionError(
                        f"{self}: the store refused access ({reason}); credentials are taken from the environment, "
                        "for s3:// from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile"
                    ) from None
                if pause is None or time.monotonic() - began + pause + SILENCE > PATIENCE:
                    raise ConnectionError(
                        f"{self}: the store could not be reached in {attempts} attempts: {reason}"
                    ) from None
                time.sleep(pause)
        raise AssertionError  # the last attempt returns or raises


class _Pieces(io.RawIOBase):
    """Positions in a file of a store, of which each read is a request of its own."""

    def __init__(self, address: Address) -> None:
        self._address, self._at = address, 0
        self._file: Any = None
        self.identity = address.identity()
        self.size = self.identity[0]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self.size - self._at))
        if not wanted:
            return 0
        data = self._address._reached(lambda: self._read(wanted))
        buffer[:wanted] = data
        self._at += wanted
        return wanted

    def _read(self, wanted: int) -> bytes:
        filesystem, own = self._address._place()
        self._file = self._file or filesystem.open_input_file(own)
        try:
            data: bytes = self._file.read_at(wanted, self._at)
        except OSError:
            self._file = None
            raise
        if len(data) != wanted:
            raise OSError(f"{len(data):,} of {wanted:,} bytes came from byte {self._at:,} on")
        return data


def _etag(filesystem: "pyarrow.fs.FileSystem", own: str) -> bytes:
    """What the store calls this content of a file."""
    with filesystem.open_input_file(own) as file:
        tag: bytes = file.metadata().get("ETag", b"")
        return tag


def as_path(location: "str | Path | Address") -> "Path | Address":
    """A local path, or the address of a store: what begins with a scheme, such as `s3://`.

    `pathlib` makes `s3:/bucket` of `s3://bucket`; that is understood too.
    """
    if isinstance(location, Address):
        return location
    found = _URI.fullmatch(str(location))
    if str(location).startswith("file://"):
        return Path(str(location).removeprefix("file://"))
    if found is None:
        return Path(location)
    scheme, host, key, settings = found.groups()
    return Address(f"{scheme}://{host}{settings or ''}", PurePosixPath(key))


def regular(path: AnyPath) -> AnyPath:
    """The path itself, unless it is a pipe or a device: to open one may wait for ever, and its bytes may never end."""
    if isinstance(path, Path) and path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} is a pipe or a device, not a file; name a file")
    return path


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Errors of the system say which file they are about, those of reading and writing one that is open too.

    >>> with naming("scores.json"):
    ...     raise OSError(5, "Input/output error")
    Traceback (most recent call last):
    OSError: [Errno 5] Input/output error: 'scores.json'
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def read_text(path: AnyPath) -> str:
    """A whole text file in UTF-8; no pipe or device is opened, and what goes wrong names the file."""
    with naming(path):
        return regular(path).read_text(encoding="utf-8")


@lru_cache(maxsize=64)
def _filesystem(
    store: str, _settings: tuple[tuple[str, str], ...], _process: int
) -> tuple["pyarrow.fs.FileSystem", str]:
    """The client of a store, made once for the settings that it takes from the environment.

    And for each process: a fork would share its connections with its parent, and mix up what comes through them.
    """
    require("pyarrow", extra="report", purpose="reading from object stores")
    import pyarrow as pa
    from pyarrow import fs

    scheme = store.partition(":")[0]
    try:
        filesystem, root = fs.FileSystem.from_uri(store)
    except pa.ArrowInvalid as error:
        if "Unrecognized filesystem" not in str(error):
            raise ValueError(f"{Address(store, PurePosixPath())}: {error}") from None
        fsspec = require("fsspec", extra="train", purpose=f"reading {scheme}:// addresses")
        try:
            own, root = fsspec.url_to_fs(store)
        except (ImportError, ValueError) as missing:
            raise ValueError(f"{Address(store, PurePosixPath())}: no file system of such a scheme: {missing}") from None
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(own))
    return _impatient(filesystem) if scheme == "s3" else filesystem, root


def _impatient(filesystem: "pyarrow.fs.S3FileSystem") -> "pyarrow.fs.S3FileSystem":
    """The same client, with one request per attempt: Arrow sends 31, of which each waits for 3 s of silence."""
    from pyarrow import fs

    _, (options,) = filesystem.__reduce__()  # an address has no words for these three
    once = fs.AwsStandardS3RetryStrategy(max_attempts=1)
    return fs.S3FileSystem(**options | {"request_timeout": SILENCE, "connect_timeout": SILENCE}, retry_strategy=once)
