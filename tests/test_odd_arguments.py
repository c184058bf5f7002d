"""Odd arguments to a training step: a ValueError or TypeError that says what to do, before anything is computed."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from counterpoise import DeepMutualLearning, MutualTransport, SupervisedObjective, linear_warmup
from counterpoise.functional.batch_terms import dca_term, dtdp_term, mdca_term, mmce_term, weighted_mmce_term
from counterpoise.functional.losses import (
    cross_entropy,
    entropy_regularised,
    focal,
    focal_sample_dependent,
    label_smoothing,
)
from counterpoise.functional.transport import auxiliary_loss, deep_mutual, kl_divergence, mutual_transport, primary_loss

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 3, 1])


def as_primary(logits, labels, **options):
    return primary_loss(logits, [X], labels, alpha=0.8, **options).loss


def as_auxiliary(logits, labels, **options):
    """The auxiliary's logits; labels reach the primary only."""
    return mutual_transport(X, [logits], labels, alpha=0.8, **options).loss


def as_peer(logits, labels, **options):
    return deep_mutual([X, logits], labels, alpha=0.8, **options).loss


LOSSES = {
    "cross_entropy": cross_entropy,
    "label_smoothing": label_smoothing,
    "entropy_regularised": entropy_regularised,
    "focal": focal,
    "focal_sample_dependent": focal_sample_dependent,
    "dca": dca_term,
    "dtdp": dtdp_term,
    "mdca": mdca_term,
    "mmce": mmce_term,
    "weighted_mmce": weighted_mmce_term,
    "primary": as_primary,
    "auxiliary": as_auxiliary,
    "peer": as_peer,
}

LOGITS = {
    "list of numbers": (X.tolist(), TypeError, r"torch\.as_tensor"),
    "list of tensors with gradients": ([row.clone().requires_grad_() for row in X], TypeError, r"torch\.stack"),
    "NumPy array": (X.numpy(), TypeError, r"torch\.as_tensor"),
    "nothing": (None, TypeError, "must be a tensor"),
    "nested": (torch.nested.nested_tensor(list(X), layout=torch.jagged), ValueError, "to_padded_tensor"),
    "sparse": (X.to_sparse(), ValueError, r"\.to_dense\(\)"),
    "float8": (X.to(torch.float8_e4m3fn), ValueError, r"\.float\(\)"),
    "integers": (X.long(), ValueError, r"\.float\(\)"),
    "complex": (X.to(torch.complex64), ValueError, r"\.float\(\)"),
    "no classes": (X[:, :0], ValueError, "K >= 1|one shape"),
    "another batch": (X[:2], ValueError, "shape"),
    "meta": (X.to("meta"), ValueError, "meta"),
}

LABELS = {
    "list": (Y.tolist(), TypeError, r"torch\.as_tensor"),
    "NumPy array": (Y.numpy(), TypeError, r"torch\.as_tensor"),
    "Series": (pd.Series(Y.numpy()), TypeError, r"torch\.as_tensor"),
    "nested": (torch.nested.nested_tensor([Y, Y], layout=torch.jagged), ValueError, "nested"),
    "meta": (Y.to("meta"), ValueError, "on cpu, not on meta"),
    "too large": (torch.tensor([0, 4, 1]), ValueError, "label 4, and logits of 4 classes, 0 to 3"),
    "negative": (torch.tensor([0, -1, 1]), ValueError, r"label -1.*-100 \(ignore_index\)"),
    "bool": (Y > 1, ValueError, "integer class indices"),
    "complex": (Y.to(torch.complex64), ValueError, "integer class indices"),
    "a column": (Y[:, None], ValueError, "must have shape"),
    "floats": (Y.float(), ValueError, "soft"),
    "logits as soft labels": (X, ValueError, r"torch\.softmax|integer labels"),
    "NaN": (torch.full((3, 4), torch.nan), ValueError, "soft labels must be finite|integer labels"),
}

