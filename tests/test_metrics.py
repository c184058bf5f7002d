"""Every measure against an independent one: 500 random cases each here, 10,000 with `pytest -m long`."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import sklearn.metrics
import torch
import torchmetrics.functional.classification as tm
from hypothesis import given
from hypothesis import strategies as st

import oracles
from counterpoise.functional import calibration, detection
from counterpoise.functional.classwise import classwise_sums
from counterpoise.functional.confidence import LOGIT_SCORES, PROBABILITY_SCORES, confidence_score
from counterpoise.functional.detection import RankCounts, rank_counts
from counterpoise.functional.histogram import coarsen_to_equal_mass, exact_cells, score_cells
from counterpoise.functional.smooth import cosine_moments, smooth_calibration_error
from counterpoise.metrics import Performance, Stream

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}


@dataclass(frozen=True)
class Case:
    """Random predictions; confidences are rounded in some cases, so that ties and bin edges occur."""

    probabilities: torch.Tensor
    labels: torch.Tensor
    bins: int

    @property
    def numpy(self) -> tuple[np.ndarray, np.ndarray]:
        return self.probabilities.numpy(), self.labels.numpy()

    @property
    def score(self) -> torch.Tensor:
        return self.probabilities.amax(-1)

    @property
    def correct(self) -> torch.Tensor:
        return self.probabilities.argmax(-1) == self.labels


def random_case(seed: int, dtype: torch.dtype) -> Case:
    rng = np.random.default_rng(seed)
    samples, classes, bins = int(rng.integers(4, 60)), int(rng.integers(2, 12)), int(rng.integers(1, 21))
    kind = rng.integers(4)
    logits = rng.normal(size=(samples, classes)) * rng.choice([0.1, 1.0, 3.0, 10.0])
    if kind == 1:
        logits = np.round(logits)
    elif kind == 2:
        logits[: samples // 2] = logits[0]
    elif kind == 3:
        logits[rng.random(samples) < 0.3] = 0.0
    p = torch.softmax(torch.tensor(logits), -1).to(dtype)
    labels = np.where(rng.random(samples) < 0.5, p.numpy().argmax(1), rng.integers(classes, size=samples))
    # At least one right and one wrong prediction, so that every ranking measure is defined.
    labels[0] = p[0].argmax()
    labels[1] = (int(p[1].argmax()) + 1) % classes
    return Case(p, torch.tensor(labels), bins)


def ours(function: Callable[[RankCounts], torch.Tensor]) -> Callable[[Case], float]:
    return lambda case: float(function(rank_counts(case.score, case.correct)))


def theirs(function: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[Case], float]:
    return lambda case: function(case.score.double().numpy(), case.correct.numpy())


def performance(key: str) -> Callable[[Case], float]:
    def value(case: Case) -> float:
        stream = Stream(Performance())
        stream.update(probabilities=case.probabilities, labels=case.labels)
        return stream.compute()[key].value

    return value


def smooth(case: Case) -> float:
    moments = cosine_moments(case.score, case.correct.double() - case.score.double())
    return float(smooth_calibration_error(moments, len(case.labels)).value)


def netcal_ece(case: Case) -> float:
    """As top-label confidences of a binary problem; netcal's own edges are half-open on the other side."""
    from netcal.metrics import ECE  # takes seconds

    return ECE(bins=case.bins).measure(case.score.double().numpy(), case.correct.numpy().astype(int))


def one_hot(case: Case) -> np.ndarray:
    return np.eye(case.probabilities.shape[1])[case.labels.numpy()]


def top(function: Callable[[calibration.BinSums], torch.Tensor]) -> Callable[[Case], float]:
    return lambda c: float(function(calibration.top_label_sums(c.probabilities, c.labels, bins=c.bins)))


def by_class(function: Callable[[calibration.BinSums], torch.Tensor]) -> Callable[[Case], float]:
    return lambda c: float(function(classwise_sums(c.probabilities, c.labels, bins=c.bins)))


def equal_mass(case: Case) -> float:
    sums, _ = coarsen_to_equal_mass(exact_cells(case.score, case.correct), bins=case.bins)
    return float(calibration.expected_calibration_error(sums))


