"""Intervals: closed forms against SciPy, and coverage by simulation of what `benchmarks.coverage` leaves out."""

import math

import pytest
import torch
from scipy import stats

from counterpoise import evaluate
from counterpoise.functional.calibration import BinSums, bin_index, noise_floor, sums_by_index
from counterpoise.functional.classwise import classwise_sums
from counterpoise.functional.detection import (
    RankCounts,
    average_precision,
    average_precision_of_negatives,
    fpr_at_tpr,
    minimum_detection_error,
    rank_counts,
)
from counterpoise.functional.intervals import (
    bootstrap_intervals,
    brier_calibration_interval,
    calibration_error_interval,
    calibration_error_interval_by_class,
    delong_interval,
    mean_gap_interval,
    mean_interval,
    normal_quantile,
    wilson_interval,
)
from counterpoise.metrics import Key, Stream, TopLabelCalibration
from counterpoise.metrics.ranking import ranking_estimates


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_normal_quantile(level):
    assert normal_quantile(level) == pytest.approx(stats.norm.ppf(0.5 + level / 2), abs=1e-12)


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (3, 10), (10, 10), (950, 1000)])
def test_wilson_equals_scipy(hits, count):
    expected = stats.binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert wilson_interval(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def powers(values):
    return [float((values**power).sum()) for power in (1, 2, 3)]


def test_the_interval_of_an_unskewed_mean_equals_scipy():
    half = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = 3 + torch.cat([half, -half])
    expected = stats.norm.interval(0.95, loc=3, scale=stats.sem(values.numpy()))
    assert mean_interval(*powers(values), 200) == pytest.approx(expected, rel=1e-9)


def test_the_interval_of_a_skewed_mean_inverts_halls_transformation():
    """Of what lies above the mean; below, the normal limit is further out."""
    values = torch.tensor(stats.expon.rvs(size=300, random_state=0))
    mean, error = float(values.mean()), float(stats.sem(values.numpy()))
    low, high = mean_interval(*powers(values), 300)
    skewness, t = stats.skew(values.numpy()) / math.sqrt(300), (mean - high) / error
    transformed = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6
    assert transformed == pytest.approx(-1.959963984540054, rel=1e-9)
    assert low == pytest.approx(mean - 1.959963984540054 * error, rel=1e-9)
    mirrored = mean_interval(*powers(-values), 300)
    assert mirrored == pytest.approx((-high, -low), rel=1e-9)


def test_the_interval_of_values_that_hardly_differ_is_as_narrow():
    values = 2.3 + 1e-9 * torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = mean_interval(*powers(values), 1000)
    assert low == pytest.approx(2.3, abs=1e-7)
    assert high == pytest.approx(2.3, abs=1e-7)
    assert mean_interval(*powers(torch.full((4,), 0.5)), 4) == (0.5, 0.5)


@pytest.mark.parametrize("largest", [2.0, 20.0])
def test_the_interval_of_a_mean_holds_where_few_values_are_large(largest):
    """As NLL and Brier score at 99.7% accuracy on 2,000 samples; by the normal interval, 0.90 and less."""
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(600, 2_000, generator=generator, dtype=torch.float64) < 0.003
    size = largest * torch.rand(600, 2_000, generator=generator, dtype=torch.float64)
    values = torch.where(wrong, size, 0.001)
    truth = 0.003 * largest / 2 + 0.997 * 0.001
    inside = [low <= truth <= high for low, high in (mean_interval(*powers(row), 2_000) for row in values)]
    assert sum(inside) / 600 >= 0.935


@pytest.mark.parametrize(("count", "p"), [(1, 0.3), (3, 0.95), (7, 0.5), (40, 0.02), (1000, 0.7)])
def test_noise_floor_of_one_bin_is_the_mean_absolute_deviation_of_a_binomial(count, p):
    confidence = torch.full((count,), p, dtype=torch.float64)
    sums = sums_by_index(torch.zeros(count, dtype=torch.int64), confidence, confidence > 1, 1)
    binomial = stats.binom(count, p)
    expected = sum(binomial.pmf(k) * abs(k - count * p) for k in range(count + 1)) / count
    assert noise_floor(sums).item() == pytest.approx(expected, rel=1e-9)


def test_one_value_has_no_interval():
    assert all(math.isnan(limit) for limit in mean_interval(0.5, 0.25, 0.125, 1))


def test_the_interval_of_the_mean_gap_holds_wilsons_where_confidence_says_nothing():
    """All confidences are 0.9, so that `hit - p` varies as the hit does."""
    p, hits = torch.full((400,), 0.9, dtype=torch.float64), torch.arange(400) < 300
    low, high = mean_gap_interval(sums_by_index(bin_index(p, 15), p, hits, 15))
    of_accuracy, half = wilson_interval(300, 400), 1.959964 * math.sqrt(0.75 * 0.25 / 400)
    assert (low, high) == pytest.approx((0.15 - half, 0.9 - of_accuracy.low), rel=1e-6)


@pytest.mark.parametrize("hit", [True, False])
def test_the_interval_of_the_mean_gap_ends_where_no_gap_can_be_larger(hit):
    p = torch.tensor([0.6], dtype=torch.float64)
    low, high = mean_gap_interval(sums_by_index(bin_index(p, 15), p, torch.tensor([hit]), 15))
    assert -1 <= low <= 0.6 - hit <= high <= 1


@pytest.mark.slow
def test_a_calibrated_model_without_errors_is_not_called_underconfident():
    """With an error in 200, most samples of 200 have one or none; their spread says nothing of the error rate."""
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.tensor([0.995, 0.005], dtype=torch.float64).expand(200, 2)
    wrong = 0
    for _ in range(200):
        labels = (torch.rand(200, generator=generator) < 0.005).long()
        gap = Stream(TopLabelCalibration())
        gap.update(probabilities=probabilities, labels=labels)
        estimate = gap.compute()[Key.MEAN_GAP]
        wrong += not estimate.low <= 0 <= estimate.high
    assert wrong <= 20


@pytest.mark.parametrize("separation", [1.0, 2.5])
@pytest.mark.parametrize("negatives", [1, 2, 5, 10, 30])
def test_the_interval_of_auroc_holds_with_few_negatives(negatives, separation):
    """By DeLong's variance alone, one negative in a thousand had it covered one time in five."""
    generator = torch.Generator().manual_seed(negatives)
    area = stats.norm.cdf(separation / math.sqrt(2))
    inside = 0
    for _ in range(300):
        scores = torch.randn(200 + negatives, generator=generator)
        positive = torch.arange(len(scores)) < 200
        low, high = delong_interval(rank_counts(scores + separation * positive, positive))
        inside += low <= area <= high
    assert inside / 300 >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "samples", "temperature"), [(100, 1000, 1.5), (200, 2000, 1.15)])
