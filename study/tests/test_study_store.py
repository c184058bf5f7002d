"""The store: whatever happens, and in whatever order, a task is committed once and nothing that was written is lost."""

import json
import multiprocessing
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.recipes.config import Recipe
from counterpoise_study.cells import Cell, Task
from counterpoise_study.grid import run_sequentially
from counterpoise_study.manifest import MOST_FAILURES, MOST_LOSSES, Event, Manifest
from counterpoise_study.requests import with_initial_weights
from counterpoise_study.store import Store
from counterpoise_study.studies import request_of

CELL = "ce11ce11ce11ce11"
METRICS = {"nll": 1.0, "accuracy": 0.5, "ece": 0.1}


def a_task(seed=0, stage="complete"):
    return Task(Cell(Recipe(seed=seed)), stage, f"seed {seed}", "group")


@pytest.fixture
def store(tmp_path):
    return new_store(tmp_path)


def new_store(folder):
    store = Store(folder)
    store.add([request_of("reliability", "smoke", seeds=[0])])
    return store


def lines_of(store):
    return [json.loads(line) for line in store.manifest.path.read_text().splitlines()]


def commit(store, task):
    store.commit(task, metrics=METRICS, seconds=1.0, peak_memory=1)


def written(path, text):
    path.parent.mkdir(parents=True)
    path.write_text(text)


def commits_of(store):
    return Counter((line["cell"], line["stage"]) for line in lines_of(store) if line["kind"] == "committed")


def test_a_store_goes_on_by_the_rule_for_initial_weights_that_it_was_begun_with(tmp_path):
    asked = [request_of("reliability", "smoke", seeds=[0])]
    begun = [with_initial_weights(request, "by-count") for request in asked]
    assert Store(tmp_path / "new").as_begun(asked) == asked
    store = Store(tmp_path / "begun")
    store.add(begun)
    assert store.as_begun(asked) == begun
    assert (
        store.as_begun([request_of("cifar10", "smoke", seeds=[0])])[0].settings[0].recipe.initial_weights == "by-count"
    )
    with pytest.raises(ValueError, match="begun with other options"):
        store.add(asked)


# The manifest

events = st.lists(
    st.builds(
        Event,
        cell=st.sampled_from(["a" * 16, "b" * 16]),
        stage=st.sampled_from(["validation", "complete"]),
        kind=st.sampled_from(["started", "committed", "failed", "lost", "again"]),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(events)
def test_states_are_what_counting_the_events_gives_to_whoever_reads_them(happened):
    with tempfile.TemporaryDirectory() as folder:
        writer, beside = (Manifest(Path(folder) / "manifest.jsonl") for _ in range(2))
        for number, event in enumerate(happened):
            writer.append(event)
            if number % 3 == 0:
                beside.refresh()
        beside.refresh()
        late = Manifest(writer.path)
        late.refresh()
    assert writer.tasks == beside.tasks == late.tasks
    assert set(writer.tasks) == {event.task for event in happened}
    for task, state in writer.tasks.items():
        kinds = [event.kind for event in happened if event.task == task]
        since = kinds[len(kinds) - kinds[::-1].index("again") :] if "again" in kinds else kinds
        assert state.attempts == kinds.count("started")
        assert (state.committed is not None) == ("committed" in since)
        assert (state.running is not None) == (kinds[-1] == "started")
        assert (len(state.failures), state.losses) == (since.count("failed"), since.count("lost"))
        too_often = since.count("failed") >= MOST_FAILURES or since.count("lost") >= MOST_LOSSES
        assert state.is_given_up == (too_often and "committed" not in since)
        progress = writer.progress()
        assert (task in progress.metrics, task in progress.given_up) == ("committed" in since, state.is_given_up)


@given(st.integers(min_value=0, max_value=10_000), st.booleans())
def test_a_line_that_a_crash_has_cut_is_ignored_and_removed(cut, reopened):
    with tempfile.TemporaryDirectory() as folder:
        manifest = Manifest(Path(folder) / "manifest.jsonl")
        for kind in ("started", "failed", "started"):
            manifest.append(Event(CELL, "complete", kind))
        whole = manifest.path.read_bytes()
        last = whole.splitlines(keepends=True)[-1]
        torn = last[: cut % len(last)]
        manifest.path.write_bytes(whole + torn)
        if reopened:
            manifest = Manifest(manifest.path)
        manifest.refresh()
        assert manifest.state((CELL, "complete")).attempts == 2
        manifest.append(Event(CELL, "complete", "committed", measures=METRICS))
        found = manifest.path.read_bytes()
        assert found.startswith(whole)
        assert [json.loads(line)["kind"] for line in found.splitlines()] == [
            "started",
            "failed",
            "started",
            "committed",
        ]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"{half a li\n", "line 2 is not JSON"),
        (b"[1, 2]\n", "line 2 is no event of a task"),
        (b'{"cell": "a", "stage": "complete"}\n', "line 2 is no event of a task"),
        (b'{"cell": "a", "stage": "complete", "kind": "started", "mood": "good"}\n', "line 2 is no event of a task"),
        (
            b'{"cell": "aaaaaaaaaaaaaaaa", "stage": "half", "kind": "started"}\n',
            "line 2 has the unknown stage or kind 'half'",
        ),
        (
            b'{"cell": "aaaaaaaaaaaaaaaa", "stage": "complete", "kind": "eaten"}\n',
            "line 2 has the unknown stage or kind .*'eaten'",
        ),
    ],
)
def test_a_damaged_line_is_named(store, damage, message):
    with store.claim(a_task()):
        pass
    with store.manifest.path.open("ab") as file:
        file.write(damage)
    with pytest.raises(ValueError, match=rf"manifest\.jsonl, {message}"):
        Store(store.path).progress()


