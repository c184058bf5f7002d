"""Checkpoints of sharded runs (FSDP2): every rank writes its part, and any number of ranks goes on with them."""

import errno
import json
import math
import os
import pickle
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from counterpoise._files import digest_of
from counterpoise.training.checkpoints import (
    fault_of,
    newest_intact,
    read_manifest,
    read_state,
    remove_strays,
    state_digest,
)
from counterpoise.training.folder import STEP_COLUMNS, RowLog, RunFolder
from counterpoise.training.part_files import PartWriter
from counterpoise.training.parts import read_parts
from counterpoise.training.sharding import ShardedCheckpointIO
from parallel_run import plain_networks
from ranks import killed, recipe_for, run, start_ranks
from runs import Stop, Tell, ending

pytestmark = pytest.mark.slow

SHARDED = recipe_for(2, "fsdp")
ADAMW = {"optimizer__name": "adamw", "optimizer__lr": 0.003, "optimizer__decay_norms": False}
"""With state of several kinds, and groups whose parameters come in another order than the network's."""


def losses(folder: Path) -> list[float]:
    return [float(row["loss"]) for row in RowLog(RunFolder(folder).steps, STEP_COLUMNS).rows()]


@pytest.fixture(scope="module")
def made(made_once):
    """Runs of two ranks: whole ones, and sharded ones that an error or a signal has ended in an epoch."""

    def make(folder: Path) -> None:
        start_ranks(
            2,
            partial(run, recipe_for(2, "ddp"), folder / "ddp"),
            partial(run, SHARDED, folder / "whole"),
            partial(run, SHARDED, folder / "cut", callback=Stop(7)),
            partial(run, SHARDED, folder / "told", callback=Tell(7)),
            partial(run, SHARDED, folder / "batchnorm", network="named"),
            partial(run, SHARDED, folder / "batchnorm cut", network="named", callback=Stop(7)),
            partial(run, recipe_for(2, "ddp", **ADAMW), folder / "adamw ddp"),
            partial(run, recipe_for(2, "fsdp", **ADAMW), folder / "adamw cut", callback=Stop(7)),
            partial(check_saved_while_training, folder / "odd.ckpt"),
            partial(check_full_disk, folder / "full.ckpt"),
        )
        start_ranks(
            1,
            partial(run, recipe_for(1, "auto"), folder / "one", callback=Stop(7)),
            partial(run, recipe_for(1, "auto", **ADAMW), folder / "adamw one", callback=Stop(7)),
        )

    return made_once("sharded", make)


def copy(made: Path, name: str, folder: Path) -> Path:
    return Path(shutil.copytree(made / name, folder / name))


def check_saved_while_training(path: Path) -> None:
    """What is saved is what was there when it was saved, though the ranks overwrite it before anything is written."""
    mesh, wait, write = init_device_mesh("cpu", (dist.get_world_size(),)), threading.Event(), PartWriter.write_data
    shards = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in odd_tensors().items()}

    def write_later(*arguments):
        wait.wait()
        return write(*arguments)

    PartWriter.write_data = write_later
    files = ShardedCheckpointIO()
    files.save_checkpoint({"nested": [shards], "plain": torch.arange(3), "step": 3}, path)
    for tensor in shards.values():
        tensor.zero_()
    assert not (path / "parts.json").exists()
    wait.set()
    files.teardown()
    PartWriter.write_data = write


def check_full_disk(path: Path) -> None:
    """Where one rank cannot write, all learn of it, and the checkpoint is not whole."""
    mesh, write = init_device_mesh("cpu", (dist.get_world_size(),)), PartWriter.write_data

    def write_all_but_one(*arguments):
        if dist.get_rank() == 1:
            raise OSError(errno.ENOSPC, "No space left on device", "part-00001.safetensors")
        return write(*arguments)

    PartWriter.write_data = write_all_but_one
    files = ShardedCheckpointIO()
    files.save_checkpoint({"state_dict": distribute_tensor(torch.arange(4), mesh, [Shard(0)])}, path)
    with pytest.raises(OSError, match=r"rank 1 could not write its part of the checkpoint: .*No space left on device"):
        files.teardown()
    PartWriter.write_data = write
    assert not (path / "parts.json").exists()


