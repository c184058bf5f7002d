"""The monitor: counts that add up, whatever the files, their order, and when labels come; what a scheduler is told."""

import json
import re
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv

from counterpoise.cli import parse
from counterpoise.cli.monitor import EXIT_ALARM, EXIT_NOTHING
from counterpoise.monitoring import begin, show, update
from counterpoise.monitoring.counts import CELLS, Counts, StoredCounts
from counterpoise.monitoring.page import render
from counterpoise.monitoring.standing import Accuracies, judged
from counterpoise.monitoring.store import read_reference, windows_of
from counterpoise.monitoring.texts import as_json, as_lines, as_openmetrics
from counterpoise.predictions import Columns
from monitored import CLASSES, START, begun, stream, written


@pytest.fixture
def monitor(tmp_path):
    return begun(tmp_path)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 299), max_size=5, unique=True), st.randoms(use_true_random=False))
def test_the_same_bytes_whatever_the_files_and_their_order(tmp_path_factory, cuts, chance):
    table = stream(300, hours=6, labelled=0.5)
    results = []
    for places in ([], sorted(cuts)):
        folder = tmp_path_factory.mktemp("partition")
        reference = written(folder / "reference.parquet", stream(500, seed=9))
        begin(folder / "monitor", reference, start="2026-03-01")
        order = list(range(len(table)))
        chance.shuffle(order)
        shuffled = table.take(order)
        parts = [shuffled.slice(a, b - a) for a, b in zip([0, *places], [*places, len(table)], strict=True)]
        chance.shuffle(parts)
        for number, part in enumerate(parts):
            update(folder / "monitor", written(folder / f"{number}.parquet", part))
        results.append(as_json(show(folder / "monitor")))
    assert results[0] == results[1]
    assert json.loads(results[0])["lines"][0]["predictions"] > 0


@pytest.mark.parametrize("ids", [True, False])
def test_the_same_rows_are_counted_once(monitor, tmp_path, ids):
    table = stream(200, ids=ids)
    first = update(monitor, written(tmp_path / "a.parquet", table))
    wanted = as_json(show(monitor))
    assert first.kept == first.windows == 12
    # In another order, and under another name.
    again = update(monitor, written(tmp_path / "b.parquet", table.take(np.random.default_rng(1).permutation(200))))
    assert again.kept == 0
    assert as_json(show(monitor)) == wanted


@pytest.mark.slow
def test_more_labels_take_the_place_of_fewer_whatever_comes_first(monitor, tmp_path):
    table = stream(300)
    none = table.set_column(table.schema.get_field_index("label"), "label", pa.array([None] * 300, pa.int64()))
    some = table.set_column(
        table.schema.get_field_index("label"),
        "label",
        pa.array([x if i % 3 == 0 else None for i, x in enumerate(table["label"].to_pylist())], pa.int64()),
    )
    paths = [
        written(tmp_path / f"{name}.parquet", each) for name, each in (("none", none), ("some", some), ("all", table))
    ]
    results = []
    for number, order in enumerate(((0, 1, 2), (2, 1, 0), (2,), (1, 2, 1))):
        folder = tmp_path / f"monitor-{number}"
        begin(folder, tmp_path / "reference.parquet", start="2026-03-01")
        for place in order:
            update(folder, paths[place])
        results.append(as_json(show(folder)))
        assert len(list((folder / "windows").glob("*.json"))) == len(json.loads(results[-1])["lines"])
    assert len(set(results)) == 1
    assert json.loads(results[0])["lines"][0]["labelled"] == json.loads(results[0])["lines"][0]["predictions"]


@pytest.mark.slow
def test_labels_of_a_file_of_their_own(monitor, tmp_path):
    table = stream(100)
    alone = written(tmp_path / "alone.parquet", table.drop_columns(["label"]))
    (tmp_path / "labels.csv").write_text("label\n" + "\n".join(map(str, table["label"].to_pylist())) + "\n")
    update(monitor, alone)
    assert show(monitor).labelled == 0
    update(monitor, alone, columns=Columns(labels=tmp_path / "labels.csv"))
    assert show(monitor).labelled == show(monitor).predictions == 100


@pytest.mark.slow
def test_late_labels_give_the_evidence_that_early_ones_give(monitor, tmp_path):
    """Evidence is a function of the counts of windows, so a label may come when it will."""
    tables = [stream(200, seed=seed, hours=6) for seed in (1, 2)]
    late = [each.drop_columns(["label"]) for each in tables]
    other = tmp_path / "other"
    begin(other, tmp_path / "reference.parquet", start="2026-03-01")
    for number, each in enumerate(tables):
        update(monitor, written(tmp_path / f"now-{number}.parquet", each))
    for number, each in enumerate([*late, *reversed(tables)]):
        update(other, written(tmp_path / f"late-{number}.parquet", each))
    assert as_json(show(other)) == as_json(show(monitor))


