"""Figures and sentences: the numbers in them are those of the metrics, and no name can harm them."""

import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.text import Text

import evaluations as made
import oracles
from counterpoise import evaluate
from counterpoise._text import shown
from counterpoise.functional.intervals import wilson_interval
from counterpoise.metrics import Key
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.selective import operating_point
from counterpoise.report import figures, gallery, page, sentences
from counterpoise.report.data import contrasts, threshold_text
from counterpoise.report.style import LIGHT, Look, drawing, in_dark

pytestmark = pytest.mark.usefixtures("few_resamples")

ODD_NAMES = (
    r"$\frac{x$", "$x_1$ costs \\$5", "two\nlines", "\x00\x07\x1b[31mred\x1b[0m", "🙂 emoji 👩‍💻", "_hidden", "", " " * 9,
    "a very long name " * 40, "中文模型名称", "שלום עולם", "বাংলা தமிழ்", "\u202eevil", "\ud800", "{}%s&<\"'`|", "\u0301" * 5,
)  # fmt: skip


@pytest.fixture(scope="module")
def scores():
    return made.scores(0)


@pytest.fixture(scope="module")
def three():
    return made.evaluation(3)


def artists(figure, gid):
    return [artist for artist in figure.findobj() if artist.get_gid() == gid]


def lines(figure, gid):
    """The points of every line with that gid."""
    return [np.stack(artist.get_data(), -1) for artist in artists(figure, gid)]


