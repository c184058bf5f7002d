"""Whether files are what was written, by every digest that there is of them.

A file is vouched for by `SHA256SUMS` in a folder above it, by `NAME.sha256` beside it, by a document that names files
with their digests (the manifest of checkpoints, of shards), or by itself: documents and safetensors hold the digest of
their own content. Whoever writes a file decides which; nothing here knows runs, exports or studies.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from counterpoise._addresses import Address, as_path
from counterpoise._digests import SUMS, inside, read_sums, require_within, stated_digest
from counterpoise._documents import CHANGED, DIGEST, is_changed
from counterpoise._files import digest_of, has_digest
from counterpoise._json import parsed

State = Literal["whole", "changed", "missing", "without digest"]

VOUCHERS = {
    "counterpoise.checkpoints": "counterpoise.training.checkpoints",
    "counterpoise.parts": "counterpoise.training.parts",
    "counterpoise.shards": "counterpoise.predictions.shards",
}
"""By schema of a document that names files: the module whose `vouched_files` says which, with their SHA-256."""

_BESIDE = ".sha256"
_ABOVE = 4
"""Folders above a single file in which `SHA256SUMS` may name it."""
_LARGEST_DOCUMENT = 1 << 28


@dataclass(frozen=True)
class Finding:
    """What is known of one file.

    Attributes:
        path: of the file.
        state: whether it is what was written.
        reason: who says so, or why nobody does.
    """

    path: Path
    state: State
    reason: str = ""


def verify(location: str | Path, *, tell: Callable[[Path], object] = lambda _: None) -> list[Finding]:
    """Every file of a folder, or one file, in the order of names; hidden files are left out, links not followed.

    Args:
        location: a local folder, such as that of a run, of a study or to share; or a file.
        tell: is told which file is looked at.
    """
    path = as_path(location)
    if isinstance(path, Address):
        raise ValueError(f"{path} is in an object store: copy it here to verify it")
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    stated: dict[Path, dict[str, str]] = {}
    faults: dict[Path, str] = {}
    unread: dict[Path, str] = {}
    files = list(_walk(path)) if path.is_dir() else [path]
    for voucher in files if path.is_dir() else _vouchers_of(path):
        try:
            for name, digest in _vouched(voucher).items():
                # Absolute, because a folder above a file may be written in another way.
                stated.setdefault((voucher.parent / name).absolute(), {})[voucher.name] = digest
        except ImportError as error:
            unread[voucher] = f"what it names is not verified: {error}"
        except (ValueError, OSError) as error:
            faults[voucher] = str(error).removeprefix(f"{voucher}: ")
    named = {path / each.relative_to(path.absolute()) for each in stated} if path.is_dir() else set()
    findings = []
    for each in sorted({*files, *named}):
        tell(each)
        if each in faults:
            findings.append(Finding(each, "changed", faults[each]))
        elif not _is_sums(each):
            found = _finding(each, stated.get(each.absolute(), {}))
            findings.append(replace(found, reason=unread[each]) if each in unread else found)
    return findings


def _vouchers_of(path: Path) -> Iterator[Path]:
    """What may vouch for a single file: beside it, and in folders above it."""
    yield from (each for each in _walk(path.parent, deep=False) if each != path)
    yield from (folder / SUMS for folder in path.absolute().parents[1:_ABOVE] if (folder / SUMS).is_file())


def _walk(folder: Path, *, deep: bool = True) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix == ".lock":
            continue
        if path.is_symlink() or not path.is_dir():
            yield path
        elif deep:
            yield from _walk(path)


def _is_sums(path: Path) -> bool:
    return path.name == SUMS or path.suffix == _BESIDE


def _vouched(path: Path) -> Mapping[str, str]:
    """What a file says about others, by their names seen from its folder; nothing where it does not."""
    if path.name == SUMS:
        return read_sums(path.parent) or {}
    if path.suffix == _BESIDE:
        digest = stated_digest(inside(path.parent, path.name))
        return {} if digest is None else {path.name.removesuffix(_BESIDE): digest}
    if path.suffix != ".json" or path.is_symlink():
        return {}
    document = _document(path)
    module = VOUCHERS.get(str(document.get("schema")))
    if module is None:
        return {}
    found: Mapping[str, str] = import_module(module).vouched_files(path)
    for name in found:
        require_within(name, where=str(path))
    return found


def _finding(path: Path, stated: Mapping[str, str]) -> Finding:
    by = ", ".join(stated)
    if not path.exists() and not path.is_symlink():
        return Finding(path, "missing", f"{by} names it")
    try:
        inside(path.parent, path.name)
        if stated:
            actual = digest_of(path)
            if wrong := [voucher for voucher, digest in stated.items() if digest != actual]:
                return Finding(path, "changed", f"its SHA-256 is not that of {', '.join(wrong)}")
        if _vouches_for_itself(path):
            return Finding(path, "whole", "; ".join(filter(None, ("by its own digest", by))))
    except (ValueError, OSError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        return Finding(path, "without digest" if path.is_symlink() and not stated else "changed", reason)
    return Finding(path, "whole", by) if stated else Finding(path, "without digest")


def _vouches_for_itself(path: Path) -> bool:
    """Whether a file holds the digest of its content, which agrees with it; `ValueError` where it does not."""
    if path.suffix == ".safetensors":
        return has_digest(path)
    if path.suffix != ".json" or path.stat().st_size > _LARGEST_DOCUMENT:
        return False
    document = _document(path)
    if not isinstance(document.get(DIGEST), str):  # of other programs; or one that names files by their digests
        return False
    if is_changed(document):
        raise ValueError(CHANGED)
    return True


def _document(path: Path) -> dict[str, Any]:
    try:
        found = parsed(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    return found if isinstance(found, dict) else {}
