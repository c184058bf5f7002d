"""Auxiliaries in other processes: each side runs its own network, and nothing but logits goes between them.

Every target is a constant, so the primary needs the auxiliary's logits of its batch, the auxiliary needs the primary's,
and no gradient crosses. Each side makes the same batch by itself (order and augmentation are functions of seed, epoch
and sample), divides it among its own ranks, and sends every row of logits once, to the one rank that has the same row.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from counterpoise.functional.reduction import FLOATING, IGNORE_INDEX, labels_and_weight
from counterpoise.functional.transport import auxiliary_loss
from counterpoise.objectives.auxiliaries import Step
from counterpoise.objectives.models import call_for_logits, copied, parameter_group, require_model
from counterpoise.objectives.output import ObjectiveOutput
from counterpoise.objectives.supervised import evaluation_output


def shared_rows(rank: int, world: int, *, peer: int, peers: int) -> slice | None:
    """Which rows of a rank's shard one of the peers has too; None where there are none, however large the batch.

    Of a batch that is divided both ways, `rank` has every `world`-th row and `peer` every `peers`-th.

    >>> shared_rows(0, 1, peer=1, peers=2), shared_rows(1, 2, peer=1, peers=2), shared_rows(0, 2, peer=1, peers=2)
    (slice(1, None, 2), slice(0, None, 1), None)
    """
    period = math.lcm(world, peers)
    first = next((row for row in range(rank, period, world) if row % peers == peer), None)
    return None if first is None else slice((first - rank) // world, None, period // world)


class Link:
    """Ranks of a primary and of one auxiliary network, and what goes between them.

    Args:
        primary: ranks that train the primary, each with every `len(primary)`-th row of the batch.
        auxiliary: ranks that train the auxiliary, likewise.
        group: of all of them.

    Attributes:
        batch: rows of the batch over all ranks of a side, the same on both. None where all shards of a side are of one
            size; else it is to be set before the step.
        sent: bytes that this rank has sent.
    """

    def __init__(self, primary: Sequence[int], auxiliary: Sequence[int], group: dist.ProcessGroup) -> None:
        self.primary, self.auxiliary, self.group = tuple(primary), tuple(auxiliary), group
        me = dist.get_rank()
        mine, self._peers = (self.primary, self.auxiliary) if me in self.primary else (self.auxiliary, self.primary)
        self._rank, self._world = mine.index(me), len(mine)
        self.batch: int | None = None
        self.sent = 0
        self._agreed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "Link":
        return self

    def exchange(self, logits: Tensor) -> Tensor:
        """Send this rank's logits `[b, ..., K]` to the other side; what that side has of the same rows comes back.

        Both sides call it once a step, as soon as they have run forward. Over NCCL the tensors stay on the device.
        """
        mine = logits.detach().contiguous()
        rows = len(mine) * self._world if self.batch is None else self.batch
        if len(mine) != (share := len(range(self._rank, rows, self._world))):
            raise ValueError(
                f"rank {self._rank} of {self._world} has {share} rows of a batch of {rows}, and got logits of "
                f"{len(mine)}; set batch of the link to the rows that all ranks of a side have"
            )
        if not self._agreed:
            self._agree(mine, rows)
        return self._swap(mine)

    def _agree(self, logits: Tensor, rows: int) -> None:
        """Once, before the first logits: rows that do not fit would be an error of the transport, or no error."""
        row = logits.shape[1:].numel()
        told = torch.tensor([[rows, row, FLOATING.index(logits.dtype)]], device=logits.device)
        heard = [torch.empty_like(told) for _ in self._peers]
        self._send([(peer, told, answer) for peer, answer in enumerate(heard)])
        for answer in heard:
            if not torch.equal(answer, told):
                their_rows, their_row, code = answer[0].tolist()
                raise ValueError(
                    f"primary and auxiliary must give logits of the same batch: this side has {rows} rows of {row} "
                    f"values in {logits.dtype}, the other {their_rows} of {their_row} in {FLOATING[code]}"
                )
        self._agreed = True

    def _swap(self, mine: Tensor) -> Tensor:
        theirs, parts = torch.empty_like(mine), []
        for peer in range(len(self._peers)):
            rows = shared_rows(self._rank, self._world, peer=peer, peers=len(self._peers))
            if rows is not None and len(part := mine[rows].contiguous()):
                parts.append((rows, peer, part, torch.empty_like(part)))
        self._send([(peer, part, answer) for _, peer, part, answer in parts])
        for rows, _, _, answer in parts:
            theirs[rows] = answer
        return theirs

    def _send(self, parts: list[tuple[int, Tensor, Tensor]]) -> None:
        operations = []
        for peer, part, answer in parts:
            rank = self._peers[peer]
            operations += [
                dist.P2POp(dist.isend, part, rank, self.group),
                dist.P2POp(dist.irecv, answer, rank, self.group),
            ]
            self.sent += part.numel() * part.element_size()
        try:
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()
        except RuntimeError as error:
            side = "auxiliary's" if self._peers == self.auxiliary else "primary's"
            ranks = ", ".join(map(str, self._peers))
            raise ConnectionError(
                f"no logits came from the {side} side (rank {ranks}): a process there has probably ended; look at what "
                "it said, then resume the run"
            ) from error


@dataclass(frozen=True, eq=False)
class Role:
    """What one process of a job does.

    Attributes:
        auxiliary: which auxiliary network it trains, from 0 on; None for the primary.
        rank: among those that train the same network.
        world: how many there are.
        group: of them, for `DistributedDataParallel` and for terms over the whole batch.
        links: of the primary, one to each auxiliary network; of an auxiliary, the one to the primary.
    """

    auxiliary: int | None
    rank: int
    world: int
    group: dist.ProcessGroup
    links: tuple[Link, ...]


def assign_roles(*, primary: Iterable[int], auxiliaries: Iterable[Iterable[int]]) -> Role:
    """Divide the ranks of a job: some train the primary, and others each auxiliary network; a collective.

    Args:
        primary: ranks, such as `range(2)`.
        auxiliaries: ranks of each auxiliary network, such as `[range(2, 3)]`.

    Returns:
        The role of this process.
    """
    teams = [tuple(primary), *(tuple(ranks) for ranks in auxiliaries)]
    everybody = sorted(rank for team in teams for rank in team)
    if everybody != list(range(dist.get_world_size())) or not all(teams) or len(teams) < 2:
        raise ValueError(
            f"every rank from 0 to {dist.get_world_size() - 1} must train one network, the primary or an auxiliary, "
            f"got {', '.join(str(list(team)) for team in teams)}"
        )
    groups = [dist.new_group(list(team)) for team in teams]  # by all ranks, in the same order
    between = [dist.new_group([*teams[0], *team]) for team in teams[1:]]
    me = dist.get_rank()
    index = next(index for index, team in enumerate(teams) if me in team)
    linked = range(len(between)) if index == 0 else [index - 1]
    return Role(
        auxiliary=None if index == 0 else index - 1,
        rank=teams[index].index(me),
        world=len(teams[index]),
        group=groups[index],
        links=tuple(Link(teams[0], teams[1 + other], between[other]) for other in linked),
    )


class Remote(nn.Module):
    """An auxiliary that other processes train, as the primary's processes see it: it has no parameters here.

    Args:
        link: to the ranks of the auxiliary network, where a `RemoteAuxiliary` trains.
    """

    takes_step = True

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link

    def forward(self, step: Step) -> Tensor:
        """Logits of the auxiliary, constants, for the primary's."""
        return self.link.exchange(step.logits)