WEIGHTS = {
    "negative": (torch.tensor([1.0, -1.0, 1.0]), ValueError, "at least 0, got values from -1 to 1"),
    "all negative": (-torch.ones(3), ValueError, "at least 0"),
    "infinite": (torch.tensor([1.0, torch.inf, 1.0]), ValueError, "finite"),
    "NaN": (torch.tensor([1.0, torch.nan, 1.0]), ValueError, "finite"),
    "list": ([1.0, 1.0, 1.0], TypeError, r"torch\.as_tensor"),
    "number": (0.5, TypeError, "must be a tensor"),
    "meta": (torch.ones(3, device="meta"), ValueError, "on cpu, not on meta"),
    "complex": (torch.ones(3, dtype=torch.complex64), ValueError, "must be real"),
    "another shape": (torch.ones(4), ValueError, "must have shape"),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", LOGITS)
def test_odd_logits_are_refused(kind, name):
    logits, error, message = LOGITS[kind]
    with pytest.raises(error, match=message):
        LOSSES[name](logits, Y)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", LABELS)
def test_odd_labels_are_refused(kind, name):
    labels, error, message = LABELS[kind]
    with pytest.raises(error, match=message):
        LOSSES[name](X, labels)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_odd_weights_are_refused(kind, name):
    weight, error, message = WEIGHTS[kind]
    with pytest.raises(error, match=message):
        LOSSES[name](X, Y, sample_weight=weight)


@pytest.mark.parametrize("name", LOSSES)
def test_odd_options_are_refused(name):
    with pytest.raises(TypeError, match="ignore_index must be an integer"):
        LOSSES[name](X, Y, ignore_index=None)
    with pytest.raises(TypeError, match=r"torch\.distributed\.group\.WORLD"):
        LOSSES[name](X, Y, group="gloo")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(
            (partial(function, labels=Y, alpha=alpha), error, f"alpha must be {message}")
            for function in (
                partial(mutual_transport, X, [X]),
                partial(primary_loss, X, [X]),
                partial(deep_mutual, [X, X]),
            )
            for alpha, error, message in [
                (torch.tensor([0.8, 0.2, 1.0]), ValueError, r"one number for the whole batch.*sample_weight"),
                ([0.8], TypeError, "a number"),
                ("0.8", TypeError, "a number"),
                (None, TypeError, "a number"),
                (-0.1, ValueError, "at least 0"),
                (float("nan"), ValueError, "at least 0"),
            ]
        ),
        (partial(mutual_transport, X, X, Y, alpha=0.8), TypeError, "a list with one tensor for each model"),
        (partial(primary_loss, X, X, Y, alpha=0.8), TypeError, "a list with one tensor for each model"),
        (partial(auxiliary_loss, X.tolist(), X), TypeError, r"torch\.as_tensor"),
        (partial(auxiliary_loss, X, X[:, :2]), ValueError, "one shape"),
        (partial(auxiliary_loss, X, X, sample_weight=-torch.ones(3)), ValueError, "at least 0"),
        (partial(kl_divergence, X, X[:1]), ValueError, "one shape"),
        (partial(label_smoothing, X, Y, smoothing=1.5), ValueError, "smoothing must be at least 0 and at most 1"),
        (partial(label_smoothing, X, Y, smoothing=torch.ones(3)), ValueError, "smoothing must be one number"),
        (partial(focal, X, Y, gamma=-1.0), ValueError, "gamma must be at least 0"),
        (partial(focal, X, Y, gamma=[2.0]), TypeError, "gamma must be a number"),
        (partial(focal_sample_dependent, X, Y, threshold=2.0), ValueError, "threshold"),
        (partial(entropy_regularised, X, Y, beta=float("inf")), ValueError, "beta must be finite"),
        (partial(dtdp_term, X, Y, alpha=torch.ones(3)), ValueError, "alpha must be one number"),
        (partial(mmce_term, X, Y, bandwidth=0.0), ValueError, "bandwidth must be at least 0.02"),
    ],
)
def test_odd_hyper_parameters_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def net() -> nn.Module:
    return nn.Linear(4, 4)


