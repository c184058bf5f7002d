"""The status of a store that is filled by hand, and what is seen of it."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from counterpoise_study.cells import Task, tasks
from counterpoise_study.cost import work_of
from counterpoise_study.live_view import LiveView, ended_text, render
from counterpoise_study.requests import Request
from counterpoise_study.status import Status, status_of, status_text
from counterpoise_study.store import Store
from counterpoise_study.studies import request_of
from counterpoise_study.work import Ended

REQUESTS = [request_of(study, "smoke", seeds=[0, 1]) for study in ("dml", "reliability")]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.add(REQUESTS)
    return store


def ready(store: Store, requests: list[Request] = REQUESTS) -> list[Task]:
    progress = store.progress()
    return [task for task in tasks(requests, progress) if not progress.is_done(task)]


def commit(store: Store, task: Task, *, seconds: float = 1.0, nll: float = 1.0) -> None:
    with store.claim(task) as mine:
        assert mine
        store.commit(task, metrics={"nll": nll, "accuracy": 0.5}, seconds=seconds, peak_memory=1)


def fail(store: Store, task: Task, reason: str, *, times: int) -> None:
    for _ in range(times):
        with store.claim(task):
            store.fail(task, reason=reason, seconds=1.0)


def of(store: Store, method: str, **hyper: float) -> Task:
    """A task that can begin: the first of a method, or with some hyper-parameters."""
    return next(
        task
        for task in ready(store)
        if task.cell.recipe.method == method and task.cell.recipe.hyper.items() >= hyper.items()
    )


def test_nothing_has_begun(store: Store) -> None:
    status = status_of(store, REQUESTS)
    # dml: ce twice, and of dml, mte1 and mte2 two candidates each and the second seed; reliability adds de3 twice.
    assert (status.total.waiting, status.total.undecided, status.total.cells) == (2 + 6 + 2, 3, 13)
    assert [counts.cells for counts in status.studies] == [11, 7]
    assert status.seconds_left is None
    assert status.ratios == {}
    assert "known once a cell is finished" in status_text(status)


def test_a_choice_turns_undecided_cells_into_waiting_ones(store: Store) -> None:
    before = status_of(store, REQUESTS).total
    first, second = (task for task in ready(store) if task.cell.recipe.method == "mte1")
    commit(store, first, nll=1.0)
    commit(store, second, nll=2.0)
    after = status_of(store, REQUESTS).total
    assert (after.cells, after.undecided) == (before.cells, before.undecided - 1)
    # The cell of the chosen value is trained, but not complete.
    assert after.done == 1
    assert of(store, "mte1").cell.id == first.cell.id


def test_running_is_what_a_process_holds(store: Store) -> None:
    task = of(store, "de3")
    with store.claim(task):
        for member, text in enumerate(["epoch,step\n0,5\n1,10\n", "epoch,step\n0,5\n1,1"]):
            path = store.run_folder(task.cell.id).member(member).epochs
            path.parent.mkdir(parents=True)
            path.write_text(text)
        (running,) = status_of(store, REQUESTS).running
        assert (running.name, running.epoch, running.epochs) == (task.name, 3, 3 * task.cell.recipe.epochs)
        assert 0 <= running.seconds < 30
        assert status_of(store, REQUESTS).total.running == 1
    # Begun, and left: it waits to be taken up again.
    assert status_of(store, REQUESTS).total.running == 0


def test_failures_have_their_reason(store: Store) -> None:
    fail(store, of(store, "ce"), "OSError: disk\nfull", times=3)
    fail(store, of(store, "de3"), "ValueError: no", times=1)
    status = status_of(store, REQUESTS)
    assert [(each.is_given_up, each.failures) for each in status.troubles] == [(True, 3), (False, 1)]
    assert status.total.failed == 1
    text = status_text(status)
    assert "OSError: disk full (3 x; given up)" in text
    assert "ValueError: no (1 x; to be tried again)" in text


def test_ratios_are_of_cells_that_were_not_interrupted(store: Store) -> None:
    for seconds in (2.0, 4.0):
        commit(store, of(store, "ce"), seconds=seconds)
    interrupted = of(store, "de3")
    fail(store, interrupted, "OSError: no", times=1)
    commit(store, interrupted, seconds=100.0)
    assert status_of(store, REQUESTS).ratios == {"Cross-entropy": 1.0}
    commit(store, of(store, "de3"), seconds=9.0)
    assert status_of(store, REQUESTS).ratios == {"Cross-entropy": 1.0, "Deep ensemble of 3": 3.0}


def test_the_time_left_follows_the_flops(store: Store) -> None:
    rate = 1e7
    total = 0.0
    while tasks_left := ready(store):
        task = tasks_left[0]
        work = work_of(task.cell.recipe, task.stage)
        if (task.cell.id, "validation") in store.progress().metrics:
            work = work.minus(work_of(task.cell.recipe, "validation"))
        commit(store, task, seconds=work.flops / rate)
        total += work.flops / rate
        if len(store.progress().metrics) == 3:
            done, predicted = total, status_of(store, REQUESTS).seconds_left
    assert predicted == pytest.approx(total - done)
    assert status_of(store, REQUESTS).seconds_left == 0
    assert "nothing is left to do" in status_text(status_of(store, REQUESTS))


def test_a_method_that_is_not_known_here_has_a_status(store: Store) -> None:
    own = [replace(line, method="mine", title="Mine", source="0" * 64) for line in REQUESTS[0].lines[:1]]
    request = replace(REQUESTS[0], lines=(*REQUESTS[0].lines, *own))
    task = next(task for task in ready(store, [request]) if task.cell.recipe.method == "mine")
    with store.claim(task):
        status = status_of(store, [request])
        assert [running.name for running in status.running] == [task.name]
        store.commit(task, metrics={"nll": 1.0}, seconds=1.0, peak_memory=1)
    assert status_of(store, [request]).seconds_left


def shown(status: Status, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(status))
    return console.export_text()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_display_fits_and_shows_text_as_it_is(store: Store, width: int) -> None:
    commit(store, of(store, "ce"), seconds=75.0)
    fail(store, of(store, "ce"), "E: [red]\x1b[2J", times=1)
    with store.claim(of(store, "de3")):
        text = shown(status_of(store, REQUESTS), width)
    assert max(map(len, text.splitlines())) <= width
    assert "1/13 cells" in text
    if width > 40:
        assert "E: [red] [2J" in text
        assert "cifar10-resnet34 de3 seed 0" in text
        assert "1/18" in text
        assert "1 min  1.000     0.500" in text


def test_lines_for_what_ended(store: Store) -> None:
    task = of(store, "ce")
    commit(store, task, seconds=1.25)
    status = status_of(store, REQUESTS)
    line = ended_text(Ended(task, "committed", 1.25), status)
    assert line.startswith("[1/13] cifar10-resnet34 ce seed 0: committed in 1.2 s (about ")
    failed = ended_text(Ended(task, "failed", 2.0, "OSError: a\nb"), status)
    assert failed == "[1/13] cifar10-resnet34 ce seed 0: failed after 2.0 s: OSError: a b"


def test_lines_where_there_is_no_terminal(store: Store) -> None:
    console = Console(file=io.StringIO(), width=20)
    with LiveView(store, REQUESTS, console=console) as view:
        for _ in range(2):
            task = of(store, "ce")
            commit(store, task)
            view.watch(Ended(task, "committed", 1.0))
            view.watch(Ended(task, "skipped"))
    assert [line[:6] for line in console.file.getvalue().splitlines()] == ["[1/13]", "[2/13]"]


def test_a_look_without_a_terminal_says_what_has_changed(store: Store) -> None:
    console = Console(file=io.StringIO(), width=20)
    with LiveView(store, REQUESTS, console=console) as view:
        for _ in range(2):
            view.tick()
            view._due = 0.0
        commit(store, of(store, "ce"))
        view.tick()
    assert [line[:6] for line in console.file.getvalue().splitlines()] == ["[0/13]", "[1/13]"]


def test_a_display_on_a_terminal_goes_away(store: Store) -> None:
    console = Console(file=io.StringIO(), width=80, height=40, force_terminal=True)
    with LiveView(store, REQUESTS, console=console) as view:
        view.watch(Ended(of(store, "ce"), "committed", 1.0))
        thread = view._thread
        while "0/13 cells" not in console.file.getvalue():
            assert thread.is_alive()
    assert not thread.is_alive()
    assert "committed in" not in console.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_broken_store_does_not_disturb_the_run(store: Store, terminal: bool) -> None:
    task = of(store, "ce")
    store.manifest.path.write_text("no JSON\n")
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal)
    with LiveView(store, REQUESTS, console=console) as view:
        view.watch(Ended(task, "failed", 1.0, "OSError: no"))
    if not terminal:
        assert console.file.getvalue().startswith("cifar10-resnet34 ce seed 0: failed")
