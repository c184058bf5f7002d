"""A data set from outside the package: one entry, and it trains, is studied, and its cost is planned."""

from dataclasses import replace

import pytest

from counterpoise.data import SETS, ImageSet
from counterpoise.recipes.config import DataOptions, EvaluationOptions
from counterpoise.training import train
from counterpoise_study.cost import shape_of, work_of
from counterpoise_study.data_check import require_data
from counterpoise_study.grid import remaining, run_sequentially
from counterpoise_study.hardware_timing import assumed_timing
from counterpoise_study.plan import plan_of, plan_text
from counterpoise_study.report import write_report
from counterpoise_study.requests import Line, Request, Setting
from counterpoise_study.store import Store
from runs import small_recipe
from test_data_sets import random_pixels, write

STARS = ImageSet(
    name="stars",
    title="Stars",
    image="image",
    label="label",
    classes=("dwarf", "giant"),
    size=8,
    images={"train": 120, "test": 30},
)
"""The entry."""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of data sets that holds the files, as it would hold those of any other set."""
    monkeypatch.setitem(SETS, STARS.name, STARS)
    for split, rows in STARS.images.items():
        write(tmp_path / STARS.name / f"{split}.parquet", random_pixels(rows, STARS.size), [0, 1] * (rows // 2))
    return tmp_path


def recipe(method="ce"):
    own = small_recipe(method)
    return replace(
        own, data=DataOptions("stars", validation=20, padding=0), evaluation=EvaluationOptions(ood=("stars",))
    )


@pytest.mark.slow
def test_it_trains(root):
    evaluation = train(recipe(), root / "run", root=root, page=False)
    assert evaluation.models[0].samples == STARS.images["test"]


def test_its_cost_is_that_of_its_entry(root):
    assert shape_of(recipe()) == (2, (3, 8, 8))
    assert work_of(recipe()).steps == 2 * ((120 - 20) // 20)


@pytest.mark.slow
def test_it_is_studied_and_planned(root):
    request = Request(
        study="reliability",
        scale="smoke",
        rule="nll",
        settings=(Setting("stars-cnn", "Stars, CNN", recipe()),),
        lines=(Line("stars-cnn", "ce", "Cross-entropy", (0,), ({},)),),
    )
    planned = plan_text(plan_of([request], timing=assumed_timing(1e12)))
    assert "reliability" in planned
    require_data([request], root=root)
    store = Store(root / "store")
    store.add([request])
    run_sequentially(store, [request], root=root, page=False)
    assert remaining(store, [request]).is_empty
    assert not store.progress().given_up
    (page, *_) = write_report(store)
    assert "Stars, CNN" in page.read_text()


def test_without_the_number_of_images_the_cost_says_what_is_missing(root, monkeypatch):
    monkeypatch.setitem(SETS, STARS.name, replace(STARS, images={}))
    with pytest.raises(ValueError, match="how many images 'stars' has is not known; its entry in SETS"):
        work_of(recipe())
