"""Rounded probabilities: one policy in memory and in files, whatever the order and the division of the rows."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import counterpoise
from counterpoise._choices import LOGARITHM_FACTORS
from counterpoise.calibrators import IsotonicRegression, TemperatureScaling
from counterpoise.metrics import ScoreState, compare
from counterpoise.scoring import score_files

MEANS = ("accuracy", "nll", "brier", "mean_gap", "ece", "mce", "classwise_ece")


def drawn(samples: int, classes: int, *, decimals: int | None = None, seed: int = 7) -> tuple[NDArray, NDArray]:
    """Probabilities, rounded if so wished, and labels drawn from what they were."""
    generator = np.random.default_rng(seed)
    logits = (3 + math.log10(classes)) * generator.normal(size=(samples, classes))
    exact = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = (exact.cumsum(-1) < generator.uniform(size=(samples, 1))).sum(-1).clip(max=classes - 1)
    return exact if decimals is None else exact.round(decimals), labels


def csv(path: Path, probabilities: NDArray, labels: NDArray, ids: NDArray | None = None) -> Path:
    """A CSV of probabilities in as many digits as they have."""
    names = [*(["id"] if ids is not None else []), *(f"prob_{k}" for k in range(probabilities.shape[1])), "label"]
    rows = [
        [*([str(ids[row])] if ids is not None else []), *map(repr, values), str(labels[row])]
        for row, values in enumerate(probabilities.tolist())
    ]
    path.write_text("\n".join(map(",".join, [names, *rows])) + "\n")
    return path


def parquet(path: Path, probabilities: NDArray, labels: NDArray, *, rows: int) -> Path:
    """A Parquet file of lists in row groups of so many rows."""
    values = pa.array(probabilities.tolist(), pa.list_(pa.float64()))
    pq.write_table(pa.table({"probabilities": values, "label": labels}), path, row_group_size=rows)
    return path


@pytest.mark.parametrize(("decimals", "classes"), [(2, 10), (3, 10), (2, 100), (3, 100), (4, 100)])
def test_a_file_has_the_scores_of_the_same_numbers_in_memory(tmp_path, decimals, classes):
    probabilities, labels = drawn(300, classes, decimals=decimals)
    probabilities = probabilities[abs(probabilities.sum(-1) - 1) < 0.0501]
    labels = labels[: len(probabilities)]
    memory = counterpoise.evaluate(probabilities=probabilities, labels=labels)
    (file,) = score_files([csv(tmp_path / "a.csv", probabilities, labels)]).models
    for key in memory.estimates:
        assert repr(file[key]) == repr(memory[key]), key
    whole = probabilities / probabilities.sum(-1, keepdims=True)
    assert memory["brier"].value == pytest.approx(((whole - np.eye(classes)[labels]) ** 2).sum(-1).mean(), rel=2e-3)
    assert [each.removeprefix(f"{tmp_path / 'a.csv'}: ") for each in file.source.notices[1:]] == memory.source.notices


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 50),
    decimals=st.integers(2, 6),
    cuts=st.lists(st.integers(1, 59), max_size=3, unique=True),
)
def test_neither_order_nor_division_of_rounded_rows_changes_a_score(tmp_path_factory, seed, decimals, cuts):
    folder = tmp_path_factory.mktemp("shards")
    probabilities, labels = drawn(60, 6, decimals=decimals, seed=seed)
    order = np.random.default_rng(seed).permutation(60)
    for place, rows in enumerate(np.split(order, sorted(cuts))):
        csv(folder / f"{place}.csv", probabilities[rows], labels[rows], rows)
    whole = counterpoise.evaluate(probabilities=probabilities, labels=labels)
    grouped = parquet(folder / "a.parquet", probabilities[order], labels[order], rows=max([1, *cuts]))
    for evaluation in (score_files([sorted(folder.glob("*.csv"))]), score_files([grouped])):
        (scores,) = evaluation.models
        for key in MEANS:
            assert scores[key].value == pytest.approx(whole[key].value, rel=1e-12, abs=1e-12), key
        said = " ".join(evaluation.notices)
        assert all(notice in said for notice in whole.source.notices)
        assert ("were rounded" in said) == ("were rounded" in " ".join(whole.source.notices))


def test_many_classes_do_not_change_a_rounded_row(tmp_path):
    """Zeros replaced one by one made up most of a row: a confidence of 0.96 became 0.04."""
    probabilities, labels = np.zeros((200, 1000)), np.zeros(200, int)
    probabilities[:, 0], probabilities[:, 1] = 0.96, 0.02
    (scores,) = score_files([csv(tmp_path / "a.csv", probabilities, labels)]).models
    assert scores["mean_gap"].value == pytest.approx(0.96 / 0.98 - 1)


@pytest.mark.parametrize("total", [0.95, 1.05])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_tolerance_of_sums_is_not_decided_by_a_last_bit(total, dtype):
    """Sums of 0.95 in two decimals differ in their last bits by the order of the classes."""
    generator = np.random.default_rng(0)
    rest = generator.multinomial(45, [1 / 20] * 20, size=50) / 100
    rows = np.concatenate([np.full((50, 1), total - 0.45), rest], -1).round(2)
    rows = generator.permuted(rows, axis=-1).astype(dtype)
    assert counterpoise.evaluate(probabilities=rows, labels=np.zeros(50, int)).samples == 50
    with pytest.raises(ValueError, match=r"row 0 sums to 0\.94, not 1"):
        counterpoise.evaluate(probabilities=np.array([[0.5, 0.44]], dtype), labels=[0])


@pytest.mark.parametrize("layout", ["C", "F"])
def test_labels_of_probability_0_are_counted_everywhere(tmp_path, layout):
    probabilities, labels = drawn(400, 10, decimals=2)
    impossible = int((probabilities[np.arange(400), labels] == 0).sum())
    assert impossible
    scores = counterpoise.evaluate(probabilities=np.asarray(probabilities, order=layout), labels=labels)
    said = f"the label of {impossible:,} rows has the probability 0"
    whole = probabilities / probabilities.sum(-1, keepdims=True)
    of_label = whole[np.arange(400), labels]
    logs = np.log(np.where(of_label == 0, 0.005 / math.e, of_label))
    bare = (of_label == 0) & (probabilities % 1 == 0).all(-1)
    assert scores["nll"].value == pytest.approx(math.inf if bare.any() else -logs.mean(), rel=1e-3)
    assert any(notice.startswith(said) for notice in scores.source.notices)
    evaluation = score_files([csv(tmp_path / "a.csv", probabilities, labels)])
    assert repr(evaluation.models[0]["nll"]) == repr(scores["nll"])
    assert any(said in notice for notice in evaluation.notices)


def test_an_infinite_nll_is_no_better_and_no_worse():
    """One sample decides it, and its interval would be of no width."""
    exact, labels = drawn(400, 10)
    rounded = exact.copy()
    rounded[0] = np.eye(10)[(labels[0] + 1) % 10]
    models = {"rounded": {"probabilities": rounded}, "exact": {"probabilities": exact}}
    for order in (models, dict(reversed(models.items()))):
        found = compare(order, labels=labels)
        (difference,) = found.comparison.differences
        assert math.isinf(difference.estimates["nll"].value)
        assert math.isnan(difference.estimates["nll"].low)
        assert str(difference.estimates["nll"]) in ("inf", "-inf")
        lines = [line for line in str(found).splitlines() if line.startswith("NLL")]
        assert len(lines) == 2
        assert not any("inf to" in line or "*" in line or "!" in line for line in lines)
    alike = compare({"a": {"probabilities": rounded}, "b": {"probabilities": rounded}}, labels=labels)
    assert "NLL, nats" in str(alike)
    assert math.isnan(alike.comparison.differences[0].estimates["nll"].value)


NOTED = "every row of logits lies in [0, 1] and sums to 1"


def test_probabilities_that_are_called_logits_are_noted(tmp_path):
    """They are read as they are called: nothing is told by its values."""
    exact, labels = drawn(250, 4)
    logits, mixed = np.log(exact), np.concatenate([exact[:249], 3 * exact[249:]])
    for values, noted in ((exact, True), (exact.astype("float32"), True), (logits, False), (mixed, False)):
        scores = counterpoise.evaluate(logits=values, labels=labels)
        assert any(NOTED in notice for notice in scores.source.notices) == noted
        np.savez(tmp_path / "a.npz", logits=values, labels=labels)
        evaluation = score_files([tmp_path / "a.npz"], temperature=2.0)
        assert any(NOTED in notice for notice in evaluation.notices) == noted
    values = counterpoise.evaluate(probabilities=exact, labels=labels)
    assert not values.source.notices


def test_a_note_about_all_rows_depends_on_no_part_of_them():
    exact, labels = drawn(40, 4)
    for last, noted in ((exact[20:], True), (np.log(exact[20:]), False)):
        for parts in ((exact[:20], last), (last, exact[:20])):
            first, second = (ScoreState(classes=4) for _ in range(2))
            for place, (state, values) in enumerate(zip((first, second), parts, strict=True)):
                state.update(logits=values, labels=labels[:20], ids=np.arange(20) + 20 * place)
            first.merge(ScoreState.from_bytes(second.to_bytes()))
            assert any(NOTED in notice for notice in first.notices()) == noted


@pytest.mark.parametrize("calibrator", [TemperatureScaling, IsotonicRegression])
def test_a_calibrator_warns_of_probabilities(calibrator):
    exact, labels = drawn(250, 4)
    with pytest.warns(
        UserWarning, match=r"every row of logits lies in \[0, 1\] and sums to 1.*their logarithms"
    ) as said:
        calibrator().fit(exact, labels)
    assert said[0].filename == __file__
    calibrator().fit(np.log(exact), labels)  # any warning fails a test


def test_notices_reach_text_page_and_notebook(tmp_path):
    rounded, labels = drawn(100, 10, decimals=2)
    said = "rows of probabilities were rounded: they summed to 1 within 0.05"
    scores = counterpoise.evaluate(probabilities=rounded, labels=labels)
    both = compare({"one": {"probabilities": rounded}, "two": {"probabilities": rounded}}, labels=labels)
    assert [notice for notice in both.notices if notice.startswith("two: ") and said in notice]
    for results in (scores, both):
        results.report(tmp_path / "a.html")
        for shown in (str(results), results._repr_html_(), (tmp_path / "a.html").read_text()):
            assert said in " ".join(shown.split())


def test_several_labels_are_counted_alike_in_memory_and_in_files(tmp_path):
    generator = np.random.default_rng(1)
    probabilities = generator.uniform(size=(50, 3))
    labels = (generator.uniform(size=(50, 3)) < probabilities).astype(int)
    names = [f"{what}_{name}" for what in ("prob", "label") for name in "abc"]
    rows = [",".join(map(repr, row)) for row in np.concatenate([probabilities, labels], -1).tolist()]
    (tmp_path / "a.csv").write_text("\n".join([",".join(names), *rows]))
    memory = counterpoise.evaluate(probabilities=probabilities, labels=labels, multilabel=True)
    for results in (memory, score_files([tmp_path / "a.csv"])):
        results.report(tmp_path / "a.html")
        assert "(150 decisions, " in str(results)
        assert "150 labelled decisions" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("row", "log"),
    [
        ([0.9, 0.1, 0], math.log(0.05) - 1),
        ([0.97, 0.02, 0], math.log(0.005) - 1),
        ([0.971, 0.028, 0], math.log(0.0005) - 1),
        ([0.999999, 0.000001, 0], math.log(5e-7) - 1),
        ([1, 0, 0], -math.inf),
        ([1 - 1e-5 / 3, 1e-5 / 3, 0], -math.inf),
        ([2 / 3, 1 / 3, 0], -math.inf),
    ],
)
def test_only_a_zero_among_decimals_was_rounded(dtype, row, log):
    """Each row by itself: its other values say how many decimals it has."""
    scores = counterpoise.evaluate(probabilities=np.array([row, [0, 0, 1]], dtype), labels=[2, 2])
    assert 2 * scores["nll"].value == pytest.approx(-log)
    assert any(notice.startswith("the label of 1 rows has the probability 0") for notice in scores.source.notices)
    scores = counterpoise.evaluate(logits=np.array([[0, 0, -np.inf], [0, 0, 1]], dtype), labels=[2, 2])
    assert scores["nll"].value == math.inf


@pytest.mark.parametrize(("name", "factor"), LOGARITHM_FACTORS.items())
def test_log_probabilities_to_another_base_are_noted_where_logits_are_expected(name, factor):
    logarithms = np.random.default_rng(0).normal(size=(40, 4))
    logarithms -= np.log(np.exp(logarithms).sum(-1, keepdims=True))
    labels = np.arange(40) % 4
    (notice,) = counterpoise.evaluate(logits=logarithms / factor, labels=labels).source.notices
    assert f"log-probabilities {name} do" in notice
    assert f"{factor:.7g}" in notice
    assert not counterpoise.evaluate(logits=logarithms, labels=labels).source.notices
    mixed = np.concatenate([logarithms / factor, logarithms[:1]])
    assert not counterpoise.evaluate(logits=mixed, labels=np.append(labels, 0)).source.notices
