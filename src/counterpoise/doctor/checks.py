"""The checks, one line each, and what runs them."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from counterpoise.doctor.bench import Bench, Finding, Scale, Skipped
from counterpoise.doctor.commands import compiled, several_ranks
from counterpoise.doctor.numerics import every_method, measures, mutual_transport_formula
from counterpoise.doctor.runs import data_pipeline, determinism, mixed_precision, resuming
from counterpoise.doctor.throughput import throughput


@dataclass(frozen=True)
class Check:
    """Something that must be so on every machine.

    Attributes:
        name: as lists show it.
        run: measures it.
        seconds: that it takes at most, on two CPU cores or on a GPU; with less time left it is not begun.
    """

    name: str
    run: Callable[[Bench], Finding]
    seconds: float


CHECKS: tuple[Check, ...] = (
    Check("MTE loss and gradients", mutual_transport_formula, 1),
    Check("losses of all methods", every_method, 1),
    Check("accuracy, NLL, ECE", measures, 1),
    Check("data pipeline", data_pipeline, 2),
    Check("bfloat16", partial(mixed_precision, precision="bfloat16"), 4),
    Check("float16", partial(mixed_precision, precision="float16"), 6),
    Check("determinism", determinism, 8),
    Check("resuming", resuming, 8),
    Check("engine's speed", throughput, 15),
    Check("two ranks", several_ranks, 20),
    Check("torch.compile", compiled, 30),
)
"""In the order in which they run: what is quick and what all else rests on comes first."""


def run_checks(
    device: str,
    scale: Scale,
    *,
    seconds: float,
    tell: Callable[[Finding], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Finding]:
    """Run the checks on a device, as many as the time allows; whatever goes wrong in one is its finding.

    Args:
        device: `cpu`, `cuda` or `mps`.
        scale: how large the work is.
        seconds: for all of it; what cannot be done in that time is skipped.
        tell: given each finding as soon as there is one.
        say: shows a line of progress.
    """
    deadline = time.monotonic() + seconds
    findings = []
    with _settings_restored():
        for check in CHECKS:
            say(check.name)
            findings.append(_found(check, Bench(check.name, device, scale, deadline, say)))
            tell(findings[-1])
    return findings


def _found(check: Check, bench: Bench) -> Finding:
    started = time.monotonic()
    return replace(_attempted(check, bench), seconds=time.monotonic() - started)


def _attempted(check: Check, bench: Bench) -> Finding:
    try:
        if (left := bench.seconds_left()) < check.seconds:
            raise Skipped(f"takes up to {check.seconds:g} s, {left:.0f} s are left")
        return check.run(bench)
    except Skipped as reason:
        return Finding(check.name, math.nan, math.nan, "", None, str(reason))
    except Exception as error:
        return Finding(check.name, math.nan, math.nan, "", False, f"{type(error).__name__}: {error}")


@contextmanager
def _settings_restored() -> Iterator[None]:
    """Leave torch as it was; deterministic matrix products have to be asked for before the first one of a process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    deterministic, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = benchmark