OBJECTIVES = {
    "supervised": lambda: SupervisedObjective(net(), cross_entropy),
    "mutual_transport": lambda: MutualTransport(net(), [net()], 0.8),
    "deep_mutual": lambda: DeepMutualLearning([net(), net()], 0.8),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", LABELS)
def test_objectives_refuse_odd_labels(kind, name, training):
    labels, error, message = LABELS[kind]
    with pytest.raises(error, match=message):
        OBJECTIVES[name]().train(training)(X, labels=labels)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_objectives_refuse_odd_weights(kind, name):
    weight, error, message = WEIGHTS[kind]
    with pytest.raises(error, match=message):
        OBJECTIVES[name]()(X, labels=Y, sample_weight=weight)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: MutualTransport(net, [net()], 0.8), TypeError, "primary must be an nn.Module, got function"),
        (lambda: MutualTransport(nn.Linear, [net()], 0.8), TypeError, "got the class Linear"),
        (lambda: MutualTransport(net(), None, 0.8), TypeError, r"auxiliaries=\[\.\.\.\]"),
        (lambda: MutualTransport(net(), [net(), None], 0.8), TypeError, r"auxiliaries\[1\] must be an nn\.Module"),
        (lambda: MutualTransport(net(), net(), 0.8), ValueError, r"auxiliaries=\[\.\.\.\]"),
        (lambda: MutualTransport(net(), [net()], torch.ones(3)), TypeError, "alpha must be one number"),
        (lambda: MutualTransport(net(), [net()], [0.8]), TypeError, "alpha must be one number"),
        (lambda: MutualTransport(net(), [net()], "0.8"), TypeError, "alpha must be one number"),
        (lambda: MutualTransport(net(), [net()], lambda _: None), TypeError, "alpha must be one number"),
        (lambda: DeepMutualLearning([net(), 3], 0.8), TypeError, r"models\[1\] must be an nn\.Module"),
        (lambda: DeepMutualLearning([net(), net()], np.ones(2)), TypeError, "alpha must be one number"),
        (lambda: DeepMutualLearning([net()], 0.8), ValueError, "at least two models"),
        (lambda: SupervisedObjective("resnet18", cross_entropy), TypeError, "model must be an nn.Module, got str"),
        (lambda: SupervisedObjective(net(), "cross_entropy"), TypeError, "loss must be a function"),
        (lambda: linear_warmup(torch.ones(2), fraction=0.5), TypeError, "alpha must be one number"),
    ],
)
def test_objectives_cannot_be_made_of_odd_things(build, error, message):
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize("alpha", [np.float32(0.5), torch.tensor(0.5), 1, True])
def test_numbers_of_other_kinds_are_numbers(alpha):
    assert MutualTransport(net(), [net()], alpha).alpha.item() == float(alpha)


def test_where_values_cannot_be_looked_at_a_negative_weight_is_no_finite_loss():
    """Compiled, as on a GPU, nothing is read back."""
    compiled = torch.compile(cross_entropy, fullgraph=True, backend="eager")
    weight = torch.tensor([1.0, -3.0, 1.0])
    assert torch.isnan(compiled(X, Y, sample_weight=weight))
    assert torch.isfinite(compiled(X, Y, sample_weight=weight.abs()))


def test_losses_work_where_there_are_no_values():
    """On the meta device, and within torch.func: a gradient for each sample."""
    assert cross_entropy(X.to("meta"), Y.to("meta"), sample_weight=torch.ones(3, device="meta")).shape == ()
    each = torch.func.vmap(torch.func.grad(cross_entropy))(X, Y)
    expected = [torch.func.grad(cross_entropy)(row, label) for row, label in zip(X, Y, strict=True)]
    torch.testing.assert_close(each, torch.stack(expected))
