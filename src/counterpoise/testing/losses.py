"""What a loss must satisfy to be used with `SupervisedObjective` under any engine."""

import torch
from torch import Tensor

from counterpoise.functional.reduction import IGNORE_INDEX
from counterpoise.objectives.supervised import Loss


def check_loss(loss: Loss, *, num_classes: int = 5, soft_labels: bool = True, seed: int = 0) -> None:
    """Raise `AssertionError`, naming the property, unless the loss keeps its contract.

    It is a finite scalar of `[..., K]` logits and `[...]` labels; does not change with the order of the samples, with
    a constant added to a row of logits, or with the shape of the leading axes; leaves ignored and zero-weight samples
    out, whatever they hold; is computed in float32 from half precision; survives logits of +-10,000, equal logits and
    impossible classes; has the gradient that finite differences give; and looks at no value on the host.

    Args:
        loss: called as `loss(logits, labels)`, with `ignore_index` and `sample_weight` by keyword.
        num_classes: K of the trial batches.
        soft_labels: whether the loss takes distributions as labels.
        seed: of the trial batches.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(12, num_classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(num_classes, (12,), generator=generator)
    value = _called(loss, logits, labels, complaint="it cannot be called with logits and labels")
    assert value.shape == (), f"a loss returns a scalar, this one returned shape {list(value.shape)}"
    assert torch.isfinite(value), f"the loss of ordinary logits is {value.item()}"

    order = torch.randperm(12, generator=generator)
    _same(loss(logits[order], labels[order]), value, "the order of the samples changes it")
    _same(
        loss(logits + torch.randn(12, 1, generator=generator, dtype=torch.float64), labels),
        value,
        "a constant added to a row of logits changes it",
    )
    shaped = _called(loss, logits.view(3, 4, -1), labels.view(3, 4), complaint="it does not take [3, 4, K] logits")
    _same(shaped, value, "the shape of the leading axes changes it")
    _check_left_out(loss, logits, labels)
    _check_precision(loss, logits, labels)
    _check_extremes(loss, num_classes)
    _check_gradient(loss, logits, labels)
    _check_stays_on_device(loss, logits, labels)
    if soft_labels:
        one_hot = torch.nn.functional.one_hot(labels, num_classes).to(logits.dtype)
        _same(loss(logits, one_hot), value, "a one-hot soft label is not the same as its class index")


def _called(loss: Loss, logits: Tensor, labels: Tensor, *, complaint: str) -> Tensor:
    try:
        return loss(logits, labels)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise AssertionError(f"{complaint}: {error}") from error


def _same(actual: Tensor, expected: Tensor, complaint: str) -> None:
    assert torch.allclose(actual, expected, rtol=1e-9, atol=1e-12), (
        f"{complaint}: {actual.item()} and {expected.item()}"
    )


def _check_left_out(loss: Loss, logits: Tensor, labels: Tensor) -> None:
    expected = loss(logits[:8], labels[:8])
    ignored = labels.clone()
    ignored[8:] = IGNORE_INDEX
    garbage = logits.clone()
    garbage[8:] = torch.nan
    garbage.requires_grad_()
    actual = loss(garbage, ignored)
    _same(actual, expected, "ignored samples change it")
    gradient = torch.autograd.grad(actual, garbage)[0]
    assert torch.isfinite(gradient).all(), "ignored samples that hold NaN give NaN gradients"
    assert (gradient[8:] == 0).all(), "ignored samples get a gradient"
    weight = torch.ones(12, dtype=torch.float64)
    _same(loss(logits, labels, sample_weight=3 * weight), loss(logits, labels), "equal sample weights change it")
    weight[8:] = 0
    _same(loss(logits, labels, sample_weight=weight), expected, "samples of weight 0 change it")
    nowhere = labels.clone()
    nowhere[8:] = logits.shape[-1]
    actual = loss(garbage, nowhere, sample_weight=weight)
    _same(actual, expected, "samples of weight 0 that hold NaN, and a label of no class, change it")
    gradient = torch.autograd.grad(actual, garbage)[0]
    assert torch.isfinite(gradient).all(), "samples of weight 0 that hold NaN give NaN gradients"
    elsewhere = logits.shape[-1] + 7
    others = torch.where(ignored == IGNORE_INDEX, elsewhere, ignored)
    try:
        actual = loss(garbage, others, ignore_index=elsewhere)
    except (ValueError, IndexError, RuntimeError) as error:
        raise AssertionError(f"samples of another `ignore_index` are not left out: {error}") from error
    _same(actual, expected, "samples of another `ignore_index` change it")
    nothing = loss(logits, torch.full_like(labels, IGNORE_INDEX))
    assert nothing == 0, f"a batch without a sample that counts has the loss {nothing.item()}, not 0"


def _check_precision(loss: Loss, logits: Tensor, labels: Tensor) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        half = logits.to(dtype)
        value = loss(half, labels)
        assert value.dtype == torch.float32, f"from {dtype} logits it is computed in {value.dtype}, not in float32"
        assert torch.equal(value, loss(half.float(), labels)), f"{dtype} logits are rounded again before use"


def _check_extremes(loss: Loss, num_classes: int) -> None:
    rows = torch.zeros(5, num_classes)
    rows[0, 0], rows[1, 1], rows[2, 0], rows[3, -1] = 1e4, 1e4, -1e4, -torch.inf
    rows[4] = torch.linspace(-1e4, 1e4, num_classes)
    labels = torch.zeros(5, dtype=torch.int64)
    for name, batch in {"mixed": slice(None), "all right": slice(0, 1), "all equal": slice(3, 4)}.items():
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            logits = rows[batch].to(dtype).requires_grad_()
            value = loss(logits, labels[batch])
            gradient = torch.autograd.grad(value, logits)[0]
            assert torch.isfinite(value), f"extreme logits ({name}, {dtype}) give {value.item()}"
            assert torch.isfinite(gradient).all(), (
                f"extreme logits ({name}, {dtype}) give a gradient that is not finite"
            )


def _check_gradient(loss: Loss, logits: Tensor, labels: Tensor) -> None:
    point = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), (point,), raise_exception=False), (
        "its gradient is not the one that finite differences give"
    )


def _check_stays_on_device(loss: Loss, logits: Tensor, labels: Tensor) -> None:
    try:
        point = logits.to("meta").requires_grad_()
        torch.autograd.grad(loss(point, labels.to("meta")), point)
    except (RuntimeError, NotImplementedError) as error:
        raise AssertionError(f"it looks at values on the host, or needs them to run: {error}") from error
