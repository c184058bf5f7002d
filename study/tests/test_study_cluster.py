"""The grid on Ray: what the coordinator makes of its answers, by a stand-in; a real local cluster, its processes killed."""

import json
import random
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest

from benchmarks.grid import SHORT, Kills, commits_of, differences, disturb, events_of, grid_of, records
from counterpoise_study import cluster
from counterpoise_study.cluster import Needs, run_on_ray
from counterpoise_study.grid import PAUSE, remaining, run_sequentially
from counterpoise_study.manifest import MOST_LOSSES
from counterpoise_study.store import Store
from counterpoise_study.studies import request_of


class DiedError(BaseException):
    """Stands for all of Ray's errors that say that a worker is gone; no cell catches it."""


class FakeRay:
    """Runs a task when its end is asked for."""

    def __init__(self, *, cpus=2.0, before_get=lambda number: None):
        self.cpus, self.before_get = cpus, before_get
        self.flying, self.most_flying = {}, 0
        self.calls, self.submitted, self.options = [], [], {}
        names = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "LocalRayletDiedError", "ObjectLostError")
        self.exceptions = SimpleNamespace(**dict.fromkeys(names, DiedError))

    def is_initialized(self):
        return False

    def init(self, **options):
        self.calls.append(("init", options.get("address")))

    def shutdown(self):
        self.calls.append("shutdown")

    def nodes(self):
        return [
            {"Alive": True, "Resources": {"CPU": self.cpus}},
            {"Alive": True, "Resources": {"memory": 1e9}},
            {"Alive": False, "Resources": {"CPU": 64.0}},
        ]

    def remote(self, **options):
        self.options = options
        return lambda function: SimpleNamespace(remote=partial(self._submit, function))

    def _submit(self, function, *arguments, **options):
        number = len(self.submitted)
        self.submitted.append((arguments, options))
        self.flying[number] = partial(function, *arguments, **options)
        self.most_flying = max(self.most_flying, len(self.flying))
        return number

    def wait(self, references, *, num_returns):
        assert list(references) == list(self.flying)
        return references[:num_returns], references[num_returns:]

    def get(self, number):
        run = self.flying.pop(number)
        self.before_get(number)
        return run()