# Claims and commits


class Coordinator:
    """One process of those that work on a store, as slow as the test wants it."""

    def __init__(self, folder):
        self.store = Store(folder)
        self.claims = {}

    def take(self, task):
        claim = ExitStack()
        mine = claim.enter_context(self.store.claim(task))
        if mine:
            self.claims[task.key] = claim
        else:
            claim.close()
        return mine

    def end(self, task, how):
        if how == "committed":
            commit(self.store, task)
        elif how == "failed":
            self.store.fail(task, reason="ValueError: no", seconds=1.0)
        self.claims.pop(task.key).close()


steps = st.tuples(
    st.integers(min_value=0, max_value=1),
    st.integers(min_value=0, max_value=1),
    st.sampled_from(["take", "committed", "failed", "dead"]),
)


@pytest.mark.slow
@given(st.lists(steps, max_size=40))
def test_two_coordinators_never_have_the_same_cell_nor_commit_it_twice(taken):
    tasks = [a_task(0), a_task(1)]
    ends = {task.key: Counter() for task in tasks}
    with tempfile.TemporaryDirectory() as folder:
        new_store(folder).manifest.path.touch()
        coordinators = [Coordinator(folder), Coordinator(folder)]
        for who, number, step in taken:
            task, coordinator, other = tasks[number], coordinators[who], coordinators[1 - who]
            count = ends[task.key]
            if step != "take" and task.key in coordinator.claims:
                coordinator.end(task, step)
                count[step] += 1
            elif step == "take" and task.key not in coordinator.claims:
                is_open = not count["committed"] and count["failed"] < MOST_FAILURES
                assert coordinator.take(task) == (is_open and task.key not in other.claims)
        for task in tasks:
            for coordinator in coordinators:
                if task.key in coordinator.claims:
                    coordinator.end(task, "dead")
                    ends[task.key]["dead"] += 1
            # Whoever comes next finds the claim of the last one that died.
            Coordinator(folder).take(task)
        late = Store(folder)
        late.progress()
        for task, count in ends.items():
            state = late.manifest.state(task)
            assert commits_of(late)[task] == count["committed"] <= 1
            assert (len(state.failures), state.losses) == (count["failed"], count["dead"])


def work_slowly(folder, ready=lambda: None):
    """Cells that take a moment, so that another process gets in between."""

    def perform(store, task, *, root, page):
        time.sleep(0.005 * (1 + int(task.cell.id, 16) % 5))
        return METRICS

    store = Store(folder)
    ready()
    run_sequentially(store, store.contents.requests, perform=perform)


