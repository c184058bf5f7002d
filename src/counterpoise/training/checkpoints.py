"""The manifest of checkpoints: which of them count, with their digests.

A checkpoint counts once the manifest names it, and the manifest names it once its bytes have been read back. Those that
the manifest does not name are removed, so that the previous checkpoint stays until the new one has been verified.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoise._documents import from_document, to_document
from counterpoise._files import digest_of, write_text

SCHEMA, SCHEMA_VERSION = "counterpoise.checkpoints", 2
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """One checkpoint: what it is, and what its file must be."""

    file: str
    sha256: str
    bytes: int
    step: int
    epoch: int
    metric: str | None = None
    value: float | None = None


@dataclass(frozen=True)
class Manifest:
    """The checkpoints of a run that count."""

    last: Entry | None = None
    previous: Entry | None = None
    best: Entry | None = None

    @property
    def files(self) -> set[str]:
        """Names of the files that are kept."""
        return {entry.file for entry in (self.last, self.previous, self.best) if entry is not None}

    def until(self, step: int) -> "Manifest":
        """What is left of it when training goes back to that step."""
        kept = {name: entry for name, entry in vars(self).items() if entry is None or entry.step <= step}
        return Manifest(**kept)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder of checkpoints; an empty one where there is none yet."""
    path = folder / MANIFEST
    if not path.exists():
        return Manifest()
    try:
        return from_document(
            Manifest, path.read_text(), schema=SCHEMA, version=SCHEMA_VERSION, upgrades={1: _to_version_2}
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}; restore it, or remove the checkpoints with it to begin anew") from None


def _to_version_2(document: dict[str, Any]) -> dict[str, Any]:
    """With metrics that are called so."""

    def renamed(entry: dict[str, Any]) -> dict[str, Any]:
        return {("metric" if name == "measure" else name): value for name, value in entry.items()}

    return {name: entry and renamed(entry) for name, entry in document.items()}


def begin_manifest(folder: Path) -> None:
    """Make an empty manifest before the first checkpoint; refuse checkpoints that have lost theirs."""
    if (folder / MANIFEST).exists():
        return
    if found := sorted(path.name for path in folder.glob("step-*.ckpt")):
        raise ValueError(
            f"{folder} holds {', '.join(found[:3])} and no {MANIFEST}, without which they cannot be trusted; restore "
            "it, or remove them to begin anew"
        )
    write_manifest(folder, Manifest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, then remove the checkpoints that it does not name."""
    write_text(folder / MANIFEST, to_document(manifest, schema=SCHEMA, version=SCHEMA_VERSION))
    remove_strays(folder)


def remove_strays(folder: Path) -> None:
    """Remove checkpoints that the manifest does not name, and what a killed process was writing."""
    named = read_manifest(folder).files
    for path in [*folder.glob("step-*.ckpt"), *folder.glob(".*.tmp")]:
        if path.name not in named:
            path.unlink()


def newest_intact(folder: Path) -> tuple[Entry | None, list[str]]:
    """The newest checkpoint whose bytes are those of the manifest, and what was wrong with newer ones."""
    manifest, wrong = read_manifest(folder), []
    named = {entry.file: entry for entry in (manifest.last, manifest.previous, manifest.best) if entry is not None}
    for entry in sorted(named.values(), key=lambda entry: -entry.step):
        path = folder / entry.file
        if not path.exists():
            wrong.append(f"{path} is missing")
        elif digest_of(path) != entry.sha256:
            wrong.append(f"{path} has changed since it was written: its SHA-256 is not the manifest's")
        else:
            return entry, wrong
    return None, wrong


def state_digest(path: Path) -> str:
    """SHA-256 over everything in a checkpoint: parameters, buffers, optimizer, progress, random state.

    Bit for bit, whatever the layout of the file: two runs that end with the same digest are the same run.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    digest = hashlib.sha256()
    _add(digest, state)
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