@pytest.mark.slow
def test_windows_that_are_shown_do_not_change_the_alarms(monitor, tmp_path):
    table = stream(3000, hours=24 * 10, shift=0.4)
    place, times = table.schema.get_field_index("time"), np.asarray(table["time"])
    table = table.set_column(place, "time", pa.array(times - times % (6 * 3600)))
    update(monitor, written(tmp_path / "a.parquet", table))
    hours, days, weeks = (show(monitor, every=every) for every in (None, "day", "week"))
    assert hours.alarms == days.alarms == weeks.alarms
    assert len(hours.lines) > len(days.lines) == 10 > len(weeks.lines) == 3
    assert hours.predictions == weeks.predictions == 3000
    assert weeks.lines[0].start == "2026-02-23"
    with pytest.raises(ValueError, match="cannot show every hour"):
        show(_daily(tmp_path), every="hour")


def _daily(tmp_path):
    begin(tmp_path / "daily", tmp_path / "reference.parquet", start="2026-03-01", every="day")
    return tmp_path / "daily"


def test_counts_say_what_samples_say(monitor, tmp_path):
    table = stream(500, hours=1, labelled=0.6)
    update(monitor, written(tmp_path / "a.parquet", table))
    (line,) = show(monitor).lines
    p = np.column_stack([table[f"p{k}"].to_numpy() for k in range(CLASSES)])
    labels = np.array([-1 if x is None else x for x in table["label"].to_pylist()])
    known = labels >= 0
    assert line.predictions == 500
    assert line.labelled == known.sum()
    assert line.accuracy.value == pytest.approx((p.argmax(-1) == labels)[known].mean())
    assert line.mean_confidence.value == pytest.approx(p.max(-1).mean(), abs=0.5 / CELLS)
    assert line.mean_confidence.low < line.mean_confidence.value < line.mean_confidence.high


def test_estimated_accuracy_follows_the_confidences():
    generator = np.random.default_rng(0)
    reference, now = Counts.zeros(0), Counts.zeros(0)
    for counts, power in ((reference, 0.5), (now, 1.5)):
        confidence = 1 - 0.5 * generator.random(20_000) ** (1 / power)
        hit = (generator.random(20_000) < 0.8 * confidence).astype(np.int8)  # overconfident, and the same in both
        counts.add(confidence, np.zeros(20_000, np.int64), hit)
    found = Accuracies.of(reference).estimate(now)
    truth = now.hits.sum() / now.labelled
    assert found.low < truth < found.high
    assert abs(found.value - truth) < 0.015
    own = Accuracies.of(reference).estimate(reference)
    assert own.value == pytest.approx(reference.hits.sum() / reference.labelled)


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "code"), [(0.0, 0), (0.5, EXIT_ALARM), (None, EXIT_NOTHING)])
def test_the_exit_code_is_the_outcome(monitor, tmp_path, capsys, shift, code):
    if shift is not None:
        path = written(tmp_path / "a.parquet", stream(1500, shift=shift))
        parse(["monitor", "update", str(monitor), str(path)]).run()
        capsys.readouterr()
    page, metrics = tmp_path / "page.html", tmp_path / "metrics.txt"
    command = ["monitor", "show", str(monitor), "--html", str(page), "--openmetrics", str(metrics)]
    with pytest.raises(SystemExit) as ended:
        parse([*command, "--json"]).run()
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == code, found["alarms"]
    assert found["outcome"] == {0: "fine", EXIT_ALARM: "alarm", EXIT_NOTHING: "nothing"}[code]
    assert "<script" not in page.read_text()
    assert metrics.read_text().endswith("# EOF\n")
    with pytest.raises(SystemExit):
        parse(command[:3]).run()
    text = capsys.readouterr().out
    assert {
        0: "No alarm",
        EXIT_ALARM: "accuracy: more errors, since about 2026-03-01",
        EXIT_NOTHING: "nothing to judge",
    }[code] in text


def test_a_change_is_dated(monitor, tmp_path):
    update(monitor, written(tmp_path / "a.parquet", stream(3000, seed=1)))
    later = stream(2000, seed=2, shift=0.3)
    place = later.schema.get_field_index("time")
    later = later.set_column(place, "time", pa.array(np.asarray(later["time"]) + 12 * 3600))
    update(monitor, written(tmp_path / "b.parquet", later))
    (accuracy,) = (alarm for alarm in show(monitor).alarms if alarm.part == "accuracy")
    assert accuracy.raised
    assert (
        abs((datetime.fromisoformat(accuracy.since) - datetime(2026, 3, 1, 12, tzinfo=UTC)).total_seconds()) < 2 * 3600
    )


