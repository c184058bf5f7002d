"""Losses, gradients and measures of this device against float64 on the CPU."""

import torch
from torch import Tensor, nn

from counterpoise.doctor.bench import CLASSES, Bench, Finding
from counterpoise.functional.transport import mutual_transport
from counterpoise.metrics import Key
from counterpoise.objectives.protocol import told_ids
from counterpoise.recipes.methods import METHODS
from counterpoise.training.evaluation import measured, measuring_streams

FLOAT32_LIMIT = 1e-5
"""Largest relative error of losses and gradients, of some hundred float32 operations each."""

_ROWS, _FEATURES, _ALPHA = 64, 16, 0.8


def mutual_transport_formula(bench: Bench) -> Finding:
    """MTE's gradients are `(1 + alpha) f - onehot(y) - alpha g` and `g - f`, a sample's share of the mean each."""
    f, g = (_normal(_ROWS, CLASSES, seed=seed, scale=2.0) for seed in (0, 1))
    labels = torch.arange(_ROWS) % CLASSES
    log_p, log_q = f.log_softmax(-1), g.log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    onehot = nn.functional.one_hot(labels, CLASSES).double()
    loss = (-onehot * log_p + _ALPHA * q * (log_q - log_p) + p * (log_p - log_q)).sum(-1).mean()
    expected = [loss, ((1 + _ALPHA) * p - onehot - _ALPHA * q) / _ROWS, (q - p) / _ROWS]

    logits = [value.to(bench.device, torch.float32).requires_grad_() for value in (f, g)]
    terms = mutual_transport(logits[0], logits[1:], labels.to(bench.device), alpha=_ALPHA)
    terms.loss.backward()  # type: ignore[no-untyped-call]
    found = [terms.loss, *(value.grad for value in logits)]
    error = max(relative_error(a, b) for a, b in zip(found, expected, strict=True))
    return bench.finding(error, FLOAT32_LIMIT, "relative")


def every_method(bench: Bench) -> Finding:
    """The loss of every method, and its gradients, of linear models with the same weights."""
    inputs, labels = _normal(_ROWS, _FEATURES, seed=2), torch.arange(_ROWS) % CLASSES
    errors: dict[str, float] = {}
    for name in METHODS:
        expected = _loss_and_gradients(name, inputs, labels)
        found = _loss_and_gradients(name, inputs.to(bench.device, torch.float32), labels.to(bench.device))
        errors[name] = max(relative_error(a, b) for a, b in zip(found, expected, strict=True))
    worst = max(errors, key=errors.__getitem__)
    return bench.finding(errors[worst], FLOAT32_LIMIT, "relative", detail=f"{len(METHODS)} methods, worst {worst}")


def measures(bench: Bench) -> Finding:
    """Accuracy, NLL and ECE from the device's logits equal those from the CPU's."""
    logits, labels = _normal(1000, CLASSES, seed=3, scale=2.0).float(), torch.arange(1000) % CLASSES
    expected, found = _measured(logits, labels), _measured(logits.to(bench.device), labels.to(bench.device))
    error = max(abs(found[key] - expected[key]) for key in expected)
    return bench.finding(error, 1e-6, "absolute", detail=f"ECE {found[Key.ECE]:.4f}")


def relative_error(found: Tensor | None, expected: Tensor) -> float:
    """`max |found - expected| / max |expected|`; infinite where there is nothing, or something that is no number.

    >>> relative_error(torch.tensor([1.0, 2.2]), torch.tensor([1.0, 2.0]).double())  # doctest: +ELLIPSIS
    0.1000...
    """
    if found is None:
        return torch.inf
    found, expected = found.detach().cpu().double(), expected.detach()
    return float(((found - expected).abs().max() / expected.abs().max()).nan_to_num(nan=torch.inf))


def _loss_and_gradients(method: str, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    chosen = METHODS[method]
    models = [_linear(seed).to(inputs.device, inputs.dtype) for seed in range(chosen.models)]
    objective = chosen.build(models, **chosen.choice({}))
    ids = torch.arange(len(labels), device=labels.device)
    loss = objective(inputs, labels=labels, **told_ids(objective, ids))["loss"]
    loss.backward()
    return [loss, *(model.weight.grad for model in models)]


def _linear(seed: int) -> nn.Linear:
    model = nn.Linear(_FEATURES, CLASSES, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(_normal(CLASSES, _FEATURES, seed=10 + seed, scale=0.5))
        model.bias.zero_()
    return model


def _measured(logits: Tensor, labels: Tensor) -> dict[str, float]:
    streams = measuring_streams()
    for stream in streams:
        stream.update(logits=logits, labels=labels)
    return measured(streams)


def _normal(rows: int, columns: int, *, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, columns, generator=generator, dtype=torch.float64)
