"""Predictions that are kept for each sample from one epoch to the next."""

import io
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

_GROWTH = 1024
"""Samples that room is made for at a time."""

_SMALLEST = 2.0**-24
"""The smallest number above 0 in float16."""


class KeptPredictions:
    """For each sample id the last prediction that was written: float16 `[N, K]`, or of the likeliest classes alone.

    With `top`, the `top` likeliest classes keep their probabilities, and one of the others, drawn in proportion to its
    probability, stands for all of them with their joint mass. For any f, `sum_k g_k log f_k` then has the expectation
    that all classes give: nothing is biased, as it would be if the others were left out. What was not kept, or is 0 in
    float16, is read as float16's smallest number, so that `KL(f || g)` stays finite; it is large then, and teaches
    nobody.

    Ids must be from 0 on, without large gaps: the table has a row for each up to the largest.

    Args:
        top: classes that are kept of each sample; None for all.
        folder: where the table is kept in memory-mapped files; None for memory.

    >>> kept = KeptPredictions()
    >>> kept.write(torch.tensor([2]), torch.tensor([[0.0, 0.0]]))
    >>> log_probabilities, known = kept.read(torch.tensor([2, 0]), classes=2)
    >>> log_probabilities[0].exp(), known
    (tensor([0.5000, 0.5000]), tensor([ True, False]))
    """

    def __init__(self, *, top: int | None = None, folder: str | Path | None = None) -> None:
        if top is not None and top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        self.top = top
        self.folder = None if folder is None else Path(folder)
        self._tables: dict[str, Tensor] = {}

    def write(self, ids: Tensor, logits: Tensor, *, group: dist.ProcessGroup | None = None) -> None:
        """Keep the predictions of some samples, ids int64 `[b]` and logits `[b, K]`; every rank keeps all shards'."""
        probabilities = torch.softmax(logits.detach().float(), -1)
        own = {"ids": ids.detach(), "probabilities": probabilities.half()}
        if self.top is not None and self.top + 1 < probabilities.shape[-1]:
            classes, values = _unbiased(probabilities, self.top)
            own |= {"probabilities": values.half(), "classes": classes.int()}
        # What was drawn is drawn by now: all ranks keep the same.
        written = {name: _gathered(each, group=group).cpu() for name, each in own.items()}
        rows = written.pop("ids")
        self._make_room(int(rows.max()) + 1, written)
        for name, values in written.items():
            self._tables[name][rows] = values

    def read(self, ids: Tensor, *, classes: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities of some samples, float32 `[b, K]`, and of which of them any are kept, bool `[b]`."""
        rows, size = ids.detach().cpu(), len(self)
        inside = rows < size
        if not size:
            return torch.zeros(len(rows), classes, device=ids.device), inside.to(ids.device)
        at = rows.clamp_max(size - 1)
        probabilities = self._tables["probabilities"][at].float()
        if "classes" in self._tables:
            found = self._tables["classes"][at].long()
            probabilities = torch.zeros(len(rows), classes).scatter_add_(-1, found, probabilities)
        mass = probabilities.sum(-1, keepdim=True)
        known = inside & (mass[:, 0] > 0)
        logarithms = torch.where(known[:, None], (probabilities / mass).clamp_min(_SMALLEST), 1.0).log()
        return logarithms.to(ids.device), known.to(ids.device)

    def __len__(self) -> int:
        return len(self._tables["probabilities"]) if self._tables else 0

    def state_dict(self) -> dict[str, Tensor]:
        """The tables, for checkpoints."""
        return dict(self._tables)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the tables of a checkpoint."""
        self._tables = {}
        tables = {name: state[name] for name in ("probabilities", "classes") if name in state}
        if tables:
            self._make_room(len(tables["probabilities"]), tables)
            for name, values in tables.items():
                self._tables[name][: len(values)] = values

    def _make_room(self, size: int, like: Mapping[str, Tensor]) -> None:
        if size <= len(self):
            return
        rows = -(-size // _GROWTH) * _GROWTH
        for name, values in like.items():
            before = self._tables.get(name)
            table = self._empty(name, rows, values)
            if before is not None:
                table[: len(before)] = before
            self._tables[name] = table

    def _empty(self, name: str, rows: int, like: Tensor) -> Tensor:
        if self.folder is None:
            return like.new_zeros(rows, like.shape[-1])
        self.folder.mkdir(parents=True, exist_ok=True)
        # One file for each size: the smaller one is still being read while its rows are copied.
        path, count = self.folder / f"{name}-{rows}.bin", rows * like.shape[-1]
        path.unlink(missing_ok=True)
        table = torch.from_file(str(path), shared=True, size=count, dtype=like.dtype).view(rows, like.shape[-1])
        for older in self.folder.glob(f"{name}-*.bin"):
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


def _unbiased(probabilities: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The likeliest classes, and one of the others that stands for them all: classes and masses, `[b, top + 1]`."""
    values, classes = probabilities.topk(top, dim=-1)
    others = probabilities.scatter(-1, classes, 0.0)
    mass = others.sum(-1, keepdim=True)
    # Where nothing is left any class will do: its mass is 0.
    drawn = torch.multinomial(torch.where(mass > 0, others, 1.0), 1)
    return torch.cat([classes, drawn], -1), torch.cat([values, mass], -1)
