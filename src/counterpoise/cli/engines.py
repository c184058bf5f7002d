"""Where the work of a command is done, by its options."""

from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from counterpoise._engines import Engine

RayAddress = Annotated[str | None, tyro.conf.arg(metavar="ADDRESS", help_behavior_hint="")]


def require_one_engine(workers: int, ray: str | None) -> None:
    """Refuse options that contradict each other."""
    if workers < 0:
        raise ValueError(f"--workers must be 0 or more, got {workers}")
    if workers and ray is not None:
        raise ValueError("choose one of --workers and --ray")


def engine_of(workers: int, ray: str | None, *, gpus: float = 0) -> "Engine | None":
    """Processes of this machine, a cluster whose tasks have so many GPUs each, or None for this process."""
    from counterpoise._engines import Processes, Ray

    if ray is not None:
        return Ray(ray, gpus=gpus)
    return Processes(workers) if workers else None