COMPARISONS: dict[str, tuple[Callable[[Case], float], Callable[[Case], float]]] = {
    "accuracy, scikit-learn": (
        performance("accuracy"),
        lambda c: sklearn.metrics.accuracy_score(c.labels, c.probabilities.argmax(-1)),
    ),
    "nll, NumPy": (
        performance("nll"),
        lambda c: oracles.cross_entropy(c.probabilities.double().numpy(), c.labels.numpy()),
    ),
    "brier, NumPy": (
        performance("brier"),
        lambda c: ((c.probabilities.double().numpy() - one_hot(c)) ** 2).sum(1).mean(),
    ),
    "brier calibration, NumPy": (
        by_class(calibration.brier_calibration),
        lambda c: oracles.brier_calibration(*c.numpy, c.bins),
    ),
    "ece, NumPy": (top(calibration.expected_calibration_error), lambda c: oracles.ece(*c.numpy, c.bins)),
    "mce, NumPy": (top(calibration.maximum_calibration_error), lambda c: oracles.mce(*c.numpy, c.bins)),
    "mean gap, NumPy": (
        top(calibration.mean_gap),
        lambda c: c.score.double().numpy().mean() - c.correct.numpy().mean(),
    ),
    "classwise ece, NumPy": (
        by_class(calibration.classwise_calibration_error),
        lambda c: oracles.classwise_ece(*c.numpy, c.bins),
    ),
    "equal-mass ece, NumPy": (equal_mass, lambda c: oracles.equal_mass_ece(*c.numpy, c.bins)),
    "smooth ece, NumPy": (smooth, lambda c: oracles.smooth_ece(*c.numpy)),
    "auroc, scikit-learn": (ours(detection.auroc), theirs(lambda s, t: sklearn.metrics.roc_auc_score(t, s))),
    "aupr of positives, scikit-learn": (
        ours(detection.average_precision),
        theirs(lambda s, t: sklearn.metrics.average_precision_score(t, s)),
    ),
    "aupr of negatives, scikit-learn": (
        ours(detection.average_precision_of_negatives),
        theirs(lambda s, t: sklearn.metrics.average_precision_score(~t, -s)),
    ),
    "fpr at tpr, NumPy": (ours(detection.fpr_at_tpr), theirs(oracles.fpr_at_tpr)),
    "minimum detection error, NumPy": (
        ours(detection.minimum_detection_error),
        theirs(oracles.minimum_detection_error),
    ),
    "detection error at tpr, NumPy": (ours(detection.detection_error_at_tpr), theirs(oracles.detection_error_at_tpr)),
    "aurc, NumPy": (ours(detection.aurc), theirs(oracles.aurc)),
    "excess aurc, NumPy": (ours(detection.excess_aurc), theirs(oracles.excess_aurc)),
}


def compare(name: str, dtype: torch.dtype, seeds: range) -> None:
    measured, expected = COMPARISONS[name]
    for seed in seeds:
        case = random_case(seed, dtype)
        one, other = measured(case), expected(case)
        assert abs(one - other) <= TOLERANCE[dtype] * max(1.0, abs(other)), f"seed {seed}: {one} against {other}"


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", COMPARISONS)
def test_against_an_independent_definition(name, dtype):
    compare(name, dtype, range(100))


@pytest.mark.long
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", COMPARISONS)
def test_against_an_independent_definition_long(name, dtype):
    compare(name, dtype, range(1000, 11_000))