@pytest.mark.slow
def test_reliability_diagram_shows_the_bins_of_the_raw_predictions(scores):
    data, figure = made.raw(0), figures.reliability(scores)
    p = torch.softmax(data.logits.double(), -1).numpy()
    confidence, right = p.max(1), p.argmax(1) == data.labels.numpy()
    place = np.minimum((confidence * made.BINS).astype(int), made.BINS - 1)
    occupied = [b for b in range(made.BINS) if (place == b).any()]
    expected = np.array([(confidence[place == b].mean(), right[place == b].mean()) for b in occupied])
    points = lines(figure, "accuracy")[0]
    assert points == pytest.approx(expected, abs=1e-6)
    (segments,) = (artist.get_segments() for artist in artists(figure, "interval"))
    for b, segment, point in zip(occupied, segments, points, strict=True):
        assert segment[:, 0] == pytest.approx([point[0]] * 2)
        assert segment[:, 1] == pytest.approx(wilson_interval(right[place == b].sum(), (place == b).sum(), level=0.9))
    bars, shares = artists(figure, "bars"), artists(figure, "histogram")
    assert [bar.get_x() for bar in bars] == pytest.approx([b / made.BINS for b in occupied])
    assert [bar.get_height() for bar in bars] == pytest.approx(points[:, 1])
    share = np.array([bar.get_height() for bar in shares])
    assert share == pytest.approx([(place == b).mean() for b in occupied])
    assert share.sum() == pytest.approx(1)
    assert share @ abs(points[:, 0] - points[:, 1]) == pytest.approx(scores[Key.ECE].value, abs=1e-9)
    assert share @ (points[:, 0] - points[:, 1]) == pytest.approx(scores[Key.MEAN_GAP].value, abs=1e-9)
    assert scores[Key.ECE].value == pytest.approx(oracles.ece(p, data.labels.numpy(), made.BINS), abs=1e-6)
    assert lines(figure, "accuracy")[1][0, 0] == pytest.approx(right.mean())
    assert lines(figure, "confidence")[0][0, 0] == pytest.approx(confidence.mean(), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("ood", [None, *made.FOREIGN_SETS])
def test_detection_curves_hold_the_measures(three, ood):
    figure = figures.detection(three.models, ood=ood)
    curves, marks = lines(figure, "rates"), lines(figure, "fpr95")
    for model, scores, curve, mark in zip(range(3), three.models, curves, marks, strict=True):
        ranking = scores.misclassification if ood is None else scores.ood[ood]
        assert curve[0].tolist() == [0, 0]
        assert curve[-1].tolist() == [1, 1]
        assert (np.diff(curve, axis=0) >= 0).all()
        area = torch.trapezoid(*map(torch.as_tensor, (curve[:, 1], curve[:, 0])))
        assert float(area) == pytest.approx(ranking.estimates[Key.AUROC].value, abs=0.01)
        data = made.raw(model)
        p = torch.softmax(data.logits.double(), -1).numpy()
        score, positive = p.max(1), p.argmax(1) == data.labels.numpy()
        if ood is not None:
            outside = torch.softmax(data.foreign[ood].double(), -1).amax(-1).numpy()
            score, positive = np.r_[score, outside], np.arange(len(score) + len(outside)) < len(score)
        assert mark[0] == pytest.approx([oracles.fpr_at_tpr(score, positive), 0.95], abs=0.005)
        assert mark[0, 0] == ranking.estimates[Key.FPR_AT_TPR95].value


@pytest.mark.parametrize("risk", [0.02, 0.1, 0.3, 0.9])
def test_risk_coverage_ends_at_the_error_rate_and_marks_the_largest_coverage(three, risk):
    figure = figures.risk_coverage(three.models, risk=risk)
    marks = iter(lines(figure, "operating_point"))
    for scores, curve in zip(three.models, lines(figure, "risk_coverage"), strict=True):
        assert curve[-1] == pytest.approx([1, 1 - scores[Key.ACCURACY].value])
        within = curve[curve[:, 1] <= risk]
        if len(within):
            assert next(marks)[0].tolist() == within[within[:, 0].argmax()].tolist()
    assert next(marks, None) is None
    assert lines(figure, "risk")[0][0, 1] == risk


def test_classwise_figure_shows_the_surest_errors_first(scores):
    figure, table = figures.classwise(scores), scores.by_class
    order = sorted(range(made.CLASSES), key=lambda k: -table.low[k])
    assert lines(figure, "ece")[0][:, 0] / 100 == pytest.approx([table.ece[k] for k in order])
    assert lines(figure, "floor")[0][:, 0] / 100 == pytest.approx([table.floor[k] for k in order])
    (segments,) = (artist.get_segments() for artist in artists(figure, "interval"))
    for k, segment in zip(order, segments, strict=True):
        assert segment[:, 0] / 100 == pytest.approx([table.low[k], table.high[k]])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [made.CLASS_NAMES[k] for k in order]
    data = made.raw(0)
    p, y = torch.softmax(data.logits.double(), -1).numpy(), data.labels.numpy()
    assert np.mean(table.ece) == pytest.approx(oracles.classwise_ece(p, y, made.BINS), abs=1e-6)


def test_severity_boxes_hold_the_groups(three):
    figure = figures.severity(three.models)
    for index, scores in enumerate(three.models):
        for severity in range(4):
            ece = [100 * g.estimates[Key.ECE].value for g in scores.groups if g.severity == severity]
            (points,), (median,) = (lines(figure, f"{name} {index} {severity}") for name in ("ece", "median"))
            assert points[:, 1].tolist() == ece
            assert median[:, 1] == pytest.approx([np.median(ece)] * 2)


def test_recalibration_shows_both_series(scores):
    figure, tried = figures.recalibration(scores), scores.recalibration
    for points, table, measured in zip(
        lines(figure, "accuracy"), (tried.bins_before, tried.bins_after), (tried.before, tried.after), strict=True
    ):
        count, hits, total = (np.array(getattr(table, name)) for name in ("count", "hits", "confidence"))
        on = count > 0
        assert points == pytest.approx(np.stack([total[on] / count[on], hits[on] / count[on]], -1))
        share = count[on] / tried.measured_on
        assert share @ abs(points[:, 0] - points[:, 1]) == pytest.approx(measured[Key.ECE].value, abs=1e-6)
    with pytest.raises(ValueError, match="no recalibration"):
        figures.recalibration(replace(scores, recalibration=None))


def test_what_is_not_there_is_refused(scores, tmp_path):
    with pytest.raises(ValueError, match="no OOD samples 'mnist'; there are svhn, dtd"):
        figures.detection(scores, ood="mnist")
    with pytest.raises(ValueError, match="no scores to draw"):
        figures.reliability([])
    with pytest.raises(ValueError, match=r"written as \.png, \.svg, \.pdf, not 'a\.bmp'"):
        figures.save_figure(figures.classwise(scores), tmp_path / "a.bmp")


@pytest.mark.slow
def test_files_are_the_same_to_the_byte_whenever_and_however_often_they_are_drawn(scores, tmp_path):
    figure = figures.risk_coverage(scores)
    for suffix, magic in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")):
        written = []
        for number, drawn in enumerate((figure, figure, figures.risk_coverage(scores))):
            path = tmp_path / f"{number}.{suffix}"
            figures.save_figure(drawn, path)
            written.append(path.read_bytes())
        assert written[0].startswith(magic)
        assert written[0] == written[1] == written[2], suffix


@pytest.mark.slow
def test_every_colour_is_of_the_theme_and_none_of_the_light_one_is_left_in_the_dark(three):
    drawn = gallery.drawn(three, risk=0.2)
    assert set(drawn) == {
        "reliability", "risk_coverage", "set_sizes", "misclassification", "ood_1_svhn", "ood_2_dtd", "severity",
        "forest_2_net-1", "forest_3_net-2",
        *(f"{kind}_{number}_net-{number - 1}" for number in (1, 2, 3) for kind in ("classwise", "temperature")),
    }  # fmt: skip
    for figure in drawn.values():
        light = figures.as_svg(figure)
        assert set(re.findall("#[0-9a-f]{6}", light)) <= set(LIGHT.colours.values())
        assert not set(re.findall("#[0-9a-f]{6}", in_dark(light))) & set(LIGHT.colours.values())


def ticks(axis):
    """Positions and labels of the ticks inside the limits of an axis."""
    low, high = sorted(axis.get_view_interval())
    found = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [(place, label.get_text()) for place, label in found if low <= place <= high]


@pytest.mark.parametrize("worst", [1.0, 0.3, 0.1, 0.075, 0.02, 0.004, 0.0003])
def test_percent_labels_are_distinct_and_say_where_they_stand(scores, worst):
    ranking = scores.misclassification
    curves = ranking.curves | {"risk": [worst * risk / max(ranking.curves["risk"]) for risk in ranking.curves["risk"]]}
    drawn = figures.risk_coverage(
        replace(scores, misclassification=replace(ranking, curves=curves)), risk=min(0.05, worst / 2)
    )
    with drawing():
        drawn.draw_without_rendering()
    for axis in (drawn.axes[0].xaxis, drawn.axes[0].yaxis):
        shown_ticks = ticks(axis)
        assert len({label for _, label in shown_ticks}) == len(shown_ticks) > 2
        for place, label in shown_ticks:
            assert float(label.removesuffix("%")) / 100 == pytest.approx(place, abs=1e-9)


def limits(figure, gid):
    (bar, *_) = artists(figure, gid)
    return bar.axes.get_xlim(), bar.axes.get_ylim()


@pytest.mark.slow
def test_pictures_of_several_models_have_one_scale(three, monkeypatch):
    pictures = []
    monkeypatch.setattr(page, "_picture", lambda draw, *_: pictures.append(draw()))
    drawn = list(zip(three.models, map(Look, range(3)), strict=True))
    page._reliability_section(drawn)
    assert len({limits(figure, "histogram") for figure in pictures}) == 1
    assert len({panel.get_ylim() for panel in figures.reliability(three.models).axes[3:]}) == 1
    pictures.clear()
    page._class_section(drawn)
    classwise = [figure for name, figure in gallery.drawn(three, risk=0.2).items() if name.startswith("classwise")]
    assert len({limits(figure, "ece")[0] for figure in pictures + classwise}) == 1
    largest = max(100 * max(model.by_class.high + model.by_class.ece) for model in three.models)
    assert largest <= limits(pictures[0], "ece")[0][1] < 1.2 * largest


def test_seven_models_look_different(scores):
    looks = [
        (line.get_color(), line.get_linestyle(), line._unscaled_dash_pattern)
        for line in artists(figures.risk_coverage([scores] * 7), "risk_coverage")
    ]
    assert len({str(look) for look in looks}) == 7


def test_a_model_has_one_colour_and_marker_in_every_figure(three):
    """Also where others are left out."""
    models, shown_as = three.models, [Look(place) for place in range(3)]
    colours = [LIGHT.colour(place) for place in range(3)]
    curves = artists(figures.risk_coverage(models, looks=shown_as), "risk_coverage")
    assert [curve.get_color() for curve in curves] == colours
    (alone,) = artists(figures.detection(models[2:], looks=shown_as[2:]), "rates")
    assert alone.get_color() == colours[2]
    for drawn in (
        figures.reliability(models[2], looks=shown_as[2:]),
        figures.classwise(models[2], look=shown_as[2]),
        figures.recalibration(models[2], look=shown_as[2]),
        figures.severity(models[2:], looks=shown_as[2:]),
    ):
        used = {to_hex(line.get_color()) for line in drawn.findobj(Line2D)}
        assert used & set(LIGHT.series) == {colours[2]}


def test_a_forest_plot_shows_each_difference_on_its_side(three):
    for difference in (each for each in three.comparison.differences if each.first == 0):
        rows = contrasts(three, difference)
        assert [row.title for row in rows][:4] == ["Accuracy", "NLL", "Brier score", "ECE"]
        assert len(rows) == 8 + 2 * len(made.FOREIGN_SETS)
        drawn = figures.forest(three, difference)
        for row in rows:
            ((x, _),) = lines(drawn, row.title)[0]
            (segment,) = artists(drawn, f"interval {row.title}")[0].get_segments()
            (mark,) = artists(drawn, row.title)
            low, high = sorted(segment[:, 0])
            state = "better" if low > 0 else "worse" if high < 0 else "undecided"
            assert state == row.state
            assert mark.get_marker() == {"better": ">", "worse": "<", "undecided": "o"}[state]
            assert mark.get_color() == {"better": LIGHT.better, "worse": LIGHT.worse, "undecided": LIGHT.muted}[state]
            assert x * row.limit * (1 if row.info.higher_is_better else -1) == pytest.approx(row.estimate.value)
    states = {row.state for each in three.comparison.differences for row in contrasts(three, each)}
    assert states == {"better", "worse", "undecided"}


@pytest.mark.parametrize("labels", [3, 10, 100, 100_000])
def test_sizes_of_sets_do_not_run_into_each_other(scores, labels):
    tried = replace(scores.guarantees, sizes=[1] * (labels + 1))
    figure = figures.set_sizes(replace(scores, guarantees=tried))
    figure.draw_without_rendering()
    ticks = figure.axes[0].get_xticklabels()
    boxes = [tick.get_window_extent() for tick in ticks]
    apart = all(one.x1 + 3 < other.x0 for one, other in pairwise(boxes))
    assert apart or all(tick.get_rotation() > 0 for tick in ticks)


@pytest.mark.slow
def test_drawing_needs_no_pyplot_and_leaves_the_settings_alone(tmp_path):
    code = (
        "import sys, warnings; warnings.simplefilter('error', UserWarning);"
        "warnings.filterwarnings('ignore', '.* deprecated');"  # an old matplotlib, of a new pyparsing
        "import matplotlib; before = repr(matplotlib.rcParams.copy()); from counterpoise import evaluate;"
        "from counterpoise.report import figures;"
        "scores = evaluate(probabilities=[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], labels=[0, 1, 1]);"
        f"figures.save_figure(figures.reliability(scores), {str(tmp_path / 'a.png')!r});"
        "assert 'matplotlib.pyplot' not in sys.modules; assert repr(matplotlib.rcParams.copy()) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_any_name_can_be_drawn(scores, name):
    odd = made.renamed(scores, name)
    foreign = next(iter(odd.ood))
    assert "<svg" in figures.as_svg(figures.classwise(odd))
    with drawing():
        figures.detection([odd, odd], ood=foreign).draw_without_rendering()
    if name.strip() and name != "\u0301" * 5:
        legend = figures.risk_coverage([odd, odd]).axes[0].get_legend()
        assert [text.get_text().strip() for text in legend.get_texts()] == [shown(name).strip()] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["net", "wide WWWWWWWW " * 9, "模型" * 40], ids=["short", "long", "wide"])
def test_no_words_are_cut_off(three, name):
    models = [made.renamed(model, f"{name} {index}", foreign=name) for index, model in enumerate(three.models[:2])]
    for title, figure in gallery.drawn(Evaluation(models), risk=0.2).items():
        with drawing():
            figure.draw_without_rendering()
            texts = [text for text in figure.findobj(Text) if re.search("[^-\\d.%\u2212 ]", text.get_text())]
            boxes = [text.get_window_extent() for text in texts]
        for text, box in zip(texts, boxes, strict=True):
            assert min(box.x0, box.y0, figure.bbox.x1 - box.x1, figure.bbox.y1 - box.y1) > -1, (title, text)


@pytest.mark.slow
def test_figures_become_files_with_plain_names(scores, tmp_path):
    odd = replace(made.renamed(scores, "../../etc/passwd", foreign="C:\\x|<y>"), recalibration=None)
    paths = gallery.write_figures(tmp_path / "new", Evaluation([replace(odd, groups=[])]))
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in paths)
    assert {path.stem for path in paths} == {
        "reliability", "risk_coverage", "set_sizes", "misclassification", "ood_1_c-x-y", "ood_2_c-x-y-1",
        "classwise_1_etc-passwd",
    }  # fmt: skip


