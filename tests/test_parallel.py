"""Runs on two processes over gloo, started as a user would: DDP and FSDP2 take the steps of one process."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

import parallel_run
from counterpoise.predictions import read_predictions
from counterpoise.training.folder import EPOCH_COLUMNS, STEP_COLUMNS, RowLog, RunFolder
from launching import run_python, torchrun
from runs import ending

SCRIPT = Path(parallel_run.__file__)


def run(python, folder, *runs: str, launcher: tuple[str, ...] = ()) -> None:
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    run_python(python, SCRIPT, folder, "2", *runs, env=environment, launcher=launcher)


def rows(folder) -> list[dict[str, str]]:
    return RowLog(RunFolder(folder).steps, STEP_COLUMNS).rows()


def run_alone(folder, method: str) -> None:
    """One process needs no launcher."""
    parallel_run.run(folder, devices=1, strategy="auto", method=method, network="plain")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    run_alone(folder, "mte1")
    return folder


@pytest.fixture(scope="module")
def by_lightning(made_once, programs):
    """All runs that one start of Lightning's own launcher makes."""
    return made_once(
        "by_lightning",
        lambda folder: run(
            programs / "python",
            folder,
            "ddp,ddp,mte1,plain",
            "fsdp,fsdp,mte1,plain",
            "dca,ddp,dca,plain",
            "pskd,ddp,pskd,plain",
            "cached,ddp,cached,plain",
            "seldom,ddp,seldom,plain",
            "mte-lite,fsdp,mte-lite,plain",
            "uneven,ddp,mte1,batchnorm,uneven",
        ),
    )


@pytest.fixture(scope="module")
def by_torchrun(made_once, programs):
    """All runs that torchrun makes; what was cut is resumed by processes that know nothing of the first part."""

    def make(folder: Path) -> None:
        whole, cut, told = "whole,ddp,mte1,batchnorm", "broken,ddp,mte1,batchnorm", "told,ddp,mte1,plain,told"
        python = programs / "python"
        run(python, folder, f"{cut},stop", told, whole, launcher=torchrun(2))
        run(python, folder, "remote,auto,mte1,plain,remote", f"{cut},resume", launcher=torchrun(2))

    return made_once("by_torchrun", make)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_take_the_steps_of_one(by_lightning, alone, strategy):
    together = by_lightning / strategy
    found, expected = rows(together), rows(alone)
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    assert [float(row["loss"]) for row in found] == pytest.approx([float(row["loss"]) for row in expected], abs=1e-5)
    one, two = (load_file(RunFolder(folder).primary) for folder in (alone, together))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-5)
    (first, second) = (RowLog(RunFolder(folder).epochs, EPOCH_COLUMNS).rows()[-1] for folder in (alone, together))
    assert float(first["validation_nll"]) == pytest.approx(float(second["validation_nll"]), abs=1e-4)
    assert first["validation_accuracy"] == second["validation_accuracy"]


@pytest.mark.parametrize("method", ["dca", "pskd", "cached", "seldom", "mte-lite"])
def test_losses_of_two_processes_are_those_of_one(tmp_path, by_lightning, method):
    """DCA of two shares is not the mean of their DCA; what is kept of a sample, the other rank may ask for."""
    run_alone(tmp_path / "one", method)
    found, expected = (
        [float(row["loss"]) for row in rows(folder)] for folder in (by_lightning / method, tmp_path / "one")
    )
    assert found == pytest.approx(expected, abs=1e-5)


def test_two_processes_resume_with_the_same_bits(by_torchrun):
    """With BatchNorm; the first part is the same run, cut after an epoch."""
    assert ending(by_torchrun / "broken") == ending(by_torchrun / "whole")


def test_an_auxiliary_in_another_process_changes_nothing(by_torchrun, alone):
    found, expected = (by_torchrun / "remote", alone)
    assert [row["loss_hex"] for row in rows(found)] == [row["loss_hex"] for row in rows(expected)]
    one, other = (load_file(RunFolder(folder).primary) for folder in (found, expected))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("last", ["whole", "broken"])
def test_processes_leave_their_group_before_they_end(by_torchrun, last):
    """One that ends within its group may be aborted by the group's threads, or wait for them for ever."""
    assert {path.name for path in (by_torchrun / last).glob("left-*")} == {"left-0", "left-1"}


def test_a_rank_that_is_told_to_end_takes_the_other_along(by_torchrun, alone):
    """After the same step of both; resumed, it takes the steps of a run that nobody ended."""
    told = by_torchrun / "told"
    assert [(told / f"told-{rank}").read_text() for rank in (0, 1)] == ["step-000000007.ckpt"] * 2
    found, expected = ([float(row["loss"]) for row in rows(folder)] for folder in (told, alone))
    assert found == pytest.approx(expected, abs=1e-5)


def test_ranks_validate_with_the_same_buffers_and_every_image_once(by_lightning):
    """With BatchNorm, a moving average, and validation images that the ranks cannot share evenly."""
    folder = by_lightning / "uneven"
    for step in (5, 10):
        first, second = (torch.load(folder / f"buffers-{step}-{rank}.pt", weights_only=True) for rank in (0, 1))
        assert first
        for name, buffer in first.items():
            assert torch.equal(buffer, second[name]), name
    shipped = load_file(RunFolder(folder).primary)
    for name, buffer in first.items():
        if name.startswith("average.module."):
            assert torch.equal(buffer, shipped[name.removeprefix("average.module.")]), name
    validation = read_predictions(RunFolder(folder).predictions / "validation.parquet")
    nll = functional.cross_entropy(torch.tensor(validation.values), torch.tensor(validation.labels))
    last = RowLog(RunFolder(folder).epochs, EPOCH_COLUMNS).rows()[-1]
    assert len(validation) == 17
    assert float(last["validation_nll"]) == pytest.approx(nll.item(), rel=1e-5)