def generic_case(seed: int) -> Case:
    """Continuous confidences away from bin edges, where libraries that define edges otherwise must agree."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(2 * torch.randn(200, 5, generator=generator, dtype=torch.float64), -1)
    return Case(p, torch.randint(5, (200,), generator=generator), 15)


@given(seed=st.integers(0, 2**31))
def test_ece_equals_netcal_and_torchmetrics_away_from_edges(seed):
    case = generic_case(seed)
    value = top(calibration.expected_calibration_error)(case)
    assert value == pytest.approx(netcal_ece(case), abs=1e-10)
    for norm, function in {
        "l1": calibration.expected_calibration_error,
        "max": calibration.maximum_calibration_error,
    }.items():
        expected = tm.multiclass_calibration_error(case.probabilities, case.labels, 5, n_bins=15, norm=norm)
        assert top(function)(case) == pytest.approx(expected.item(), abs=1e-6)


@given(seed=st.integers(0, 2**31))
def test_classwise_ece_and_fpr95_equal_torch_uncertainty(seed):
    from torch_uncertainty.metrics import FPR95, ClasswiseCalibrationError  # takes seconds

    case = generic_case(seed)
    classwise = ClasswiseCalibrationError(num_classes=5, num_bins=15)
    classwise.update(case.probabilities, case.labels)
    assert by_class(calibration.classwise_calibration_error)(case) == pytest.approx(
        classwise.compute().item(), abs=1e-6
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces that it stores everything
        fpr95 = FPR95(pos_label=1)
    fpr95.update(case.score, case.correct.long())
    assert ours(detection.fpr_at_tpr)(case) == pytest.approx(fpr95.compute().item(), abs=1e-6)


@given(seed=st.integers(0, 2**31))
def test_smooth_ece_equals_relplot_to_its_resolution(seed):
    """relplot stops its search for the bandwidth after ten halvings."""
    case = generic_case(seed)
    import relplot  # takes a second

    expected = relplot.smECE(case.score.numpy(), case.correct.double().numpy())
    assert smooth(case) == pytest.approx(expected, abs=2e-3)


@given(seed=st.integers(0, 2**31))
def test_aurc_equals_torch_uncertainty_without_ties(seed):
    """torch-uncertainty integrates by trapezoids from the first sample on and divides by what that covers."""
    from torch_uncertainty.metrics import AURC  # takes seconds

    case = generic_case(seed)
    metric = AURC()
    metric.update(case.probabilities, case.labels)
    wrong = (~case.correct).double()[case.score.argsort(descending=True)]
    risk = wrong.cumsum(0) / torch.arange(1, len(wrong) + 1)
    trapezoids = torch.trapezoid(risk, dx=1 / len(wrong)) / (1 - 1 / len(wrong))
    assert metric.compute().item() == pytest.approx(trapezoids.item(), abs=1e-6)
    assert ours(detection.aurc)(case) == pytest.approx(risk.mean().item(), abs=1e-12)


class TestWhereLibrariesDiffer:
    """The definition wins; these pin what others return, so that a change on their side is noticed."""

    def test_torchmetrics_gives_confidence_1_a_bin_of_its_own(self):
        p, y = torch.tensor([[0.95, 0.05], [1.0, 0.0]]), torch.tensor([0, 1])
        assert top(calibration.expected_calibration_error)(Case(p, y, 15)) == pytest.approx(0.475)
        assert tm.multiclass_calibration_error(p, y, 2, n_bins=15, norm="l1").item() == pytest.approx(0.525)

    def test_torchmetrics_takes_logits_inside_0_and_1_for_probabilities(self):
        logits, y = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1])
        guessed = tm.multiclass_calibration_error(logits, y, 2, n_bins=15, norm="l1").item()
        definition = top(calibration.expected_calibration_error)(Case(torch.softmax(logits, -1), y, 15))
        assert guessed == pytest.approx(0.15)
        assert definition == pytest.approx(0.333, abs=1e-3)


@pytest.mark.parametrize(("confidence", "bin_"), [(0.0, 0), (1.0, 14), (1 / 15, 0), (1 / 3, 4), (0.2, 2), (0.6, 8)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_bin_edges_are_right_closed_in_every_dtype(confidence, bin_, dtype):
    assert calibration.bin_index(torch.tensor([confidence], dtype=dtype), 15).item() == bin_


@given(bins=st.integers(1, 1000), dtype=st.sampled_from(list(TOLERANCE)))
def test_every_edge_belongs_to_the_bin_below(bins, dtype):
    edges = calibration.bin_edges(bins, dtype=dtype)
    above = torch.nextafter(edges[1:-1], torch.tensor(2.0, dtype=dtype))
    assert torch.equal(calibration.bin_index(edges[1:], bins), torch.arange(bins))
    assert torch.equal(calibration.bin_index(above, bins), torch.arange(1, bins))


@given(seed=st.integers(0, 2**31), bins=st.integers(1, 30), classes=st.integers(2, 40))
def test_classwise_sums_equal_the_dense_form(seed, bins, classes):
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(4 * torch.randn(50, classes, generator=generator, dtype=torch.float64), -1)
    y = torch.randint(classes, (50,), generator=generator)
    sparse = classwise_sums(p, y, bins=bins)
    index = calibration.bin_index(p, bins) + bins * torch.arange(classes)
    hits = torch.nn.functional.one_hot(y, classes).bool()
    dense = calibration.sums_by_index(index.flatten(), p.flatten(), hits.flatten(), classes * bins)
    for name in ("count", "hits"):
        assert torch.equal(getattr(sparse, name).flatten(), getattr(dense, name))
    for name in ("confidence", "confidence_squared", "confidence_hits"):
        torch.testing.assert_close(getattr(sparse, name).flatten(), getattr(dense, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOGIT_SCORES)
def test_confidence_scores(name):
    logits = 2 * torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = torch.softmax(logits, -1).numpy()
    ordered = np.sort(p, axis=1)
    expected = {
        "max_softmax": p.max(1),
        "negative_entropy": (p * np.log(p)).sum(1),
        "margin": ordered[:, -1] - ordered[:, -2],
        "max_logit": logits.numpy().max(1),
        "energy": np.log(np.exp(logits.numpy()).sum(1)),
    }[name]
    np.testing.assert_allclose(confidence_score(name, logits=logits).numpy(), expected, rtol=1e-12)
    if name in PROBABILITY_SCORES:
        np.testing.assert_allclose(confidence_score(name, probabilities=torch.tensor(p)).numpy(), expected, rtol=1e-12)
    else:
        with pytest.raises(ValueError, match="needs logits"):
            confidence_score(name, probabilities=torch.tensor(p))


def test_confidence_scores_from_bfloat16_do_not_tie():
    """In bfloat16 nearly a quarter of the softmax values of such logits is exactly 1."""
    logits = 3 * torch.randn(2000, 10, generator=torch.Generator().manual_seed(0))
    logits[:, 0] += 8
    logits = logits.to(torch.bfloat16)
    assert (torch.softmax(logits, -1).amax(-1) == 1).float().mean() > 0.1
    assert (confidence_score("max_softmax", logits=logits) == 1).float().mean() < 0.01


@given(seed=st.integers(0, 2**31))
def test_ranking_does_not_depend_on_the_order_of_samples(seed):
    case = random_case(seed, torch.float64)
    order = torch.randperm(len(case.labels), generator=torch.Generator().manual_seed(seed))
    for function in (detection.auroc, detection.average_precision, detection.aurc, detection.fpr_at_tpr):
        one = function(rank_counts(case.score, case.correct))
        other = function(rank_counts(case.score[order], case.correct[order]))
        assert one == other


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=50))
def test_cells_keep_the_order_of_scores(values):
    scores = torch.tensor(sorted(values), dtype=torch.float32)
    assert (score_cells(scores).diff() >= 0).all()


def test_tpr_of_exactly_95_percent_counts():
    """19 of 20 positives: 19/20 and 0.95 are one number, although 0.95 * 20 need not be 19."""
    scores = torch.arange(40, 0, -1).double()
    positive = torch.tensor([True] * 19 + [False] * 10 + [True] + [False] * 10)
    assert detection.fpr_at_tpr(rank_counts(scores, positive)) == 0
    assert math.isclose(detection.detection_error_at_tpr(rank_counts(scores, positive)), 0.025)


def test_the_brier_score_of_a_sure_model_is_not_a_rounding_error():
    """In float32, the sum of squares less 2 p_y - 1 had lost half of it."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(200, 5)
    logits[:, 0] = 9 + 7 * torch.rand(200, generator=generator)
    probabilities = torch.softmax(logits, -1)
    found = Stream(Performance())
    found.update(probabilities=probabilities, labels=torch.zeros(200, dtype=torch.int64))
    target = torch.nn.functional.one_hot(torch.zeros(200, dtype=torch.int64), 5)
    expected = ((probabilities.double() - target) ** 2).sum(-1).mean().item()
    assert found.compute()["brier"].value == pytest.approx(expected, rel=1e-5)