def odd_tensors() -> dict[str, torch.Tensor]:
    """Of which the second rank has less than the first, or nothing."""
    generator = torch.Generator().manual_seed(0)
    return {
        "a/b.weight": torch.randn(5, 3, generator=generator),
        "one row": torch.randn(1, 4, generator=generator),
        "bfloat16": torch.randn(3, 2, 2, generator=generator).bfloat16(),
        "integers": torch.randint(9, (7,), generator=generator),
        "nothing": torch.zeros(0, 2),
    }


def test_saving_while_training_saves_what_was_there(made):
    state = read_state(made / "odd.ckpt")
    assert list(state) == ["nested", "plain", "step"]
    assert state["step"] == 3
    assert torch.equal(state["plain"], torch.arange(3))
    (tensors,) = state["nested"]
    for name, expected in odd_tensors().items():
        assert tensors[name].dtype == expected.dtype
        assert torch.equal(tensors[name], expected), name
    (some,) = read_state(made / "odd.ckpt", places="nested/0/one")["nested"]
    assert [name for name, tensor in some.items() if not tensor.is_meta] == ["one row"]


def test_each_rank_writes_its_share(made):
    folder = RunFolder(made / "whole").checkpoints
    last = read_manifest(folder).last
    files = {path.name: path.stat().st_size for path in (folder / last.file).iterdir()}
    assert sorted(files) == ["part-00000.safetensors", "part-00001.safetensors", "parts.json", "state.ckpt"]
    assert last.bytes == sum(files.values())
    parameters = sum(tensor.numel() for network in plain_networks(2, 0) for tensor in network.parameters())
    sharded = read_parts(folder / last.file).tensors.values()
    assert sum(4 * math.prod(tensor.shape) for tensor in sharded) == 8 * parameters  # weights and momentum
    assert files["part-00001.safetensors"] < files["part-00000.safetensors"] < 1.2 * files["part-00001.safetensors"]
    kept = {entry.file for entry in (last, read_manifest(folder).previous, read_manifest(folder).best)}
    assert {path.name for path in folder.iterdir()} == kept | {"manifest.json"}


@pytest.mark.parametrize(
    ("name", "devices", "strategy"),
    [
        ("cut", 1, "fsdp"),
        ("cut", 3, "fsdp"),
        ("cut", 1, "auto"),
        ("cut", 2, "ddp"),
        ("one", 2, "fsdp"),
        ("told", 2, "fsdp"),
        ("adamw cut", 1, "auto"),
        ("adamw cut", 3, "fsdp"),
        ("adamw one", 2, "fsdp"),
    ],
)
def test_other_numbers_of_ranks_go_on_with_the_losses_of_ddp(made, tmp_path, name, devices, strategy):
    """Sharded or not, from a checkpoint that was sharded or not; the batch over all ranks is the same."""
    adamw = name.startswith("adamw")
    folder, recipe = copy(made, name, tmp_path), recipe_for(devices, strategy, **(ADAMW if adamw else {}))
    expected = losses(made / ("adamw ddp" if adamw else "ddp"))
    (folder / "config.json").write_text(recipe.to_json())
    reached, before = read_manifest(RunFolder(folder).checkpoints).last.step, losses(folder)
    assert reached == (7 if name == "told" else 6)
    assert before[:reached] == pytest.approx(expected[:reached], abs=1e-5)
    start_ranks(devices, partial(run, recipe, folder))
    assert losses(folder) == pytest.approx(expected, abs=1e-5)
    assert RunFolder(folder).primary.exists()


def test_the_same_ranks_go_on_with_the_same_bits(made, tmp_path):
    """With BatchNorm, and where a part of the newest checkpoint is damaged: the one before it is used."""
    cut, damaged, batchnorm = (
        copy(made, name, tmp_path / str(number)) for number, name in enumerate(("cut", "cut", "batchnorm cut"))
    )
    flip(RunFolder(damaged).checkpoints / "step-000000006.ckpt" / "part-00001.safetensors", 1234)
    assert newest_intact(RunFolder(damaged).checkpoints)[0].step == 4
    runs = partial(run, SHARDED, cut), partial(run, SHARDED, damaged), partial(run, SHARDED, batchnorm, network="named")
    start_ranks(2, *runs)
    assert ending(cut) == ending(damaged) == ending(made / "whole")
    assert ending(batchnorm) == ending(made / "batchnorm")


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def own_copy(made, tmp_path_factory):
    """Which no other test looks at."""
    return copy(made, "cut", tmp_path_factory.mktemp("own"))


