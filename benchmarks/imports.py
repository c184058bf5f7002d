"""What `import counterpoise` costs: `python -m benchmarks.imports`.

In new processes: it loads no package beyond torch, numpy, safetensors, what those load, and the standard library, and
adds at most 0.2 s to `import torch`.
"""

import json
import subprocess
import sys

from benchmarks.reporting import Check, finish, progress

MOST_SECONDS = 0.2
REPETITIONS = 5
ALLOWED = ("counterpoise", "torch", "numpy", "safetensors")
"""Packages that may be loaded, and modules of theirs that load late, such as `numpy.typing`."""

_MEASURE = """
import json, sys, time
started = time.perf_counter()
import torch
torch_loaded = time.perf_counter()
{before}
from_dependencies = set(sys.modules)
before_package = time.perf_counter()
import counterpoise
finished = time.perf_counter()
print(json.dumps({{
    "torch": torch_loaded - started,
    "counterpoise": finished - before_package,
    "added": sorted({{name.partition(".")[0] for name in set(sys.modules) - from_dependencies}}),
}}))
"""


def measure(before: str = "") -> tuple[float, float, list[str]]:
    """Seconds for torch, seconds for counterpoise after it, and the top-level packages that the latter added."""
    code = _MEASURE.format(before=before)
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    result = json.loads(printed)
    return result["torch"], result["counterpoise"], result["added"]


def main() -> None:
    """Measure and check."""
    times = []
    for repetition in range(REPETITIONS):
        progress(f"import {repetition + 1} of {REPETITIONS}")
        times.append(measure()[:2])
    _, _, added = measure(before="import numpy, safetensors, safetensors.torch, torch.distributed, torch.utils._pytree")
    foreign = [name for name in added if name not in ALLOWED and name not in sys.stdlib_module_names]
    torch_seconds, own_seconds = min(t for t, _ in times), min(own for _, own in times)
    finish(
        "python -m benchmarks.imports",
        {"import_torch_seconds": torch_seconds, "counterpoise_adds_seconds": own_seconds, "foreign_packages": foreign},
        [
            Check("seconds added to import torch", own_seconds, at_most=MOST_SECONDS),
            Check("foreign packages loaded", len(foreign), at_most=0),
        ],
    )


if __name__ == "__main__":
    main()