def test_the_interval_of_briers_calibration_holds_with_many_classes(classes, samples, temperature):
    """Where most bins hold a few samples; the variance that fits a full bin had it never covered."""
    generator = torch.Generator().manual_seed(classes)
    truth = brier_calibration_of_true_probabilities(classes, temperature, generator)
    inside = 0
    for _ in range(20):
        logits = 3 * torch.randn(samples, classes, generator=generator)
        labels = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)[:, 0]
        low, high = brier_calibration_interval(classwise_sums(torch.softmax(logits, -1), labels, bins=15))
        inside += low <= truth <= high
    assert inside >= 18


def brier_calibration_of_true_probabilities(classes, temperature, generator):
    """Its population value, where labels follow the softmax of the logits over a temperature."""
    gap, mass, draws = torch.zeros(15, dtype=torch.float64), torch.zeros(15, dtype=torch.float64), 10_000
    for _ in range(10):
        logits = 3 * torch.randn(draws // 10, classes, generator=generator)
        p, q = torch.softmax(logits, -1).flatten().double(), torch.softmax(logits / temperature, -1).flatten().double()
        gap.index_add_(0, bin_index(p, 15), q - p)
        mass.index_add_(0, bin_index(p, 15), torch.ones_like(p))
    return float((gap**2 / mass.clamp(min=1)).sum()) / draws


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "wrong"), [(500, 0.01), (500, 0.02), (60, 0.2)])
def test_the_interval_of_the_detection_error_holds_with_few_errors(samples, wrong):
    """By its resamples alone, 1% of 500 had it covered every other time."""
    generator = torch.Generator().manual_seed(samples)

    def ranking(count):
        positive = torch.rand(count, generator=generator) >= wrong
        positive[0] = False
        return rank_counts(torch.randn(count, generator=generator, dtype=torch.float64) + 2 * positive, positive)

    truth, measures = stats.norm.cdf(-1.0), {"error": minimum_detection_error}
    inside = 0
    for _ in range(60):
        low, high = bootstrap_intervals(ranking(samples), measures, stratified=False, minima=["error"])["error"]
        assert high <= 0.5
        inside += low <= truth <= high
    assert inside >= 54


def test_the_default_device_does_not_matter():
    """Rankings are on the host; on a GPU's default device their resamples were not."""
    positive = torch.arange(60) % 7 > 0
    counts = rank_counts(torch.arange(60.0) % 11, positive)
    measures = {"error": minimum_detection_error, "fpr": fpr_at_tpr}
    expected = bootstrap_intervals(counts, measures, stratified=True, minima=["error"])
    with torch.device("meta"):
        assert bootstrap_intervals(counts, measures, stratified=True, minima=["error"]) == expected


