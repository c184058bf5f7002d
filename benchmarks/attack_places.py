"""Where an attack happens: its own folder, a place outside that nobody may touch, and what to look at afterwards."""

import io
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECRET = "the-private-text-of-somebody-else"  # noqa: S105
"""What the file outside holds; it must not show up in what is printed or written."""

CONTROLS = tuple(chr(code) for code in (0x1B, 0x9B, 0x07, 0x08, 0x202E, 0x2066, 0x200E))
"""Characters that change what a terminal shows: escapes, a bell, and marks of the direction of writing."""

ODD_NAME = f"cat{CONTROLS[0]}[2J{CONTROLS[0]}]0;owned{CONTROLS[2]}{CONTROLS[4]}god"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><!--{{7*7}}"
FORMULA = "=cmd|' /C calc'!A0"


MOST_SECONDS, MOST_MEGABYTES = 2.0, 500.0
"""Of processor time and memory, above the imports, until an artefact is refused or has been read."""


class HarmedError(Exception):
    """An attack had its effect."""


@dataclass(frozen=True)
class Place:
    """`folder` is the attack's own; `outside` is not. A `bomb` unpacks to so many bytes."""

    root: Path
    bomb: int = 1 << 30

    @property
    def folder(self) -> Path:
        """Where the artefact is, and where commands run."""
        return self.root / "inside"

    @property
    def outside(self) -> Path:
        """What nobody may read from or write to."""
        return self.root / "outside"

    @property
    def private(self) -> Path:
        """A file of somebody else."""
        return self.outside / "private"

    @property
    def canary(self) -> Path:
        """Is there once code of an artefact has run."""
        return self.root / "canary"

    def made(self) -> "Place":
        """With both folders, and the private file."""
        self.folder.mkdir(parents=True)
        self.outside.mkdir()
        self.private.write_text(SECRET)
        return self

    def code(self) -> "Code":
        """What makes the canary when it is unpickled."""
        return Code(str(self.canary))

    def pickled(self) -> bytes:
        """A pickle of that."""
        return pickle.dumps(self.code())

    def seen_outside(self) -> dict[str, tuple[int, bytes]]:
        """Everything outside, to be compared before and after."""
        return {
            str(path.relative_to(self.root)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
            for path in sorted(self.outside.rglob("*"))
        }


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, (f"touch {self.path}",)


Action = Callable[[], object]


@dataclass(frozen=True)
class Attack:
    """What an artefact tries, and how it is made and then met."""

    name: str
    kind: str
    make: Callable[[Place], Action]


ATTACKS: list[Attack] = []


def attack(kind: str) -> Callable[[Callable[[Place], Action]], Callable[[Place], Action]]:
    """Add an attack of that kind, named as its function is."""

    def added(make: Callable[[Place], Action]) -> Callable[[Place], Action]:
        ATTACKS.append(Attack(make.__name__.strip("_").replace("_", " "), kind, make))
        return make

    return added


def command(*arguments: str | Path) -> Action:
    """The command `counterpoise`, as a shell would start it."""

    def run() -> None:
        from counterpoise.cli import main

        sys.argv = ["counterpoise", *map(str, arguments)]
        main()

    return run


def printed(action: Action, check: Callable[[str], bool], complaint: str) -> Action:
    """Run it, and look at what it prints."""

    def run() -> None:
        before, sys.stdout = sys.stdout, io.StringIO()
        try:
            action()
        except SystemExit as end:
            text = sys.stdout.getvalue()
            if end.code:
                raise
        else:
            text = sys.stdout.getvalue()
        finally:
            sys.stdout = before
        print(text)
        if check(text):
            raise HarmedError(complaint)

    return run
