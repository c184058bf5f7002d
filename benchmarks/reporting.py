"""What all benchmarks share: checks with limits, and one JSON document on standard output."""

import json
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

import counterpoise


@dataclass(frozen=True)
class Check:
    """A measured figure and the limits it must lie in."""

    name: str
    measured: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the figure lies within its limits."""
        above = self.at_least is None or self.measured >= self.at_least
        return above and (self.at_most is None or self.measured <= self.at_most)


def finish(command: str, figures: dict[str, Any], checks: list[Check]) -> None:
    """Print everything as JSON and exit, with 1 if a check failed."""
    failed = [check.name for check in checks if not check.passed]
    document = {
        "command": command,
        "versions": {
            "counterpoise": counterpoise.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "figures": figures,
        "checks": [asdict(check) | {"passed": check.passed} for check in checks],
        "failed": failed,
    }
    print(json.dumps(document, indent=1))
    for name in failed:
        print(f"short of its limit: {name}", file=sys.stderr)
    sys.exit(1 if failed else 0)


def progress(message: str) -> None:
    """Say what is being measured, beside the JSON."""
    print(message, file=sys.stderr, flush=True)
