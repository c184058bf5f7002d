"""The grid: which cells there are, what chooses among them, who runs them, and what is left when one fails or dies."""

import itertools
import multiprocessing
import os
import signal
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.recipes.config import Recipe
from counterpoise_study import grid as grid_module
from counterpoise_study.cells import Progress, candidate_cells, chosen, groups, results, tasks, undecided
from counterpoise_study.grid import Shard, remaining, run_sequentially
from counterpoise_study.manifest import MOST_FAILURES
from counterpoise_study.requests import Line, Request, Setting
from counterpoise_study.scales import SCALES
from counterpoise_study.store import Store
from counterpoise_study.studies import STUDIES, request_of, studies_at
from counterpoise_study.work import attempt

CANDIDATES = tuple({"alpha": alpha} for alpha in (0.4, 0.6, 0.8, 1.0))
METRICS = ("nll", "accuracy", "ece")


def a_request(*, rule="nll", seeds=(0, 1), swept=False):
    """One tuned method and one without hyper-parameters, in a setting and in another that is tuned in the first."""
    settings = (
        Setting("first", "First", Recipe()),
        Setting("second", "Second", replace(Recipe(), epochs=7), tuned_in="first"),
    )
    lines = tuple(
        Line(setting.name, method, method.upper(), tuple(seeds), candidates, swept=swept)
        for setting in settings
        for method, candidates in (("ce", ({},)), ("mte1", CANDIDATES))
    )
    return Request("a study", "smoke", rule, settings, lines)


def quick(store, task, *, root, page):
    """Metrics without training; which candidate is best follows from its hyper-parameters."""
    value = sum(task.cell.recipe.hyper.values()) * 7 % 1
    return {"nll": value, "accuracy": 1 - value, "ece": value / 10}


def run_quickly(folder, requests, *, shard=None, perform=quick):
    """The tasks that were attempted, in order, and the store."""
    store, ended = Store(folder), []
    store.add(requests)
    run_sequentially(store, requests, shard=shard, watch=ended.append, perform=perform)
    return store, ended


def committed(store):
    store.progress()
    return {task for task, state in store.manifest.tasks.items() if state.committed}


# The choice


@pytest.mark.parametrize(
    ("rule", "values", "best"),
    [
        ("nll", (0.5, 0.3, 0.9, 0.4), 0.6),
        ("accuracy", (0.5, 0.3, 0.9, 0.4), 0.8),
        ("ece", (0.05, 0.03, 0.02, 0.04), 0.8),
        ("nll", (0.5, 0.3, 0.3, 0.3), 0.6),
        ("accuracy", (0.5, 0.9, 0.3, 0.9), 0.6),
        ("nll", (0.5, None, 0.9, None), 0.4),
        ("accuracy", (None, 0.1, None, 0.2), 1.0),
    ],
)
def test_the_rule_chooses_the_first_of_the_best_that_did_not_fail(rule, values, best):
    request = a_request(rule=rule)
    line = request.lines[1]
    progress = progress_with(request, line, values)
    assert chosen(request, line, progress) == {"alpha": best}


def progress_with(request, line, values):
    """Candidates with a value of the rule's metric, failed where it is None; the other metrics would mislead."""
    cells = candidate_cells(request, line)
    metrics, given_up = {}, set()
    for cell, value in zip(cells, values, strict=True):
        if value is None:
            given_up.add((cell.id, "validation"))
        else:
            metrics[cell.id, "validation"] = dict.fromkeys(METRICS, 1 - value) | {request.rule: value}
    return Progress(metrics, frozenset(given_up))


@pytest.mark.slow
@given(
    st.sampled_from(METRICS),
    st.lists(st.none() | st.floats(min_value=0, max_value=1), min_size=4, max_size=4).filter(any),
)
def test_the_choice_is_that_of_sorting_by_hand(rule, values):
    request = a_request(rule=rule)
    signed = np.array([np.inf if value is None else -value if rule == "accuracy" else value for value in values])
    expected = CANDIDATES[int(np.argmin(signed))]
    for line in (request.lines[1], request.lines[3]):
        assert chosen(request, line, progress_with(request, request.lines[1], values)) == expected