@given(data=st.data())
def test_any_flipped_bit_and_any_missing_file_is_noticed(own_copy, data):
    folder = RunFolder(own_copy).checkpoints
    last, previous = read_manifest(folder).last, read_manifest(folder).previous
    file = data.draw(st.sampled_from(sorted((folder / last.file).iterdir())))
    position = data.draw(st.integers(0, file.stat().st_size - 1) | st.none())
    kept = file.read_bytes()
    try:
        file.unlink() if position is None else flip(file, position)
        found, (fault,) = newest_intact(folder)
    finally:
        file.write_bytes(kept)
    assert found == previous
    assert fault.startswith(f"{file} is missing" if position is None else f"{file} has changed")
    assert newest_intact(folder) == (last, [])


@pytest.mark.parametrize(
    ("rank", "before"),
    [
        (0, "parts.json"),
        *(
            pytest.param(*place, marks=pytest.mark.long)
            for place in (
                (0, "state.ckpt"),
                (0, "part-00000.safetensors"),
                (1, "part-00001.safetensors"),
                (0, "manifest.json"),
            )
        ),
    ],
)
def test_what_a_killed_rank_leaves_unfinished_is_not_used(made, tmp_path, rank, before):
    """In the checkpoint of step 6; the manifest is written empty when the run begins."""
    folder, times = tmp_path / "run", 4 if before == "manifest.json" else 3
    with pytest.raises(ProcessExitedException, match="signal SIGKILL"):
        start_ranks(2, partial(killed, partial(run, SHARDED, folder), rank=rank, before=before, times=times))
    checkpoints = RunFolder(folder).checkpoints
    assert (checkpoints / "step-000000006.ckpt").is_dir()
    assert newest_intact(checkpoints)[0].step == 4
    remove_strays(checkpoints)
    assert not (checkpoints / "step-000000006.ckpt").exists()
    start_ranks(2, partial(run, SHARDED, folder))
    assert ending(folder) == ending(made / "whole")


def test_a_checkpoint_of_other_networks_is_refused_by_name(made, tmp_path):
    with pytest.raises(ProcessRaisedException, match=r"step-000000006\.ckpt is of other networks than the recipe's"):
        start_ranks(2, partial(run, SHARDED, copy(made, "cut", tmp_path), network="named"))


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_no_pickle_is_read(made, tmp_path):
    """Neither torch's own `.metadata`, which this format does not have, nor code in place of the unsharded state."""
    folder, ran = copy(made, "cut", tmp_path), tmp_path / "ran"
    checkpoints = RunFolder(folder).checkpoints
    last = read_manifest(checkpoints).last
    path = checkpoints / last.file
    expected = state_digest(path)
    (path / ".metadata").write_bytes(pickle.dumps(Code(ran)))
    assert fault_of(path, sha256=last.sha256) is None
    assert state_digest(path) == expected
    recipe = recipe_for(1, "fsdp")
    (folder / "config.json").write_text(recipe.to_json())
    start_ranks(1, partial(run, recipe, folder))
    assert losses(folder) == pytest.approx(losses(made / "ddp"), abs=1e-5)
    assert not ran.exists()
    path = copy(made, "cut", tmp_path / "again") / "checkpoints" / last.file
    torch.save({"state_dict": Code(ran)}, path / "state.ckpt")
    document = json.loads((path / "parts.json").read_text())
    document["sha256"]["state.ckpt"] = digest_of(path / "state.ckpt")
    (path / "parts.json").write_text(json.dumps(document))
    assert fault_of(path, sha256=digest_of(path / "parts.json")) is None
    with pytest.raises(ValueError, match=r"state\.ckpt is no checkpoint of tensors, numbers and text: Weights only"):
        read_state(path)
    assert not ran.exists()
