"""Stores whose cells are named by the first rule: refused with the command that renames them, which changes no result."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from counterpoise._locks import lock_of
from counterpoise.recipes.config import Recipe, version_1_digest
from counterpoise_study.cells import Cell, cell_id
from counterpoise_study.grid import remaining
from counterpoise_study.record import CellRecord
from counterpoise_study.rekey import rekey
from counterpoise_study.report import as_markdown_text
from counterpoise_study.sections import document_of
from counterpoise_study.store import Store
from stores import filled, requests

FIRST = Path(__file__).parent / "golden" / "store-2"
DONE = {"06df55a154822e7d", "acd5e739643dbb87", "b9d71caba2c94d8c", "d34ba17c0ea2bf1e", "ff7a852394f82878"}


@pytest.fixture
def store(tmp_path) -> Store:
    shutil.copytree(FIRST, tmp_path / "store")
    return Store(tmp_path / "store")


def test_a_store_of_the_first_rule_says_which_command_renames(store):
    with pytest.raises(ValueError, match=rf"`counterpoise-study rekey {store.path}`"):
        _ = store.contents


def test_everything_that_was_finished_is_finished_under_its_new_name(store):
    before = {path.parent.name: path.read_text() for path in store.path.glob("cells/*/cell.json")}
    names = rekey(store.path)
    assert names.keys() == DONE
    assert len(set(names.values())) == len(DONE)
    assert {path.name for path in store.path.glob("cells/*") if path.is_dir()} == set(names.values())
    assert remaining(store, store.contents.requests).is_empty
    for old, text in before.items():
        assert store.record_file(names[old]).read_text() == text
        record = CellRecord.from_json(text)
        assert Cell(record.recipe, record.source).id == names[old]


def test_what_happened_stays_as_it_was_but_for_the_names(store):
    def events():
        return [json.loads(line) for line in store.manifest.path.read_text().splitlines()]

    before = events()
    names = rekey(store.path)
    assert events() == [event | {"cell": names[event["cell"]]} for event in before]


def test_the_tables_are_those_of_the_release_that_had_recipes_of_version_1(store):
    rekey(store.path)
    assert (
        as_markdown_text(document_of(store, studies=(), address=lambda _: None)) == FIRST.with_suffix(".md").read_text()
    )


def test_the_command_again_does_nothing(store):
    rekey(store.path)
    before = {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()}
    assert rekey(store.path) == {}
    assert {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("renamed", [1, 5])
def test_what_was_interrupted_goes_on(store, tmp_path, renamed):
    shutil.copytree(store.path, tmp_path / "other")
    names = rekey(tmp_path / "other")
    for old in sorted(DONE)[:renamed]:
        (store.path / "cells" / old).rename(store.path / "cells" / names[old])
    assert rekey(store.path) == names
    assert store.manifest.path.read_text() == (tmp_path / "other" / "manifest.jsonl").read_text()
    assert remaining(store, store.contents.requests).is_empty


def test_a_cell_that_nothing_explains_is_refused_before_anything_is_renamed(store):
    (store.path / "cells" / "0123456789abcdef").mkdir()
    with pytest.raises(ValueError, match="nothing says what the cells 0123456789abcdef are"):
        rekey(store.path)
    assert {path.name for path in store.path.glob("cells/*") if path.is_dir()} == DONE | {"0123456789abcdef"}


def test_a_cell_that_somebody_works_on_is_refused(store):
    lock = lock_of(store.path / "cells" / f"{min(DONE)}.lock")
    with lock, pytest.raises(ValueError, match=f"another process works on {min(DONE)}"):
        rekey(store.path)


def test_a_cell_that_is_no_longer_asked_for_is_known_by_its_record(store):
    document = json.loads((store.path / "store.json").read_text())
    (request,) = document["requests"]
    request["lines"] = [line for line in request["lines"] if line["method"] == "ce"]
    (store.path / "store.json").write_text(json.dumps(document))
    validated = [cell for cell in DONE if not store.record_file(cell).exists()]
    for cell in validated:  # of these nothing but what was asked for says what they were
        shutil.rmtree(store.path / "cells" / cell)
    lines = [line for line in store.manifest.path.read_text().splitlines() if json.loads(line)["cell"] not in validated]
    store.manifest.path.write_text("".join(f"{line}\n" for line in lines))
    assert rekey(store.path).keys() == DONE - set(validated)


def test_cells_that_are_the_same_now_are_not_thrown_together(store):
    """Two runs that differ in how often they saved a checkpoint."""
    cell = min(path.parent.name for path in store.path.glob("cells/*/cell.json"))
    record = json.loads(store.record_file(cell).read_text())
    record["recipe"]["engine"]["checkpoint_epochs"] += 1
    twin = cell_id(version_1_digest(record["recipe"]), "")
    (store.path / "cells" / twin).mkdir()
    store.record_file(twin).write_text(json.dumps(record))
    with pytest.raises(ValueError, match="have the same result"):
        rekey(store.path)


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is no store"):
        rekey(tmp_path)


@dataclass(frozen=True)
class GrownRecipe(Recipe):
    """As if a field had been added to the recipe."""

    mixup: float | None = None


@dataclass(frozen=True)
class GrownRecord(CellRecord):
    """A record of it."""

    recipe: GrownRecipe


def test_a_new_field_of_the_recipe_leaves_cells_their_names(tmp_path):
    store = filled(tmp_path, requests(["reliability"], seeds=(0,)))
    for path in store.path.glob("cells/*/cell.json"):
        grown = GrownRecord.from_json(path.read_text())
        assert grown.recipe.mixup is None
        assert Cell(grown.recipe, grown.source).id == path.parent.name