def quick(store, task, *, root, page):
    """Metrics without training."""
    value = abs(task.cell.recipe.hyper.get("alpha", 1.0) - 1.0)
    return {"nll": value, "accuracy": 1 - value, "ece": value}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a small grid on a stand-in for Ray."""
    pauses = []
    monkeypatch.setattr(cluster.time, "sleep", pauses.append)

    def run_on(ray, *, perform=quick, **options):
        monkeypatch.setattr(cluster, "require", lambda *_, **__: ray)
        monkeypatch.setattr(cluster, "perform", lambda *task, allow, **options: perform(*task, **options))
        store, requests, ended = Store(tmp_path), [request_of("dml", "smoke", seeds=range(3))], []
        store.add(requests)
        run_on_ray(store, requests, watch=ended.append, **options)
        assert remaining(store, requests).is_empty
        return SimpleNamespace(store=store, ended=ended, pauses=pauses)

    return run_on


def of_a_sequential_run(folder):
    store, requests = Store(folder), [request_of("dml", "smoke", seeds=range(3))]
    store.add(requests)
    run_sequentially(store, requests, perform=quick)
    return commits_of(store)


def test_a_grid_on_ray_commits_what_a_sequential_one_does(run, tmp_path):
    ray = FakeRay(cpus=3.0)
    found = run(ray)
    assert commits_of(found.store) == of_a_sequential_run(tmp_path / "sequential")
    assert Counter(each.end for each in found.ended) == {"committed": len(commits_of(found.store))}
    assert ray.calls == [("init", "local"), "shutdown"]
    # No more than twice the room: a grid of ten thousand cells is not queued at once.
    assert ray.most_flying == 6
    assert found.pauses == []
    assert ray.options["max_retries"] == 0


def test_workers_are_sent_plain_data(run, monkeypatch, tmp_path):
    monkeypatch.setenv("COUNTERPOISE_DATA", "relative/data")
    monkeypatch.chdir(tmp_path)
    ray = FakeRay()
    run(ray, address="auto", gpus_per_cell=0, cpus_per_cell=0.5)
    assert ray.calls[0] == ("init", "auto")
    for arguments, options in ray.submitted:
        assert json.loads(json.dumps(arguments)) == list(arguments)
        assert arguments[1:] == (str(tmp_path), str(tmp_path / "relative/data"), None)
        assert options == {"page": True, "allow": ()}


def test_a_cluster_that_does_not_start_says_what_to_do(run):
    class Slow(FakeRay):
        def init(self, **_):
            raise Exception("The current node timed out during startup.\nLogs are elsewhere.")

    with pytest.raises(OSError, match=r"Ray did not start: .* during startup\. Give the same command again; what is"):
        run(Slow())


@pytest.mark.slow
def test_a_worker_that_dies_in_mid_cell_is_replaced(run, tmp_path):
    started = Counter()

    def deadly_at_first(store, task, *, root, page):
        started[task.key] += 1
        if started[task.key] == 1:
            raise DiedError
        return quick(store, task, root=root, page=page)

    found = run(FakeRay(), perform=deadly_at_first)
    assert commits_of(found.store) == of_a_sequential_run(tmp_path / "sequential")
    states = found.store.manifest.tasks.values()
    assert {(state.losses, state.attempts) for state in states} == {(1, 2)}


@pytest.mark.slow
def test_a_cell_that_no_worker_survives_is_given_up_and_others_go_on(run, tmp_path):
    def deadly(store, task, *, root, page):
        if task.cell.recipe.method == "ce" and task.cell.recipe.seed == 1:
            raise DiedError
        return quick(store, task, root=root, page=page)

    found = run(FakeRay(), perform=deadly)
    (task,) = found.store.progress().given_up
    assert found.store.manifest.state(task).losses == MOST_LOSSES
    assert commits_of(found.store) == of_a_sequential_run(tmp_path / "sequential") - Counter([task])


@pytest.mark.slow
def test_a_cell_that_gets_further_at_each_loss_is_not_given_up(run, monkeypatch, tmp_path):
    """As on machines that are taken away again and again."""
    started = Counter()

    def preempted(store, task, *, root, page):
        started[task.key] += 1
        if task.cell.recipe.method == "ce" and started[task.key] <= MOST_LOSSES + 2:
            raise DiedError
        return quick(store, task, root=root, page=page)

    def newest_step(folder):
        return 10 * max((count for (cell, _), count in started.items() if cell == folder.path.name), default=0)

    monkeypatch.setattr("counterpoise_study.store.newest_step", newest_step)
    found = run(FakeRay(), perform=preempted)
    assert commits_of(found.store) == of_a_sequential_run(tmp_path / "sequential")


def test_workers_that_die_before_they_claim_do_not_go_on_for_ever(run):
    def die(number):
        raise DiedError("out of memory")

    ray = FakeRay(before_get=die)
    with pytest.raises(ValueError, match=r"workers die before they begin with .*: out of memory"):
        run(ray)
    assert ray.calls[-1] == "shutdown"


@pytest.mark.parametrize("error", [KeyboardInterrupt, AssertionError])
def test_it_disconnects_whatever_ends_it(run, error):
    def fail(number):
        if number == 3:
            raise error

    ray = FakeRay(before_get=fail)
    with pytest.raises(error):
        run(ray)
    assert ray.calls[-1] == "shutdown"
    assert run(FakeRay()).ended[0].end == "committed"


def test_cells_that_another_coordinator_has_are_waited_for_with_pauses(run, monkeypatch, tmp_path):
    request = request_of("dml", "smoke", seeds=range(3))
    other, pauses = Store(tmp_path), []
    other.add([request])
    task = remaining(other, [request]).ready[-1]
    claim = other.claim(task)
    assert claim.__enter__()

    def finish_meanwhile(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            other.commit(task, metrics=quick(other, task, root=None, page=False), seconds=1.0, peak_memory=1)
            claim.__exit__(None, None, None)

    monkeypatch.setattr(cluster.time, "sleep", finish_meanwhile)
    found = run(FakeRay())
    assert pauses == [PAUSE] * 3
    assert {each.task.key for each in found.ended if each.end == "skipped"} == {task.key}
    assert set(commits_of(other).values()) == {1}


def test_what_cannot_be_run_is_refused(run):
    for cpus, gpus in ((0, 0), (-1, 0), (1, -0.5)):
        with pytest.raises(ValueError, match="a cell needs more than 0 cores and no less than 0 GPUs"):
            Needs(cpus, gpus)
    with pytest.raises(ValueError, match=r"no machine has room for a cell: .*gpus=1.*'CPU': 2\.0.*ask for less"):
        run(FakeRay(), gpus_per_cell=1)


def test_a_cluster_may_grow(run, capsys):
    ray = FakeRay(cpus=0.5)
    run(ray, address="auto")
    assert ray.most_flying == 2
    assert "no machine has room for a cell" in capsys.readouterr().err


def test_a_method_of_ones_own_is_run_only_from_the_file_it_was_asked_from(monkeypatch, tmp_path):
    request = request_of("dml", "smoke", seeds=[0], only=("ce",))
    sent = cluster._plain(remaining(Store(tmp_path), [request]).ready[0]) | {"source": "another digest"}
    monkeypatch.setattr(cluster, "_load_once", lambda path: {"ce": "digest"})
    with pytest.raises(ValueError, match=r"own\.py is not, or no longer, the file that 'ce' was asked from"):
        cluster._work(sent, str(tmp_path), None, "own.py", page=False, allow=())


# A real cluster; in CI, `python -m benchmarks.grid --short` kills workers and a coordinator


@pytest.mark.long
def test_a_worker_killed_in_mid_cell_leaves_the_same_records_as_an_undisturbed_run(tmp_path, real_data):
    for name in ("cifar10", "cifar100_partial", "svhn_partial"):
        real_data(name)
    request = grid_of(SHORT)
    undisturbed, disturbed = Store(tmp_path / "undisturbed"), Store(tmp_path / "disturbed")
    for store in (undisturbed, disturbed):
        store.add([request])
    run_sequentially(undisturbed, [request], page=False)
    commits = commits_of(undisturbed)
    moments = random.Random(0)  # noqa: S311
    killed, _ = disturb(disturbed, kills=Kills(workers=1, coordinators=0), commits=len(commits), moments=moments)
    assert killed == {"worker": 1}
    assert commits_of(disturbed) == commits
    assert set(commits.values()) == {1}
    assert len({cell for cell, _ in commits}) == 8
    assert differences(records(undisturbed), records(disturbed)) == 0
    disturbed.progress()
    states = disturbed.manifest.tasks.values()
    assert sum(event["kind"] == "lost" for event in events_of(disturbed)) == 1
    assert len({state.committed.worker for state in states if state.committed}) >= 2
