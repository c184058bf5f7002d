"""Guarantees from calibration samples: prediction sets that hold the label, and thresholds that bound the risk.

Prediction sets are those of split conformal prediction. A score says how badly a label fits a sample; the set of a new
sample has every label whose score is at most a threshold, a quantile of the scores of calibration samples. If these and
the new one are exchangeable, as independent samples of one distribution are, the set holds the label with a
probability of at least `1 - alpha`, whatever the model and the distribution.

Reference: V. Vovk, A. Gammerman, G. Shafer, "Algorithmic learning in a random world", 2005.
"""

import math
from fractions import Fraction
from numbers import Integral
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

SetScore = Literal["lac", "aps", "raps"]
SET_SCORES: tuple[SetScore, ...] = get_args(SetScore)

DEFAULT_PENALTY = 0.01
DEFAULT_FREE_RANKS = 5
"""Of RAPS, where they are not given."""

_GRID = 2.0**40
"""Steps of a unit that sums of probabilities are rounded to: many more than decide anything, and far fewer than
rounding errors could tell apart. All sums over all labels are then 1, a tie, which the theory provides for."""


def lac_scores(probabilities: Tensor) -> Tensor:
    """`1 - p_k` of each label, `[..., K]`: the smallest sets on average.

    Reference: M. Sadinle, J. Lei, L. Wasserman, "Least ambiguous set-valued classifiers with bounded error levels",
    JASA 114 (2019).

    >>> lac_scores(torch.tensor([0.75, 0.25]))
    tensor([0.2500, 0.7500])
    """
    return 1 - probabilities


def aps_scores(probabilities: Tensor, *, u: Tensor | None = None) -> Tensor:
    """`sum of p_j over p_j > p_k, + u p_k` of each label, `[..., K]`: larger sets where the model is unsure.

    Labels of equal probability have equal scores, so that the order of the classes does not matter. Scores are computed
    in float64, of probabilities over their sum, and rounded to 2^-40: that of the least likely label is 1, and no
    rounding error more or less.

    Reference: Y. Romano, M. Sesia, E. Candès, "Classification with valid and adaptive coverage", NeurIPS 2020.

    Args:
        probabilities: `[..., K]`, best of a softmax in float64.
        u: `[...]`, independent and uniform on [0, 1], for sets that are as small as the guarantee permits; without it
            1, the label's own probability in full.

    >>> aps_scores(torch.tensor([0.25, 0.5, 0.125, 0.125]))
    tensor([0.7500, 0.5000, 0.8750, 0.8750], dtype=torch.float64)
    >>> aps_scores(torch.tensor([0.25, 0.5, 0.125, 0.125]), u=torch.tensor(0.0))
    tensor([0.5000, 0.0000, 0.7500, 0.7500], dtype=torch.float64)
    """
    return raps_scores(probabilities, penalty=0.0, free_ranks=0, u=u)


def raps_scores(
    probabilities: Tensor,
    *,
    penalty: float = DEFAULT_PENALTY,
    free_ranks: int = DEFAULT_FREE_RANKS,
    u: Tensor | None = None,
) -> Tensor:
    """`aps_scores + penalty max(0, rank_k - free_ranks)`, `[..., K]`: APS without very large sets.

    The rank of a label is the number of labels at least as probable, itself among them.

    Reference: A. Angelopoulos, S. Bates, J. Malik, M. I. Jordan, "Uncertainty sets for image classifiers using
    conformal prediction", ICLR 2021.

    Args:
        probabilities: `[..., K]`.
        penalty: lambda of the paper, at least 0; at 0 the scores are those of APS.
        free_ranks: k_reg of the paper: labels that cost nothing more.
        u: as for `aps_scores`.

    >>> raps_scores(torch.tensor([0.25, 0.5, 0.125, 0.125]), penalty=0.5, free_ranks=1)
    tensor([1.2500, 0.5000, 2.3750, 2.3750], dtype=torch.float64)
    """
    require_penalty(penalty, free_ranks)
    p = probabilities.double()
    p = p / p.sum(-1, keepdim=True)
    above, rank = _mass_above_and_rank(p)
    mass = above + (p if u is None else u.unsqueeze(-1) * p)
    return (mass * _GRID).round() / _GRID + penalty * (rank - free_ranks).clamp(min=0).double()


def set_scores(
    name: SetScore,
    probabilities: Tensor,
    *,
    penalty: float = DEFAULT_PENALTY,
    free_ranks: int = DEFAULT_FREE_RANKS,
    u: Tensor | None = None,
) -> Tensor:
    """The scores of that name, `[..., K]`.

    >>> set_scores("lac", torch.tensor([0.75, 0.25]))
    tensor([0.2500, 0.7500])
    """
    if name not in SET_SCORES:
        raise ValueError(f"there is no score {name!r}: choose one of {', '.join(SET_SCORES)}")
    if name == "lac":
        return lac_scores(probabilities)
    if name == "aps":
        return aps_scores(probabilities, u=u)
    return raps_scores(probabilities, penalty=penalty, free_ranks=free_ranks, u=u)


