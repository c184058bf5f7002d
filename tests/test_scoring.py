"""Files in, scores out: the same numbers as in memory, whatever the format, batching, order or size."""

import math
import time

import numpy as np
import pytest
import torch

import counterpoise
from counterpoise.metrics import ScoreOptions, ScoreState
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.estimates import Key
from counterpoise.metrics.keys import mixed
from counterpoise.predictions import Header, PredictionFileError, Predictions, write_predictions
from counterpoise.scoring import score_files
from counterpoise.scoring.units import ordered_map
from scored_files import K, N, drawn, same_estimates, write, write_shards

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.mark.slow
@pytest.mark.parametrize("writing", [write, write_shards])
def test_files_score_as_their_arrays_do(tmp_path, writing):
    logits, labels = drawn(0)
    foreign = torch.randn(300, K, generator=torch.Generator().manual_seed(1))
    suffix = ".parquet" if writing is write else ""
    path = writing(tmp_path / f"a{suffix}", logits=logits, labels=labels)
    other = writing(tmp_path / f"svhn{suffix}", logits=foreign)
    evaluation = score_files([path], ood=[other])
    expected = counterpoise.evaluate(logits=logits, labels=labels, ood_logits=foreign)
    (scores,) = evaluation.models
    same_estimates(scores.estimates, expected.estimates)
    same_estimates(scores.misclassification.estimates, expected.misclassification.estimates)
    same_estimates(scores.ood["svhn"].estimates, expected.ood["ood"].estimates)
    assert scores.misclassification.curves == expected.misclassification.curves
    assert evaluation.comparison is None
    assert Evaluation.from_json(evaluation.to_json()) == evaluation


@pytest.mark.parametrize("form", ["csv", "npz", "float64", "float16"])
def test_every_format_gives_the_same_scores(tmp_path, form):
    logits, labels = drawn(2)
    if form == "csv":
        path = tmp_path / "a.csv"
        head = ",".join(["label", *(f"logit_{k}" for k in range(K))])
        lines = [",".join([str(int(y)), *(repr(float(v)) for v in row)]) for row, y in zip(logits, labels, strict=True)]
        path.write_text("\n".join([head, *lines, ""]))
    elif form == "npz":
        path = tmp_path / "a.npz"
        np.savez(path, logits=logits.numpy(), labels=labels.numpy())
    else:
        path = tmp_path / "a.parquet"
        write_predictions(path, Predictions.of(logits=logits, labels=labels).astype(form))
        logits = logits.half() if form == "float16" else logits
    (scores,) = score_files([path]).models
    same_estimates(scores.estimates, counterpoise.evaluate(logits=logits, labels=labels).estimates, rel=1e-5)


