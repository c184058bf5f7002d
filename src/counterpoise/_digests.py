"""SHA-256 of whole files in files beside them, in the form of `sha256sum --check`, so that anybody can verify them.

One file has `NAME.sha256`; a folder has `SHA256SUMS`. They are for files that other programs read, or that have no
place for a digest of their own. Documents and safetensors carry theirs within (`_documents`, `_files`).
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from counterpoise._addresses import naming, regular
from counterpoise._files import FilePath, digest_of, replacing

SUMS = "SHA256SUMS"
"""The file that vouches for the files of a folder, by their names seen from it."""

_ONE_LIMIT, _ALL_LIMIT = 4096, 1 << 27
"""Bytes that are read of either file."""

_LINE = re.compile(rb"(\\?)([0-9a-f]{64}) [ *]([^\n]+)")


def digest_path(path: FilePath) -> FilePath:
    """`preds.parquet.sha256` for `preds.parquet`."""
    return path.with_name(f"{path.name}.sha256")


def write_digest(path: FilePath, digest: str) -> None:
    """Put the digest of `path` beside it."""
    with replacing(digest_path(path)) as temporary:
        temporary.write_bytes(_line(path.name, digest))


def stated_digest(beside: FilePath) -> str | None:
    """What a file of a digest says; None where there is none."""
    try:
        with regular(beside).open("rb") as file:
            match = _LINE.match(file.read(_ONE_LIMIT))
    except FileNotFoundError:
        return None
    if match is None:
        raise ValueError(f"{beside.name} holds no SHA-256 digest; restore it, or delete it to read without one")
    return match[2].decode()


@contextmanager
def replacing_vouched(path: str | Path) -> Iterator[Path]:
    """As `replacing`, and its digest beside it; a crash leaves a file without a digest, never with another file's."""
    target = Path(path)
    with replacing(target) as temporary:
        yield temporary
        digest = digest_of(temporary)
        digest_path(target).unlink(missing_ok=True)
    write_digest(target, digest)


def is_vouched(path: FilePath) -> bool:
    """Whether a file is what the digest beside it says; False where one of the two is missing."""
    try:
        return stated_digest(digest_path(path)) == digest_of(path)
    except (FileNotFoundError, ValueError):
        return False


def read_vouched(path: FilePath) -> bytes:
    """The bytes of a file, which are refused where they do not agree with the digest beside it."""
    with naming(path):
        data = regular(path).read_bytes()
    beside = digest_path(path)
    stated = stated_digest(beside)
    if stated is not None and hashlib.sha256(data).hexdigest() != stated:
        raise ValueError(f"{path}: {disagreement(beside)}")
    return data


def disagreement(beside: FilePath) -> str:
    """What is wrong with a file whose digest in `beside` is not its own, and what to do."""
    return (
        f"its bytes do not agree with the digest in {beside.name}: one of the two was damaged or changed after it was "
        "written. Restore it, or delete the digest if the change was meant"
    )


def read_sums(folder: Path) -> dict[str, str] | None:
    """SHA-256 of the files of a folder, by their names seen from it; None where nothing vouches for the folder."""
    path = folder / SUMS
    if not path.exists():
        return None
    with regular(inside(folder, SUMS)).open("rb") as file:
        lines = file.read(_ALL_LIMIT).split(b"\n")
    found = {}
    for number, line in enumerate(lines, start=1):
        if line:
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"{path}, line {number} is no SHA-256 and name of a file; restore it, or remove it")
            name = os.fsdecode(_unescaped(match[3]) if match[1] else match[3])
            require_within(name, where=f"{path}, line {number}")
            found[name] = match[2].decode()
    return found


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Vouch for the files of a folder."""
    with replacing(folder / SUMS) as temporary:
        temporary.write_bytes(b"".join(_line(name, digest) for name, digest in sorted(sums.items())))


def sums_of(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files of a folder, by their names seen from it."""
    return {path.relative_to(folder).as_posix(): digest_of(path) for path in paths}


def changed_in(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Names of the files that are not what was vouched for, or are missing."""
    return [name for name, digest in sums.items() if not _is_whole(folder, name, digest)]


def _is_whole(folder: Path, name: str, digest: str) -> bool:
    try:
        return digest_of(inside(folder, name)) == digest
    except FileNotFoundError:
        return False


def require_within(name: str, *, where: str) -> None:
    """Refuse a name from a file that leads out of the folder it is seen from: absolute, or with `..`."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute() or Path(name).is_absolute() or "\\" in name:
        raise ValueError(f"{where} names {name!r}, which is no file within its folder")


def inside(folder: Path, name: str) -> Path:
    """The file of a folder; one that a link leads out to, there or on the way, is refused."""
    path = folder / name
    if path.resolve() != folder.resolve() / name:
        raise ValueError(
            f"{path} is a link, or in a folder that is one, to {path.resolve()}; a folder of others could so name any "
            "file: put the file itself in its place, or remove it"
        )
    return path


def _line(name: str, digest: str) -> bytes:
    plain = os.fsencode(name)
    escaped = plain.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    mark = b"" if escaped == plain else b"\\"  # how sha256sum says that it escaped a name
    return mark + digest.encode() + b"  " + escaped + b"\n"


def _unescaped(name: bytes) -> bytes:
    return re.sub(rb"\\(.)", lambda match: {b"n": b"\n", b"r": b"\r"}.get(match[1], match[1]), name)
