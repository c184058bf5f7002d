"""The figures of a benchmark: the numbers in them are those of the records, and labels can be read."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from scipy import stats

import stores
from counterpoise.functional.intervals import wilson_interval
from counterpoise.metrics import Key
from counterpoise_study import drawings, figures
from counterpoise_study.collected import collect
from counterpoise_study.cost import relative_cost
from counterpoise_study.labels import label_points
from counterpoise_study.studies import QUALITY, STUDIES


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    store = stores.filled(tmp_path_factory.mktemp("all") / "store", stores.requests())
    return {each.request.study: each for each in collect(store)}


def artists(figure, gid):
    return [artist for artist in figure.findobj() if artist.get_gid() == gid]


def points(figure, gid):
    (artist,) = artists(figure, gid)
    return np.stack(artist.get_data(), -1)


@pytest.mark.slow
def test_scatter_shows_means_and_deviations(studies):
    group = studies["scatter"].groups[0]
    figure = figures.scatter(group)
    for panel, scaled in zip(figure.axes, (False, True), strict=True):
        for row in group.rows:
            (drawn,) = [line for line in panel.lines if line.get_gid() == row.line.method]
            x, y = (stores.values(row, key, scaled=scaled) for key in (Key.ECE, Key.ACCURACY))
            assert np.stack(drawn.get_data(), -1)[0] == pytest.approx((np.mean(x), np.mean(y)))
            halves = [np.std(x, ddof=1), np.std(y, ddof=1)]
            lines = [line.get_segments()[0] for line in panel.collections if line.get_gid() == "deviation"]
            ends = [
                np.ptp(line, axis=0) / 2 for line in lines if line.mean(0) == pytest.approx((np.mean(x), np.mean(y)))
            ]
            assert np.sum(ends, axis=0) == pytest.approx(halves)


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3])
def test_labels_do_not_lie_on_each_other(spread):
    places = np.random.default_rng(0).normal(0.5, spread, size=(13, 2)).clip(0, 1)
    figure = Figure(figsize=(5, 4), layout="constrained")
    panel = figure.subplots()
    panel.set(xlim=(0, 1), ylim=(0, 1))
    label_points(figure, panel, [(x, y, f"method {i}", "k") for i, (x, y) in enumerate(places)], paper="w")
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in panel.texts]
    assert len(boxes) == 13
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])
        assert Bbox.intersection(box, panel.bbox).width == pytest.approx(box.width)


def test_labels_leave_lines_free():
    places = [(0.2, 0.2), (0.3, 0.7), (0.5, 0.5), (0.7, 0.3), (0.8, 0.8)]
    figure = Figure(figsize=(5, 4), layout="constrained")
    panel = figure.subplots()
    panel.set(xlim=(0, 1), ylim=(0, 1))
    for x, y in places:
        panel.hlines(y, x - 0.1, x + 0.1)
        panel.vlines(x, y - 0.1, y + 0.1)
    label_points(figure, panel, [(x, y, f"method {i}", "k") for i, (x, y) in enumerate(places)], paper="w")
    figure.draw_without_rendering()
    segments = [segment for lines in panel.collections for segment in lines.get_segments()]
    for (x, y), text in zip(places, panel.texts, strict=True):
        box = Text.get_window_extent(text).transformed(panel.transData.inverted())
        assert not any(box.overlaps(Bbox(segment)) for segment in segments)
        assert max(abs(box.x0 + box.x1 - 2 * x), abs(box.y0 + box.y1 - 2 * y)) < 0.4


def test_sweep_shows_every_value_and_rings_the_chosen_one(studies):
    study = studies["alpha"]
    (drawing,) = drawings.drawings_of(study)
    figure = drawing.draw()
    for choice in study.choices:
        method = choice.line.method
        rows = [row for row in study.groups[0].rows if row.line.method == method]
        expected = sorted((row.hyper["alpha"], np.mean(stores.values(row, Key.ECE))) for row in rows)
        assert points(figure, f"{method} ece") == pytest.approx(np.array(expected))
        (best,) = [trial.cell.recipe.hyper["alpha"] for trial in choice.trials if trial.is_chosen]
        assert points(figure, f"chosen {method} ece")[:, 0] == pytest.approx([best])


def test_sweep_leaves_out_methods_that_have_no_such_value(studies):
    study = studies["alpha"]
    strangers = [trial for choice in studies["cifar10"].choices for trial in choice.trials]
    assert any("alpha" not in trial.cell.recipe.hyper for trial in strangers if trial.is_chosen)
    figure = figures.sweep(study.groups[0], strangers)
    assert artists(figure, "mte1 ece")


def test_boxes_are_over_corruptions_of_means_over_seeds(studies):
    group = studies["corruptions"].groups[0]
    figure = figures.severity(group)
    for index, row in enumerate(group.rows):
        for level in (0, 1, 3, 5):
            by_name = {}
            for record in row.records:
                for each in record.plain.groups:
                    if each.severity == level:
                        by_name.setdefault(each.corruption, []).append(100 * each.estimates[Key.ECE].value)
            means = [np.mean(found) for found in by_name.values()]
            assert points(figure, f"ece {index} {level}")[:, 1] == pytest.approx(means)
            assert points(figure, f"median {index} {level}")[0, 1] == pytest.approx(np.median(means))


def test_bars_and_their_intervals(studies):
    group = studies["dml"].groups[0]
    figure = figures.bars(group)
    for panel, key in zip(figure.axes, QUALITY, strict=True):
        found = [np.array(stores.values(row, key)) for row in group.rows]
        (bars,) = panel.containers
        assert [bar.get_height() for bar in bars] == pytest.approx([each.mean() for each in found])
        (intervals,) = artists(figure, f"interval {key}")
        expected = [stats.t.interval(0.95, 2, each.mean(), stats.sem(each)) for each in found]
        assert np.array(intervals.get_segments())[:, :, 1] == pytest.approx(np.array(expected))


def test_dots_before_and_after_scaling(studies):
    group = studies["misclassification"].groups[0]
    figure = figures.dots(group)
    for name, scaled in (("plain", False), ("scaled", True)):
        expected = [
            np.mean(stores.values(row, Key.AUROC, scaled=scaled, pick=lambda outcome: outcome.misclassification))
            for row in group.rows
        ]
        assert points(figure, f"auroc {name}")[:, 0] == pytest.approx(expected)


@pytest.mark.slow
def test_a_legend_of_long_names_stays_within_the_figure(studies):
    group = studies["cost"].groups[0]
    long = [
        replace(row, setting=replace(row.setting, variant=f"{count} of every 10 steps in the second half of training"))
        for count, row in enumerate(group.rows)
    ]
    figure = figures.trade_off(replace(group, rows=long))
    (legend,) = figure.legends
    figure.draw_without_rendering()
    extent = legend.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.width


def test_the_front_joins_those_that_nothing_of_less_work_reaches(studies):
    group = studies["cost"].groups[0]
    figure = figures.trade_off(group)
    for panel, key, sign in zip(figure.axes, (Key.NLL, Key.ACCURACY), (1, -1), strict=True):
        marks = np.array([
            (relative_cost(row.runs[0].cell.recipe), np.mean(stores.values(row, key, scaled=True)))
            for row in group.rows
        ])  # fmt: skip
        drawn = [np.stack(line.get_data(), -1)[0] for line in panel.lines if line.get_gid() != "front"]
        assert np.array(drawn) == pytest.approx(marks)
        (front,) = [np.stack(line.get_data(), -1) for line in panel.lines if line.get_gid() == "front"]
        undominated = [
            (cost, value)
            for cost, value in marks
            if not np.any((marks[:, 0] <= cost) & (sign * marks[:, 1] < sign * value))
        ]
        assert front == pytest.approx(np.array(sorted({*undominated})))


def test_reliability_sums_the_bins_of_all_seeds_with_intervals_of_one(studies):
    group = studies["reliability"].groups[0]
    figure = figures.reliability(group)
    row = group.rows[0]
    count, hits, confidence = (
        np.sum([getattr(record.plain.top_label, name) for record in row.records], axis=0)
        for name in ("count", "hits", "confidence")
    )
    drawn = artists(figure.axes[0], "accuracy")[0]
    assert np.stack(drawn.get_data(), -1) == pytest.approx(np.stack((confidence / count, hits / count), -1))
    (intervals,) = artists(figure.axes[0], "interval")
    expected = [wilson_interval(h / 3, n / 3) for h, n in zip(hits, count, strict=True)]
    assert np.array(intervals.get_segments())[:, :, 1] == pytest.approx(np.array(expected))


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_is_drawn_where_it_has_figures(studies, study):
    drawn = list(drawings.drawings_of(studies[study]))
    assert bool(drawn) == (
        STUDIES[study].layout not in ("variants", "domains", "in-and-out") and study != "deep-ensemble"
    )
    for drawing in drawn[:1]:
        assert drawing.draw().axes