@pytest.mark.slow
def test_members_are_averaged_as_probabilities(tmp_path):
    members = torch.stack([drawn(seed)[0] for seed in range(3)], 1)
    labels = drawn(0)[1]
    mean = torch.softmax(members.double(), -1).mean(1)
    expected = counterpoise.evaluate(probabilities=mean, labels=labels)
    for name, columns in {
        "logits": {"logits": members.double()},
        "probabilities": {"probabilities": torch.softmax(members.double(), -1)},
    }.items():
        path = write(tmp_path / f"{name}.parquet", **columns, labels=labels)
        (scores,) = score_files([path]).models
        assert scores.source.members == 3
        same_estimates(scores.estimates, expected.estimates, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("score", ["max_softmax", "energy"])
def test_many_samples_go_through_the_histogram_within_their_bounds(score):
    logits, labels = drawn(3)
    found = []
    for exact_samples in (10_000, 500):
        state = ScoreState(classes=K, options=ScoreOptions(score=score, exact_samples=exact_samples))
        for rows in torch.arange(N).split(97):
            state.update(logits=logits[rows], labels=labels[rows], ids=rows)
            state.update(logits=drawn(4)[0][rows], ids=rows, ood="b")
        found.append(state.compute())
    exact, streamed = found
    keys = (Key.ECE, Key.CLASSWISE_ECE, Key.NLL, Key.ACCURACY)
    same_estimates({key: streamed[key] for key in keys}, {key: exact[key] for key in keys})
    for one, other in ((streamed.misclassification, exact.misclassification), (streamed.ood["b"], exact.ood["b"])):
        assert (one.positives, one.negatives) == (other.positives, other.negatives)
        for key, estimate in one.estimates.items():
            assert other.estimates[key].error_bound is None
            assert estimate.error_bound is not None
            assert abs(estimate.value - other.estimates[key].value) <= estimate.error_bound + 1e-12
        thresholds = one.curves["threshold"]
        assert thresholds == sorted(thresholds, reverse=True)


@pytest.mark.slow
def test_rows_count_for_what_they_are(tmp_path):
    """Clean rows make the headline; corrupted ones are grouped; foreign ones are OOD; unlabelled ones are left out."""
    logits, labels = drawn(5)
    kinds = np.arange(N) % 4
    table = Predictions.of(
        logits=logits,
        labels=torch.where(torch.from_numpy(kinds == 3), -1, labels),
        corruption=["fog" if kind == 1 else None for kind in kinds],
        severity=np.where(kinds == 1, 2, 0),
        in_distribution=kinds != 2,
        data_set=["textures" if kind == 2 else "cifar10" for kind in kinds],
        domain=["photo" if row < N // 2 else "sketch" for row in range(N)],
        header=Header(class_names=("a", "b", "c", "d"), model="net", method="ce", seed=3),
    )
    write_predictions(tmp_path / "a.parquet", table)
    evaluation = score_files([tmp_path / "a.parquet"])
    (scores,) = evaluation.models
    clean = kinds == 0
    expected = counterpoise.evaluate(
        logits=logits[clean], labels=labels[clean], ood_logits=logits[torch.from_numpy(kinds == 2)]
    )
    same_estimates(scores.estimates, expected.estimates)
    same_estimates(scores.ood["textures"].estimates, expected.ood["ood"].estimates)
    groups = {(group.domain, group.corruption, group.severity): group for group in scores.groups}
    assert set(groups) == {(d, *rest) for d in ("photo", "sketch") for rest in ((None, 0), ("fog", 2))}
    rows = (kinds == 1) & (np.arange(N) < N // 2)
    fog = counterpoise.evaluate(logits=logits[rows], labels=labels[rows])
    assert groups["photo", "fog", 2].samples == rows.sum()
    assert groups["photo", "fog", 2].estimates[Key.ECE] == fog["ece"]
    assert scores.class_names == ["a", "b", "c", "d"]
    assert (scores.source.name, scores.source.seed) == ("net ce", 3)
    assert scores.source.data_sets == ["cifar10", "textures"]
    assert any("300 rows without a label" in notice for notice in evaluation.notices)
    assert any("300 corrupted" in notice for notice in evaluation.notices)


@pytest.mark.parametrize(
    "columns",
    [
        {"corruption": [None, "fog"], "severity": [0, -1]},
        {"corruption": [None, "fog"], "severity": [-1, -1]},
        {"corruption": [None, None], "severity": [0, 3]},
        {"corruption": ["", "fog"]},
        {"corruption": ["fog", "fog"], "severity": [0, 3]},
        {"severity": [-1, 3]},
    ],
    ids=str,
)
def test_corrupted_rows_are_told_from_clean_ones_however_a_file_says_so(tmp_path, columns):
    logits, labels = drawn(5, n=100)
    every = {name: [values[row % 2] for row in range(100)] for name, values in columns.items()}
    path = write(tmp_path / "a.parquet", logits=logits, labels=labels, **every)
    evaluation = score_files([path])
    assert evaluation.models[0]["ece"] == counterpoise.evaluate(logits=logits[::2], labels=labels[::2])["ece"]
    assert any("50 corrupted" in notice for notice in evaluation.notices)
    assert {group.severity for group in evaluation.models[0].groups} <= {None, 0, 3}


def test_labels_of_probability_0_do_not_end_an_evaluation(tmp_path):
    """As in probabilities rounded to two digits, or in the softmax of sharp logits."""
    logits, labels = drawn(5, n=600, sharpness=3.0)
    probabilities = torch.softmax(logits.double(), -1).round(decimals=2)
    probabilities /= probabilities.sum(-1, keepdim=True)
    impossible = probabilities.gather(-1, labels[:, None]) == 0
    assert impossible.any()
    np.savez(tmp_path / "a.npz", probabilities=probabilities.numpy(), labels=labels.numpy())
    (scores,) = score_files([tmp_path / "a.npz"]).models
    assert scores["nll"].value == math.inf
    assert scores.recalibration.measured_on == 300
    assert 300 - int(impossible.sum()) <= scores.recalibration.fitted_on < 300
    assert scores.recalibration.temperature > 1.5


def test_members_are_checked_one_by_one(tmp_path):
    members = np.full((6, 2, 4), 0.25)
    members[3, 0], members[3, 1] = [0.6, 0.4, -0.2, 0.2], [0.1, 0.1, 0.4, 0.4]
    np.savez(tmp_path / "a.npz", probabilities=members, labels=np.zeros(6, int))
    with pytest.raises(PredictionFileError, match=r"a\.npz: member 0: probabilities row 3, column 2 is -0\.2"):
        score_files([tmp_path / "a.npz"])
    logits = np.zeros((6, 2, 4))
    logits[4, 1, 2] = np.inf
    np.savez(tmp_path / "b.npz", logits=logits, labels=np.zeros(6, int))
    with pytest.raises(PredictionFileError, match=r"b\.npz: member 1: logits row 4, column 2 is inf"):
        score_files([tmp_path / "b.npz"])


def test_a_file_without_labels_is_told_where_they_are_looked_for(tmp_path):
    logits, labels = drawn(8, n=50)
    np.savez(tmp_path / "a.npz", logits=logits.numpy(), lable=labels.numpy())
    with pytest.raises(PredictionFileError, match=r"no labelled .*ignored: 'lable'.* Choose label='lable'"):
        score_files([tmp_path / "a.npz"])
    np.savez(tmp_path / "b.npz", logits=logits.numpy(), losses=logits.numpy()[:, 0])
    with pytest.raises(PredictionFileError, match=r"name the column of labels with --label .*ignored: 'losses'"):
        score_files([tmp_path / "b.npz"])


def test_foreign_files_of_one_name_are_two_sets(tmp_path):
    logits, labels = drawn(9, n=300)
    path = write(tmp_path / "a.parquet", logits=logits, labels=labels)
    others = []
    for index, name in enumerate(("near", "far")):
        (tmp_path / name).mkdir()
        others.append(write(tmp_path / name / "predictions.parquet", logits=logits[: 30 * (index + 1)]))
    (scores,) = score_files([path], ood=others).models
    assert {name: ranking.negatives for name, ranking in scores.ood.items()} == {"near": 30, "far": 60}


@pytest.mark.slow
def test_models_are_named_by_what_tells_them_apart(tmp_path):
    logits, labels = drawn(10, n=50)

    def named(*headers):
        paths = []
        for index, header in enumerate(headers):
            folder = tmp_path / f"run{index}" / "predictions"
            folder.mkdir(parents=True, exist_ok=True)
            paths.append(write(folder / "test.parquet", logits=logits, labels=labels, header=header))
        return [model.source.name for model in score_files(paths).models]

    ce, again, mte = (
        Header(model="net", method=method, seed=seed) for method, seed in (("ce", 0), ("ce", 1), ("mte", 0))
    )
    assert named(ce, mte) == ["net ce", "net mte"]
    assert named(ce, again, mte) == ["net ce, seed 0", "net ce, seed 1", "net mte"]
    assert named(ce, ce) == ["run0", "run1"]
    assert named(Header(), Header(), ce) == ["run0", "run1", "net ce"]


def test_only_corrupted_rows_make_the_headline_themselves(tmp_path):
    logits, labels = drawn(6)
    path = write(tmp_path / "a.parquet", logits=logits, labels=labels, corruption="fog", severity=3)
    assert score_files([path]).models[0]["ece"] == counterpoise.evaluate(logits=logits, labels=labels)["ece"]


@pytest.mark.slow
def test_errors_name_the_file_and_the_row_in_it(tmp_path):
    """Of rows so wide that they are read in several batches."""
    logits = torch.zeros(300, 20_000)
    logits[280, 2] = math.nan
    path = write(tmp_path / "bad.parquet", logits=logits, labels=torch.zeros(300, dtype=torch.int64))
    with pytest.raises(PredictionFileError, match=r"bad\.parquet: logits row 280, column 2 is nan"):
        score_files([path])


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"labels": None}, "no labelled in-distribution sample"), ({"in_distribution": False}, "no labelled")],
)
def test_files_without_anything_to_score_are_refused(tmp_path, columns, message):
    logits, labels = drawn(8, n=50)
    path = write(tmp_path / "a.parquet", **({"logits": logits, "labels": labels} | columns))
    with pytest.raises(PredictionFileError, match=message):
        score_files([path])