def test_nothing_is_chosen_before_all_are_trained_nor_where_all_have_failed():
    request = a_request()
    line = request.lines[1]
    cells = candidate_cells(request, line)
    partly = Progress({(cell.id, "validation"): dict.fromkeys(METRICS, 0.5) for cell in cells[:3]})
    assert chosen(request, line, partly) is None
    assert undecided([request], partly) == 4
    hopeless = progress_with(request, line, [None] * 4)
    assert chosen(request, line, hopeless) is None
    assert undecided([request], hopeless) == 0
    assert [result.cells for result in results(request, hopeless) if result.line.method == "mte1"] == [(), ()]


def test_a_setting_takes_over_what_was_chosen_in_another(tmp_path):
    request = a_request()
    store, _ = run_quickly(tmp_path, [request])
    first, second = (result for result in results(request, store.progress()) if result.line.method == "mte1")
    assert first.hyper == second.hyper == min(CANDIDATES, key=lambda hyper: hyper["alpha"] * 7 % 1)
    assert [cell.recipe.epochs for cell in second.cells] == [7, 7]
    # The candidates of the first setting, the chosen one of them complete; nothing is tuned in the second.
    assert Counter(stage for _, stage in committed(store)) == {"validation": 4, "complete": 8}


def test_a_sweep_runs_every_candidate_and_chooses_none(tmp_path):
    request = a_request(swept=True)
    store, _ = run_quickly(tmp_path, [request])
    assert Counter(stage for _, stage in committed(store)) == {"complete": 2 * 2 * (1 + 4)}
    assert [result.hyper for result in results(request, store.progress())][1:5] == list(CANDIDATES)


# Which cells, in which order


def test_what_chooses_comes_first_and_then_seed_by_seed():
    named = tasks([a_request(seeds=(3, 5, 4))], Progress({}))
    assert [task.stage for task in named] == ["validation"] * 4 + ["complete"] * 6
    assert [task.cell.recipe.seed for task in named] == [3] * 4 + [3, 3, 5, 5, 4, 4]
    assert named[0].name == "first mte1 alpha=0.4 seed 3"


@pytest.mark.slow
def test_cells_that_studies_share_are_run_once(tmp_path):
    requests = [request_of(study, "smoke", seeds=[0]) for study in STUDIES]
    together, _ = run_quickly(tmp_path / "together", requests)
    apart, attempts = Store(tmp_path / "apart"), 0
    for request in requests:
        _, ended = run_quickly(apart.path, [request])
        attempts += len(ended)
    complete = {cell for cell, stage in committed(together) if stage == "complete"}
    assert complete == {cell for cell, stage in committed(apart) if stage == "complete"}
    wanted = [
        cell.id for request in requests for result in results(request, together.progress()) for cell in result.cells
    ]
    assert set(wanted) == complete
    assert len(wanted) > len(complete) > 0.4 * len(wanted)
    assert attempts == len(committed(apart))
    assert remaining(together, requests).is_empty


def test_more_seeds_run_only_what_is_new(tmp_path):
    _, before = run_quickly(tmp_path, [a_request(seeds=(0, 1))])
    _, after = run_quickly(tmp_path, [a_request(seeds=(0, 1, 2))])
    assert len(before) == 4 + 8
    assert [(ended.task.cell.recipe.seed, ended.end) for ended in after] == [(2, "committed")] * 4


def test_requests_name_what_is_wrong_with_them():
    request = request_of("dml", "smoke", seeds=[2, 0], only=("mte1", "ce"))
    assert [line.method for line in request.lines] == ["ce", "mte1"]
    assert [line.seeds for line in request.lines] == [(2, 0), (2, 0)]
    with pytest.raises(ValueError, match="dml compares ce, dml, mte1, mte2; --only names none of them"):
        request_of("dml", "smoke", seeds=[0], only=("de3",))
    with pytest.raises(ValueError, match="dml has the settings cifar10-resnet34; --settings names none of them"):
        request_of("dml", "smoke", seeds=[0], places=["pacs-photo"])
    for seeds in ([], [1, 1]):
        with pytest.raises(ValueError, match="seeds must be distinct, and at least one"):
            request_of("dml", "smoke", seeds=seeds)


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_every_study_refers_only_to_settings_that_it_has(scale):
    for study in studies_at(scale):
        request = request_of(study, scale, seeds=[0])
        assert tasks([request], Progress({}))
        assert {setting.tuned_in for setting in request.settings} - {""} <= {each.name for each in request.settings}


