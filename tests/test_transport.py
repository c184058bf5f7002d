"""The equations of MTE and DML: closed-form gradients, Proposition 1, and who teaches whom."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from counterpoise import MutualTransport
from counterpoise.functional.losses import cross_entropy
from counterpoise.functional.transport import (
    auxiliary_loss,
    deep_mutual,
    kl_divergence,
    mutual_transport,
    primary_loss,
)
from loss_table import GRADIENTS

CASES = given(
    classes=st.sampled_from([2, 3, 10, 100]),
    auxiliaries=st.integers(1, 3),
    alpha=st.floats(0, 2),
    seed=st.integers(0, 2**31),
)


def random_logits(count: int, classes: int, seed: int, *, samples: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (2 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)).requires_grad_()
        for _ in range(count)
    ]


def random_labels(classes: int, seed: int, *, samples: int = 5) -> torch.Tensor:
    return torch.randint(classes, (samples,), generator=torch.Generator().manual_seed(seed))


def softmax(logits: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits.detach(), -1)


@CASES
def test_gradients_are_the_closed_forms(classes, auxiliaries, alpha, seed):
    f, *gs = random_logits(1 + auxiliaries, classes, seed)
    labels = random_labels(classes, seed)
    mutual_transport(f, gs, labels, alpha=alpha).loss.backward()
    one_hot = nn.functional.one_hot(labels, classes)
    mean_g = torch.stack([softmax(g) for g in gs]).mean(0)
    expected_f = ((1 + alpha) * softmax(f) - one_hot - alpha * mean_g) / len(labels)
    torch.testing.assert_close(f.grad, expected_f, rtol=0, atol=1e-12)
    for g in gs:
        torch.testing.assert_close(g.grad, (softmax(g) - softmax(f)) / len(labels), rtol=0, atol=1e-12)


@CASES
def test_no_loss_reaches_the_other_model(classes, auxiliaries, alpha, seed):
    f, *gs = random_logits(1 + auxiliaries, classes, seed)
    terms = mutual_transport(f, gs, random_labels(classes, seed), alpha=alpha)
    primary_loss = terms.cross_entropy + alpha * terms.primary_transport
    gradients = torch.autograd.grad(primary_loss, gs, retain_graph=True, allow_unused=True, materialize_grads=True)
    assert all((gradient == 0).all() for gradient in gradients)
    (gradient,) = torch.autograd.grad(sum(terms.auxiliary_transport), f, allow_unused=True, materialize_grads=True)
    assert (gradient == 0).all()


@pytest.mark.slow
@CASES
def test_it_is_the_two_losses_each_with_the_others_logits_as_constants(classes, auxiliaries, alpha, seed):
    """Bit for bit, and with ignored positions: what another device or process would compute by itself."""
    f, *gs = random_logits(1 + auxiliaries, classes, seed)
    labels = random_labels(classes, seed)
    labels[0] = -100
    weight = torch.rand(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    terms = mutual_transport(f, gs, labels, alpha=alpha, sample_weight=weight)
    together = torch.autograd.grad(terms.loss, [f, *gs])
    primary = primary_loss(f, gs, labels, alpha=alpha, sample_weight=weight)
    apart = [auxiliary_loss(g, f, sample_weight=weight * (labels != -100)) for g in gs]
    assert torch.equal(terms.loss, primary.loss + sum(apart))
    assert (primary.cross_entropy, primary.transport) == (terms.cross_entropy, terms.primary_transport)
    assert tuple(apart) == terms.auxiliary_transport
    for index, (loss, logits) in enumerate(zip([primary.loss, *apart], [f, *gs], strict=True)):
        others = [other for other in (f, *gs) if other is not logits]
        own, *of_others = torch.autograd.grad(loss, [logits, *others], allow_unused=True)
        assert torch.equal(own, together[index])
        assert of_others == [None] * len(others)


@CASES
def test_mean_of_divergences_has_the_gradient_of_the_divergence_of_the_mean(classes, auxiliaries, alpha, seed):
    f, *gs = random_logits(1 + auxiliaries, classes, seed)
    of_each = torch.stack([kl_divergence(g.detach(), f).mean() for g in gs]).mean()
    mean = torch.stack([softmax(g) for g in gs]).mean(0).log()
    of_mean = kl_divergence(mean, f).mean()
    one, other = torch.autograd.grad(of_each, f)[0], torch.autograd.grad(of_mean, f)[0]
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@CASES
def test_primary_loss_is_cross_entropy_with_an_adaptive_soft_label(classes, auxiliaries, alpha, seed):
    f, *gs = random_logits(1 + auxiliaries, classes, seed)
    labels = random_labels(classes, seed)
    target = nn.functional.one_hot(labels, classes) + alpha * torch.stack([softmax(g) for g in gs]).mean(0)
    smoothed = (1 + alpha) * cross_entropy(f, target / (1 + alpha))
    terms = mutual_transport(f, gs, labels, alpha=alpha)
    one = torch.autograd.grad(terms.loss, f)[0]
    torch.testing.assert_close(one, torch.autograd.grad(smoothed, f)[0], rtol=0, atol=1e-12)


@CASES
def test_proposition_1(classes, auxiliaries, alpha, seed):
    """With h = (1 - b) f + b g, f constant in h: the gradient of KL(h || f) is b times that of KL(g || f)."""
    f, g = random_logits(2, classes, seed)
    beta = alpha / 2
    mixture = ((1 - beta) * softmax(f) + beta * softmax(g)).log()
    one = torch.autograd.grad(kl_divergence(mixture, f).sum(), f)[0]
    other = torch.autograd.grad(kl_divergence(g.detach(), f).sum(), f)[0]
    torch.testing.assert_close(one, beta * other, rtol=0, atol=1e-12)


@pytest.mark.slow
@CASES
def test_identical_auxiliaries_are_one(classes, auxiliaries, alpha, seed):
    f, g = random_logits(2, classes, seed)
    labels = random_labels(classes, seed)
    one = mutual_transport(f, [g], labels, alpha=alpha)
    many = mutual_transport(f, [g] * (1 + auxiliaries), labels, alpha=alpha)
    torch.testing.assert_close(one.primary_transport, many.primary_transport)
    gradients = [torch.autograd.grad(t.cross_entropy + alpha * t.primary_transport, f)[0] for t in (one, many)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-13)


@CASES
def test_alpha_0_is_cross_entropy_for_the_primary(classes, auxiliaries, alpha, seed):
    f, *gs = random_logits(1 + auxiliaries, classes, seed)
    labels = random_labels(classes, seed)
    one = torch.autograd.grad(mutual_transport(f, gs, labels, alpha=0.0).loss, f)[0]
    assert torch.equal(one, torch.autograd.grad(cross_entropy(f, labels), f)[0])


@CASES
def test_kl_equals_torch(classes, auxiliaries, alpha, seed):
    f, g = random_logits(2, classes, seed)
    expected = nn.functional.kl_div(
        torch.log_softmax(f, -1), torch.log_softmax(g, -1), log_target=True, reduction="none"
    ).sum(-1)
    torch.testing.assert_close(kl_divergence(g, f), expected)


@pytest.mark.slow
@CASES
def test_deep_mutual_is_its_definition(classes, auxiliaries, alpha, seed):
    models = random_logits(1 + auxiliaries, classes, seed)
    labels = random_labels(classes, seed)
    terms = deep_mutual(models, labels, alpha=alpha)
    terms.loss.backward()
    one_hot = nn.functional.one_hot(labels, classes)
    for index, logits in enumerate(models):
        peers = torch.stack([softmax(other) for j, other in enumerate(models) if j != index]).mean(0)
        expected = ((1 + alpha) * softmax(logits) - one_hot - alpha * peers) / len(labels)
        torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@CASES
def test_soft_labels(classes, auxiliaries, alpha, seed):
    """One-hot ones give the values and gradients of their classes, others that of the cross-entropy with them."""
    logits, labels = random_logits(1 + auxiliaries, classes, seed), random_labels(classes, seed)
    soft = torch.softmax(random_logits(1, classes, seed + 1)[0].detach(), -1)

    def terms(given_labels):
        of_mte = mutual_transport(logits[0], logits[1:], given_labels, alpha=alpha)
        of_dml = deep_mutual(logits, given_labels, alpha=alpha)
        return [
            (found.loss.detach(), *torch.autograd.grad(found.loss, logits)) for found in (of_mte, of_dml)
        ], of_mte.cross_entropy

    hard, _ = terms(labels)
    one_hot, _ = terms(nn.functional.one_hot(labels, classes).double())
    mixed, of_labels = terms(soft)
    torch.testing.assert_close(one_hot, hard, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(of_labels, nn.functional.cross_entropy(logits[0], soft))
    change = (nn.functional.one_hot(labels, classes) - soft) / len(labels)
    (_, of_primary, *of_auxiliaries), (_, *of_peers) = mixed
    torch.testing.assert_close(of_primary, hard[0][1] + change, rtol=0, atol=1e-12)
    torch.testing.assert_close(of_auxiliaries, list(hard[0][2:]), rtol=0, atol=1e-12)
    torch.testing.assert_close(of_peers, [each + change for each in hard[1][1:]], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("classes", "fast"), GRADIENTS)
def test_gradcheck(classes, fast):
    """Targets are constants, so each model's gradient is checked with the others' targets held fixed."""
    f, g = random_logits(2, classes, seed=classes)
    labels = random_labels(classes, seed=classes)
    check = partial(torch.autograd.gradcheck, fast_mode=fast)
    assert check(lambda z: (lambda t: t.cross_entropy + 0.8 * t.primary_transport)(
        mutual_transport(z, [g.detach()], labels, alpha=0.8)), (f,))  # fmt: skip
    assert check(lambda z: mutual_transport(f.detach(), [z], labels, alpha=0.8).auxiliary_transport[0], (g,))
    assert check(lambda z: (lambda t: t.cross_entropy[0] + 0.8 * t.transport[0])(
        deep_mutual([z, g.detach()], labels, alpha=0.8)), (f,))  # fmt: skip
    assert check(kl_divergence, (g, f))


EXTREMES = {
    "huge": [[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]],
    "equal": [[7.0, 7.0, 7.0], [7.0, 7.0, 7.0]],
    "masked": [[1.0, 2.0, -torch.inf], [0.5, 0.0, -torch.inf]],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", EXTREMES)
def test_extreme_logits_stay_finite(kind, dtype):
    rows = torch.tensor(EXTREMES[kind])
    f = rows.to(dtype).requires_grad_()
    gs = [rows.roll(1, 0).to(dtype).requires_grad_(), rows.to(dtype).requires_grad_()]
    labels = torch.tensor([0, 1])
    for terms in (mutual_transport(f, gs, labels, alpha=0.8), deep_mutual([f, *gs], labels, alpha=0.8)):
        gradients = torch.autograd.grad(terms.loss, [f, *gs])
        assert torch.isfinite(terms.loss)
        assert terms.loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("terms", ["mutual_transport", "deep_mutual"])
def test_ignored_samples_take_no_part(terms):
    f, g = random_logits(2, 4, seed=0)
    labels = random_labels(4, seed=0)
    poisoned = [torch.cat([z.detach(), torch.full((2, 4), torch.nan, dtype=z.dtype)]).requires_grad_() for z in (f, g)]
    more = torch.cat([labels, torch.tensor([-100, -100])])
    if terms == "mutual_transport":
        one, two = (
            mutual_transport(f, [g], labels, alpha=0.8),
            mutual_transport(poisoned[0], poisoned[1:], more, alpha=0.8),
        )
    else:
        one, two = deep_mutual([f, g], labels, alpha=0.8), deep_mutual(poisoned, more, alpha=0.8)
    torch.testing.assert_close(one.loss, two.loss)
    for gradient in torch.autograd.grad(two.loss, poisoned):
        assert torch.isfinite(gradient).all()
        assert (gradient[5:] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("terms", ["mutual_transport", "deep_mutual"])
def test_compiles_without_graph_break(terms):
    torch.compiler.reset()
    f, g = (z.detach() for z in random_logits(2, 4, seed=0))
    labels = random_labels(4, seed=0)
    functions = {
        "mutual_transport": lambda a, b, y: mutual_transport(a, [b], y, alpha=0.8).loss,
        "deep_mutual": lambda a, b, y: deep_mutual([a, b], y, alpha=0.8).loss,
    }
    compiled = torch.compile(functions[terms], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(f, g, labels), functions[terms](f, g, labels))
    meta = [z.to("meta") for z in (f, g, labels)]
    assert functions[terms](*meta).shape == ()


def test_autocast_does_not_round_it():
    f, g = (z.detach().float() for z in random_logits(2, 7, seed=0))
    labels = random_labels(7, seed=0)
    expected = mutual_transport(f, [g], labels, alpha=0.8).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mutual_transport(f, [g], labels, alpha=0.8).loss, expected)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"first gave \[2, 3\], number 1 after it gave \[2, 4\]"):
        mutual_transport(torch.zeros(2, 3), [torch.zeros(2, 4)], torch.tensor([0, 1]), alpha=1.0)
    with pytest.raises(ValueError, match="at least two models"):
        deep_mutual([torch.zeros(2, 3)], torch.tensor([0, 1]), alpha=1.0)


def small_net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("auxiliaries", [1, 2])
def test_one_scalar_is_two_optimizers_bit_for_bit(auxiliaries, dtype):
    """50 steps of one backward and one optimizer against a hand-written loop with one optimizer for each model."""
    alpha, momentum, decay = 0.8, 0.9, 5e-4
    models = [small_net(seed).to(dtype) for seed in range(1 + auxiliaries)]
    separate = copy.deepcopy(models)
    ours = MutualTransport(models[0], models[1:], alpha)
    optimizer = torch.optim.SGD(ours.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=momentum, weight_decay=decay)
    rates = [0.1] + [0.01] * auxiliaries
    theirs = [
        torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)
        for model, lr in zip(separate, rates, strict=True)
    ]
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        x = torch.randn(20, 8, generator=generator, dtype=dtype)
        y = torch.randint(5, (20,), generator=generator)

        ours(x, labels=y).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        log_f, *log_gs = [torch.log_softmax(model(x), -1) for model in separate]
        cross_entropy_f = -log_f.gather(1, y[:, None]).mean()
        pulls = [(g.detach().exp() * (g.detach() - log_f)).sum(-1).mean() for g in log_gs]
        loss_f = cross_entropy_f + alpha * torch.stack(pulls).mean()
        losses = [loss_f, *((log_f.detach().exp() * (log_f.detach() - g)).sum(-1).mean() for g in log_gs)]
        for loss, each in zip(losses, theirs, strict=True):
            loss.backward()
            each.step()
            each.zero_grad()
    for model, other in zip(models, separate, strict=True):
        for (name, value), expected in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.equal(value, expected), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_alpha_as_a_tensor_does_not_widen_the_loss(dtype):
    logits, labels = torch.zeros(2, 3, dtype=dtype), torch.tensor([0, 2])
    alpha = torch.tensor(0.8, dtype=torch.float64)
    assert mutual_transport(logits, [logits], labels, alpha=alpha).loss.dtype == torch.float32
    assert deep_mutual([logits, logits], labels, alpha=alpha).loss.dtype == torch.float32
    assert mutual_transport(logits.double(), [logits.double()], labels, alpha=alpha).loss.dtype == torch.float64
