"""What it costs to start: `python -m benchmarks.imports`.

In new processes, interleaved, the least processor time of several. `import counterpoise` loads nothing beyond the
standard library, and the names of it no package beyond torch, numpy, safetensors and what those load. Commands that
only list or describe take at most 0.15 s more than `python -c pass`. `evaluate` of 10,000 x 10 predictions is to take
1.3 times as long as to import torch, pyarrow and matplotlib; it is held below 1.5, since other machines read files and
compute at other speeds. Modules are compiled once, as those of an installed package are.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.reporting import Check, finish, progress
from counterpoise.predictions import Predictions, write_predictions

MOST_SECONDS = 0.15
WANTED_RATIO = 1.3
MOST_RATIO = 1.5
REPETITIONS = 3
SAMPLES, CLASSES = 10_000, 10
QUICK = ("--version", "--help", "methods", "recipes")
ALLOWED = ("counterpoise", "torch", "numpy", "safetensors")
"""Packages that may be loaded, and modules of theirs that load late, such as `numpy.typing`."""

_ADDED = """
import json, sys
{before}
there = set(sys.modules)
import counterpoise
{use}
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - there}})))
"""


def added(*, before: str = "", use: str = "") -> list[str]:
    """Foreign packages that `import counterpoise`, and then the use of it, adds to those that were there `before`."""
    code = _ADDED.format(before=before, use=use)
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return [name for name in json.loads(printed) if name != "counterpoise" and name not in sys.stdlib_module_names]


def processor_seconds(arguments: Sequence[str]) -> float:
    """Of a new interpreter with these arguments, by itself and the system for it."""
    compiling = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=compiling)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} exited with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def least_seconds(commands: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The least of several times, one command after the other, so that a busy machine is busy for all of them."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for repetition in range(REPETITIONS):
        for name, arguments in commands.items():
            progress(f"{repetition + 1} of {REPETITIONS}: {name}")
            times[name].append(processor_seconds(arguments))
    return {name: min(measured) for name, measured in times.items()}


def write_example(path: Path) -> None:
    """Predictions that are right nine times out of ten."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, SAMPLES)
    logits = generator.normal(size=(SAMPLES, CLASSES)).astype(np.float32)
    logits[np.arange(SAMPLES), labels] += 3
    write_predictions(path, Predictions(kind="logits", values=logits, labels=labels, ids=np.arange(SAMPLES)))


def main() -> None:
    """Measure and check."""
    with tempfile.TemporaryDirectory() as folder:
        file, page = Path(folder) / "predictions.parquet", Path(folder) / "page.html"
        write_example(file)
        command = ["-m", "counterpoise"]
        seconds = least_seconds(
            {
                "pass": ["-c", "pass"],
                **{name: [*command, name] for name in QUICK},
                "import torch, pyarrow, matplotlib": ["-c", "import torch, pyarrow, matplotlib"],
                "evaluate": [*command, "evaluate", str(file)],
                "evaluate --html": [*command, "evaluate", str(file), "--html", str(page)],
            }
        )
    alone = added()
    loaded = "numpy, safetensors, safetensors.torch, torch, torch.distributed, torch.utils._pytree"
    used = added(before=f"import {loaded}", use="counterpoise.evaluate, counterpoise.MutualTransport")
    foreign = [name for name in used if name not in ALLOWED]
    unavoidable = seconds["import torch, pyarrow, matplotlib"]
    finish(
        "python -m benchmarks.imports",
        {
            "wanted_ratio": WANTED_RATIO,
            "processor_seconds": seconds,
            "packages_of_the_import": alone,
            "foreign_packages": foreign,
        },
        [
            *(
                Check(f"seconds of {name} beyond python -c pass", seconds[name] - seconds["pass"], at_most=MOST_SECONDS)
                for name in QUICK
            ),
            Check("evaluate / the imports that it needs", seconds["evaluate"] / unavoidable, at_most=MOST_RATIO),
            Check("packages that the import loads", len(alone), at_most=0),
            Check("foreign packages that its names load", len(foreign), at_most=0),
        ],
    )


if __name__ == "__main__":
    main()
