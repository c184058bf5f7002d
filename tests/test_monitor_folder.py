"""What a monitor refuses: times that are none, other models, folders that were damaged."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.monitoring import begin, show, update
from counterpoise.monitoring.counts import CELLS
from counterpoise.monitoring.texts import as_json
from counterpoise.monitoring.windows import microseconds_of, stamp_of, time_of, window_at, window_at_time
from counterpoise.predictions import AmbiguousInputError, PredictionFileError
from monitored import CLASSES, START, begun, stream, written


@pytest.fixture
def monitor(tmp_path):
    return begun(tmp_path)


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


def test_a_reference_whose_rows_are_there_twice_is_rejected(tmp_path):
    (tmp_path / "reference").mkdir()
    for name, rows in (("a", 50), ("b", 30)):
        written(tmp_path / "reference" / f"{name}.parquet", stream(rows))
    with pytest.raises(PredictionFileError, match="30 rows have the id of another row"):
        begin(tmp_path / "monitor", tmp_path / "reference")


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
    del document["sha256"]  # of those who edit on purpose
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
