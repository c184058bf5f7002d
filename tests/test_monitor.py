"""The monitor: counts that add up, whatever the files, their order, and when labels come; what a scheduler is told."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterpoise.cli import parse
from counterpoise.cli.monitor import EXIT_ALARM, EXIT_NOTHING
from counterpoise.monitoring import begin, show, update
from counterpoise.monitoring.counts import CELLS, Counts, StoredCounts
from counterpoise.monitoring.page import render
from counterpoise.monitoring.standing import Accuracies, judged
from counterpoise.monitoring.store import read_reference, windows_of
from counterpoise.monitoring.texts import as_json, as_lines, as_openmetrics
from counterpoise.monitoring.windows import microseconds_of, stamp_of, time_of, window_at, window_at_time
from counterpoise.predictions import AmbiguousInputError, Columns, PredictionFileError

START = 1_772_323_200  # 2026-03-01, a Sunday
CLASSES = 4


def stream(rows, *, seed=0, sharp=3.0, hours=12, ids=True, labelled=1.0, shift=0.0):
    """Predictions of a calibrated model, or of one whose labels are wrong more often by `shift`."""
    generator = np.random.default_rng(seed)
    logits = sharp * generator.normal(size=(rows, CLASSES))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = (p.cumsum(-1) > generator.random((rows, 1))).argmax(-1)
    wrong = generator.random(rows) < shift
    labels = np.where(wrong, (p.argmax(-1) + 1) % CLASSES, labels)
    known = generator.random(rows) < labelled
    columns = {"id": np.arange(rows) + 100_000 * seed} if ids else {}
    columns |= {f"p{k}": p[:, k] for k in range(CLASSES)}
    columns["label"] = pa.array([int(x) if k else None for x, k in zip(labels, known, strict=True)], pa.int64())
    columns["time"] = START + generator.integers(0, hours * 3600, rows)
    return pa.table(columns)


def written(path, table):
    pq.write_table(table, path)
    return path


@pytest.fixture
def monitor(tmp_path):
    begin(tmp_path / "monitor", written(tmp_path / "reference.parquet", stream(2000, seed=9)), start="2026-03-01")
    return tmp_path / "monitor"


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
        assert len(list((folder / "windows").iterdir())) == len(json.loads(results[-1])["lines"])
    assert len(set(results)) == 1
    assert json.loads(results[0])["lines"][0]["labelled"] == json.loads(results[0])["lines"][0]["predictions"]


def test_labels_of_a_file_of_their_own(monitor, tmp_path):
    table = stream(100)
    alone = written(tmp_path / "alone.parquet", table.drop_columns(["label"]))
    (tmp_path / "labels.csv").write_text("label\n" + "\n".join(map(str, table["label"].to_pylist())) + "\n")
    update(monitor, alone)
    assert show(monitor).labelled == 0
    update(monitor, alone, columns=Columns(labels=tmp_path / "labels.csv"))
    assert show(monitor).labelled == show(monitor).predictions == 100


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


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1772323200", START * 10**6),
        ("1772323200.25", START * 10**6 + 250_000),
        ("1.7723232e9", START * 10**6),
        ("2026-03-01", START * 10**6),
        ("20260301", START * 10**6),
        ("2026-03-01 01:00:00+0100", START * 10**6),
        ("2026-03-01T00:00:00.000000Z", START * 10**6),
        ("2026-03-01T00:00:00", START * 10**6),
        ("1969-12-31", None),
        ("1772323200000", None),
        ("noon", None),
        ("nan", None),
        ("inf", None),
        ("-5", None),
    ],
)
def test_times(text, microseconds):
    (found,), (given,) = microseconds_of([text])
    assert bool(given) == (microseconds is not None)
    assert microseconds is None or found == microseconds


@given(st.integers(0, 3_000_000), st.sampled_from(["hour", "day", "week"]))
def test_stamps_are_those_of_windows(window, every):
    window = window % 100_000 if every != "hour" else window
    assert window_at(stamp_of(window, every), every) == window


def test_a_stamp_within_a_window_is_none():
    with pytest.raises(ValueError, match="no day begins"):
        window_at("20260301T05", "day")
    assert window_at_time(time_of("2026-03-01T05:30"), "hour") == START // 3600 + 5


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([START] * 4 + [None], "row 4, column 'time' is missing"),
        ([START, START, START - 1, START, START], "row 2, column 'time' is '1772323199', before the monitor begins"),
        (["2026-03-01"] * 3 + ["noon", ""], "row 4, column 'time' is missing"),
        (["2026-03-01"] * 3 + ["noon", "2026-03-01"], "row 3, column 'time' is 'noon', no time from 1970 on"),
    ],
)
def test_a_row_without_a_time_is_named(monitor, tmp_path, times, message):
    table = stream(5).set_column(CLASSES + 2, "time", pa.array(times))
    with pytest.raises(PredictionFileError, match=re.escape(message)):
        update(monitor, written(tmp_path / "a.parquet", table))
    assert show(monitor).outcome == "nothing"


def test_the_column_of_times_is_asked_for(monitor, tmp_path):
    table = stream(5).rename_columns(["id", *(f"p{k}" for k in range(CLASSES)), "label", "served"])
    path = written(tmp_path / "a.parquet", table)
    with pytest.raises(AmbiguousInputError, match=r"which column holds the times.*time='served'"):
        update(monitor, path)
    assert update(monitor, path, time="served").predictions == 5
    with pytest.raises(PredictionFileError, match="no column 'when'"):
        update(monitor, path, time="when")


def test_another_model_is_refused(monitor, tmp_path):
    table = stream(5).drop_columns(["p3"])
    whole = sum(np.asarray(table[f"p{k}"]) for k in range(3))
    for k in range(3):
        table = table.set_column(1 + k, f"p{k}", pa.array(np.asarray(table[f"p{k}"]) / whole))
    table = table.set_column(4, "label", pa.array([0, 1, 2, 0, 1]))
    with pytest.raises(PredictionFileError, match=r"it has 3 classes, and the reference .* has 4 classes"):
        update(monitor, written(tmp_path / "a.parquet", table))


def test_a_reference_needs_labels_and_a_folder_of_its_own(tmp_path):
    path = written(tmp_path / "a.parquet", stream(50, labelled=0.0))
    with pytest.raises(PredictionFileError, match="begins with labelled predictions"):
        begin(tmp_path / "monitor", path)
    path = written(tmp_path / "a.parquet", stream(50))
    with pytest.raises(ValueError, match="it holds other files"):
        begin(tmp_path, path)
    begin(tmp_path / "monitor", path, start="2026-03-01")
    begin(tmp_path / "monitor", path, start="2026-03-01")
    with pytest.raises(ValueError, match="another reference began here"):
        begin(tmp_path / "monitor", path, start="2026-03-02")
    with pytest.raises(FileNotFoundError, match="counterpoise monitor begin"):
        show(tmp_path / "elsewhere")


def _name(folder):
    return next(iter(sorted((folder / "windows").iterdir())))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text("{"), "not JSON"),
        (lambda path: path.write_text("{}"), "not a window document"),
        (lambda path: path.write_text(" " * 10**6), "larger than"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "utf-8"),
        (lambda path: _edited(path, hits=[10**6]), "do not have the same length"),
        (lambda path: _edited(path, cells=lambda old: [CELLS + place for place in old]), "its cells within"),
        (lambda path: _edited(path, cells=lambda old: [*reversed(old)]), "must rise"),
        (lambda path: _edited(path, hits=lambda old: [count + 5 for count in old]), "more labels than predictions"),
        (lambda path: _edited(path, predictions=lambda old: [-1 for _ in old]), "neither negative"),
        (lambda path: _edited(path, predictions=lambda old: [10**20 for _ in old]), "nor above"),
        (lambda path: _edited(path, class_counts=lambda old: [count + 1 for count in old]), "same predictions"),
        (lambda path: path.rename(path.with_name("20260301T99" + path.name[11:])), "remove it"),
        (lambda path: path.rename(path.with_name("20250301T00" + path.name[11:])), "before the monitor's first"),
        (lambda path: path.rename(path.with_name("20260301T07" + path.name[11:])), "not hold what its name says"),
        (lambda path: path.with_name("notes.txt").write_text(""), "no file of a monitor"),
        (lambda path: path.with_name("sub").mkdir(), "a link or a folder"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(monitor, tmp_path, damage, message):
    update(monitor, written(tmp_path / "a.parquet", stream(40, hours=2)))
    damage(_name(monitor))
    with pytest.raises(ValueError, match=message) as refused:
        show(monitor)
    assert str(monitor) in str(refused.value)


def _edited(path, **changes):
    document = json.loads(path.read_text())
    for name, change in changes.items():
        document["stored"][name] = change(document["stored"][name]) if callable(change) else change
    path.write_text(json.dumps(document))


def test_links_are_not_followed(monitor, tmp_path):
    update(monitor, written(tmp_path / "a.parquet", stream(40, hours=2)))
    path = _name(monitor)
    target = tmp_path / "elsewhere.json"
    path.rename(target)
    try:
        path.symlink_to(target)
    except OSError:
        pytest.skip("no links here")
    with pytest.raises(ValueError, match="a link or a folder"):
        show(monitor)


def test_what_a_killed_writer_left_is_not_read(monitor, tmp_path):
    update(monitor, written(tmp_path / "a.parquet", stream(40, hours=2)))
    wanted = as_json(show(monitor))
    (monitor / "windows" / f".{_name(monitor).name[:40]}.abc-1-00.tmp").write_text('{"schema": "counterp')
    assert as_json(show(monitor)) == wanted


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


def test_pieces_of_a_file_add_up_to_it(monitor, tmp_path):
    path = written(tmp_path / "a.parquet", stream(500))
    update(monitor, path)
    reference = read_reference(monitor)
    total = sum((counts.samples for _, counts in windows_of(monitor, reference)), 0)
    assert total == 500
    standing = judged(replace(reference, level=0.5), windows_of(monitor, reference))
    assert standing.threshold < show(monitor).threshold
