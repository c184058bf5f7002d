"""Whether the library works on this machine: a few minutes of checks with measured figures and limits."""

from counterpoise.training.acceptance.bench import CPU, CUDA, TINY, Bench, Finding, Scale, Setting
from counterpoise.training.acceptance.table import CHECKS, Check, run_checks
from counterpoise.training.acceptance.throughput import StepTimes, step_times

__all__ = [
    "CHECKS",
    "CPU",
    "CUDA",
    "TINY",
    "Bench",
    "Check",
    "Finding",
    "Scale",
    "Setting",
    "StepTimes",
    "run_checks",
    "step_times",
]
