"""What happens to a store besides its tasks: lost and damaged files, older copies, file systems without locks."""

import errno

import pytest

from counterpoise_study.manifest import Event, Manifest
from counterpoise_study.store import Store
from counterpoise_study.studies import request_of
from counterpoise_study.work import remove_leftovers
from test_study_store import a_task, commit, lines_of, new_store, written


@pytest.fixture
def store(tmp_path) -> Store:
    return new_store(tmp_path)


def test_a_finished_cell_whose_record_is_gone_is_made_anew_when_asked_to(store):
    task = a_task()
    with store.claim(task):
        commit(store, task)
    store.forgive()
    assert not store.progress().is_done(task)
    with store.claim(task) as mine:
        assert mine
        commit(store, task)
    assert store.progress().is_done(task)


def test_a_cell_with_damaged_checkpoints_can_be_begun(store):
    """The attempt itself says what is wrong, and other cells go on."""
    task = a_task()
    written(store.run_folder(task.cell.id).checkpoints / "manifest.json", "{")
    with store.claim(task) as mine:
        assert mine


def test_checkpoints_that_a_kill_has_left_are_removed(store):
    task, other, anew = a_task(0), a_task(1), a_task(2, stage="validation")
    for each in (task, other, anew):
        for folder in ("checkpoints", "members/0/checkpoints"):
            path = store.run_folder(each.cell.id).path / folder
            path.mkdir(parents=True)
            (path / "step-000000001.ckpt").touch()
            if each is not anew:  # which was validated and kept without its weights, and is trained again
                (path.parent / "primary.safetensors").touch()
    for each in (task, anew):
        with store.claim(each):
            commit(store, each)
    remove_leftovers(store)
    left = {path.relative_to(store.path / "cells").parts[0] for path in store.path.rglob("*.ckpt")}
    assert left == {other.cell.id, anew.cell.id}


def test_an_older_copy_of_the_manifest_is_read_anew(store):
    manifest = Manifest(store.manifest.path)
    for number in range(3):
        manifest.append(Event(f"{number:016x}", "complete", "started"))
    first = manifest.path.read_bytes().splitlines(keepends=True)[0]
    manifest.path.write_bytes(first)
    manifest.append(Event(f"{3:016x}", "complete", "started"))
    assert [line["cell"] for line in lines_of(store)] == [f"{0:016x}", f"{3:016x}"]
    assert {cell for cell, _ in manifest.tasks} == {f"{0:016x}", f"{3:016x}"}


def test_a_file_system_without_locks_is_refused(store, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(ValueError, match=r"manifest\.lock has no locks, without which processes would disturb"):
        store.add([request_of("reliability", "smoke", seeds=[0])])


def test_who_may_not_lock_a_cell_believes_that_it_is_worked_on(store, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    assert store.is_held("cell")