def test_foreign_files_must_be_of_the_same_kind(tmp_path):
    logits, labels = drawn(9, n=50)
    path = write(tmp_path / "a.parquet", logits=logits, labels=labels)
    other = write(tmp_path / "b.parquet", probabilities=torch.softmax(logits, -1))
    with pytest.raises(PredictionFileError, match=r"b\.parquet: it holds probabilities for 4 classes"):
        score_files([path], ood=[other])
    with pytest.raises(ValueError, match="2 models: give 2 files of OOD samples, one for each in order, not 1"):
        score_files([path, path], ood=[other])
    with pytest.raises(ValueError, match="at least one"):
        score_files([])


def test_mixed_numbers_look_uniform():
    groups = (mixed(np.arange(100_000), salt=0) % np.uint64(100)).astype(int)
    counts = np.bincount(groups, minlength=100)
    assert ((counts - 1000) ** 2 / 1000).sum() < 150  # chi-square with 99 degrees of freedom
    assert np.corrcoef(groups[:-1], groups[1:])[0, 1] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("threads", [1, 3])
def test_ordered_map_keeps_order_errors_and_the_end(threads):
    def items(fail: bool):
        yield from range(20)
        if fail:
            raise KeyError("broken item")

    def slow_first(number: int) -> int:
        time.sleep(0.02 if number % 3 == 0 else 0)
        if number == 30:
            raise ValueError("broken function")
        return number

    assert list(ordered_map(slow_first, items(False), threads=threads)) == list(range(20))
    seen = []
    with pytest.raises(KeyError, match="broken item"):
        seen += ordered_map(slow_first, items(True), threads=threads)
    with pytest.raises(ValueError, match="broken function"):
        list(ordered_map(slow_first, range(60), threads=threads))
    stream = ordered_map(slow_first, range(29), threads=threads)
    assert next(stream) == 0
    stream.close()


