"""The paper's numbers: all of them readable, each in its place, each reachable from the study that shows it."""

import csv
from collections import Counter
from importlib import resources

import pytest

from counterpoise.metrics import Key
from counterpoise.metrics.estimates import KEY_INFO
from counterpoise.recipes.methods import METHODS
from counterpoise_study.published import KEYS, METHOD_NAMES, published_number, published_numbers
from counterpoise_study.requests import Published
from counterpoise_study.scales import SCALES
from counterpoise_study.studies import STUDIES


def rows():
    text = resources.files("counterpoise_study").joinpath("published.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def test_all_rows_are_read_with_their_place():
    numbers = published_numbers()
    assert len(numbers) == len(rows()) == 534
    for number, row in zip(numbers, rows(), strict=True):
        assert (number.table, number.place.data_set, number.place.primary) == (
            row["table"], row["dataset"], row["primary"],
        )  # fmt: skip
        assert number.value * KEY_INFO[number.key].scale == pytest.approx(float(row["value"]), rel=1e-12)
        assert rows()[number.row - 1] == row
        assert f"{KEY_INFO[number.key].scale * number.value:.2f}" == f"{float(row['value']):.2f}"


def test_no_two_rows_are_the_same_number():
    places = Counter((n.table, n.place, n.method, n.key, n.ood) for n in published_numbers())
    assert max(places.values()) == 1


def test_units_of_the_file_are_those_that_measures_are_shown_in():
    for name, key in KEYS.items():
        assert {"pct": "%", "e-3": "e-3"}[name.rsplit("_", 1)[1]] == KEY_INFO[key].unit
    assert set(METHOD_NAMES.values()) <= set(METHODS)


def test_every_row_is_reached_by_a_study_at_the_paper_scale():
    reached = set()
    for study in STUDIES.values():
        for setting in study.settings(SCALES["paper"]()):
            for method in study.methods:
                for key in study.metrics:
                    for ood in ("", "near", "far"):
                        found = published_number(study.tables, setting.published, method, key, ood)
                        if found is not None:
                            reached.add(found.row)
    assert reached == {number.row for number in published_numbers()}


@pytest.mark.parametrize(
    ("table", "place", "method", "key", "ood", "value"),
    [
        ("cifar100", Published("CIFAR-100", "resnet50"), "ce", Key.ACCURACY, "", 0.7754),
        ("cifar10", Published("CIFAR-10", "resnet34"), "mte1", Key.CLASSWISE_ECE, "", 2.43e-3),
        ("auxiliary_backbone", Published("CIFAR-10", "resnet34", "resnet18"), "mte1", Key.CLASSWISE_ECE, "", 2.34e-3),
        ("ood", Published("CIFAR-10", "resnet34"), "de3", Key.FPR_AT_TPR95, "near", 0.3389),
    ],
)  # fmt: skip
def test_numbers_of_the_paper(table, place, method, key, ood, value):
    assert published_number([table], place, method, key, ood).value == pytest.approx(value)


def test_what_the_paper_does_not_have_is_none():
    place = Published("CIFAR-100", "resnet34")
    assert published_number(["cifar100"], place, "ls", Key.ACCURACY) is None
    assert published_number(["cifar100"], place, "ce", Key.NLL) is None
    assert published_number([], place, "ce", Key.ACCURACY) is None


def test_the_first_table_that_has_a_number_counts():
    place = Published("CIFAR-100", "resnet34")
    assert published_number(["cifar100", "de"], place, "de3", Key.ECE).table == "de"
    assert published_number(["cifar100", "de"], place, "mte1", Key.ECE).table == "cifar100"
