"""Predictions that are kept for each sample from one epoch to the next."""

import io
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

_NAME = "probabilities"

_GROWTH = 1024
"""Samples that room is made for at a time."""

_SMALLEST = 2.0**-24
"""The smallest number above 0 in float16."""


class KeptPredictions:
    """For each sample id the last prediction that was written: float16 `[N, K]`.

    A 0 in float16 is read as its smallest number, so that `KL(f || g)` stays finite.

    Ids must be from 0 on, without large gaps: the table has a row for each up to the largest.

    Args:
        folder: where the table is kept in memory-mapped files; None for memory.

    >>> kept = KeptPredictions()
    >>> kept.write(torch.tensor([2]), torch.tensor([[0.0, 0.0]]))
    >>> log_probabilities, known = kept.read(torch.tensor([2, 0]), classes=2)
    >>> log_probabilities[0].exp(), known
    (tensor([0.5000, 0.5000]), tensor([ True, False]))
    """

    def __init__(self, *, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._table = torch.empty(0, 0, dtype=torch.float16)

    def write(self, ids: Tensor, logits: Tensor, *, group: dist.ProcessGroup | None = None) -> None:
        """Keep the predictions of some samples, ids int64 `[b]` and logits `[b, K]`; every rank keeps all shards'."""
        probabilities = torch.softmax(logits.detach().float(), -1)
        rows, values = (_gathered(each, group=group).cpu() for each in (ids.detach(), probabilities.half()))
        self._make_room(int(rows.max()) + 1, like=values)
        self._table[rows] = values

    def read(self, ids: Tensor, *, classes: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities of some samples, float32 `[b, K]`, and of which of them any are kept, bool `[b]`."""
        rows, size = ids.detach().cpu(), len(self)
        inside = rows < size
        if not size:
            return torch.zeros(len(rows), classes, device=ids.device), inside.to(ids.device)
        at = rows.clamp_max(size - 1)
        probabilities = self._table[at].float()
        mass = probabilities.sum(-1, keepdim=True)
        known = inside & (mass[:, 0] > 0)
        logarithms = torch.where(known[:, None], (probabilities / mass).clamp_min(_SMALLEST), 1.0).log()
        return logarithms.to(ids.device), known.to(ids.device)

    def __len__(self) -> int:
        return len(self._table)

    def state_dict(self) -> dict[str, Tensor]:
        """The table, for checkpoints."""
        return {_NAME: self._table} if len(self) else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the table of a checkpoint."""
        self._table = self._table.new_empty(0, 0)
        if _NAME in state:
            self._make_room(len(state[_NAME]), like=state[_NAME])
            self._table[: len(state[_NAME])] = state[_NAME]

    def _make_room(self, size: int, *, like: Tensor) -> None:
        if size <= len(self):
            return
        table = self._empty(-(-size // _GROWTH) * _GROWTH, like=like)
        if len(self):
            table[: len(self)] = self._table
        self._table = table

    def _empty(self, rows: int, *, like: Tensor) -> Tensor:
        if self.folder is None:
            return like.new_zeros(rows, like.shape[-1])
        self.folder.mkdir(parents=True, exist_ok=True)
        # One file for each size: the smaller one is still being read while its rows are copied.
        path, count = self.folder / f"{_NAME}-{rows}.bin", rows * like.shape[-1]
        path.unlink(missing_ok=True)
        table = torch.from_file(str(path), shared=True, size=count, dtype=like.dtype).view(rows, like.shape[-1])
        for older in self.folder.glob(f"{_NAME}-*.bin"):
            if older != path:
                older.unlink()
        return table


def packed(tables: Mapping[str, Tensor]) -> Tensor:
    """Tables as the one tensor that a state dict can have anywhere, of bytes."""
    buffer = io.BytesIO()
    torch.save(dict(tables), buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpacked(state: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What `packed` was given, or the tables themselves, as earlier checkpoints have them."""
    if not isinstance(state, Tensor):
        return state
    found: Mapping[str, Tensor] = torch.load(io.BytesIO(state.cpu().numpy().tobytes()), weights_only=True)
    return found


def require_ids(ids: Tensor | None) -> Tensor:
    """Refuse a batch that does not say which samples it has."""
    if ids is None:
        raise ValueError("predictions are kept for each sample: give ids= with each batch, int64 [b]")
    return ids


def _gathered(mine: Tensor, *, group: dist.ProcessGroup | None) -> Tensor:
    """What all shards of a batch have, which are of one size."""
    if group is None or dist.get_world_size(group) == 1:
        return mine
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, mine.contiguous(), group=group)
    return torch.cat(parts)
