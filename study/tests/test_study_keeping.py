"""What a repository keeps of a store: enough for every table and figure, and to go on from."""

import json
import shutil

import pytest

import stores
from counterpoise.training.run import train
from counterpoise_study.grid import remaining, run_sequentially
from counterpoise_study.keeping import keep
from counterpoise_study.report import write_report
from counterpoise_study.store import Store
from counterpoise_study.studies import request_of
from counterpoise_study.work import attempt

SMALL = {"cell.json", "environment.json", "epochs.csv"}


def tables_of(store, out):
    return [path.read_bytes() for path in write_report(store, out=out, html=False, markdown=True, latex=True)]


@pytest.mark.slow
def test_tables_and_figures_are_the_same_from_what_is_kept(tmp_path):
    store = stores.filled(tmp_path / "store", stores.requests(["cifar10", "corruptions", "alpha"]))
    assert len(keep(store, tmp_path / "kept")) > 20
    kept = Store(tmp_path / "kept")
    assert tables_of(kept, tmp_path / "second") == tables_of(store, tmp_path / "first")
    events = [json.loads(line) for line in kept.manifest.path.read_text().splitlines()]
    assert {event["kind"] for event in events} == {"committed"}
    assert not any("worker" in event for event in events)
    assert all(event["seconds"] and event["peak_memory"] and event["time"] for event in events)


def test_what_is_kept_grows_at_its_end(tmp_path):
    wanted = stores.requests(["dml"])
    kept = Store(tmp_path / "kept")
    store = stores.filled(tmp_path / "store", wanted, skip=lambda task: task.cell.recipe.seed > 0)
    first = keep(store, kept.path)
    assert first
    assert keep(store, kept.path) == []
    before = kept.manifest.path.read_bytes()
    second = keep(stores.filled(store.path, wanted), kept.path)
    assert second
    assert not set(first) & set(second)
    assert kept.manifest.path.read_bytes().startswith(before)
    assert remaining(kept, wanted).is_empty


@pytest.mark.slow
def test_a_real_run_goes_on_from_what_is_kept(real_data, tmp_path, monkeypatch):
    root = real_data("cifar10")
    request = request_of("reliability", "smoke", seeds=[0], only=["mte1", "de3"])
    whole = Store(tmp_path / "whole")
    whole.add([request])
    for task in remaining(whole, [request]).ready:
        attempt(whole, task, root=root, page=False)
    keep(whole, tmp_path / "kept")
    run_sequentially(whole, [request], root=root, page=False)

    again, trained = Store(tmp_path / "again"), []
    shutil.copytree(tmp_path / "kept", again.path)
    names = {path.name for path in again.path.glob("cells/*/**/*") if path.is_file()}
    assert names == SMALL
    monkeypatch.setattr(
        "counterpoise_study.work.train",
        lambda recipe, *args, **options: trained.append(recipe) or train(recipe, *args, **options),
    )
    run_sequentially(again, [request], root=root, page=False)
    (chosen,) = trained  # its weights were not kept
    assert chosen.method == "mte1"
    records = [sorted(store.path.glob("cells/*/cell.json")) for store in (whole, again)]
    assert len(records[0]) == 2
    assert [path.read_bytes() for path in records[0]] == [path.read_bytes() for path in records[1]]


@pytest.mark.parametrize("linked", ["epochs.csv", ""], ids=["file", "folder"])
def test_files_that_a_link_points_at_are_not_copied(tmp_path, linked):
    """A store may come from somebody else, and what is kept goes into a repository."""
    store = stores.filled(tmp_path / "store", stores.requests(["dml"]))
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "epochs.csv").write_text("private")
    cell = next(path for path in (tmp_path / "store" / "cells").iterdir() if path.is_dir())
    if linked:
        (cell / linked).unlink(missing_ok=True)
        (cell / linked).symlink_to(secret / linked)
    else:
        shutil.rmtree(cell)
        cell.symlink_to(secret)
    with pytest.raises(ValueError, match="is a link, or in a folder that is one"):
        keep(store, tmp_path / "kept")
    assert not any(path.read_text() == "private" for path in (tmp_path / "kept").rglob("epochs.csv"))


@pytest.mark.parametrize("cell", ["../../x", "/etc", "..", "0613", "06130D892A031AA8", 7, ["a"]])
def test_cells_that_are_no_ids_are_refused_before_a_folder_is_named_by_them(tmp_path, cell):
    store = stores.filled(tmp_path / "store", stores.requests(["dml"]))
    line = {"cell": cell, "stage": "complete", "kind": "committed", "time": "2026-01-01T00:00:00+00:00"}
    with store.manifest.path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    for act in (lambda: keep(Store(store.path), tmp_path / "kept"), lambda: Store(store.path).progress()):
        with pytest.raises(ValueError, match=r"names the cell .*, which is no id"):
            act()
    assert not (tmp_path / "x").exists()
