"""Whether the library works on this machine: a few minutes of checks with measured figures and limits."""

from counterpoise.doctor.bench import CPU, CUDA, TINY, Bench, Finding, Scale, Setting
from counterpoise.doctor.checks import CHECKS, Check, run_checks
from counterpoise.doctor.throughput import StepTimes, step_times

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