_SAMPLE = re.compile(r'[a-z_][a-z0-9_]*(\{[a-z_]+="[^"\\\n]*"(,[a-z_]+="[^"\\\n]*")*\})? -?[0-9.]+(e[+-][0-9]+)?')


def test_openmetrics_are_valid(monitor, tmp_path):
    update(monitor, written(tmp_path / "a.parquet", stream(1500, shift=0.5)))
    text = as_openmetrics(show(monitor))
    *lines, end, empty = text.split("\n")
    assert (end, empty) == ("# EOF", "")
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(families)) == len(families)
    for line in lines:
        assert re.match(r"# (TYPE|UNIT|HELP) [a-z0-9_]+ ", line) or _SAMPLE.fullmatch(line), line
        if not line.startswith("#"):
            assert any(line.startswith(family) for family in families)
    assert 'counterpoise_alarm{part="accuracy",labels="needed"} 1' in lines
    prometheus = pytest.importorskip("prometheus_client.openmetrics.parser")
    assert len(list(prometheus.text_string_to_metric_families(text))) == len(families)


def test_confidences_alone_are_followed(tmp_path):
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.5, 1, 600)
    table = pa.table(
        {
            "confidence": confidence,
            "correct": generator.random(600) < confidence,
            "timestamp": pa.array([datetime(2026, 3, 1, hour % 24, tzinfo=UTC) for hour in range(600)]),
        }
    )
    path = written(tmp_path / "a.parquet", table)
    begin(tmp_path / "monitor", path, start="2026-03-01")
    update(tmp_path / "monitor", path)
    standing = show(tmp_path / "monitor")
    assert {alarm.part for alarm in standing.alarms} == {"accuracy", "calibration", "confidence"}
    assert len(standing.lines) == 24


def test_a_row_of_another_time_is_another_row(monitor, tmp_path):
    """The same prediction at another second is a request of its own."""
    table = stream(1, ids=False)
    for number in range(3):
        path = written(
            tmp_path / f"{number}.parquet", table.set_column(CLASSES + 1, "time", pa.array([START + number]))
        )
        update(monitor, path)
    (line,) = show(monitor).lines
    assert line.predictions == 3


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1), st.sampled_from([-1, 0, 1])), max_size=30))
def test_counts_survive_being_stored(samples):
    counts = Counts.zeros(3)
    if samples:
        predicted, confidence, hit = (np.array(column) for column in zip(*samples, strict=True))
        counts.add(confidence, predicted, hit.astype(np.int8))
    found = StoredCounts.of(counts).counts(3)
    assert all(
        np.array_equal(getattr(found, name), getattr(counts, name))
        for name in ("classes", "predictions", "hits", "misses")
    )
    assert found.samples == len(samples)


def test_gaps_between_windows_cost_no_time(monitor, tmp_path):
    """A time far ahead, by mistake, is a window like any other."""
    table = stream(4).set_column(
        CLASSES + 2, "time", pa.array(["2026-03-01", "2026-03-01", "2099-01-01", "9999-01-01"])
    )
    update(monitor, written(tmp_path / "a.parquet", table))
    assert [line.start[:4] for line in show(monitor).lines] == ["2026", "2099", "9999"]


@pytest.mark.slow
def test_a_page_escapes_names(monitor, tmp_path):
    update(monitor, written(tmp_path / "a.parquet", stream(800, shift=0.6)))
    text = render(show(monitor), name="<img src=x onerror=alert(1)>")
    assert "<img src=x" not in text
    assert text.count("data:image/svg+xml") == 8


@pytest.mark.usefixtures("monitor")
def test_text_fits_a_terminal(tmp_path):
    daily = _daily(tmp_path)
    update(daily, written(tmp_path / "a.parquet", stream(2000, hours=24 * 30, shift=0.5)))
    text = as_lines(show(daily), width=80)
    assert max(len(line) for line in text.splitlines() if ": " not in line) <= 80  # sentences wrap by themselves
    assert "after 18 more" in text


def test_what_is_asked_is_answered_by_a_command_of_the_monitor(monitor, tmp_path, monkeypatch):
    table, path = stream(50), tmp_path / "a.csv"
    csv.write_csv(
        table.rename_columns([f"request_{name}" if name == "time" else name for name in table.schema.names]), path
    )
    monkeypatch.setattr("sys.argv", ["counterpoise", "monitor", "update", str(monitor), str(path)])
    with pytest.raises(ValueError, match="request_time") as asked:
        parse(sys.argv[1:]).run()
    assert "?." not in str(asked.value)
    (line,) = [line for line in str(asked.value).splitlines() if line.startswith("  counterpoise")]
    parse(shlex.split(line, comments=True)[1:]).run()


