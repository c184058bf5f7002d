"""What all tests share: threads, Hypothesis, the fork server, and the folder of real data."""

import builtins
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

from warm import warm_programs

settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("default")

# One server for all tests of a process, and of all processes in CI: to import the engine takes ten seconds.
if "COUNTERPOISE_WARM" in os.environ:
    multiprocessing.set_executable(f"{os.environ['COUNTERPOISE_WARM']}/python")
multiprocessing.get_context("forkserver").set_forkserver_preload(
    ["counterpoise.training.tuning", "counterpoise_study.grid", "timm"]
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever starts programs is slow: their server imports the engine."""
    for item in items:
        if "programs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def _fixed_threads() -> None:
    """One thread against two changes float results; every run of the tests uses the same number."""
    torch.set_num_threads(int(os.environ.get("COUNTERPOISE_TEST_THREADS", "1")))


@pytest.fixture(autouse=True)
def _nothing_shown_before() -> Iterator[None]:
    """A doctest leaves what it showed last in `builtins`, as the prompt does, and tyro cannot be imported then."""
    yield
    vars(builtins).pop("_", None)


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """The folder of data sets, after a look that a set is there.

    A missing set skips the test on somebody's laptop. In CI it fails, unless COUNTERPOISE_WAIVED_DATA names the set.
    """

    def root_with(name: str) -> Path:
        root = Path(os.environ.get("COUNTERPOISE_DATA", "COUNTERPOISE_DATA names no folder"))
        if (root / name).is_dir():
            return root
        waived = os.environ.get("COUNTERPOISE_WAIVED_DATA", "").split(",")
        if os.environ.get("CI") and name not in waived:
            pytest.fail(f"{root / name} is missing; CI needs it, or COUNTERPOISE_WAIVED_DATA={name}")
        pytest.skip(f"{root / name} is missing")

    return root_with


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """A folder that is made once, by whichever of the test processes needs it first."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / f"made-{name}"
        with FileLock(f"{folder}.lock"):
            if not (done := folder / "made").exists():
                folder.mkdir(exist_ok=True)
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    """A folder with `python`, `counterpoise` and `counterpoise-study` that start with the engine imported."""
    with warm_programs() as folder:
        yield folder


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """For modules of tests to which the bootstrap's resamples, most of the time of an evaluation, do not matter."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("counterpoise.functional.intervals.BOOTSTRAP_RESAMPLES", 50)
        yield
