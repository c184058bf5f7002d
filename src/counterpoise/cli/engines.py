"""The engine that `--workers` and `--ray` name."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterpoise._engines import Engine


def require_one_engine(workers: int, ray: str | None) -> None:
    """Refuse options that do not agree."""
    if workers < 0:
        raise ValueError(f"--workers must be 0 or more, got {workers}")
    if workers and ray is not None:
        raise ValueError("choose one of --workers and --ray")


@contextmanager
def engine_of(*, workers: int, ray: str | None, gpus: float = 0) -> Iterator["Engine | None"]:
    """The engine, None for this process alone; it ends with the block."""
    from counterpoise._engines import Processes, Ray

    if ray is None and not workers:
        yield None
        return
    # Ray says on standard output that a worker died, where programs expect our JSON.
    with redirect_stdout(sys.stderr):
        engine = Processes(workers) if ray is None else Ray(ray, gpus=gpus)
        try:
            yield engine
        finally:
            engine.close()
