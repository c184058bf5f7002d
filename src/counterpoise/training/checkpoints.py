"""The manifest of checkpoints: which of them count, with their digests.

A checkpoint counts once the manifest names it, and the manifest names it once its bytes have been read back. Those that
the manifest does not name are removed, so that the previous checkpoint stays until the new one has been verified.

A checkpoint is one file, or, where the state is sharded, a folder of the same name: `parts.json` vouches for the other
files in it as the manifest vouches for `parts.json`. Who verifies, removes or reads checkpoints need not know which.
"""

import hashlib
import re
import shlex
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoise._addresses import read_text
from counterpoise._documents import from_document, to_document
from counterpoise._files import digest_of, write_text
from counterpoise.training.parts import PARTS, STATE, read_parts

SCHEMA, SCHEMA_VERSION = "counterpoise.checkpoints", 2
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """One checkpoint: what it is, and what its file must be; of a folder, its `parts.json`."""

    file: str
    sha256: str
    bytes: int
    step: int
    epoch: int
    metric: str | None = None
    value: float | None = None


@dataclass(frozen=True)
class Manifest:
    """The checkpoints of a run that count, the digest of its recipe, and which member of an ensemble they train."""

    last: Entry | None = None
    previous: Entry | None = None
    best: Entry | None = None
    recipe: str = ""
    member: int = 0

    @property
    def entries(self) -> list[Entry]:
        return [entry for entry in (self.last, self.previous, self.best) if entry is not None]

    @property
    def files(self) -> set[str]:
        return {entry.file for entry in self.entries}

    def best_until(self, step: int) -> Entry | None:
        """The best checkpoint, unless training goes back to a step before it."""
        return self.best if self.best is not None and self.best.step <= step else None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder of checkpoints; an empty one where there is none yet."""
    path = folder / MANIFEST
    if not path.exists():
        return Manifest()
    try:
        found = from_document(Manifest, read_text(path), schema=SCHEMA, version=SCHEMA_VERSION)
        for name in found.files:
            if not re.fullmatch(r"step-\d+\.ckpt", name):
                raise ValueError(f"it names {name!r}, which is no checkpoint")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; restore it, or remove the checkpoints with it to begin anew") from None
    return found


def vouched_files(path: Path) -> dict[str, str]:
    """SHA-256 of the files that a manifest names; of a folder, of its `parts.json`, which names the others."""
    entries = read_manifest(path.parent).entries
    within = {entry.file: f"{entry.file}/{PARTS}" for entry in entries if (path.parent / entry.file).is_dir()}
    return {within.get(entry.file, entry.file): entry.sha256 for entry in entries}


def require_own(folder: Path, *, recipes: Collection[str], member: int) -> None:
    """Reject checkpoints of another run or another member, by the digests of the recipes that a run has had."""
    manifest = read_manifest(folder)
    if manifest.entries and (manifest.recipe not in recipes or manifest.member != member):
        raise ValueError(
            f"{folder} holds checkpoints of another run (recipe {manifest.recipe[:12] or 'unknown'}, member "
            f"{manifest.member}), and this run is recipe {[*recipes][-1][:12]}, member {member}; restore its own "
            f"checkpoints, or remove these to train from the start: rm -r {shlex.quote(str(folder))}"
        )


def begin_manifest(folder: Path, *, recipe: str, member: int) -> None:
    """Say of which recipe and member the checkpoints are, before the next one; refuse those that lost their manifest.

    `recipe` is the digest of that of the whole run.
    """
    if (folder / MANIFEST).exists():
        write_manifest(folder, replace(read_manifest(folder), recipe=recipe, member=member))
        return
    if found := sorted(path.name for path in folder.glob("step-*.ckpt")):
        raise ValueError(
            f"{folder} holds {', '.join(found[:3])} and no {MANIFEST}, without which they cannot be trusted; restore "
            "it, or remove them to begin anew"
        )
    write_manifest(folder, Manifest(recipe=recipe, member=member))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, then remove the checkpoints that it does not name."""
    write_text(folder / MANIFEST, to_document(manifest, schema=SCHEMA, version=SCHEMA_VERSION))
    remove_strays(folder)


def remove_strays(folder: Path) -> None:
    """Remove checkpoints that the manifest does not name, and what a killed process was writing."""
    named = read_manifest(folder).files
    for path in [*folder.glob("step-*.ckpt"), *folder.glob(".*.tmp")]:
        if path.name not in named:
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint of either form, or what there is of it."""
    if path.is_dir() and not path.is_symlink():  # of a link, itself and not what it leads to
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def newest_intact(folder: Path) -> tuple[Entry | None, list[str]]:
    """The newest checkpoint whose bytes are those of the manifest, and what was wrong with newer ones."""
    manifest, wrong = read_manifest(folder), []
    named = {entry.file: entry for entry in manifest.entries}
    for entry in sorted(named.values(), key=lambda entry: -entry.step):
        if fault := fault_of(folder / entry.file, sha256=entry.sha256):
            wrong.append(fault)
        else:
            return entry, wrong
    return None, wrong


def fault_of(path: Path, *, sha256: str) -> str | None:
    """What is wrong with a checkpoint that the manifest names, or None."""
    file = path
    try:
        for file, digest, voucher in _files_of(path, sha256):
            if digest_of(file) != digest:
                return f"{file} has changed since it was written: its SHA-256 is not the {voucher}'s"
    except FileNotFoundError:  # perhaps only now: the first rank removes what it has found damaged
        return f"{file} is missing"
    return None


def _files_of(path: Path, sha256: str) -> Iterator[tuple[Path, str, str]]:
    """The files of a checkpoint, what their SHA-256 must be, and who says so.

    Whoever takes them looks at each before the next is asked for, so that `parts.json` is verified when it is read.
    """
    if not path.is_dir():
        yield path, sha256, "manifest"
        return
    yield path / PARTS, sha256, "manifest"
    for name, digest in read_parts(path).sha256.items():
        yield path / name, digest, PARTS


def read_state(path: Path, *, places: str = "") -> dict[str, Any]:
    """Everything that a checkpoint of either form holds: tensors, numbers and text; code is refused.

    Of a sharded one, only tensors whose place begins with `places`, such as `state_dict/`, are read; others are empty,
    on the device `meta`.
    """
    state = read_unsharded(path)
    if not path.is_dir():
        return state
    from counterpoise.training.part_files import filled  # torch's planner, which a state in one file does not need

    whole: dict[str, Any] = filled(path, state, places=places)
    return whole


def read_unsharded(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """What the first rank has written; sharded tensors are empty, on the device `meta`.

    `mapped` tensors are read from the file when they are looked at, and only the parts that are.
    """
    file = path / STATE if path.is_dir() else path
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as error:  # torch has no error of its own for damaged files, and raises some fifteen kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{file} is no checkpoint of tensors, numbers and text: {reason}") from None
    return state


def state_digest(path: Path) -> str:
    """SHA-256 over everything in a checkpoint: parameters, buffers, optimizer, progress, random state.

    Bit for bit, whatever the layout of the files: two runs that end with the same digest are the same run.
    """
    digest = hashlib.sha256()
    _add(digest, read_state(path))
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"tensor {value.dtype} {list(value.shape)}".encode())
        digest.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            digest.update(f"key {key!r}".encode())
            _add(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"sequence {len(value)}".encode())
        for item in value:
            _add(digest, item)
    else:
        digest.update(repr(value).encode())
