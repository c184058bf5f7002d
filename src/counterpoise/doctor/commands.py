"""Trainings in processes of their own, which can be ended when they take too long: several ranks, compiled models."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch

from counterpoise.data.images import load_images
from counterpoise.doctor.bench import ACCELERATORS, Bench, Finding, Skipped
from counterpoise.doctor.runs import StopAtDeadline, Trace, largest_difference, trained
from counterpoise.recipes.catalog import RECIPES
from counterpoise.training.folder import RunFolder

RANKS = 2

DISTRIBUTED_LIMIT = 0.25
"""Largest relative difference of a loss from that of one process: BatchNorm sees half a batch on each rank."""

COMPILED_LIMIT = 0.01
"""Largest relative difference of a loss; compiled kernels sum in another order."""


def several_ranks(bench: Bench) -> Finding:
    """One epoch of the digits by two processes, NCCL on GPUs and gloo on CPUs, against one process."""
    if bench.device == "mps":
        raise Skipped("there is one device of this kind")
    if bench.device == "cuda" and torch.cuda.device_count() < RANKS:
        raise Skipped(f"needs {RANKS} GPUs, there is {torch.cuda.device_count()}")
    options = ["--engine.devices", str(RANKS), *(["--engine.threads", "1"] if bench.device == "cpu" else [])]
    return _against_this_process(bench, options, limit=DISTRIBUTED_LIMIT)


def compiled(bench: Bench) -> Finding:
    """One epoch of the digits with compiled models, against models as they are."""
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++", "cl"))):
        raise Skipped("there is no C++ compiler")
    if bench.device == "cuda" and find_spec("triton") is None:
        raise Skipped("triton is not installed")
    return _against_this_process(bench, ["--engine.compile"], limit=COMPILED_LIMIT)


def _against_this_process(bench: Bench, options: list[str], *, limit: float) -> Finding:
    recipe = RECIPES["digits"].recipe()
    accelerator = ACCELERATORS[bench.device]
    recipe = replace(recipe, epochs=1, engine=replace(recipe.engine, accelerator=accelerator))  # type: ignore[arg-type]
    expected = trained(
        recipe, load_images("digits", "train", limit=recipe.data.limit), callbacks=[StopAtDeadline(bench)]
    )
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        command = [sys.executable, "-m", "counterpoise", "train", "digits", "--epochs", "1"]
        command += ["--engine.accelerator", accelerator, "--out", str(run.path), *options]
        bench.say(f"{bench.name}: counterpoise train digits {' '.join(options)}")
        _run(command, timeout=bench.seconds_left())
        found = Trace.of(run)
    detail = f"{len(found.losses)} steps of the digits, last loss {found.values[-1]:.3f}"
    return bench.finding(largest_difference(found.values, expected.values), limit, "relative", detail=detail)


def _run(command: list[str], *, timeout: float) -> None:
    """Run to the end, or to its time; whatever it has started ends with it."""
    with subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException as error:
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Skipped(f"not done after {timeout:.0f} s, when the time was up") from None
            raise
    if process.returncode:
        last = " / ".join(line.strip() for line in output.strip().splitlines()[-3:])
        raise RuntimeError(f"ended with code {process.returncode}: {last}")