@pytest.mark.slow
def test_evidence_beyond_all_floats_is_an_alarm_like_any_other(monitor, tmp_path):
    update(monitor, written(tmp_path / "a.parquet", stream(20_000, shift=5.0)))
    standing = show(monitor)
    assert standing.outcome == "alarm"
    assert max(alarm.log10_evidence for alarm in standing.alarms) > 308
    assert "1e" in as_lines(standing, width=80)
    assert "1e" in render(standing, name="m")


def test_pieces_of_a_file_add_up_to_it(monitor, tmp_path):
    path = written(tmp_path / "a.parquet", stream(500))
    update(monitor, path)
    reference = read_reference(monitor)
    total = sum((counts.samples for _, counts in windows_of(monitor, reference)), 0)
    assert total == 500
    standing = judged(replace(reference, level=0.5), windows_of(monitor, reference))
    assert standing.threshold < show(monitor).threshold


def _update(monitor, path):
    parse(["monitor", "update", str(monitor), str(path)]).run()
    return show(monitor)


@pytest.mark.parametrize("fuller_first", [False, True])
def test_a_fuller_export_takes_the_place_of_what_it_contains(monitor, tmp_path, fuller_first):
    table = stream(60)
    paths = [written(tmp_path / f"{rows}.parquet", table.slice(0, rows)) for rows in (30, 60)]
    for path in reversed(paths) if fuller_first else paths:
        standing = _update(monitor, path)
    assert standing.predictions == standing.labelled == 60
    assert _update(monitor, paths[0]) == standing


def test_two_files_for_one_and_one_for_two_are_counted_once(monitor, tmp_path):
    table = stream(60)
    halves = [written(tmp_path / f"{number}.parquet", table.slice(30 * number, 30)) for number in range(2)]
    whole = written(tmp_path / "whole.parquet", table)
    other = tmp_path / "other"
    begin(other, tmp_path / "reference.parquet", start="2026-03-01")
    for path in (*halves, whole):
        update(monitor, path)
    for path in (whole, *halves):
        update(other, path)
    assert as_json(show(monitor)) == as_json(show(other))
    assert show(other).predictions == 60


def test_rows_of_the_same_ids_in_another_form_are_counted_once(monitor, tmp_path):
    table = stream(60)
    narrow = table.cast(pa.schema([(f.name, pa.float32() if f.type == pa.float64() else f.type) for f in table.schema]))
    csv.write_csv(table, tmp_path / "c.csv")
    for path in (written(tmp_path / "a.parquet", table), written(tmp_path / "b.parquet", narrow), tmp_path / "c.csv"):
        standing = _update(monitor, path)
    assert standing.predictions == standing.labelled == 60


def test_files_that_share_some_ids_of_a_window_are_rejected(monitor, tmp_path):
    table = stream(60, hours=1)
    before = _update(monitor, written(tmp_path / "a.parquet", table.slice(0, 40)))
    with pytest.raises(ValueError, match=r"b\.parquet: the window of .* has 20 of its 40 ids in other rows too"):
        _update(monitor, written(tmp_path / "b.parquet", table.slice(20, 40)))
    assert show(monitor) == before


def test_an_id_twice_in_a_window_is_rejected(monitor, tmp_path):
    table = stream(20, hours=1)
    table = table.set_column(0, "id", pa.array([f"request {row % 19}" for row in range(20)]))
    with pytest.raises(ValueError, match=r"a\.parquet: id 'request 0' occurs more than once in a window"):
        _update(monitor, written(tmp_path / "a.parquet", table))
    assert show(monitor).predictions == 0


def test_rows_without_ids_beside_others_of_their_window_are_said(monitor, tmp_path, capsys):
    table = stream(60, ids=False, hours=2)
    _update(monitor, written(tmp_path / "a.parquet", table))
    assert "already had rows" not in capsys.readouterr().err
    _update(monitor, written(tmp_path / "again.parquet", table))
    assert "already had rows" not in capsys.readouterr().err
    _update(monitor, written(tmp_path / "b.parquet", table.slice(0, 30)))
    note = capsys.readouterr().err
    assert "b.parquet: 2 of its windows already had rows" in note
    assert "remove" in note


def test_labels_that_a_fuller_file_lacks_are_said(monitor, tmp_path, capsys):
    table = stream(60, hours=1)
    _update(monitor, written(tmp_path / "a.parquet", table.slice(0, 30)))
    standing = _update(monitor, written(tmp_path / "b.parquet", table.drop_columns(["label"])))
    assert (standing.predictions, standing.labelled) == (60, 0)
    assert "30 labels are not added" in capsys.readouterr().err