def test_sentences_hold_the_numbers(scores):
    point = operating_point(scores.misclassification, risk=0.25, level=0.9)
    kept = torch.softmax(made.raw(0).logits.double(), -1).amax(-1).numpy() >= point.threshold - 1e-6
    assert kept.mean() == pytest.approx(point.coverage)
    assert sentences.selective_sentence(scores, risk=0.25) == (
        f"To be wrong at most 25% of the time, accept predictions with a confidence of at least "
        f"{threshold_text(point.threshold)}: that keeps {point.coverage:.1%} of them, of which {point.risk:.1%} are "
        f"wrong ({point.low:.1%} to {point.high:.1%})."
    )
    assert sentences.selective_sentence(scores, risk=0.0005).startswith(("To be wrong at most 0.05%", "No threshold"))
    tried = scores.recalibration
    assert tried.temperature == pytest.approx(3, rel=0.15)
    words = sentences.temperature_sentence(tried)
    for text in (f"T = {tried.temperature:.3f}", "fitted on 750", "750 others", f"{tried.after[Key.ECE].value:.2%}"):
        assert text in words
    worst = int(np.argmax(scores.by_class.low))
    table = scores.by_class
    error = f"{table.ece[worst]:.2%} ({table.low[worst]:.2%} to {table.high[worst]:.2%})"
    words = sentences.worst_classes_sentence(scores)
    assert words.startswith(f"Worst calibrated are {made.CLASS_NAMES[worst]}: {error}; ")
    assert "The intervals of 5 of 5 classes lie above 0; each is for its class alone" in words
    numbered = sentences.worst_classes_sentence(replace(scores, class_names=list("01234")))
    assert numbered.startswith(f"Worst calibrated are class {worst}: {error}; class ")
    fine = replace(scores, by_class=replace(scores.by_class, low=[0.0] * made.CLASSES))
    assert sentences.worst_classes_sentence(fine).startswith("No class")


@pytest.mark.parametrize("classes", [100, 1000])
def test_of_many_calibrated_classes_as_few_intervals_lie_above_0_as_is_said(classes):
    """About (1 - level) / 2; of 1,000 classes in 2,000 samples, which have two hits each, fewer."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, classes, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)
    scores = evaluate(logits=logits, labels=labels)
    above = sum(low > 0 for low in scores.by_class.low)
    assert above <= 0.025 * classes + 3 * (0.025 * classes) ** 0.5
    words = sentences.worst_classes_sentence(scores)
    if classes == 100:
        assert f"The intervals of {above} of 100 classes lie above 0" in words
        assert words.endswith("of calibrated classes about 2.5% lie above 0 by chance.")
    else:
        assert words.startswith("No tested class has a calibration error that is clearly more than noise.")


@pytest.mark.parametrize(
    "value", [0.5, 0.78049, 0.9951, 0.99999999, 1 - 2**-40, 1.0, 0.0, 1e-7, -0.00012, -2.5, 14.2, 1 - 2**-53]
)
def test_a_threshold_accepts_all_that_it_is_said_to_accept(value):
    assert value - 1e-3 < float(threshold_text(value)) <= value
    assert float(threshold_text(value)) != 1 or value == 1
