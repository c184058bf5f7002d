"""Numbers that were edited are not drawn, and nothing is removed or written through links in somebody's store."""

import json

import pytest

import stores
from counterpoise._digests import SUMS, read_sums
from counterpoise.verification import verify
from counterpoise_study.collected import collect
from counterpoise_study.keeping import keep
from counterpoise_study.store import Store
from counterpoise_study.work import attempt, remove_leftovers


@pytest.fixture(scope="module")
def wanted():
    return stores.requests(["dml"])


@pytest.fixture
def store(tmp_path, wanted):
    return stores.filled(tmp_path / "store", wanted)


def a_record(store):
    return next(iter(sorted(store.path.glob("cells/*/cell.json"))))


def edit(path, change, *, digest=True):
    document = json.loads(path.read_text())
    change(document)
    if not digest:
        del document["sha256"]
    path.write_text(json.dumps(document, indent=1))


def more_accurate(document):
    document["plain"]["estimates"]["accuracy"]["value"] += 0.1


@pytest.mark.slow
def test_an_edited_number_is_refused_and_its_cell_named(store):
    collect(store)
    path = a_record(store)
    edit(path, more_accurate)
    with pytest.raises(ValueError, match=rf"{path.parent.name}/cell\.json belongs to a finished cell.*not what was"):
        collect(store)
    assert [each.path for each in verify(store.path) if each.state == "changed"] == [path]


def test_records_of_an_earlier_release_have_no_digest_and_are_drawn(store):
    for path in store.path.glob("cells/*/cell.json"):
        edit(path, lambda _: None, digest=False)
    assert collect(store)


def test_a_number_that_the_manifest_contradicts_is_refused(store):
    edit(a_record(store), lambda document: document["validation"].update(nll=0.0), digest=False)
    with pytest.raises(ValueError, match=r"not those of manifest\.jsonl: one of the two was changed"):
        collect(store)


def test_a_record_in_the_folder_of_another_cell_is_refused(store):
    first, second, *_ = sorted(store.path.glob("cells/*/cell.json"))
    validation = json.loads(second.read_text())["validation"]
    second.write_text(first.read_text())
    edit(second, lambda document: document.update(validation=validation), digest=False)
    with pytest.raises(ValueError, match="its recipe is not that of the cell whose folder it is in"):
        collect(store)


@pytest.mark.parametrize("name", ["manifest.jsonl", "store.json", "cell.json"])
def test_what_is_kept_is_vouched_for_whole(store, wanted, tmp_path, name):
    keep(store, tmp_path / "kept")
    kept = Store(tmp_path / "kept")
    assert collect(kept)
    assert {"manifest.jsonl", "store.json"} < read_sums(kept.path).keys()
    assert {each.state for each in verify(kept.path)} == {"whole"}
    path = a_record(kept) if name == "cell.json" else kept.path / name
    path.write_text(path.read_text().replace("0.", "0.1", 1) + " ")
    with pytest.raises(ValueError, match=rf"kept: .*{name} changed or went missing after SHA256SUMS was written"):
        collect(kept)
    with pytest.raises(ValueError, match="changed or went missing"):
        keep(store, kept.path)
    path.unlink()
    assert [each.path for each in verify(kept.path) if each.state == "missing"] == [path]


def test_a_copy_that_is_worked_on_is_vouched_for_no_longer(store, wanted, tmp_path):
    keep(store, tmp_path / "kept")
    kept = Store(tmp_path / "kept")
    kept.add(wanted)
    assert not (kept.path / SUMS).exists()
    keep(kept, kept.path)  # which adds digests to what a folder has, and changes nothing else
    assert (kept.path / SUMS).exists()


def test_no_checkpoint_is_removed_through_a_link(store, tmp_path):
    cell = a_record(store).parent
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "step-000000001.ckpt").touch()
    (cell / "primary.safetensors").touch()
    (cell / "checkpoints").symlink_to(mine)
    with pytest.raises(ValueError, match="checkpoints is a link"):
        remove_leftovers(store)
    assert list(mine.iterdir())


def test_a_cell_that_is_a_link_is_not_worked_on(wanted, tmp_path):
    from counterpoise_study.grid import remaining

    store = Store(tmp_path / "store")
    store.add(wanted)
    task = remaining(store, wanted).ready[0]
    (tmp_path / "mine").mkdir()
    store.run_folder(task.cell.id).path.symlink_to(tmp_path / "mine")
    ended = attempt(store, task, page=False)
    assert ended.end == "failed"
    assert "is a link" in ended.reason
    assert not list((tmp_path / "mine").iterdir())
