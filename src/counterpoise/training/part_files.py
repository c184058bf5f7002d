"""Sharded tensors of a checkpoint: safetensors that every rank writes, found by what `parts.json` says about them.

`torch.distributed.checkpoint` plans which rank writes what, and what it reads when there are more or fewer of them. Its
own storage keeps that plan in `.metadata`, a pickle, which would run whatever code it holds; that of
`HuggingFaceStorageWriter` is in every file, so that each rank has to open those of all others to find its own. Here the
first rank writes it as JSON, together with the digest of every file, after all of them have been read back.
"""

import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from counterpoise._files import Written, write_verified
from counterpoise.training.parts import PART, Parts, ShardedTensor, read_parts, write_parts


def map_tensors(tree: Any, change: Callable[[str, Tensor], Tensor], place: str = "") -> Any:
    """The same dicts and lists with every tensor changed; it gets the tensor's place, with `/` between the keys.

    >>> map_tensors({"a": [torch.tensor(1), 2]}, lambda place, tensor: tensor + len(place))
    {'a': [tensor(4), 2]}
    """
    if isinstance(tree, Tensor):
        return change(place, tree)
    inside = f"{place}/" if place else ""
    if isinstance(tree, dict):
        return {key: map_tensors(value, change, f"{inside}{key}") for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([map_tensors(value, change, f"{inside}{index}") for index, value in enumerate(tree)])
    return tree


def filled(folder: Path, state: Any, *, places: str = "") -> Any:
    """A state with the sharded tensors that it lacks, each of them whole; those whose place begins with `places`."""
    missing: dict[str, Tensor] = {}

    def allocated(place: str, tensor: Tensor) -> Tensor:
        if tensor.is_meta and place.startswith(places):
            missing[place] = torch.empty_like(tensor, device="cpu")
            return missing[place]
        return tensor

    state = map_tensors(state, allocated)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(missing, storage_reader=PartReader(folder), no_dist=True)
    return state


class PartWriter(StorageWriter):
    """Writes the shards of this rank; on the first rank, says what the checkpoint is made of when all have written.

    Args:
        folder: of the checkpoint.
        others: further files in it, which are there already.
        whole: called on the first rank when the checkpoint is whole.
    """

    def __init__(
        self, folder: Path, *, others: Mapping[str, Written], whole: Callable[[Written], None] | None = None
    ) -> None:
        self.folder, self.others, self.whole = folder, others, whole

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints: each has its own writer."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """The first rank has made the folder."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data=PART.format(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors: dict[str, Tensor] = {}
        for item in plan.items:
            data = planner.resolve_data(item)
            assert isinstance(data, Tensor)
            tensors[item.index.fqn] = data.detach().cpu().contiguous()
        results = []
        if tensors:
            written = write_verified(self.folder / plan.storage_data, lambda file: file.write(save(tensors)))
            results = [WriteResult(item.index, written.bytes, (plan.storage_data, written)) for item in plan.items]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write `parts.json`, with which the checkpoint is whole."""
        files, tensors = dict(self.others), dict[str, ShardedTensor]()
        for result in (result for of_rank in results for result in of_rank):  # by rank
            file, written = result.storage_data
            files[file] = written
            saved = metadata.state_dict_metadata[result.index.fqn]
            assert isinstance(saved, TensorStorageMetadata)
            assert result.index.offset is not None
            first, *others = result.index.offset
            assert not any(others), "only rows are sharded"
            tensors.setdefault(result.index.fqn, ShardedTensor(list(saved.size), [])).rows.append(first)
        for tensor in tensors.values():
            tensor.rows.append(tensor.shape[0])
        parts = Parts({name: written.sha256 for name, written in files.items()}, tensors)
        written = write_parts(self.folder, parts)
        if self.whole is not None:
            self.whole(replace(written, bytes=written.bytes + sum(file.bytes for file in files.values())))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:  # noqa: ARG003
        """Any folder."""
        return True


class PartReader(StorageReader):
    """Reads of the shards what a rank needs, whatever ranks wrote them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints: each has its own reader."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._tensors = read_parts(self.folder).tensors
        return Metadata(
            {
                name: TensorStorageMetadata(TensorProperties(), torch.Size(each.shape), _chunks(each))
                for name, each in self._tensors.items()
            }
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """All is known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy slices of the files into the tensors that wait for them."""
        by_part: dict[int, list[ReadItem]] = {}
        for item in plan.items:
            assert item.storage_index.offset is not None
            rows = self._tensors[item.storage_index.fqn].rows
            by_part.setdefault(bisect_right(rows, item.storage_index.offset[0]) - 1, []).append(item)
        for part, items in by_part.items():
            with safe_open(str(self.folder / PART.format(part)), framework="pt") as file:
                for item in items:
                    ranges = zip(item.storage_offsets, item.lengths, strict=True)
                    slices = tuple(slice(first, first + length) for first, length in ranges)
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(file.get_slice(item.storage_index.fqn)[slices])
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:  # noqa: ARG003
        """Any folder."""
        return True


def _chunks(tensor: ShardedTensor) -> list[ChunkStorageMetadata]:
    """The shards as torch's planner knows them; a rank may have had no row."""
    rows, row = tensor.rows, tensor.shape[1:]
    return [
        ChunkStorageMetadata(torch.Size([first, *(0 for _ in row)]), torch.Size([end - first, *row]))
        for first, end in pairwise(rows)
        if end > first
    ]