@pytest.mark.slow
def test_threads_do_not_change_a_bit(tmp_path):
    logits, labels = drawn(12)
    path = write_shards(tmp_path / "a", rows=250, logits=logits, labels=labels)
    other = write_shards(tmp_path / "b", rows=300, logits=1.1 * logits, labels=labels)
    assert len({score_files([path, other], threads=threads).to_json() for threads in (1, 3)}) == 1
    with pytest.raises(ValueError, match="threads must be at least 1"):
        score_files([path], threads=0)


@pytest.mark.slow
def test_how_many_samples_are_alike_is_counted_among_all_of_them(tmp_path):
    logits, labels = drawn(9, n=400)
    corruption = [None] * 100 + ["fog"] * 300
    severity = [0] * 100 + [2] * 300
    paths = [
        write(
            tmp_path / f"{name}.parquet",
            logits=logits[:count],
            labels=labels[:count],
            ids=np.arange(count),
            corruption=corruption[:count],
            severity=severity[:count],
        )
        for name, count in (("a", 400), ("b", 390))
    ]
    (notice,) = (each for each in score_files(paths).notices if "alike" in each)
    assert "390 of 400 are alike" in notice
    assert "--class-names" not in notice


def test_several_labels_a_sample_are_not_compared_with_one(tmp_path):
    logits, labels = drawn(9, n=50)
    one = write(tmp_path / "one.parquet", logits=logits, labels=labels)
    several = tmp_path / "several.csv"
    rows = np.concatenate([np.arange(50)[:, None], torch.sigmoid(logits), np.eye(K)[labels]], 1)
    head = ",".join(["id", *(f"prob_{k}" for k in "abcd"), *(f"label_{k}" for k in "abcd")])
    np.savetxt(several, rows, fmt="%.6g", delimiter=",", header=head, comments="")
    with pytest.raises(ValueError, match="several labels a sample"):
        score_files([several, one], read_as="models")