class RemoteAuxiliary(nn.Module):
    """The objective of processes that train an auxiliary for a primary elsewhere: `L_g = KL(f || g)`, f received.

    The primary's processes have `MutualTransport(primary, [Remote(link)], alpha)`. Both sides must be called with the
    same batch, each rank with its own rows of it, and in training with labels: they say which positions are ignored.

    Args:
        model: the auxiliary's network; returns logits `[..., K]`, or an object or mapping with `logits`.
        link: to the primary's ranks.
        ignore_index: positions with this label take no part, as on the primary's side.
        process_group: of the ranks that train this network.
    """

    accepts_loss_kwargs = False

    def __init__(
        self,
        model: nn.Module,
        link: Link,
        *,
        ignore_index: int = IGNORE_INDEX,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        require_model(model, name="model")
        if getattr(model, "takes_step", False):
            raise ValueError(
                f"{type(model).__name__} looks at the primary's step, which is in another process; give a network"
            )
        self.network = model
        self.link = link
        self.ignore_index = ignore_index
        self.process_group = process_group

    @property
    def primary(self) -> nn.Module:
        """The one network here. It is not what ships: that is the primary of the other side."""
        return self.network

    @property
    def models(self) -> list[nn.Module]:
        return [self.network]

    def __deepcopy__(self, memo: dict[int, Any]) -> "RemoteAuxiliary":
        return copied(self, memo)

    def forward(
        self, *inputs: Any, labels: Tensor | None = None, sample_weight: Tensor | None = None, **named_inputs: Any
    ) -> ObjectiveOutput:
        """Run the network on `inputs` and `named_inputs`, and learn from the primary's logits where there are labels.

        No label teaches it: they decide with `sample_weight` what each position counts, as for the primary.
        """
        logits = call_for_logits(self.network, inputs, named_inputs)
        if labels is None or not self.training:
            return evaluation_output(logits, labels, ignore_index=self.ignore_index, sample_weight=sample_weight)
        primary = self.link.exchange(logits)
        _, weight = labels_and_weight(
            logits.detach(), labels, ignore_index=self.ignore_index, sample_weight=sample_weight
        )
        loss = auxiliary_loss(logits, primary, sample_weight=weight, group=self.process_group)
        return ObjectiveOutput.of(logits=logits, loss=loss, parts={"auxiliary_transport": loss})

    def set_progress(self, progress: float) -> None:
        """Nothing here follows a schedule: alpha weighs the primary's loss alone."""

    def parameter_groups(self, *, lr: float, auxiliary_lr: float) -> list[dict[str, Any]]:  # noqa: ARG002
        """One group, `auxiliaries`, whose learning rate follows no schedule."""
        return [parameter_group("auxiliaries", [self.network], lr=auxiliary_lr, scheduled=False)]