def require_penalty(penalty: float, free_ranks: int) -> None:
    """Refuse what would not rank an unlikelier label as worse."""
    if not 0 <= penalty < math.inf:
        raise ValueError(f"penalty must be at least 0 and finite, got {penalty}")
    if not isinstance(free_ranks, Integral):
        raise ValueError(f"free_ranks must be a whole number, got {free_ranks!r}")
    if free_ranks < 0:
        raise ValueError(f"free_ranks must be at least 0, got {free_ranks}")


def conformal_rank(samples: int, alpha: float) -> int:
    """`ceil((n + 1)(1 - alpha))`: which of n scores, from the smallest, is the threshold.

    Computed of the decimal number that `alpha` is written as: in floating point, 10 (1 - 0.7) is above 3.

    >>> conformal_rank(9, 0.1), conformal_rank(9, 0.7), conformal_rank(8, 0.1)
    (9, 3, 9)
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
    return samples + 1 - math.floor((samples + 1) * Fraction(str(float(alpha))))


def fewest_samples(alpha: float) -> int:
    """The fewest samples whose largest score is a threshold: `ceil(1 / alpha) - 1`.

    >>> fewest_samples(0.1), fewest_samples(0.03)
    (9, 33)
    """
    return math.ceil(1 / Fraction(str(float(alpha)))) - 1


def conformal_threshold(scores: Tensor, alpha: float) -> Tensor:
    """The `ceil((n + 1)(1 - alpha))`-th smallest of the scores `[..., n]` of labels; +inf where that is above n.

    The set of a sample has the labels whose scores are at most this. Of distinct scores, the share of new samples whose
    set holds the label is then beta-distributed over calibration samples, with parameters k and n + 1 - k for the k-th
    smallest score; scores that tie can only raise it. +inf is the whole set of labels.

    >>> conformal_threshold(torch.tensor([0.3, 0.1, 0.2, 0.4]), 0.4)
    tensor(0.3000)
    >>> conformal_threshold(torch.tensor([0.3, 0.1, 0.2, 0.4]), 0.1)
    tensor(inf)
    """
    if bool(torch.isnan(scores).any()):
        raise ValueError(f"scores row {int(torch.isnan(scores).reshape(-1).nonzero()[0])} is NaN")
    samples = scores.shape[-1]
    rank = conformal_rank(samples, alpha)
    if rank > samples:
        return scores.new_full(scores.shape[:-1], torch.inf)
    return scores.kthvalue(rank, dim=-1).values


def conformal_thresholds(scores: Tensor, category: Tensor, categories: int, alpha: float) -> Tensor:
    """The threshold of each category by itself, `[C]`, from scores `[n]` and their categories `[n]`, from 0.

    With the labels as categories, the sets hold the label of samples of each class with a probability of at least
    `1 - alpha`; with slices of the data, of each slice. A category with too few samples has +inf.

    >>> conformal_thresholds(torch.tensor([0.1, 0.2, 0.9]), torch.tensor([0, 0, 1]), 2, alpha=0.5)
    tensor([0.2000, 0.9000])
    """
    return torch.stack([conformal_threshold(scores[category == each], alpha) for each in range(categories)])


def _mass_above_and_rank(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Of each label, the sum of strictly larger probabilities, and how many are at least as large; `[..., K]` each."""
    ordered, order = probabilities.sort(dim=-1, descending=True)
    classes = ordered.shape[-1]
    sums = torch.nn.functional.pad(ordered.cumsum(-1)[..., :-1], (1, 0))
    position = torch.arange(classes, device=ordered.device).expand(ordered.shape)
    differs = ordered[..., 1:] != ordered[..., :-1]
    first = _running_max(torch.nn.functional.pad(differs, (1, 0), value=True) * position)
    ends = torch.where(torch.nn.functional.pad(differs, (0, 1), value=True), position, classes)
    last = classes - _running_max((classes - ends).flip(-1)).flip(-1)
    place = torch.empty_like(order).scatter_(-1, order, position)
    return sums.gather(-1, first).gather(-1, place), (last + 1).gather(-1, place)


def _running_max(values: Tensor) -> Tensor:
    """The largest so far along the last axis, of values from 0; in doubling steps, which ONNX has and `cummax` not."""
    step = 1
    while step < values.shape[-1]:
        values = torch.maximum(values, torch.nn.functional.pad(values[..., :-step], (step, 0)))
        step *= 2
    return values


class Selection(NamedTuple):
    """What was accepted of the samples that a threshold was tested on.

    Attributes:
        threshold: of the confidence; +inf accepts nothing.
        accepted: samples with at least this confidence.
        errors: wrong ones among them.
    """

    threshold: float
    accepted: int
    errors: int


