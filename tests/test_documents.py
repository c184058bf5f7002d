"""Documents of earlier versions: the first of every schema is kept, and reads; fields may be added."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from counterpoise._documents import from_document, to_document
from counterpoise.calibrators import ConformalSets, SelectiveThreshold, load_calibrator
from counterpoise.data.tars import ShardIndex
from counterpoise.export import ModelConfig
from counterpoise.metrics import Scores
from counterpoise.metrics.comparison import Evaluation
from counterpoise.predictions import read_predictions
from counterpoise.recipes import Recipe
from counterpoise.training.study import Search

FIRST = Path(__file__).parent / "golden" / "documents"


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("recipe-2.json", Recipe.from_json),
        ("search-2.json", Search.from_json),
        ("scores-1.json", Scores.from_json),
        ("evaluation-1.json", Evaluation.from_json),
        ("shard-index-1.json", ShardIndex.from_json),
    ],
)
def test_the_present_version_reads_as_it_was_first_and_nothing_of_it_is_lost(name, read):
    text = (FIRST / name).read_text()
    assert contains(json.loads(read(text).to_json()), json.loads(text))


@pytest.mark.parametrize(
    ("name", "kind"), [("conformal-sets-1.json", ConformalSets), ("selective-threshold-1.json", SelectiveThreshold)]
)
def test_the_first_version_of_a_guarantee_reads_and_nothing_of_it_is_lost(name, kind):
    assert contains(json.loads(kind.load(FIRST / name).to_json()), json.loads((FIRST / name).read_text()))


def test_the_first_version_of_a_shared_folder_reads():
    found = ModelConfig.load(FIRST / "model-1.json")
    assert (found.class_names, found.temperature, found.backbone.width) == (("cat", "dog"), 1.5, 16)


def test_the_first_versions_of_binary_files_read():
    predictions = read_predictions(FIRST / "predictions-1.parquet")
    assert predictions.values.shape == (8, 3)
    assert predictions.header.class_names == ("a", "b", "c")
    assert load_calibrator(FIRST / "calibrator-1.safetensors").temperature > 0


@dataclass(frozen=True)
class Inner:
    size: int = 1
    colour: str = "red"


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    items: tuple[Inner, ...] = ()


def document(version: int, **fields: object) -> str:
    return json.dumps({"schema": "tests.outer", "schema_version": version, **fields})


def read(text: str, **options: object) -> Outer:
    return from_document(Outer, text, **{"schema": "tests.outer", "version": 1} | options)


def test_missing_fields_take_their_defaults_at_any_depth():
    found = read(document(1, name="a", inner={"size": 2}, items=[{"colour": "blue"}, {}]))
    assert found == Outer("a", Inner(2), (Inner(colour="blue"), Inner()))
    assert read(document(1, name="a")) == Outer("a")


@pytest.mark.parametrize("fields", [{}, {"name": "a", "inner": {"weight": 3}}, {"name": "a", "weight": 3}])
def test_what_is_not_known_or_has_no_default_is_refused(fields):
    with pytest.raises(ValueError, match=r"(name|weight) missing or not known"):
        read(document(1, **fields))


UPGRADES = {
    1: lambda old: {"title": old["label"], "inner": {"size": old["pixels"]}},
    2: lambda old: {"name": old["title"], "inner": old["inner"]},
}


def test_what_has_changed_goes_through_a_function_for_each_version():
    found = read(document(1, label="a", pixels=4), version=3, upgrades=UPGRADES)
    assert found == read(document(2, title="a", inner={"size": 4}), version=3, upgrades=UPGRADES)
    assert found == read(document(3, name="a", inner={"size": 4}), version=3, upgrades=UPGRADES) == Outer("a", Inner(4))
    assert json.loads(to_document(found, schema="tests.outer", version=3))["schema_version"] == 3


@pytest.mark.parametrize("version", [0, 4, "1", 1.0, True, None, [1]])
def test_other_versions_are_refused_by_name(version):
    with pytest.raises(ValueError, match=r"have schema version .*, this release reads 1 and 2 and 3"):
        read(document(version, name="a"), version=3, upgrades=UPGRADES)


def contains(whole: object, part: object) -> bool:
    """Whether everything in a document is in another one as it is."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(name in whole and contains(whole[name], part[name]) for name in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return whole == part


def test_contains_sees_what_is_lost():
    whole = asdict(Outer("a"))
    assert contains(whole, {"inner": {"size": 1}})
    assert not contains(whole, {"inner": {"size": 2}})
    assert not contains(whole, {"other": None})
