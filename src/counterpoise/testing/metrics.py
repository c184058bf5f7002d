"""What a metric must satisfy to be streamed, merged and synchronised."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from counterpoise.metrics import Estimate, Metric, Stream


def check_metric(metric: Metric, *, logits: Tensor, labels: Tensor, in_distribution: Tensor | None = None) -> None:
    """Raise `AssertionError`, naming the property, unless the metric keeps its contract.

    Its sums are int64 or float64; batches of any size and order, streams merged in any grouping, and a state that was
    saved and loaded give the same result as one batch; samples that are not valid do not count; a higher level gives
    wider intervals; nothing at all is a `ValueError`.

    Args:
        metric: a frozen dataclass.
        logits: trial predictions `[n, K]`, n at least 8.
        labels: `[n]`.
        in_distribution: `[n]` boolean, where the metric needs it.
    """

    def seen(*parts: Tensor, valid: Tensor | None = None) -> Stream:
        stream = Stream(metric)
        for rows in parts:
            inside = None if in_distribution is None else in_distribution[rows]
            stream.update(logits=logits[rows], labels=labels[rows], in_distribution=inside, valid=valid)
        return stream

    everything = torch.arange(len(labels))
    whole = seen(everything)
    expected = whole.compute()
    wrong = {name: value.dtype for name, value in whole.sums.items() if value.dtype not in (torch.int64, torch.float64)}
    assert not wrong, f"sums must be int64 or float64: {wrong}"

    _same(seen(*torch.split(everything, 3)).compute(), expected, "batches of another size change it")
    _same(seen(everything.flip(0)).compute(), expected, "the order of the samples changes it")
    left, right = seen(everything[:5]), seen(everything[5:])
    left.merge(right)
    _same(left.compute(), expected, "merging two streams changes it")
    restored = Stream(metric)
    restored.load_state_dict(whole.state_dict())
    _same(restored.compute(), expected, "saving and loading its state changes it")
    doubled = torch.cat([everything, everything])
    first_half = torch.arange(len(doubled)) < len(everything)
    _same(seen(doubled, valid=first_half).compute(), expected, "samples that are not valid change it")
    _wider(whole.compute(level=0.99), than=whole.compute(level=0.5))
    whole.reset()
    try:
        whole.compute()
    except ValueError:
        return
    raise AssertionError("without samples it computes something instead of raising ValueError")


def _wider(actual: Mapping[Any, Estimate], *, than: Mapping[Any, Estimate]) -> None:
    for key, narrow in than.items():
        wide = actual[key]
        if math.isnan(narrow.low) or narrow.low == narrow.high == narrow.value:
            continue  # without an interval, or of sums that cannot give one
        outside = wide.low <= narrow.low <= narrow.high <= wide.high
        wider = outside and wide.high - wide.low > narrow.high - narrow.low
        assert wider, f"{key} is {narrow} at level 0.5 and {wide} at 0.99; give its interval compute's `level`"


def _same(actual: Mapping[Any, Estimate], expected: Mapping[Any, Estimate], complaint: str) -> None:
    assert set(actual) == set(expected), f"{complaint}: it estimates {sorted(actual)}, not {sorted(expected)}"
    for key, estimate in expected.items():
        for name in ("value", "low", "high", "floor"):
            one, other = (
                math.nan if each is None else each for each in (getattr(actual[key], name), getattr(estimate, name))
            )
            close = math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-10) or (math.isnan(one) and math.isnan(other))
            assert close, f"{complaint}: {key} {name} is {one}, not {other}"
