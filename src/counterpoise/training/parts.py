"""What a sharded checkpoint is made of: `parts.json`, which is written when all its other files have been read back."""

import re
from dataclasses import dataclass
from pathlib import Path

from counterpoise._addresses import read_text
from counterpoise._documents import from_document, to_document
from counterpoise._files import Written, write_verified

SCHEMA, SCHEMA_VERSION = "counterpoise.parts", 1
PARTS, STATE, PART = "parts.json", "state.ckpt", "part-{:05d}.safetensors"
"""Of a sharded checkpoint: where everything is; everything that is not sharded; the shards of a rank."""


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor of which every part holds some rows, those from `rows[i]` to `rows[i + 1]` in the i-th part.

    Rows alone, because that is how FSDP2 shards; a list of numbers, because a thousand ranks make it long.
    """

    shape: list[int]
    rows: list[int]


@dataclass(frozen=True)
class Parts:
    """What a sharded checkpoint is made of: SHA-256 by file, and tensors by their place in the state."""

    sha256: dict[str, str]
    tensors: dict[str, ShardedTensor]


def write_parts(folder: Path, parts: Parts) -> Written:
    """Make the folder a checkpoint."""
    text = to_document(parts, schema=SCHEMA, version=SCHEMA_VERSION, indent=None, sealed=False)
    return write_verified(folder / PARTS, lambda file: file.write(text.encode()))


def read_parts(path: Path) -> Parts:
    """What the folder of a sharded checkpoint is made of."""
    try:
        found = from_document(Parts, read_text(path / PARTS), schema=SCHEMA, version=SCHEMA_VERSION, sealed=False)
        for name in found.sha256:
            if not re.fullmatch(r"state\.ckpt|part-\d{5,}\.safetensors", name):
                raise ValueError(f"it names {name!r}, which is no file of a checkpoint")
    except ValueError as error:
        raise ValueError(f"{path / PARTS}: {error}") from None
    return found


def vouched_files(path: Path) -> dict[str, str]:
    """SHA-256 of the files that a `parts.json` names."""
    return read_parts(path.parent).sha256
