"""Predictions that are kept for each sample: cached auxiliaries, and PS-KD against a loop by hand."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from counterpoise.objectives import Cached, KeptPredictions, MutualTransport, SelfDistillation
from test_auxiliaries import ALPHA, batches, perceptron


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_last_word_on_each_sample_is_kept(data):
    kept, expected = KeptPredictions(), {}
    for number in range(4):
        ids = data.draw(st.lists(st.integers(0, 3000), min_size=1, max_size=20, unique=True))
        logits = torch.randn(len(ids), 4, generator=torch.Generator().manual_seed(number))
        kept.write(torch.tensor(ids), logits)
        expected |= dict(zip(ids, logits.softmax(-1), strict=True))
    asked = data.draw(st.lists(st.integers(0, 4000), min_size=1, max_size=20))
    found, known = kept.read(torch.tensor(asked), classes=4)
    assert known.tolist() == [each in expected for each in asked]
    for row, each in enumerate(asked):
        if each in expected:
            torch.testing.assert_close(found[row].exp(), expected[each], rtol=0, atol=1e-3)


def test_tables_in_files_hold_the_same(tmp_path):
    kept, mapped = KeptPredictions(), KeptPredictions(folder=tmp_path)
    for start in (0, 1500, 5):
        ids = torch.arange(start, start + 9)
        for each in (kept, mapped):
            each.write(ids, torch.randn(9, 3, generator=torch.Generator().manual_seed(start)))
    asked = torch.arange(2000)
    for mine, theirs in zip(kept.read(asked, classes=3), mapped.read(asked, classes=3), strict=True):
        assert torch.equal(mine, theirs)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [2048 * 3 * 2]
    again = KeptPredictions()
    again.load_state_dict(mapped.state_dict())
    assert torch.equal(again.read(asked, classes=3)[1], kept.read(asked, classes=3)[1])


def test_a_cached_auxiliary_answers_with_what_it_said_and_else_pulls_nowhere():
    torch.manual_seed(0)
    primary, own = perceptron(), perceptron()
    model = MutualTransport(primary, [Cached(own, every=2)], ALPHA)
    (first, labels), (second, _) = batches(2, shape=(6,), dtype=torch.float32)
    said = own(first).softmax(-1).detach()
    with pytest.raises(ValueError, match="give ids= with each batch"):
        model(first, labels=labels)
    model(first, labels=labels, ids=torch.arange(12))
    output = model(second, labels=labels, ids=torch.arange(6, 18))
    f = primary(second)
    known = functional.kl_div(f.log_softmax(-1)[:6], said[6:], reduction="sum") / 12
    assert output.parts["primary_transport"].item() == pytest.approx(known.item(), abs=1e-3)
    output.loss.backward()
    assert all(parameter.grad is None for parameter in own.parameters())


def test_the_loss_stays_finite_where_float16_keeps_a_zero():
    """Float16 has no numbers below 6e-8."""
    torch.manual_seed(0)
    primary, own = (nn.Linear(6, 1000) for _ in range(2))
    own.weight.data.mul_(50)
    model = MutualTransport(primary, [Cached(own, every=2)], ALPHA)
    images, labels, ids = torch.randn(8, 6), torch.arange(8), torch.arange(8)
    losses = [model(images, labels=labels, ids=ids).loss for _ in range(2)]
    losses[1].backward()
    assert all(loss.isfinite() for loss in losses)
    assert primary.weight.grad.isfinite().all()


# PS-KD


def test_self_distillation_is_the_loop_of_its_paper():
    """Soft labels of the epoch before; all but the rounding of the kept predictions to 11 bits."""
    torch.manual_seed(0)
    model = perceptron()
    by_hand = copy.deepcopy(model)
    objective = SelfDistillation(model, weight=0.8)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, by_hand)]
    data = list(batches(3, shape=(6,), dtype=torch.float32))
    before = functional.one_hot(torch.cat([labels for _, labels in data]), 5).float()
    for epoch in range(4):
        share = 0.8 * epoch / 4
        objective.set_progress(epoch / 4)
        said = before.clone()
        for number, (images, labels) in enumerate(data):
            ids = torch.arange(12 * number, 12 * (number + 1))
            loss = objective(images, labels=labels, ids=ids).loss
            logits = by_hand(images)
            target = (1 - share) * functional.one_hot(labels, 5) + share * before[ids]
            expected = -(target * logits.log_softmax(-1)).sum(-1).mean()
            said[ids] = logits.detach().softmax(-1)
            for optimizer, each in zip(optimizers, (loss, expected), strict=True):
                optimizer.zero_grad()
                each.backward()
                optimizer.step()
            assert loss.item() == pytest.approx(expected.item(), abs=1e-3)
        before = said