def test_few_samples_told_apart_without_an_error_leave_room():
    counts = RankCounts(torch.tensor([20, 0]), torch.tensor([0, 5]))
    measures = {"fpr": fpr_at_tpr, "aupr": average_precision, "error": minimum_detection_error}
    found = bootstrap_intervals(counts, measures, stratified=True, minima=["error"])
    assert found["fpr"] == pytest.approx((0, -math.log(0.025) / 5))
    assert found["error"] == (0, 0.5)  # above which there is none
    assert found["aupr"] == pytest.approx((1 + math.log(0.025) / 5, 1))


@pytest.mark.parametrize(("positives", "negatives"), [(200, 100_000), (100_000, 200)])
def test_a_rare_side_is_not_merged_into_one_group(positives, negatives):
    generator = torch.Generator().manual_seed(0)
    positive = torch.arange(positives + negatives) < positives
    counts = rank_counts(torch.randn(len(positive), generator=generator) + 3 * positive, positive)
    measure = average_precision if positives < negatives else average_precision_of_negatives
    low, high = bootstrap_intervals(counts, {"aupr": measure}, stratified=True)["aupr"]
    assert low < float(measure(counts)) < high


def test_delong_equals_its_definition():
    """The variance of the placements of each class, one by one, and of one more that is as far off as can be."""
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(30, generator=generator) + 1, torch.randn(20, generator=generator)
    wins = (inside[:, None] > outside[None, :]).double()
    area = wins.mean().item()
    spread = [((wins.mean(axis) - area) ** 2).sum().item() + area * (1 - area) for axis in (1, 0)]
    variance = spread[0] / 30**2 + spread[1] / 20**2
    half = 1.959963984540054 * math.sqrt(variance) / (area * (1 - area))
    expected = [1 / (1 + math.exp(-(math.log(area / (1 - area)) + sign * half))) for sign in (-1, 1)]
    positive = (torch.argsort(torch.cat([inside, outside]), descending=True) < 30).long()
    assert delong_interval(RankCounts(positive, 1 - positive)) == pytest.approx(expected, abs=1e-12)


def test_no_error_at_all_leaves_room_for_some():
    """1,000 right predictions at confidence 1 - 1e-6: the error rate may still be 0.38%."""
    confidence = torch.full((1000,), 1 - 1e-6, dtype=torch.float64)
    sums = sums_by_index(torch.zeros(1000, dtype=torch.int64), confidence, confidence > 0, 1)
    low, high = calibration_error_interval(sums)
    assert low < 1e-5
    assert high == pytest.approx(0.0038, abs=1e-4)