# Shards


def run_alone(requests, shard):
    """Everything that a shard runs if it knows of nothing but its own results."""
    mine, metrics = set(groups(requests)[shard.index :: shard.count]), {}
    while True:
        progress = Progress(metrics)
        named = [task for task in tasks(requests, progress) if task.group in mine]
        ready = [task for task in named if not progress.is_done(task)]
        if not ready:
            return {task.key for task in named}
        metrics |= {task.key: quick(None, task, root=None, page=False) for task in ready}


@pytest.mark.slow
@pytest.mark.parametrize("count", range(1, 8))
def test_shards_share_all_tasks_out_and_need_nothing_of_each_other(count):
    requests = [request_of(study, "smoke", seeds=[0, 1]) for study in STUDIES]
    shares = [run_alone(requests, Shard(index, count)) for index in range(count)]
    assert Counter(itertools.chain(*shares)) == Counter(run_alone(requests, Shard()))


@pytest.mark.slow
def test_a_shard_in_a_store_of_its_own_ends_by_itself(tmp_path):
    requests = [request_of(study, "smoke", seeds=[0, 1]) for study in ("auxiliary-backbone", "cifar10", "alpha")]
    stores = [run_quickly(tmp_path / str(index), requests, shard=Shard(index, 3))[0] for index in range(3)]
    whole, _ = run_quickly(tmp_path / "whole", requests)
    shares = [committed(store) for store in stores]
    assert set.union(*shares) == committed(whole)
    assert all(not ours & theirs for ours, theirs in itertools.combinations(shares, 2))
    assert all(shares)


