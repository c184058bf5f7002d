"""Programs that tests start, with all the processes that those start."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

LIMIT = 240
"""Seconds after which a program is taken to hang."""


def run_python(python: Path, *arguments: str | Path, env: Mapping[str, str], launcher: Sequence[str] = ()) -> str:
    """What a program of this interpreter printed that ended well.

    One that does not end is killed with its children, which would hold the pipes open.
    """
    process = subprocess.Popen(
        [python, *launcher, *arguments],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, errors = process.communicate()
        pytest.fail(f"not at its end after {LIMIT} s: {process.args}\n{printed[-1000:]}\n{errors[-3000:]}")
    assert process.returncode == 0, errors[-3000:]
    return printed


def torchrun(processes: int) -> tuple[str, ...]:
    """Arguments of Python that start a script on several processes."""
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