def binomial_log_p_value(errors: Tensor, trials: Tensor, risk: float) -> Tensor:
    """Log of `P(Bin(m, risk) <= e)` for e errors in m trials, `[...]` each: small where the error rate is below `risk`.

    It is a p-value of the hypothesis that the rate is at least `risk`: under it, a value of at most `log(delta)` has a
    probability of at most delta, for any m.

    >>> binomial_log_p_value(torch.tensor([0, 1]), torch.tensor([2, 2]), 0.5).exp()
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    require_risk(risk)
    pairs = zip(errors.reshape(-1).tolist(), trials.reshape(-1).tolist(), strict=True)
    return torch.tensor([_log_cdf(e, m, risk) for e, m in pairs], dtype=torch.float64).reshape(errors.shape)


def _log_cdf(errors: int, trials: int, risk: float) -> float:
    if errors >= trials or risk == 0:
        return 0.0
    k = torch.arange(errors + 1, dtype=torch.float64)
    ways = math.lgamma(trials + 1) - torch.lgamma(k + 1) - torch.lgamma(trials - k + 1)
    return min(0.0, float(torch.logsumexp(ways + k * math.log(risk) + (trials - k) * math.log1p(-risk), 0)))


def require_risk(risk: float) -> None:
    """Refuse what is no share of errors that one could ask for."""
    if not 0 <= risk < 1:
        raise ValueError(f"risk must be at least 0 and below 1, got {risk}")


def candidate_thresholds(confidence: Tensor, correct: Tensor, *, risk: float, most: int = 200) -> Tensor:
    """Thresholds to test on other samples, `[G]` descending: from the one with the strongest evidence downwards.

    The first is the confidence with the smallest `binomial_log_p_value` of the samples at or above it; the others are
    the confidences below it, thinned evenly to at most `most`. Labels may be used here because `selective_threshold`
    tests on samples that had no part in it.

    Args:
        confidence: `[n]`, larger where the model is surer.
        correct: `[n]` bool.
        risk: largest share of errors among what is accepted.
        most: of thresholds.
    """
    values: Tensor = torch.unique(confidence).flip(0)
    if len(values) > most:
        values = values[torch.linspace(0, len(values) - 1, most, dtype=torch.float64).round().long()]
    if not len(values):
        return values
    accepted, errors = _counts(confidence, correct, values)
    return values[int(binomial_log_p_value(errors, accepted, risk).argmin()) :]


def selective_threshold(
    confidence: Tensor, correct: Tensor, candidates: Tensor, *, risk: float, delta: float
) -> Selection:
    """The lowest threshold above which the share of errors is at most `risk`, with probability `1 - delta`.

    Learn then test, with fixed-sequence testing. Each candidate t stands for the hypothesis that
    `P(wrong | confidence >= t) >= risk`. Of independent samples, given how many are accepted, the number of wrong ones
    among them is binomial, so `binomial_log_p_value` tests it exactly. The candidates are tested in their order, each
    at the level delta, up to the first that is not rejected; the last rejected one is the threshold. For it to be too
    risky, the first candidate of the sequence that is must have been rejected, and the probability of that is at most
    delta, however many candidates there are and whether or not the risk falls as the confidence rises.

    For this the candidates must not depend on these samples, neither on their labels nor on their confidences: take
    them from others, with `candidate_thresholds`. Where the first is not rejected, nothing is accepted: +inf.

    Reference: A. Angelopoulos, S. Bates, E. Candès, M. I. Jordan, L. Lei, "Learn then test: calibrating predictive
    algorithms to achieve risk control", Annals of Applied Statistics 19 (2025).

    Args:
        confidence: `[n]`.
        correct: `[n]` bool.
        candidates: `[G]`, descending.
        risk: largest share of errors among what is accepted; 0 cannot be shown by any number of samples.
        delta: largest probability, over calibration samples, that the risk is larger.

    >>> confidence, correct = torch.linspace(0, 1, 101), torch.linspace(0, 1, 101) > 0.2
    >>> selective_threshold(confidence, correct, torch.tensor([0.5, 0.25, 0.1]), risk=0.1, delta=0.1)
    Selection(threshold=0.25, accepted=76, errors=0)
    """
    require_risk(risk)
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")
    accepted, errors = _counts(confidence, correct, candidates)
    chosen = Selection(math.inf, 0, 0)
    for threshold, m, e in zip(candidates.tolist(), accepted.tolist(), errors.tolist(), strict=True):
        if _log_cdf(e, m, risk) > math.log(delta):
            break
        chosen = Selection(threshold, m, e)
    return chosen


def _counts(confidence: Tensor, correct: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Samples at or above each threshold, and wrong ones among them, `[G]` each."""
    ordered, order = confidence.sort()
    wrong = torch.nn.functional.pad((~correct[order]).long().cumsum(0), (1, 0))
    below = torch.searchsorted(ordered, thresholds.to(ordered.dtype))
    return len(ordered) - below, wrong[-1] - wrong[below]
