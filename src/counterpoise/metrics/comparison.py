"""Models on the same samples, compared by paired differences.

Samples are dealt at random into groups, by their ids and so alike for every model. Each group in turn is left out; how
the difference of two models changes with it gives the standard error of the difference (the delete-a-group jackknife),
for every metric alike and with whatever the two models have in common cancelled. What is a mean over samples is
compared sample by sample. Overlap of two intervals is not a test; this is.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from counterpoise._documents import from_document, to_document
from counterpoise._views import view
from counterpoise.functional.detection import DEFAULT_TPR, RankCounts, interpolated_fpr_at_tpr
from counterpoise.functional.paired import jackknife_interval, paired_accuracy_interval, paired_mean_interval
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key, MetricInfo
from counterpoise.metrics.inputs import PredictionBatch
from counterpoise.metrics.options import JACKKNIFE_GROUPS
from counterpoise.metrics.protocol import Contrast, Sums, contrasts_of
from counterpoise.metrics.ranking import RANKING_METRICS, RATE_STEPS, SELECTIVE_METRICS
from counterpoise.metrics.scores import Scores
from counterpoise.metrics.standard import brier_scores
from counterpoise.metrics.state import Headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SCHEMA = "counterpoise.evaluation"
SCHEMA_VERSION = 1

_RANKING_METRICS: dict[Key, Callable[[RankCounts], Tensor]] = RANKING_METRICS | {
    Key.FPR_AT_TPR95: interpolated_fpr_at_tpr,
    Key.DETECTION_ERROR_AT_TPR95: lambda counts: 0.5 * (1 - DEFAULT_TPR + interpolated_fpr_at_tpr(counts)),
}
"""As they are taken where a group is left out: a threshold that jumped from cell to cell would hide how it moves."""


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
    """

    models: list[Scores]
    comparison: Comparison | None = None
    notices: list[str] = field(default_factory=list)

    def info_of(self, key: str) -> MetricInfo:
        """Title, unit and better direction of a metric that some model has."""
        return next(model.info_of(key) for model in self.models if key in KEY_INFO or key in model.info)

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
    return results if isinstance(results, Evaluation) else Evaluation([results])


@dataclass(frozen=True)
class _LeftOut:
    """A metric with each jackknife group left out.

    Attributes:
        values: `[G]`.
        whole: of all samples, where its plug-in value is biased.
        step: how far one sample moves it, where that is known; below it the jackknife sees nothing.
    """

    values: Tensor
    whole: Contrast | None = None
    step: float = 0.0

    def minus(self, other: "_LeftOut", estimates: tuple[Estimate, Estimate], *, level: float) -> Estimate:
        """The difference of two models, with its interval.

        Calibration errors are biased: the interval is around their debiased values, widened by what may be left.
        """
        value = estimates[0].value - estimates[1].value
        left_out = self.values.double() - other.values.double()
        if self.whole is None or other.whole is None:
            room = max(self.step, other.step)
            return Estimate.of(value, jackknife_interval(value, left_out, room=room, level=level))
        low, high = jackknife_interval(float(self.whole.value - other.whole.value), left_out, level=level)
        return Estimate(value, low - float(other.whole.bias), high + float(self.whole.bias))


def paired_values(batch: PredictionBatch) -> tuple[Tensor, ...]:
    """Of each sample what the metrics `PAIRED` are means of, float64 `[n]` each."""
    assert batch.log_label is not None  # noqa: S101
    confidence, hits = batch.top()
    values = {
        Key.ACCURACY: hits.double(),
        Key.NLL: -batch.log_label.double(),
        Key.BRIER: brier_scores(batch),
        Key.MEAN_GAP: confidence.double() - hits.double(),
    }
    return tuple(values[key] for key in PAIRED)


def compare(
    models: Sequence[Scores],
    headlines: Sequence[Headline],
    *,
    level: float,
    pairs: PairSums | None = None,
    without: Collection[str] = (),
) -> Comparison:
    """All paired differences of models whose samples are the same.

    Args:
        models: their scores.
        headlines: what these were computed from, by jackknife group.
        level: nominal coverage of one comparison.
        pairs: what is known of the samples one by one; without it, everything is by jackknife.
        without: OOD sets that are not the same for all models.
    """
    adjusted = 1 - (1 - level) / max(1, len(models) - 1)
    left_out = [_left_out(each) for each in headlines]
    shared = sorted(set.intersection(*(set(each.ranks.ood_samples) for each in headlines)).difference(without))
    ood = [{name: _left_out_ood(each, name) for name in shared} for each in headlines]
    differences = []
    for first, second in combinations(range(len(models)), 2):
        one, other = models[first], models[second]
        estimates = {
            key: found.minus(left_out[first][key], (other[key], one[key]), level=adjusted)
            for key, found in left_out[second].items()
            if key in left_out[first]
        }
        for key, sums in (pairs or {}).get((first, second), {}).items():
            estimates[key] = _paired_difference(key, estimates[key], sums, level=adjusted)
        by_set = {
            name: {
                key: found.minus(
                    ood[first][name][key],
                    (other.ood[name].estimates[key], one.ood[name].estimates[key]),
                    level=adjusted,
                )
                for key, found in ood[second][name].items()
            }
            for name in shared
        }
        differences.append(Difference(first, second, estimates, by_set))
    return Comparison(samples=models[0].samples, level=adjusted, differences=differences)


def _paired_difference(key: str, plain: Estimate, sums: Tensor, *, level: float) -> Estimate:
    """The difference of two means, from `power_sums` of the differences of samples."""
    if key != Key.ACCURACY:
        return Estimate.of(plain.value, paired_mean_interval(sums, level=level))
    count, total, discordant = sums[:3].tolist()  # of hits, a difference is -1, 0 or 1
    interval = paired_accuracy_interval((discordant + total) / 2, (discordant - total) / 2, count, level=level)
    return Estimate.of(plain.value, interval)


def _left_out(headline: Headline) -> dict[str, _LeftOut]:
    """Every metric that models are compared by."""
    found: dict[str, _LeftOut] = {}
    for metric, sums in headline.grouped():
        total = {name: value.sum(0, keepdim=True) for name, value in sums.items()}
        whole = contrasts_of(metric, total)
        for key, contrast in contrasts_of(metric, _without_each(sums)).items():
            found[key] = _LeftOut(contrast.value, Contrast(whole[key].value.squeeze(0), whole[key].bias.squeeze(0)))
    return found | _left_out_ranks(headline.ranks.misclassification_by_group(JACKKNIFE_GROUPS))


def _left_out_ood(headline: Headline, name: str) -> dict[str, _LeftOut]:
    found = _left_out_ranks(headline.ranks.detection_by_group(name, JACKKNIFE_GROUPS))
    return {key: value for key, value in found.items() if key not in SELECTIVE_METRICS}


def _left_out_ranks(counts: RankCounts) -> dict[str, _LeftOut]:
    """Every ranking metric, from counts `[G, ...]` of each group."""
    without = RankCounts(*(side.sum(0, keepdim=True) - side for side in counts))
    negatives = max(1, int(counts.negative.sum()))
    return {
        str(key): _LeftOut(metric(without), step=RATE_STEPS.get(key, 0.0) / negatives)
        for key, metric in _RANKING_METRICS.items()
    }


def _without_each(sums: Sums) -> Sums:
    return {name: value.sum(0, keepdim=True) - value for name, value in sums.items()}
