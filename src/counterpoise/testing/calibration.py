"""Requirements of a model as an assertion, for anybody's tests."""

from typing import Any

from counterpoise.metrics.gate import Requirement, decide, interval_level
from counterpoise.metrics.in_memory import ModelPredictions, compare
from counterpoise.report.decisions import more_samples


def assert_calibrated(
    model: ModelPredictions,
    *require: str,
    labels: Any,
    base: ModelPredictions | None = None,
    level: float = 0.95,
    allow_undecided: bool = False,
) -> None:
    """Raise `AssertionError`, with the measured interval, unless predictions meet all requirements.

    Args:
        model: its predictions by name, as `counterpoise.compare` takes them: `{"probabilities": p}`.
        require: requirements, such as "ece <= 0.05" or "accuracy >= base - 0.005".
        labels: of the samples.
        base: predictions of what it is held against, for the same samples.
        level: probability that all verdicts together are right.
        allow_undecided: whether requirements that the samples cannot decide pass.

    >>> import torch
    >>> probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).repeat(50, 1)
    >>> labels = torch.tensor([0, 1]).repeat(50)
    >>> assert_calibrated({"probabilities": probabilities}, "accuracy >= 0.9", "ece <= 0.25", labels=labels)
    """
    requirements = [Requirement.parsed(text) for text in require]
    models = {"model": model} if base is None else {"base": base, "model": model}
    evaluation = compare(models, labels=labels, level=interval_level(max(1, len(requirements)), level=level))
    allowed = {"met", "undecided"} if allow_undecided else {"met"}
    wrong = [each for each in decide(evaluation, requirements, level=level).verdicts if each.outcome not in allowed]
    assert not wrong, "; ".join(
        f"{each.requirement} is {each.outcome}: {each.estimate}"
        + (f", {more_samples(each)} would decide" if each.more_samples else "")
        for each in wrong
    )
