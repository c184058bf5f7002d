"""`counterpoise doctor`: whether the library works on this machine, in two minutes."""

import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from counterpoise._documents import to_document
from counterpoise._extras import require_installed
from counterpoise._text import printable
from counterpoise.cli.info import described
from counterpoise.cli.program import UsageError
from counterpoise.cli.progress import ProgressLine

if TYPE_CHECKING:
    from counterpoise.doctor import Finding

SCHEMA, SCHEMA_VERSION = "counterpoise.doctor", 1

_SMALL = 60
"""Seconds below which the work is small enough for a glance."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything that a bug report needs.

    Attributes:
        about: versions and devices.
        device: that was checked.
        seconds: that the checks took.
        works: whether no check failed, and not all were skipped.
        findings: of the checks.
    """

    about: dict[str, str]
    device: str
    seconds: float
    works: bool
    findings: "list[Finding]"


@dataclass(frozen=True)
class Doctor:
    """Check that counterpoise works here: numerics, mixed precision, determinism, resuming, speed, several ranks.

    Needs no data and no network. Exits with 1 if a check failed.
    """

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """What to check."""
    seconds: float = 120
    """Time for all checks; those that it does not suffice for are skipped."""
    json: bool = False
    """Print one document to attach to a bug report; progress goes to standard error."""

    def run(self) -> None:
        """Print a finding as soon as there is one, and in the end what they come to."""
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"--seconds must be positive and finite, got {self.seconds:g}")
        require_installed("lightning", extra="train", purpose="doctor")
        from counterpoise.doctor import CPU, CUDA, TINY, run_checks

        device, about = self._device(), described()
        scale = TINY if self.seconds < _SMALL else CUDA if device == "cuda" else CPU
        shown = sys.stderr if self.json else sys.stdout
        for name, value in about.items():
            print(f"{name:12} {value}", file=shown)
        print(f"\nchecking {device} for at most {self.seconds:g} s", file=shown, flush=True)
        started, line = time.monotonic(), ProgressLine()

        def say(text: str) -> None:
            line.say(f"... {text}", at_once=True)

        def tell(finding: "Finding") -> None:
            line.clear()
            print(as_line(finding), file=shown, flush=True)

        findings = run_checks(device, scale, seconds=self.seconds, tell=tell, say=say)
        passed = [finding.passed for finding in findings]
        diagnosis = Diagnosis(
            about, device, time.monotonic() - started, True in passed and False not in passed, findings
        )
        print(f"\n{conclusion(diagnosis)}", file=shown)
        if self.json:
            print(to_document(diagnosis, schema=SCHEMA, version=SCHEMA_VERSION, sealed=False))
        if not diagnosis.works:
            raise SystemExit(1)

    def _device(self) -> str:
        import torch

        there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if self.device == "auto":
            return next((name for name in ("cuda", "mps") if there[name]), "cpu")
        if not there[self.device]:
            raise ValueError(
                f"torch sees no device {self.device!r} here; it sees {', '.join(filter(there.get, there))}"
            )
        return self.device


def as_line(finding: "Finding") -> str:
    """A finding in a line: what, whether, measured, limit, detail."""
    figures = ""
    if not math.isnan(finding.measured):
        figures = f"{finding.measured:.3g} {finding.unit}, limit {finding.limit:g}"
    parts = [part for part in (figures, printable(finding.detail)) if part]
    return f"{finding.status:8} {finding.name:24} {'; '.join(parts)}"


def conclusion(diagnosis: Diagnosis) -> str:
    """In a line: whether it works, and which checks say otherwise or nothing."""
    names = {
        status: ", ".join(finding.name for finding in diagnosis.findings if finding.status == status)
        for status in ("WRONG", "warning", "skipped")
    }
    verdict = f"{'works here' if diagnosis.works else 'does not work here'} ({diagnosis.device})"
    notes = [f"{status}: {listed}" for status, listed in names.items() if listed]
    return "; ".join([f"{verdict}, checked in {diagnosis.seconds:.0f} s", *notes])
