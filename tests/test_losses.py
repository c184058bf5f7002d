"""Every loss against its definition, its contract, and the limits in which it is another one."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise import LossSum
from counterpoise.functional.batch_terms import (
    _laplace_form,
    _pairwise_form,
    dca_term,
    mdca_term,
    mmce_term,
    weighted_mmce_term,
)
from counterpoise.functional.losses import (
    cross_entropy,
    entropy_regularised,
    focal,
    focal_sample_dependent,
    label_smoothing,
)
from counterpoise.functional.reduction import upcast
from counterpoise.testing import check_loss
from loss_table import GRADIENTS, LOSSES

ROWS = pytest.mark.parametrize("name", LOSSES)


def random_batch(classes: int, samples: int, seed: int, *, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    labels = torch.where(
        torch.rand(samples, generator=generator) < 0.6,
        logits.argmax(-1),
        torch.randint(classes, (samples,), generator=generator),
    )
    return logits, labels


@ROWS
@given(classes=st.sampled_from([2, 3, 10, 100]), samples=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_equals_its_definition(name, classes, samples, seed):
    logits, labels = random_batch(classes, samples, seed)
    expected = LOSSES[name].oracle(torch.softmax(logits, -1).numpy(), labels.numpy())
    value = LOSSES[name].loss(logits, labels).item()
    # A root of a difference of sums magnifies their rounding where it is close to 0.
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-7 if "mmce" in name else 1e-12)


@ROWS
@pytest.mark.parametrize(("classes", "fast"), GRADIENTS)
def test_gradcheck(name, classes, fast):
    logits, labels = random_batch(classes, 7, seed=classes)
    assert torch.autograd.gradcheck(lambda z: LOSSES[name].loss(z, labels), (logits.requires_grad_(),), fast_mode=fast)


@ROWS
def test_keeps_the_contract(name):
    check_loss(LOSSES[name].loss, soft_labels=LOSSES[name].soft_labels)


@ROWS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles_without_graph_break(name, dtype):
    torch.compiler.reset()
    logits, labels = random_batch(5, 8, seed=0)
    logits = logits.to(dtype).requires_grad_()
    loss = LOSSES[name].loss
    compiled = torch.compile(lambda z, y: loss(z, y), fullgraph=True, backend="aot_eager")
    value = compiled(logits, labels)
    value.backward()
    expected = loss(logits.detach(), labels)
    torch.testing.assert_close(value, expected)
    assert torch.isfinite(logits.grad).all()


@ROWS
def test_autocast_does_not_round_it(name):
    logits, labels = random_batch(7, 40, seed=2)
    logits = logits.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = LOSSES[name].loss(logits, labels)
    assert torch.equal(inside, LOSSES[name].loss(logits, labels))


def test_small_integer_labels_are_not_mistaken_for_the_ignored_one():
    """As an unsigned byte, -100 is 156."""
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([156, 0, 199])
    assert torch.equal(cross_entropy(logits, labels.to(torch.uint8)), cross_entropy(logits, labels))


def test_compiles_to_machine_code():
    logits, labels = random_batch(5, 8, seed=0)
    loss = LossSum(partial(focal, gamma=3.0), mdca_term, weight=1.0)
    torch.testing.assert_close(
        torch.compile(lambda z, y: loss(z, y), fullgraph=True)(logits, labels), loss(logits, labels)
    )


@given(seed=st.integers(0, 2**31))
def test_limits(seed):
    logits, labels = random_batch(6, 9, seed)
    plain = torch.nn.functional.cross_entropy(logits, labels)
    for limit in (
        cross_entropy(logits, labels),
        focal(logits, labels, gamma=0.0),
        label_smoothing(logits, labels, smoothing=0.0),
        entropy_regularised(logits, labels, beta=0.0),
        LossSum(cross_entropy, dca_term, weight=0.0)(logits, labels),
    ):
        torch.testing.assert_close(limit, plain, rtol=1e-13, atol=1e-13)


@given(seed=st.integers(0, 2**31), smoothing=st.floats(0, 0.5))
def test_label_smoothing_equals_torch(seed, smoothing):
    logits, labels = random_batch(6, 9, seed)
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(label_smoothing(logits, labels, smoothing=smoothing), expected)


@pytest.mark.parametrize("name", [name for name, row in LOSSES.items() if row.soft_labels])
@given(seed=st.integers(0, 2**31), mix=st.floats(0.05, 0.95))
def test_soft_label_is_an_expectation(name, seed, mix):
    """Means over samples are linear in the labels; batch terms are functions of such means."""
    logits, labels = random_batch(5, 6, seed)
    other = labels.roll(1)
    one_hot = torch.nn.functional.one_hot
    soft = mix * one_hot(labels, 5).double() + (1 - mix) * one_hot(other, 5).double()
    value = LOSSES[name].loss(logits, soft)
    twice, both = torch.cat([logits, logits]), torch.cat([labels, other])
    weight = torch.cat([torch.full((6,), mix), torch.full((6,), 1 - mix)]).double()
    torch.testing.assert_close(value, LOSSES[name].loss(twice, both, sample_weight=weight), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name, row in LOSSES.items() if row.soft_labels])
@given(seed=st.integers(0, 2**31), classes=st.integers(2, 8), weighted=st.booleans())
def test_a_one_hot_label_is_its_class_in_value_and_gradient(name, seed, classes, weighted):
    logits, labels = random_batch(classes, 6, seed)
    weight = torch.linspace(0, 2, 6, dtype=torch.float64) if weighted else None
    found = []
    for given_labels in (labels, torch.nn.functional.one_hot(labels, classes).double()):
        point = logits.clone().requires_grad_()
        value = LOSSES[name].loss(point, given_labels, sample_weight=weight)
        found.append((value.detach(), *torch.autograd.grad(value, point)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-12)


@given(seed=st.integers(0, 2**31), smoothing=st.floats(0, 0.5))
def test_soft_labels_equal_torch(seed, smoothing):
    logits, _ = random_batch(6, 9, seed)
    soft = torch.softmax(logits.roll(1, 0), -1)
    expected = torch.nn.functional.cross_entropy(logits, soft)
    torch.testing.assert_close(cross_entropy(logits, soft), expected)
    expected = torch.nn.functional.cross_entropy(logits, soft, label_smoothing=smoothing)
    torch.testing.assert_close(label_smoothing(logits, soft, smoothing=smoothing), expected)


@given(seed=st.integers(0, 2**31), gamma=st.floats(0, 5))
def test_focal_loss_of_soft_labels_is_its_definition(seed, gamma):
    logits, _ = random_batch(6, 9, seed)
    p, q = torch.softmax(logits, -1), torch.softmax(logits.roll(1, 0), -1)
    expected = -(q * (1 - p) ** gamma * p.log()).sum(-1).mean()
    torch.testing.assert_close(focal(logits, q, gamma=gamma), expected)


# Normalised twice, the term depends on the number of samples, so repeating them changes it.
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "weighted_mmce_twice"])
@given(seed=st.integers(0, 2**31))
def test_integer_weights_are_repetitions(name, seed):
    logits, labels = random_batch(4, 6, seed)
    times = torch.tensor([1, 2, 0, 3, 1, 1])
    repeated = LOSSES[name].loss(logits.repeat_interleave(times, 0), labels.repeat_interleave(times))
    weighted = LOSSES[name].loss(logits, labels, sample_weight=times.double())
    torch.testing.assert_close(weighted, repeated, rtol=1e-7, atol=1e-7)


def test_mdca_is_not_the_mean_of_its_shards():
    logits, labels = random_batch(10, 64, seed=0)
    whole = mdca_term(logits, labels)
    shards = torch.stack([mdca_term(z, y) for z, y in zip(logits.chunk(4), labels.chunk(4), strict=True)]).mean()
    assert shards > 1.5 * whole


@pytest.mark.parametrize("loss", [partial(focal, gamma=2.0), partial(focal, gamma=0.5), focal_sample_dependent])
def test_a_label_that_the_model_excludes_is_lost_as_in_cross_entropy(loss):
    """Infinite, with a gradient that others in the batch can use."""
    gradients = []
    for each in (loss, cross_entropy):
        logits = torch.tensor([[1.0, 0.0, -torch.inf]], requires_grad=True)
        value = each(logits, torch.tensor([2]))
        value.backward()
        assert value == torch.inf
        gradients.append(logits.grad)
    assert torch.equal(*gradients)


def test_the_kernel_of_mmce_by_its_definition_is_the_same():
    """What a GPU computes where algorithms must be deterministic."""
    generator = torch.Generator().manual_seed(0)
    points = (torch.rand(40, generator=generator, dtype=torch.float64) * 20).round().div(20).requires_grad_()
    coefficients = torch.randn(40, generator=generator, dtype=torch.float64)
    values = [form(points, coefficients, 0.4) for form in (_laplace_form, _pairwise_form)]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, points)[0] for value in values))


def test_mmce_of_equal_confidences_has_a_symmetric_gradient():
    logits = torch.tensor([[1.0, 0.0]] * 4, dtype=torch.float64, requires_grad=True)
    mmce_term(logits, torch.tensor([0, 0, 0, 0])).backward()
    torch.testing.assert_close(logits.grad, logits.grad[:1].expand(4, 2))


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1]])
def test_weighted_mmce_of_only_right_or_only_wrong_is_zero_with_zero_gradient(labels):
    logits = torch.tensor([[50.0, -50.0]] * 3, requires_grad=True)
    value = weighted_mmce_term(logits, torch.tensor(labels))
    value.backward()
    assert value == 0
    assert (logits.grad == 0).all()


def test_mmce_takes_a_batch_of_pixels():
    """A kernel matrix of this batch would take 160 GB."""
    logits, labels = random_batch(3, 200_000, seed=1)
    assert torch.isfinite(mmce_term(logits, labels))


def test_masked_class_is_as_if_absent():
    logits, labels = random_batch(5, 8, seed=3)
    labels = labels.clamp(max=3)
    masked = logits.clone()
    masked[:, 4] = -torch.inf
    for name in ("cross_entropy", "label_smoothing", "entropy_regularised", "focal_2", "dca", "mmce"):
        loss = LOSSES[name].loss
        torch.testing.assert_close(loss(masked, labels), loss(logits[:, :4], labels))


@ROWS
@pytest.mark.parametrize(
    ("logits", "labels", "weight", "message"),
    [
        (torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64), None, r"labels must have shape \[3\]"),
        (torch.zeros(3, 4), torch.zeros(3, 3), None, "soft .* must have the shape"),
        (torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), None, "floating point"),
        (torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool), None, "integer class indices"),
        (torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), torch.ones(4), "sample_weight must have shape"),
        (torch.zeros(3, 0), torch.zeros(3, dtype=torch.int64), None, "K >= 1"),
    ],
)
def test_wrong_shapes_and_dtypes_are_named(name, logits, labels, weight, message):
    with pytest.raises(ValueError, match=message):
        LOSSES[name].loss(logits, labels, sample_weight=weight)


@pytest.mark.parametrize("name", [name for name, row in LOSSES.items() if not row.soft_labels])
def test_pairwise_terms_refuse_soft_labels(name):
    with pytest.raises(ValueError, match="integer labels"):
        LOSSES[name].loss(torch.zeros(2, 3), torch.full((2, 3), 1 / 3))


def test_a_bandwidth_that_would_overflow_is_refused():
    logits, labels = random_batch(3, 20, seed=5)
    assert torch.isfinite(mmce_term(logits.float(), labels, bandwidth=0.02))
    with pytest.raises(ValueError, match="bandwidth must be at least"):
        mmce_term(logits, labels, bandwidth=0.01)


def test_upcast_leaves_double_alone():
    assert upcast(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64
    assert upcast(torch.zeros(1, dtype=torch.float16)).dtype == torch.float32


def test_oracle_of_huber_differs_from_smooth_l1_by_alpha():
    """The trap: torch's smooth_l1 is the Huber function over alpha."""
    logits, labels = random_batch(3, 20, seed=5)
    huber = LOSSES["dtdp_linear"].loss(logits, labels)
    confidence = torch.softmax(logits, -1).amax(-1).mean()
    accuracy = (logits.argmax(-1) == labels).double().mean()
    smooth = torch.nn.functional.smooth_l1_loss(confidence, accuracy, beta=0.005)
    assert np.isclose(smooth / huber, 200)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_the_dtype_is_that_of_the_logits_whatever_the_default(name, dtype):
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 4, generator=generator, dtype=dtype), torch.tensor([0, 1, 2, 3, 0, 1])
    expected = LOSSES[name].loss(logits, labels)
    torch.set_default_dtype(torch.float64)
    try:
        found = LOSSES[name].loss(logits, labels)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_the_contract_has_an_ignore_index_of_ones_own():
    def forgetful(logits, labels, *, ignore_index=0, sample_weight=None):
        return cross_entropy(logits, labels, sample_weight=sample_weight)

    with pytest.raises(AssertionError, match="another `ignore_index` are not left out: there is a label 12"):
        check_loss(forgetful)
    with pytest.raises(AssertionError, match=r"does not take \[3, 4, K\] logits: Expected target size"):
        check_loss(torch.nn.functional.cross_entropy)
