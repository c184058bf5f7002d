"""Auxiliaries in other processes: the steps of one process, and nothing but logits on the way."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.remote_steps import CLASSES, Case, batch_of, objective_of, one_process, other_processes, run_ranks
from counterpoise.objectives import RemoteAuxiliary, Seldom, assign_roles, is_objective
from counterpoise.objectives.remote import shared_rows

pytestmark = pytest.mark.slow

BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-12}


@pytest.mark.parametrize(
    "case",
    [
        Case(1, (1,)),
        Case(2, (1,), batch=13, weighted=True),
        Case(2, (3,), batch=13, weighted=True, dtype=torch.float64),
        Case(1, (2, 1), dtype=torch.float64),
    ],
    ids=["1+1", "2+1, uneven and weighted", "2+3, uneven and weighted", "1+2+1, two auxiliaries"],
)
def test_other_processes_take_the_steps_of_one(case):
    assert one_process(case).difference(other_processes(case)) <= BOUNDS[case.dtype]


sizes = st.integers(1, 6)


@given(worlds=st.tuples(sizes, sizes), rows=st.integers(0, 40))
def test_each_row_goes_to_the_one_rank_that_has_it(worlds, rows):
    one, other = worlds
    for rank in range(one):
        mine = list(range(rank, rows, one))
        sent = []
        for peer in range(other):
            theirs = list(range(peer, rows, other))
            there, back = (
                shared_rows(rank, one, peer=peer, peers=other),
                shared_rows(peer, other, peer=rank, peers=one),
            )
            assert (there is None) == (back is None)
            if there is not None:
                assert mine[there] == theirs[back]
                sent += mine[there]
        assert sorted(sent) == mine


def told_of_ranks():
    """On two ranks: what objectives and links answer, and what they refuse."""
    found = {}
    with pytest.raises(ValueError, match="every rank from 0 to 1 must train one network"):
        assign_roles(primary=[0], auxiliaries=[[0]])
    role = assign_roles(primary=[0], auxiliaries=[[1]])
    case = Case(1, (1,), steps=3)
    whole = objective_of(case)
    objective = whole.in_role(role)
    found["objective"] = is_objective(objective)
    found["parameters"] = [name for name, _ in objective.named_parameters()]
    with pytest.raises(ValueError, match="looks at the primary's step"):
        RemoteAuxiliary(Seldom(nn.Linear(2, 2), every=2), role.links[0])
    if role.auxiliary is None:
        with pytest.raises(ValueError, match="2 auxiliaries need ranks of their own, 1 have some"):
            objective_of(Case(1, (1, 1))).in_role(role)
    inputs, told = batch_of(case, 0)
    objective.eval()
    assert "parts" not in objective(inputs, **told)  # without a word to the other side
    objective.train()
    assert objective(inputs).loss is None
    (link,) = role.links
    link.batch = 5
    with pytest.raises(ValueError, match="rank 0 of 1 has 5 rows of a batch of 5, and got logits of 12"):
        objective(inputs, **told)
    link.batch = None
    first = objective(inputs, **told)
    handshake = 24
    found["sent"] = [link.sent - handshake]
    objective(inputs, **told)
    found["sent"].append(link.sent - handshake)
    found["loss"] = first.loss.detach()
    expected = whole(inputs, **told)
    torch.testing.assert_close(
        first.loss, expected.loss if role.auxiliary is None else expected.parts["auxiliary_transport_0"]
    )
    other, rows = assign_roles(primary=[0], auxiliaries=[[1]]).links[0], 12 + dist.get_rank()
    with pytest.raises(ValueError, match=f"this side has {rows} rows of 7 values in torch.float32, the other"):
        other.exchange(torch.zeros(rows, CLASSES))
    return found


def leave_one_side():
    """On two ranks, of which the second leaves."""
    (link,) = assign_roles(primary=[0], auxiliaries=[[1]]).links
    link.exchange(torch.zeros(2, CLASSES))
    if dist.get_rank():
        dist.destroy_process_group(link.group)
        return {}
    with pytest.raises(ConnectionError, match=r"no logits came from the auxiliary's side \(rank 1\)"):
        link.exchange(torch.zeros(2, CLASSES))
    return {"ended": True}


def test_a_side_that_is_gone_is_named():
    assert run_ranks(2, leave_one_side)[0] == {"ended": True}


def test_both_sides_are_objectives_that_send_logits_alone():
    primary, auxiliary = run_ranks(2, told_of_ranks)
    assert primary["objective"]
    assert auxiliary["objective"]
    assert {name.partition(".")[0] for name in primary["parameters"]} == {"primary"}
    assert {name.partition(".")[0] for name in auxiliary["parameters"]} == {"network"}
    logits = 12 * CLASSES * 4
    assert primary["sent"] == auxiliary["sent"] == [logits, 2 * logits]
