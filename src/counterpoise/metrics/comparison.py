"""Models on the same samples, compared by paired differences.

Samples are dealt at random into groups, by their ids and so alike for every model. Each group in turn is left out; how
the difference of two models changes with it gives the standard error of the difference (the delete-a-group jackknife),
for every metric alike and with whatever the two models have in common cancelled. What is a mean over samples is
compared sample by sample. Overlap of two intervals is not a test; this is.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from counterpoise._documents import from_document, to_document
from counterpoise._extras import view
from counterpoise.functional.betting import highest_mean
from counterpoise.functional.intervals import Interval, none_seen
from counterpoise.functional.paired import bounded_interval, paired_accuracy_interval, paired_mean_interval
from counterpoise.metrics.batch import PredictionBatch
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key, MetricInfo
from counterpoise.metrics.headline import Headline
from counterpoise.metrics.jackknife import largest_value, left_out, left_out_ood
from counterpoise.metrics.protocol import Sums
from counterpoise.metrics.scores import Scores
from counterpoise.metrics.standard import FEW_ERRORS, LARGEST_BRIER, brier_scores, largest_possible_nll

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SCHEMA = "counterpoise.evaluation"
SCHEMA_VERSION = 1

PAIRED = (Key.ACCURACY, Key.NLL, Key.BRIER, Key.MEAN_GAP)
"""Metrics that are means over samples, so that two models can be compared sample by sample."""

PairSums = Mapping[tuple[int, int], Mapping[str, Tensor]]
"""Of each pair of models and each of `PAIRED`, `power_sums` of the differences of samples, second minus first."""


@dataclass(frozen=True)
class Difference:
    """Of every metric, the second model's value minus the first's, with its interval; OOD metrics by OOD set."""

    first: int
    second: int
    estimates: dict[str, Estimate] = field(repr=False)
    ood: dict[str, dict[str, Estimate]] = field(repr=False)


@dataclass(frozen=True)
class Comparison:
    """All pairs of some models.

    Attributes:
        samples: that all models have predictions for.
        level: nominal coverage of each interval; adjusted so that naming a best of M models errs as seldom as
            one comparison would.
        differences: one for each pair.
    """

    samples: int
    level: float
    differences: list[Difference] = field(repr=False)

    def best(
        self, key: str, values: list[float], *, higher_is_better: bool | None, ood: str | None = None
    ) -> int | None:
        """The model whose value is best, if its difference to every other is beyond chance; else None."""
        better = higher_is_better
        if better is None or any(math.isnan(value) for value in values):
            return None
        leader = max(range(len(values)), key=lambda index: values[index] if better else -values[index])
        for difference in self.differences:
            if leader not in (difference.first, difference.second):
                continue
            estimate = (difference.estimates if ood is None else difference.ood.get(ood, {})).get(key)
            # By the interval and not by the values: plug-in errors are biased, and may point the other way.
            wants_increase = better == (leader == difference.second)
            if estimate is None or not (estimate.low > 0 if wants_increase else estimate.high < 0):
                return None
        return leader


@dataclass(frozen=True)
class Evaluation(Mapping[str, Scores]):
    """Scores of one or several models, and how they compare where they saw the same samples.

    Prints as tables, renders in a notebook; a mapping from the names of the models to their scores.

    Attributes:
        models: their scores.
        comparison: paired differences.
        notices: what is to be known of the input.
        scaled: the same after temperature scaling of each model, on samples that no temperature was fitted on. What a
            model gains by being better calibrated alone is gone there (Ashukha et al., 2020).
    """

    models: list[Scores]
    comparison: Comparison | None = None
    notices: list[str] = field(default_factory=list)
    scaled: Comparison | None = None

    def info_of(self, key: str) -> MetricInfo:
        """Title, unit and better direction of a metric that some model has."""
        for model in self.models:
            if key in KEY_INFO or key in model.info:
                return model.info_of(key)
        known = dict.fromkeys(each for model in self.models for each in model)
        raise KeyError(f"no model has a metric {key!r}; there are {', '.join(known)}")

    def __getitem__(self, name: str) -> Scores:
        """The scores of the model of that name."""
        for model in self.models:
            if model.source.name == name:
                return model
        raise KeyError(f"no model {name!r}; there are {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        return (model.source.name for model in self.models)

    def __len__(self) -> int:
        return len(self.models)

    def __repr__(self) -> str:
        compared = "compared" if self.comparison is not None else "not compared"
        return f"<Evaluation of {', '.join(map(repr, self))}: {compared}>"

    def __str__(self) -> str:
        return str(view("text")(self))

    def _repr_html_(self) -> str:
        return str(view("html")(self))

    def plot(self) -> "Figure":
        """The reliability diagrams side by side, a matplotlib figure."""
        figure: Figure = view("figure")(self)
        return figure

    def report(self, path: str | Path) -> None:
        """Write the report, one self-contained HTML file."""
        view("page")(self, path)

    def to_pandas(self) -> "DataFrame":
        """A row for each estimate and each difference: what `counterpoise evaluate --csv` prints."""
        table: DataFrame = view("table")(self)
        return table

    def to_json(self) -> str:
        """Strict JSON, as `Scores.to_json`."""
        return to_document(self, schema=SCHEMA, version=SCHEMA_VERSION)

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """Read what `to_json` wrote; anything else is a `ValueError`."""
        return from_document(cls, text, schema=SCHEMA, version=SCHEMA_VERSION)


def as_evaluation(results: Scores | Evaluation) -> Evaluation:
    """Scores as the evaluation of one model."""
    return results if isinstance(results, Evaluation) else Evaluation([results], notices=results.source.notices)


def paired_values(batch: PredictionBatch) -> Tensor:
    """Of each sample what the metrics `PAIRED` are means of, float64 `[n, len(PAIRED)]`; NaN where it is not known."""
    confidence, hits = batch.top()
    values = {Key.ACCURACY: hits.double(), Key.MEAN_GAP: confidence.double() - hits.double()}
    if batch.log_label is not None:
        values |= {Key.NLL: -batch.log_label.double(), Key.BRIER: brier_scores(batch)}
    unknown = torch.full_like(values[Key.ACCURACY], torch.nan)
    return torch.stack([values.get(key, unknown) for key in PAIRED], -1)


def compare(
    models: Sequence[Scores],
    headlines: Sequence[Headline],
    *,
    level: float,
    pairs: PairSums | None = None,
    without: Collection[str] = (),
    clustered: bool = False,
) -> Comparison:
    """All paired differences of models whose samples are the same.

    Args:
        models: their scores.
        headlines: what these were computed from, by jackknife group.
        level: nominal coverage of one comparison.
        pairs: what is known of the samples one by one; without it, everything is by jackknife.
        without: OOD sets that are not the same for all models.
        clustered: samples of one id depend on each other, so that calibration errors are noisier than they would be.
    """
    adjusted = 1 - (1 - level) / max(1, len(models) - 1)
    without_each = [left_out(each.grouped(), each.ranks, clustered=clustered) for each in headlines]
    shared = sorted(set.intersection(*(set(each.ranks.ood_samples) for each in headlines)).difference(without))
    ood = [{name: left_out_ood(each.ranks, name) for name in shared} for each in headlines]
    errors = [errors_of(each.total(0)) for each in headlines] if pairs else []
    differences = []
    for first, second in combinations(range(len(models)), 2):
        one, other = models[first], models[second]
        estimates = {
            key: found.minus(without_each[first][key], (other[key], one[key]), bound=largest_value(key), level=adjusted)
            for key, found in without_each[second].items()
            if key in without_each[first]
        }
        for key, sums in (pairs or {}).get((first, second), {}).items():
            if key in estimates:
                both = errors[first], errors[second]
                estimates[key] = paired_difference(key, estimates[key].value, sums, both, level=adjusted)
        by_set = {
            name: {
                key: found.minus(
                    ood[first][name][key],
                    (other.ood[name].estimates[key], one.ood[name].estimates[key]),
                    bound=largest_value(key),
                    level=adjusted,
                )
                for key, found in ood[second][name].items()
            }
            for name in shared
        }
        differences.append(Difference(first, second, estimates, by_set))
    return Comparison(samples=models[0].samples, level=adjusted, differences=differences)


class Errors(NamedTuple):
    """How many errors a model has made, and of each mean in `PAIRED` what one adds to it.

    Attributes:
        errors: of the model.
        usual: size of a value, weighted by the square of itself: the correct ones hardly count.
        largest: that a value, less that of another model, can have.
    """

    errors: int
    usual: dict[str, float]
    largest: dict[str, float]


def errors_of(sums: Sums) -> Errors:
    """From the sums of `Performance`, or of `Accuracy`."""
    usual, largest = {str(Key.MEAN_GAP): 1.0}, {str(Key.MEAN_GAP): 2.0}
    if Key.NLL in sums:
        for key, limit in ((Key.NLL, largest_possible_nll(sums)), (Key.BRIER, LARGEST_BRIER)):
            squares = float(sums[f"{key}_squared"])
            usual[str(key)], largest[str(key)] = float(sums[f"{key}_cubed"]) / squares if squares else 0.0, limit
    return Errors(int(sums["count"] - sums["correct"]), usual, largest)


def paired_difference(key: str, value: float, sums: Tensor, errors: tuple[Errors, Errors], *, level: float) -> Estimate:
    """The difference of two means, from `power_sums` of the differences of samples.

    What the samples do not show may still be there: on either side there is room for a share `none_seen` of samples
    that one model alone gets wrong, at the usual cost of its errors. If either model made fewer than `FEW_ERRORS`, this
    cost is not known, and a limit is also at least `highest_mean` of differences as large as they can be.
    """
    count, total, squares = sums[:3].tolist()
    if key == Key.ACCURACY:  # a difference of hits is -1, 0 or 1
        interval = paired_accuracy_interval((squares + total) / 2, (squares - total) / 2, count, level=level)
        return Estimate.of(value, interval)
    bound = largest_value(key)
    low, high = bounded_interval(value, paired_mean_interval(sums, level=level), bound=bound)
    if math.isnan(low):
        return Estimate.of(value, Interval(low, high))
    mean, unseen = total / count, none_seen(count, level=level)
    reaches = [unseen * each.usual[key] for each in errors]
    if min(each.errors for each in errors) < FEW_ERRORS:
        for side, (sign, each) in enumerate(zip((-1, 1), errors, strict=True)):
            limit = highest_mean(sign * mean, squares / count, count, largest=each.largest[key], error=(1 - level) / 2)
            reaches[side] = max(reaches[side], limit - sign * mean)
    below, above = mean - reaches[0], mean + reaches[1]
    return Estimate.of(value, Interval(min(low, max(-bound, below)), max(high, min(bound, above))))
