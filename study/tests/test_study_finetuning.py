"""Fine-tuning: what is run, how hyper-parameters are chosen at seeds of their own, and in-domain scores."""

import hashlib
import math
from collections import Counter

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from counterpoise.metrics import Key
from counterpoise.predictions import Predictions, PredictionWriter, read_predictions
from counterpoise.training.evaluation import prediction_file
from counterpoise_study.cells import Progress, chosen, results, tasks, trial_cells, undecided
from counterpoise_study.cli import parse
from counterpoise_study.collected import collect
from counterpoise_study.cross_fitting import score_cross_fitted
from counterpoise_study.grid import run_sequentially
from counterpoise_study.record import CellRecord
from counterpoise_study.store import Store
from counterpoise_study.studies import request_of, studies_at
from counterpoise_study.tables import caption
from stores import filled
from tools import finetuning_tables

BINS = 15


@pytest.fixture
def request_():
    return request_of("finetune", "finetune", seeds=range(3))


def nll_of(cell, best):
    """Of two seeds whose single values mislead: the mean is lowest at `best`."""
    (value,) = cell.recipe.hyper.values()
    return abs(value - best) + (0.5 if cell.recipe.seed == 100 else -0.5) * value


def tuned(request, best):
    """All candidates tried."""
    named = [task for task in tasks([request], Progress({})) if task.stage == "validation"]
    return Progress({task.key: {"nll": nll_of(task.cell, best), "accuracy": 0.5, "ece": 0.1} for task in named})


def test_what_is_run(request_):
    progress = tuned(request_, 0.8)
    named = tasks([request_], progress)
    assert Counter(task.stage for task in named) == {"validation": 2 * (2 + 3 + 3 + 3 + 3), "complete": 3 * 4 * 7}
    assert {task.cell.recipe.seed for task in named if task.stage == "validation"} == {100, 101}
    assert {task.cell.recipe.data.domain for task in named if task.stage == "validation"} == {"sketch"}
    assert {task.cell.recipe.seed for task in named if task.stage == "complete"} == {0, 1, 2}
    assert {task.cell.recipe.engine.precision for task in named} == {"float32"}
    assert {task.cell.recipe.engine.threads for task in named} == {1}
    assert undecided([request_], progress) == 0
    assert len({task.cell.id for task in named}) == len(named)


def test_a_part_of_it_is_useful(request_):
    """What chooses comes first, then a seed of all methods in each domain in turn."""
    shown = [task.cell.recipe for task in tasks([request_], tuned(request_, 0.8)) if task.stage == "complete"]
    assert [recipe.seed for recipe in shown] == [0] * 28 + [1] * 28 + [2] * 28
    assert [recipe.data.domain for recipe in shown[:28:7]] == ["sketch", "art_painting", "cartoon", "photo"]
    assert Counter(recipe.method for recipe in shown[:7]) == {
        "ce": 1, "ls": 1, "fl": 1, "mte1": 2, "dml": 1, "de3": 1,
    }  # fmt: skip


def test_the_mean_over_seeds_of_their_own_chooses(request_):
    for best in (0.4, 0.8, 1.2):
        progress = tuned(request_, best)
        for line in request_.lines:
            if line.method in ("mte1", "dml"):
                assert chosen(request_, line, progress) == {"alpha": best}
    line = next(line for line in request_.lines if line.method == "mte1")
    first, second = trial_cells(request_, line, {"alpha": 1.2})
    done = tuned(request_, 1.2).metrics
    left = {key: value for key, value in done.items() if key[0] != second.id}
    assert chosen(request_, line, Progress(left)) is None
    assert chosen(request_, line, Progress(left, frozenset({(second.id, "validation")}))) == {"alpha": 0.8}
    assert first.id != second.id


def test_each_auxiliary_has_a_choice_of_its_own_that_all_domains_share(request_):
    small = {line.setting for line in request_.lines if line.setting.endswith("-small")}
    assert {request_.setting(name).tuned_in for name in small} == {"", "finetune-sketch-small"}
    only = request_of("finetune", "finetune", seeds=[0], places=["finetune-photo"])
    assert [setting.name for setting in only.settings] == ["finetune-photo", "finetune-sketch"]


def test_a_scale_has_its_own_studies():
    assert studies_at("finetune") == ["finetune"]
    assert "finetune" not in studies_at("paper")
    with pytest.raises(ValueError, match="there is no ood at the scale finetune; there are finetune"):
        request_of("ood", "finetune", seeds=[0])


@pytest.mark.slow
def test_the_caption_says_where_the_choice_was_made(tmp_path, request_):
    (gathered,) = collect(filled(tmp_path, [request_]))
    assert "lowest mean validation NLL at seeds 100, 101, which no table shows, in PACS, sketch left out" in caption(
        gathered
    )