@pytest.mark.slow
def test_processes_that_race_on_a_store_commit_every_task_once(tmp_path):
    request = request_of("cifar10", "smoke", seeds=range(3), only=("ce", "fl", "mte1", "mte2"))
    store, alone = Store(tmp_path / "together"), Store(tmp_path / "alone")
    for each in (store, alone):
        each.add([request])
    work_slowly(alone.path)
    context = multiprocessing.get_context("forkserver")
    both = context.Barrier(2)
    processes = [context.Process(target=work_slowly, args=(store.path, both.wait)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert commits_of(store) == commits_of(alone)
    assert set(commits_of(store).values()) == {1}
    assert len({line["worker"] for line in lines_of(store)}) > 1


def test_a_cell_is_given_up_after_some_failures_and_tried_again_when_asked_to(store):
    task = a_task()
    for number in range(MOST_FAILURES):
        with store.claim(task) as mine:
            assert mine
            store.fail(task, reason=f"ValueError: {number}", seconds=1.0)
    with store.claim(task) as mine:
        assert not mine
    assert store.progress().given_up == {task.key}
    assert [event.reason for event in store.manifest.state(task.key).failures][-1] == f"ValueError: {MOST_FAILURES - 1}"
    Store(store.path).forgive()
    assert store.progress().given_up == frozenset()
    with store.claim(task) as mine:
        assert mine
        commit(store, task)
    written(store.record_file(task.cell.id), "{}")
    store.forgive()
    assert lines_of(store)[-1]["kind"] == "committed"


def test_a_cell_that_its_processes_do_not_survive_is_given_up_later(store):
    task = a_task()
    for number in range(MOST_LOSSES):
        assert store.manifest.state(task.key).losses == max(0, number - 1)
        with store.claim(task) as mine:
            assert mine
    with store.claim(task) as mine:
        assert not mine
    assert store.manifest.state(task.key).losses == MOST_LOSSES
    assert store.progress().given_up == {task.key}


def test_what_is_complete_is_validated_and_a_loss_is_counted_at_the_stage_it_happened_in(store):
    validation, complete = a_task(stage="validation"), a_task(stage="complete")
    with store.claim(validation) as mine:
        assert mine
    with store.claim(complete) as mine:
        assert mine
        commit(store, complete)
    with store.claim(validation) as mine:
        assert not mine
    assert store.manifest.state(validation.key).losses == 1
    assert store.manifest.state(complete.key).losses == 0
    assert store.progress().of(complete.cell) == METRICS


def test_a_second_commit_is_a_bug_and_is_not_written(store):
    task = a_task()
    with store.claim(task):
        commit(store, task)
        with pytest.raises(AssertionError, match="was committed before"):
            commit(Store(store.path), task)
    assert commits_of(store) == {task.key: 1}


def test_it_is_known_who_works_on_a_cell(store):
    task = a_task()
    assert not store.is_held(task.cell.id)
    with store.claim(task):
        assert Store(store.path).is_held(task.cell.id)
    assert not store.is_held(task.cell.id)


# Requests


def test_a_store_has_one_scale_and_explains_itself(store):
    with pytest.raises(ValueError, match="would hold the scales reduced, smoke; use a store for each"):
        store.add([request_of("dml", "reduced", seeds=[0])])
    before = (store.path / "store.json").read_bytes()
    store.add([request_of("reliability", "smoke", seeds=[0])])
    assert (store.path / "store.json").read_bytes() == before
    store.add([request_of("dml", "smoke", seeds=[0, 1])])
    assert Store(store.path).contents.requests == (
        request_of("reliability", "smoke", seeds=[0]),
        request_of("dml", "smoke", seeds=[0, 1]),
    )


def test_what_is_no_store_is_refused_by_name(tmp_path, store):
    with pytest.raises(ValueError, match="nowhere is no store"):
        Store(tmp_path / "nowhere").contents  # noqa: B018
    path = store.path / "store.json"
    path.write_text(path.read_text().replace('"counterpoise.store"', '"something.else"'))
    with pytest.raises(ValueError, match=r"store\.json: not a store document"):
        store.contents  # noqa: B018


def test_cells_with_other_values_or_another_source_are_other_cells():
    recipe = Recipe(method="mte1", hyper={"alpha": 0.8})
    same = Recipe(method="mte1", hyper={"alpha": 0.8})
    others = [replace(recipe, seed=1), replace(recipe, hyper={"alpha": 1.0}), replace(recipe, method="dml")]
    assert Cell(recipe).id == Cell(same).id
    assert len({Cell(recipe).id, Cell(recipe, "digest").id, *(Cell(other).id for other in others)}) == 5


def test_a_cell_that_gets_further_is_not_given_up_for_being_preempted(tmp_path):
    """Losses count in a row without progress: a spot instance may take a long cell away any number of times."""
    manifest = Manifest(tmp_path / "manifest.jsonl")
    for step in range(3 * MOST_LOSSES):
        manifest.append(Event(CELL, "complete", "started", step=step))
        manifest.append(Event(CELL, "complete", "lost", step=step + 1))
    assert manifest.state((CELL, "complete")).losses == 0
    for _ in range(MOST_LOSSES):
        manifest.append(Event(CELL, "complete", "started", step=step))
        manifest.append(Event(CELL, "complete", "lost", step=step))
    assert manifest.state((CELL, "complete")).is_given_up