def test_interval_does_not_depend_on_empty_bins():
    generator = torch.Generator().manual_seed(0)
    p = 0.5 + 0.5 * torch.rand(500, generator=generator, dtype=torch.float64)
    hits = torch.rand(500, generator=generator, dtype=torch.float64) < p
    index = (p * 10).long()
    narrow, wide = (sums_by_index(index, p, hits, size) for size in (10, 40))
    assert isinstance(narrow, BinSums)
    assert calibration_error_interval(narrow) == pytest.approx(calibration_error_interval(wide), abs=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("temperature", [1.0, 1.4])
def test_every_interval_covers(temperature):
    """300 samples of 1,000 against a population of a million; three standard errors of such a coverage are 4 points."""
    generator = torch.Generator().manual_seed(0)

    def draw(samples, ood_samples):
        logits = 2.5 * torch.randn(samples, 5, generator=generator, dtype=torch.float64)
        real = torch.softmax(logits / temperature, -1)
        labels = torch.multinomial(real, 1, generator=generator).squeeze(-1)
        ood = 1.5 * torch.randn(ood_samples, 5, generator=generator, dtype=torch.float64)
        return evaluate(logits=logits, labels=labels, ood_logits=ood)

    def estimates(scores):
        right = {("", key): e for key, e in (scores.estimates | scores.misclassification.estimates).items()}
        return right | {("ood", key): e for key, e in scores.ood["ood"].estimates.items()}

    population = {name: estimate.value for name, estimate in estimates(draw(1_000_000, 300_000)).items()}
    # The plug-in errors of the population are their noise floors where it is calibrated.
    population["", Key.ECE] = population["", Key.DEBIASED_ECE]
    inside = dict.fromkeys(population, 0)
    for _ in range(300):
        for name, estimate in estimates(draw(1_000, 300)).items():
            inside[name] += estimate.low <= population[name] <= estimate.high
    short = {name: count / 300 for name, count in inside.items() if count / 300 < 0.95 - 0.04}
    assert not short


CONFIDENT = {
    "hardly an error": lambda u: 1 - 0.01 * u,
    "sigmoid of a normal": lambda u: torch.sigmoid(6 + 1.5 * torch.special.ndtri(u)),
}


@pytest.mark.parametrize("samples", [100, 200, 500])
@pytest.mark.parametrize("kind", CONFIDENT)
def test_an_accurate_calibrated_model_is_not_called_miscalibrated(kind, samples):
    """Where no error has been seen the residuals do not vary: their gap is not certain for that."""
    generator = torch.Generator().manual_seed(samples)
    lows = []
    for _ in range(100):
        p = CONFIDENT[kind](torch.rand(samples, generator=generator, dtype=torch.float64))
        hits = torch.rand(samples, generator=generator, dtype=torch.float64) < p
        lows.append(calibration_error_interval(sums_by_index(bin_index(p, 15), p, hits, 15)).low)
    assert sum(low == 0 for low in lows) >= 93


def test_of_many_classes_without_a_hit_the_error_is_not_certain():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.softmax(3 * torch.randn(4_000, 400, generator=generator), -1)
    labels = torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)
    sums = classwise_sums(probabilities, labels, bins=15)
    assert calibration_error_interval(sums).low == 0
    low, _ = calibration_error_interval_by_class(sums)
    assert (low > 0).float().mean() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "samples", "wrong", "repetitions"), [(2, 1_000, 5, 200), (10, 2_000, 7, 200), (100, 10_000, 21, 40)]
)
def test_the_classwise_error_of_a_saturated_model_is_covered(classes, samples, wrong, repetitions):
    """Every class has an error or none, in bins of its own: one by one they look like noise, and 0.65 was covered."""
    generator = torch.Generator().manual_seed(classes)
    truth = 2 * wrong / samples / classes  # too few in the bin of the predicted class, too many in the label's
    inside, widest = 0, 0.0
    for _ in range(repetitions):
        labels = torch.randint(classes, (samples,), generator=generator)
        off = torch.rand(samples, generator=generator) < wrong / samples
        prediction = torch.where(off, (labels + 1) % classes, labels)
        low, high = calibration_error_interval(
            classwise_sums(torch.nn.functional.one_hot(prediction, classes).double(), labels)
        )
        inside += low <= truth <= high
        widest = max(widest, high)
    assert inside / repetitions >= 0.935
    assert widest < 5 * truth


@pytest.mark.slow
@pytest.mark.parametrize(("accuracy", "samples"), [(0.995, 200), pytest.param(0.997, 500, marks=pytest.mark.long)])
def test_a_saturated_model_without_an_error_may_still_be_overconfident(accuracy, samples, monkeypatch):
    """All confidences are 0.9999: mean gap and smooth ECE hold the truth although most samples show no error."""
    monkeypatch.setattr("counterpoise.functional.intervals.BOOTSTRAP_RESAMPLES", 2)  # of ranks, which are not looked at
    generator = torch.Generator().manual_seed(0)
    covered = dict.fromkeys((Key.MEAN_GAP, Key.SMOOTH_ECE), 0)
    for _ in range(60):
        hits = torch.rand(samples, generator=generator) < accuracy
        p = torch.full((samples,), 0.9999, dtype=torch.float64)
        scores = evaluate(probabilities=torch.stack([p, 1 - p], -1), labels=(~hits).long())
        for key in covered:
            covered[key] += scores[key].low <= 0.9999 - accuracy <= scores[key].high
    assert min(covered.values()) >= 55


@pytest.mark.slow
@pytest.mark.parametrize(("size", "separation"), [(10**7, 4.0), (10**8, 2.0)])
@pytest.mark.parametrize("stratified", [True, False])
def test_bootstrap_intervals_of_large_sets_hold_their_value(size, separation, stratified):
    edges = torch.linspace(-9, 9 + separation, 20_001, dtype=torch.float64)
    positive, negative = (
        (size * torch.special.ndtr(edges - shift).diff()).round().long().flip(0) for shift in (separation, 0.0)
    )
    estimates = ranking_estimates(RankCounts(positive, negative), stratified=stratified, level=0.95, exact=False)
    for key, estimate in estimates.items():
        assert estimate.low <= estimate.value <= estimate.high, key


@pytest.mark.slow
def test_one_error_that_stands_nearly_last_has_an_interval():
    confidence = torch.linspace(0.6, 0.999, 200_000, dtype=torch.float64)
    labels = torch.zeros(200_000, dtype=torch.long)
    labels[1] = 1
    scores = evaluate(probabilities=torch.stack([confidence, 1 - confidence], -1), labels=labels)
    estimate = scores[Key.AUROC]
    assert 0 <= estimate.low < estimate.value < estimate.high <= 1