@pytest.mark.slow
def test_the_pages_tables_say_what_is_missing(tmp_path, request_):
    """Of a store without the photos of seeds 1 and 2, and without any ensemble."""

    def left_out(task):
        recipe = task.cell.recipe
        return recipe.method == "de3" or (recipe.data.domain == "photo" and recipe.seed in (1, 2))

    (gathered,) = collect(filled(tmp_path, [request_], skip=left_out))
    progress = finetuning_tables.progress_section(gathered)
    assert f"**{12 + 2 * 6} results are still missing.** Runs that choose hyper-parameters: 28 of 28" in progress
    assert "| Deep ensemble of 3 | not run | not run | not run | not run |" in progress
    assert "| Cross-entropy | 3 of 3 | 3 of 3 | 3 of 3 | 1 of 3 |" in progress
    lines = finetuning_tables.means_section(gathered, images="test").splitlines()
    means = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:] for line in lines}
    values = [
        row.records[0].plain.estimates[Key.ACCURACY].value
        for group in gathered.groups
        for row in group.rows
        if row.line.method == "ce"
    ]
    assert float(means["Cross-entropy"][0]) == pytest.approx(100 * sum(values) / 4, abs=0.0051)
    assert means["Cross-entropy"][-1] == "1 of 3 |"
    assert means["Deep ensemble of 3"][0] == ""


def predictions(rng, rows, *, members=None):
    """Overconfident logits, and labels that follow from them at a higher temperature."""
    values = rng.normal(scale=4, size=(rows, 5) if members is None else (rows, members, 5)).astype(np.float32)
    centre = values if members is None else values.mean(1)
    labels = (centre / 3 + rng.gumbel(size=centre.shape)).argmax(1)
    return values, labels


def by_hand(values, labels, ids):
    """With NumPy and SciPy: log-probabilities, each half at the temperature of the other."""
    log_p = scipy.special.log_softmax(values.astype(np.float64), axis=-1)
    if log_p.ndim == 3:
        log_p = scipy.special.logsumexp(log_p, axis=1) - math.log(log_p.shape[1])
    even = np.array([int(hashlib.sha256(str(each).encode()).hexdigest(), 16) % 2 == 0 for each in ids])

    def nll(log_t, rows):
        scaled = scipy.special.log_softmax(log_p[rows] / math.exp(log_t), axis=-1)
        return -scaled[np.arange(len(scaled)), labels[rows]].mean()

    scaled = np.empty_like(log_p)
    for half in (even, ~even):
        fitted = scipy.optimize.minimize_scalar(nll, bounds=(-4, 4), args=(~half,), options={"xatol": 1e-9})
        scaled[half] = scipy.special.log_softmax(log_p[half] / math.exp(fitted.x), axis=-1)
    return scaled


def ece_by_hand(confidence, right):
    places = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs((right[places == b] - confidence[places == b]).sum()) for b in range(BINS)]
    return sum(gaps) / len(right)


def auroc_by_hand(confidence, right):
    above = confidence[right][:, None] - confidence[~right][None]
    return ((above > 0) + 0.5 * (above == 0)).mean()


@pytest.mark.parametrize("members", [None, 3])
def test_in_domain_scores_are_those_of_the_other_halfs_temperature(tmp_path, members):
    rng = np.random.default_rng(0)
    values, labels = predictions(rng, 400, members=members)
    ids = rng.permutation(10_000)[:400]
    path = tmp_path / "validation.parquet"
    with PredictionWriter(path) as writer:
        writer.append(Predictions.of(logits=values, labels=labels, ids=ids))
    scores = score_cross_fitted(path)
    scaled = by_hand(values, labels, ids)
    confidence, right = np.exp(scaled.max(1)), scaled.argmax(1) == labels
    assert scores.samples == 400
    assert scores.estimates[Key.ACCURACY].value == pytest.approx(right.mean())
    assert scores.estimates[Key.NLL].value == pytest.approx(-scaled[np.arange(400), labels].mean(), abs=1e-6)
    assert scores.estimates[Key.ECE].value == pytest.approx(ece_by_hand(confidence, right), abs=1e-5)
    assert scores.misclassification.estimates[Key.AUROC].value == pytest.approx(
        auroc_by_hand(confidence, right), abs=1e-4
    )


@pytest.mark.slow
def test_a_small_version_runs(real_data, tmp_path):
    """From the command's own requests to records and a page with in-domain columns."""
    from counterpoise_study.cli import requests_of

    root = real_data("pacs_64")
    command = parse(["run", "finetune", "--scale", "smoke", "--seeds", "1", "--only", "ce"])
    requests = requests_of(command.asked)
    store = Store(tmp_path)
    store.add(requests)
    run_sequentially(store, requests, root=root, page=False)
    (result,) = (found for found in results(requests[0], store.progress()) if found.line.method == "ce")
    (cell,) = result.cells
    record = CellRecord.from_json(store.record_file(cell.id).read_text())
    assert record.in_domain.estimates[Key.NLL].value == pytest.approx(record.validation["nll"])
    table = read_predictions(prediction_file(store.run_folder(cell.id), "validation"))
    scaled = by_hand(table.values, table.labels, table.ids)
    nll = -scaled[np.arange(len(scaled)), table.labels].mean()
    assert record.in_domain_scaled.estimates[Key.NLL].value == pytest.approx(nll, abs=1e-5)
    (gathered,) = collect(store)
    (group,) = gathered.groups
    heads = [column.title for column in group.columns]
    assert heads[:2] == ["Accuracy, %, in-domain", "ECE, %, in-domain"]
    assert heads[4:] == [head.replace("in-domain", "left-out") for head in heads[:4]]
    assert group.rows[0].values(group.columns[2], scaled=False) == [pytest.approx(record.validation["nll"])]
