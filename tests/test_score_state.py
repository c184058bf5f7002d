"""A score state is the same however rows are divided, merged, saved and loaded; and it takes anybody's metric."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

import counterpoise
from counterpoise.integrations.torchmetrics import StreamedMetric
from counterpoise.metrics import ScoreOptions, Scores, ScoreState, Stream
from counterpoise.metrics.comparison import Evaluation, compare
from counterpoise.metrics.gate import Requirement, decide, interval_level
from counterpoise.metrics.options import JACKKNIFE_GROUPS
from counterpoise.metrics.summary import ordered_groups
from counterpoise.predictions import Predictions, write_predictions
from counterpoise.report import numbers, slices, terminal
from counterpoise.report.page import write_report
from counterpoise.scoring import score_files
from counterpoise.scoring.guarantees import try_guarantees
from counterpoise.scoring.recalibration import try_temperature
from counterpoise.testing import check_metric
from outside_metric import TopTwoAccuracy

pytestmark = pytest.mark.usefixtures("few_resamples")

K, N = 4, 240
KEY = "top2_accuracy"


@dataclass(frozen=True)
class Rows:
    """Predictions of two models for the same samples, and what is known of the samples."""

    logits: tuple[torch.Tensor, torch.Tensor]
    labels: torch.Tensor
    ids: np.ndarray
    columns: dict[str, list]
    outside: torch.Tensor

    def feed(self, state: ScoreState, model: int, rows: torch.Tensor) -> None:
        for ood in (False, True):
            own = rows[self.outside[rows] == ood]
            if len(own):
                of_rows = {name: [values[row] for row in own.tolist()] for name, values in self.columns.items()}
                state.update(
                    logits=self.logits[model][own],
                    labels=None if ood else self.labels[own],
                    ids=self.ids[own.numpy()],
                    columns=None if ood else of_rows,
                    ood="far" if ood else None,
                )


def rows_of(seed: int, *, text_ids: bool, clean: bool) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    truth = 2 * torch.randn(N, K, generator=generator)
    labels = torch.multinomial(torch.softmax(truth, -1), 1, generator=generator).squeeze(-1)
    models = tuple(truth + torch.randn(N, K, generator=generator) for _ in range(2))
    draws = torch.randint(4, (3, N), generator=generator).tolist()
    numbers = torch.randperm(10 * N, generator=generator)[:N].numpy()
    return Rows(
        logits=(models[0], models[1].double()),
        labels=labels,
        ids=np.array([f"image {number}" for number in numbers], object) if text_ids else numbers,
        columns={
            "corruption": [None if clean and row % 2 else ("fog", "blur")[draws[0][row] % 2] for row in range(N)],
            "severity": [0 if clean and row % 2 else 1 + draws[1][row] for row in range(N)],
            "hospital": [("north", "south", None, "west")[draw] for draw in draws[2]],
        },
        outside=torch.rand(N, generator=generator) < 0.2,
    )


def assert_same(one: object, other: object, place: str = "") -> None:
    """Counts and texts equal, numbers within 1e-12 of their size."""
    if isinstance(one, float) and isinstance(other, float):
        close = math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
        assert close, f"{place}: {one} and {other}"
    elif isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), place
        for key in one:
            assert_same(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        assert len(one) == len(other), place
        for index, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{place}[{index}]")
    elif hasattr(one, "__dataclass_fields__"):
        assert_same(vars(one), vars(other), place)
    else:
        assert one == other, f"{place}: {one} and {other}"


PARTITIONS = given(
    seed=st.integers(0, 3),
    parts=st.lists(st.integers(0, 5), min_size=N, max_size=N),
    order=st.permutations(range(6)),
    exact=st.sampled_from([None, 10_000, 60]),
    score=st.sampled_from(["max_softmax", "energy", "negative_entropy"]),
    text_ids=st.booleans(),
    clean=st.booleans(),
)


def assert_any_partition_is_the_same(tmp_path_factory, seed, parts, order, exact, score, text_ids, clean):
    """Every metric, rank, group, comparison and temperature trial; each part is saved and loaded on its way."""
    data = rows_of(seed, text_ids=text_ids, clean=clean)
    options = ScoreOptions(score=score, metrics=(TopTwoAccuracy(),), paired=True, exact_samples=exact)
    folder = tmp_path_factory.mktemp("states")
    part_of = torch.tensor(parts)
    whole, merged = [], []
    for model in range(2):
        state = ScoreState(classes=K, options=options)
        data.feed(state, model, torch.arange(N))
        whole.append(state)
        total = ScoreState(classes=K, options=options)
        for part in order:
            mine = ScoreState(classes=K, options=options)
            for batch in torch.nonzero(part_of == part).flatten().flip(0).split(17):
                data.feed(mine, model, batch)
            mine.save(folder / "state.safetensors")
            total.merge(ScoreState.load(folder / "state.safetensors", metrics=options.metrics))
        merged.append(total)
    scores = [[state.compute() for state in states] for states in (whole, merged)]
    for one, other in zip(*scores, strict=True):
        assert_same(one, other)
        assert one[KEY].value == other[KEY].value
        assert {name for group in one.groups for name in group.columns} == {"hospital"}
        assert {key for group in one.groups for key in group.estimates} >= {KEY, "accuracy", "ece"}
    assert_same(
        *(
            compare(s, [e.headline for e in states], level=0.9)
            for s, states in zip(scores, (whole, merged), strict=True)
        )
    )
    for one, other in zip(whole, merged, strict=True):
        assert torch.equal(one.headline.trial.samples()[0], other.headline.trial.samples()[0])
        one_trial, other_trial = (try_temperature(state.headline.trial, options=options) for state in (one, other))
        assert_same(one_trial, other_trial)
        groups = ordered_groups(one.groups)
        tried, again = (try_guarantees(state.headline.trial, groups=groups) for state in (one, other))
        assert tried == again


@pytest.mark.slow
@settings(max_examples=4)
@PARTITIONS
def test_any_partition_merged_in_any_order_is_the_same(tmp_path_factory, **drawn):
    assert_any_partition_is_the_same(tmp_path_factory, **drawn)


@pytest.mark.long
@settings(max_examples=100)
@PARTITIONS
def test_any_partition_merged_in_any_order_is_the_same_long(tmp_path_factory, **drawn):
    assert_any_partition_is_the_same(tmp_path_factory, **drawn)


@pytest.mark.slow
def test_the_same_parts_in_the_same_order_give_the_same_bytes():
    data = rows_of(0, text_ids=True, clean=True)
    options = ScoreOptions(paired=True, exact_samples=60)
    states = []
    for _ in range(2):
        total = ScoreState(classes=K, options=options)
        for rows in torch.arange(N).split(50):
            part = ScoreState(classes=K, options=options)
            data.feed(part, 0, rows)
            total.merge(part)
        states.append(total.to_bytes())
    assert states[0] == states[1]


def test_ood_samples_may_come_before_the_others():
    logits, labels = torch.randn(30, K), torch.zeros(30, dtype=torch.int64)
    parts = [ScoreState(classes=K) for _ in range(2)]
    parts[0].update(logits=logits, ood="far", ids=range(30))
    parts[1].update(logits=logits, labels=labels, ids=range(30))
    merged = []
    for order in (parts, parts[::-1]):
        merged.append(ScoreState(classes=K))
        for part in order:
            merged[-1].merge(part)
    assert merged[0].to_bytes() == merged[1].to_bytes()


@pytest.mark.slow
def test_a_state_keeps_what_it_was_merged_from():
    data, options = rows_of(1, text_ids=False, clean=True), ScoreOptions(exact_samples=60)
    parts = [ScoreState(classes=K, options=options) for _ in range(2)]
    for part, rows in zip(parts, torch.arange(N).chunk(2), strict=True):
        data.feed(part, 0, rows)
    before = [part.to_bytes() for part in parts]
    total = ScoreState(classes=K, options=options)
    for part in (*parts, *parts):
        total.merge(part)
    assert [part.to_bytes() for part in parts] == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": ScoreOptions(bins=10)}, "different options"),
        ({"options": ScoreOptions(paired=True)}, "different options"),
        ({"options": ScoreOptions(metrics=(TopTwoAccuracy(),))}, "different options"),
        ({"classes": K + 1}, "different options"),
    ],
)
def test_states_of_other_options_do_not_merge(change, message):
    with pytest.raises(ValueError, match=message):
        ScoreState(classes=K).merge(ScoreState(**({"classes": K} | change)))


def test_small_batches_of_paired_states_wait_for_each_other():
    """Sums of 100 groups for each batch of 16 took thirty times as long; memory may be filled anew for each batch."""
    measured = []

    class Counting(TopTwoAccuracy):
        def sums(self, batch):
            measured.append(len(batch))
            return super().sums(batch)

    data, options = rows_of(3, text_ids=False, clean=True), ScoreOptions(metrics=(Counting(),), paired=True)
    whole, parts = (ScoreState(classes=K, options=options) for _ in range(2))
    whole.update(logits=data.logits[0], labels=data.labels)
    expected, buffer, labels = whole.compute(), torch.empty(16, K), torch.empty(16, dtype=torch.int64)
    measured.clear()
    for rows in torch.arange(N).split(16):
        buffer.copy_(data.logits[0][rows])
        labels.copy_(data.labels[rows])
        parts.update(logits=buffer, labels=labels)
    found = parts.compute()
    assert sum(measured) == N
    assert len(measured) <= JACKKNIFE_GROUPS
    for key, estimate in expected.items():
        assert found[key].value == pytest.approx(estimate.value, rel=1e-9, nan_ok=True)


@settings(max_examples=10)
@given(st.data())
def test_every_public_count_is_merged_and_kept(data):
    states = [ScoreState(classes=3) for _ in range(2)]
    counts = [name for name, value in vars(states[0]).items() if type(value) is int and name.islower()]
    public = [name for name in counts if not name.startswith("_") and name != "classes"]
    assert {"unlabelled", "corrupted_samples", "renormalised"} <= set(public)
    for state in states:
        for name in public:
            setattr(state, name, data.draw(st.integers(0, 10**12)))
    expected = {name: sum(getattr(state, name) for state in states) for name in public}
    states[0].merge(states[1])
    for state in (states[0], ScoreState.from_bytes(states[0].to_bytes())):
        assert {name: getattr(state, name) for name in public} == expected


class TestAMetricFromOutside:
    """It reaches every place without an edit of the package."""

    @pytest.fixture
    def files(self, tmp_path):
        data = rows_of(2, text_ids=False, clean=True)
        for model in range(2):
            (tmp_path / f"net{model}").mkdir()
            for shard, rows in enumerate(torch.arange(N).split(100)):
                table = Predictions.of(
                    logits=data.logits[model][rows],
                    labels=data.labels[rows],
                    ids=data.ids[rows.numpy()],
                    domain=["photo" if row % 3 else "sketch" for row in rows.tolist()],
                )
                write_predictions(tmp_path / f"net{model}" / f"part-{shard}.parquet", table)
        return data, [tmp_path / "net0", tmp_path / "net1"]

    def expected(self, data, model, rows=slice(None)):
        top = data.logits[model][rows].topk(2).indices
        return (top == data.labels[rows, None]).any(-1).double().mean().item()

    def test_its_contract(self):
        data = rows_of(0, text_ids=False, clean=True)
        check_metric(TopTwoAccuracy(), logits=data.logits[0], labels=data.labels)

    def test_in_memory_and_printed(self):
        data = rows_of(2, text_ids=False, clean=True)
        scores = counterpoise.evaluate(logits=data.logits[0], labels=data.labels, metrics=[TopTwoAccuracy()])
        assert scores[KEY].value == pytest.approx(self.expected(data, 0), abs=1e-12)
        assert "Top-2 accuracy" in str(scores)
        assert "Top-2 accuracy" in scores._repr_html_()
        assert Scores.from_json(scores.to_json()) == scores

    @pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
    def test_its_interval_has_the_level_that_is_asked_for(self, level):
        data = rows_of(2, text_ids=False, clean=True)
        scores = counterpoise.evaluate(
            logits=data.logits[0], labels=data.labels, metrics=[TopTwoAccuracy()], level=level, by={"all": ["a"] * N}
        )
        exact = binomtest(round(scores[KEY].value * N), N).proportion_ci(level, method="wilson")
        for found in (scores[KEY], scores.groups[0].estimates[KEY]):
            assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-9)

    def test_the_gate_holds_it_to_the_promised_level(self):
        data = rows_of(2, text_ids=False, clean=True)
        needed, rules = interval_level(5, level=0.99), [Requirement("accuracy", at_most=False, limit=0)] * 4
        scores = counterpoise.evaluate(
            logits=data.logits[0], labels=data.labels, metrics=[TopTwoAccuracy()], level=needed
        )
        usual = binomtest(round(scores[KEY].value * N), N).proportion_ci(0.95, method="wilson")
        own = Requirement(KEY, at_most=False, limit=usual.low)
        assert decide(Evaluation([scores]), [own, *rules], level=0.99).verdicts[0].outcome == "undecided"

    def test_one_without_a_level_is_rejected(self):
        class Fixed(TopTwoAccuracy):
            def compute(self, sums):
                return super().compute(sums, level=0.95)

        for take in (
            Stream,
            lambda metric: counterpoise.evaluate(probabilities=[[1.0, 0]], labels=[0], metrics=[metric]),
        ):
            with pytest.raises(TypeError, match=r"has no level; write `def compute\(self, sums, \*, level\):`"):
                take(Fixed())

    def test_its_contract_is_to_use_the_level(self):
        class Fixed(TopTwoAccuracy):
            def compute(self, sums, *, level):
                return super().compute(sums, level=0.95)

        data = rows_of(0, text_ids=False, clean=True)
        with pytest.raises(AssertionError, match="give its interval compute's `level`"):
            check_metric(Fixed(), logits=data.logits[0], labels=data.labels)

    def test_undefined_on_a_group_it_has_no_value_there(self):
        class OfSecond(TopTwoAccuracy):
            """Defined on samples of the class 1 alone."""

            def sums(self, batch):
                return super().sums(batch.take(batch.required_labels() == 1))

        by = {"class": ["first", "first", "second", "second"]}
        scores = counterpoise.evaluate(
            probabilities=[[0.6, 0.4, 0.0]] * 4, labels=[0, 0, 1, 1], metrics=[OfSecond()], by=by
        )
        first, second = (group.estimates[KEY] for group in scores.groups)
        assert (first.value, second.value, scores[KEY].value) == (pytest.approx(math.nan, nan_ok=True), 1, 1)
        assert "Top-2 accuracy" in str(scores)

    def test_as_a_torchmetric(self):
        data, metric = rows_of(2, text_ids=False, clean=True), StreamedMetric(TopTwoAccuracy())
        metric.update(logits=data.logits[0], labels=data.labels)
        assert metric.compute()[KEY].item() == pytest.approx(self.expected(data, 0), abs=1e-12)

    @pytest.mark.slow
    def test_in_files_comparison_groups_tables_and_report(self, files, tmp_path):
        data, folders = files
        evaluation = score_files(folders, metrics=[TopTwoAccuracy()])
        values = [model[KEY].value for model in evaluation.models]
        assert values == pytest.approx([self.expected(data, model) for model in range(2)], abs=1e-12)
        (difference,) = evaluation.comparison.differences
        paired = difference.estimates[KEY]
        assert paired.value == pytest.approx(values[1] - values[0], abs=1e-12)
        assert paired.low < paired.value < paired.high
        photo = next(group for group in evaluation.models[0].groups if group.domain == "photo")
        rows = torch.arange(N) % 3 != 0
        assert photo.estimates[KEY].value == pytest.approx(self.expected(data, 0, rows), abs=1e-12)
        again = Evaluation.from_json(evaluation.to_json())
        assert again == evaluation
        for text in (
            terminal.as_text(again, risk=0.05),
            *(table.rows.__repr__() for table in (numbers.summary(again), numbers.paired_differences(again))),
            repr(slices.slice_table(again.models[0])),
        ):
            assert "Top-2 accuracy" in text
        assert numbers.estimates_csv(again).count(KEY) >= 2 + 2 + 1
        write_report(tmp_path / "report.html", again, risk=0.05)
        assert "Top-2 accuracy" in (tmp_path / "report.html").read_text()

    @pytest.mark.slow
    def test_best_by_its_own_direction(self, files):
        _, folders = files
        evaluation = score_files(folders, metrics=[TopTwoAccuracy()])
        comparison = evaluation.comparison
        (difference,) = comparison.differences
        better = replace(difference.estimates[KEY], low=0.01, high=0.03)
        sure = replace(comparison, differences=[replace(difference, estimates={KEY: better})])
        table = numbers.summary(replace(evaluation, comparison=sure))
        (row,) = [row for row in table.rows if row[0].text.startswith("Top-2")]
        values = [model[KEY].value for model in evaluation.models]
        assert [cell.best for cell in row[1:]] == ([False, True] if values[1] > values[0] else [False, False])