@pytest.mark.parametrize("text", ["4/4", "-1/4", "1", "a/b", "1/", "/2", "0/0", "1/2/3"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ValueError, match="is no shard; write i/n with i from 0 to n - 1"):
        Shard.parse(text)


# Failures and losses


def test_a_cell_that_fails_is_tried_a_few_times_while_others_go_on(tmp_path):
    def broken_at_one(store, task, *, root, page):
        if task.cell.recipe.method == "ce" and task.cell.recipe.seed == 1 and task.cell.recipe.epochs != 7:
            raise ArithmeticError("the loss is not finite at step 3")
        return quick(store, task, root=root, page=page)

    request = a_request()
    store, ended = run_quickly(tmp_path, [request], perform=broken_at_one)
    failed = [each for each in ended if each.end == "failed"]
    assert [each.task.name for each in failed] == ["first ce seed 1"] * MOST_FAILURES
    assert len(ended) - len(failed) == len(committed(store)) == 4 + 7
    (state,) = [store.manifest.state(task) for task in store.progress().given_up]
    assert [event.reason for event in state.failures] == [
        "ArithmeticError: the loss is not finite at step 3"
    ] * MOST_FAILURES
    assert remaining(store, [request]).is_empty
    for cell, _ in store.progress().metrics:  # or forgiving would make them anew
        store.record_file(cell).parent.mkdir(exist_ok=True)
        store.record_file(cell).touch()
    store.forgive()
    _, again = run_quickly(tmp_path, [request])
    assert [(each.task.name, each.end) for each in again] == [("first ce seed 1", "committed")]


def test_candidates_that_fail_do_not_hold_up_the_others(tmp_path):
    def only_the_last(store, task, *, root, page):
        if task.cell.recipe.hyper.get("alpha", 1.0) != 1.0:
            raise ValueError("too small")
        return quick(store, task, root=root, page=page)

    request = a_request()
    store, _ = run_quickly(tmp_path, [request], perform=only_the_last)
    assert {result.hyper["alpha"] for result in results(request, store.progress()) if result.hyper} == {1.0}
    assert len(store.progress().given_up) == 3


def test_cells_that_others_have_are_waited_for(tmp_path, monkeypatch):
    request = a_request(seeds=(0,))
    store, other = Store(tmp_path), Store(tmp_path)
    store.add([request])
    task = remaining(store, [request]).ready[-1]
    pauses = []
    claim = other.claim(task)
    assert claim.__enter__()

    def finish_meanwhile(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            other.commit(task, metrics=quick(other, task, root=None, page=False), seconds=1.0, peak_memory=1)
            claim.__exit__(None, None, None)

    monkeypatch.setattr(grid_module.time, "sleep", finish_meanwhile)
    ended = []
    run_sequentially(store, [request], watch=ended.append, perform=quick)
    assert pauses == [grid_module.PAUSE] * 2
    assert {each.task.key for each in ended if each.end == "skipped"} == {task.key}
    assert remaining(store, [request]).is_empty


# Real cells


def one_cell(method="mte1", epochs=8):
    """A request for one small real run."""
    request = request_of("cifar10", "smoke", seeds=[0], only=(method,))
    setting = replace(request.settings[1], recipe=replace(request.settings[1].recipe, epochs=epochs))
    line = replace(request.lines[1], candidates=request.lines[1].candidates[:1])
    return replace(request, settings=(setting,), lines=(line,))


def work(folder):
    store = Store(folder)
    run_sequentially(store, store.contents.requests, page=False)


@pytest.mark.slow
def test_a_cell_killed_in_the_middle_ends_as_if_nothing_had_happened(tmp_path, real_data):
    real_data("cifar10")
    request = one_cell()
    whole, broken = Store(tmp_path / "whole"), Store(tmp_path / "broken")
    for store in (whole, broken):
        store.add([request])
    work(whole.path)
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=work, args=(broken.path,))
    process.start()
    (cell,) = {task.cell.id for task in tasks([request], Progress({}))}
    while process.is_alive() and not list(broken.run_folder(cell).checkpoints.glob("*.ckpt")):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert committed(broken) == set()
    work(broken.path)
    assert committed(broken) == committed(whole) == {(cell, "complete")}
    assert broken.manifest.state((cell, "complete")).attempts == 2
    assert broken.record_file(cell).read_bytes() == whole.record_file(cell).read_bytes()
    assert not list(broken.run_folder(cell).checkpoints.glob("*.ckpt"))


@pytest.mark.slow
def test_choosing_never_looks_at_test_images(tmp_path, real_data):
    data = tmp_path / "data" / "cifar10"
    data.mkdir(parents=True)
    (data / "train.parquet").symlink_to(real_data("cifar10") / "cifar10" / "train.parquet")
    store, request = Store(tmp_path / "store"), one_cell(epochs=2)
    store.add([request])
    (task,) = tasks([request], Progress({}))
    ended = attempt(store, replace(task, stage="validation"), root=data.parent, page=False)
    assert ended.end == "committed", ended.reason
    run = store.run_folder(task.cell.id)
    assert sorted(path.stem for path in run.predictions.glob("*.parquet")) == ["validation"]
    assert not store.record_file(task.cell.id).exists()
    assert attempt(store, task, root=data.parent, page=False).end == "failed"
    weights = run.primary.read_bytes()
    ended = attempt(store, task, root=real_data("cifar10"), page=False)
    assert ended.end == "committed", ended.reason
    assert run.primary.read_bytes() == weights


@pytest.mark.parametrize("count", range(1, 5))
def test_shards_lose_nothing_where_two_settings_are_the_same(tmp_path, count):
    """Cells of the one are cells of the other; a third is tuned in the second name."""
    settings = (
        Setting("first", "First", Recipe()),
        Setting("twin", "Twin", Recipe()),
        Setting("third", "Third", replace(Recipe(), epochs=7), tuned_in="twin"),
    )
    lines = tuple(Line(setting.name, "mte1", "MTE-1", (0, 1), CANDIDATES) for setting in settings)
    requests = [Request("a study", "smoke", "nll", settings, lines)]
    for index in range(count):
        store, _ = run_quickly(tmp_path / "store", requests, shard=Shard(index, count))
    assert remaining(store, requests).is_empty
