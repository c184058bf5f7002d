"""`counterpoise verify`: whether files are what was written."""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from counterpoise._text import printable
from counterpoise.cli.columns import Flag
from counterpoise.cli.program import EXIT_OK
from counterpoise.cli.progress import ProgressLine

EXIT_DAMAGED, EXIT_UNKNOWN = 3, 4


@dataclass(frozen=True)
class Verify:
    """Say of each file whether it is what was written: whole, changed, missing, or without digest.

    A run, an exported file or a folder to share, predictions and their shards, a calibrator, a study's store or what
    was kept of it. Digests guard against damage, not against a forger.
    Exit codes: 0 whole, as far as there are digests; 3 something changed or is missing; 4 nothing has a digest.
    """

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Folder or file."""
    all: Flag = False
    """List what is whole, too."""
    json: Flag = False
    """Print JSON, of every file."""

    def run(self) -> None:
        from counterpoise.verification import verify

        progress = ProgressLine()
        findings = verify(self.path, tell=lambda path: progress.say(f"reading {path}"))
        progress.clear()
        count = Counter(finding.state for finding in findings)
        if self.json:
            import json

            listed = [{"path": str(each.path), "state": each.state, "reason": each.reason} for each in findings]
            print(json.dumps({"counts": dict(count), "files": listed}, indent=1))
        else:
            for each in findings:
                if self.all or each.state != "whole":
                    reason = f": {each.reason}" if each.reason else ""
                    print(printable(f"{each.state:14} {each.path}{reason}"))
            named = [f"{count[state]} {state}" for state in ("whole", "changed", "missing", "without digest")]
            print(f"{self.path}: {', '.join(named)}")
        sys.stdout.flush()
        damaged = count["changed"] + count["missing"]
        sys.exit(EXIT_DAMAGED if damaged else EXIT_OK if count["whole"] else EXIT_UNKNOWN)
