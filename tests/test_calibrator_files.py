"""What calibrators refuse, and the files they are kept in."""

import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from counterpoise.calibrators import (
    CALIBRATORS,
    DirichletCalibration,
    HistogramBinning,
    IsotonicRegression,
    MatrixScaling,
    load_calibrator,
)
from counterpoise.calibrators.records import Record, write_record

MAKE = {**CALIBRATORS, "dirichlet": partial(DirichletCalibration, 1e-2, 1e-2)}
LOGITS = torch.tensor([[2.0, 0.0, 1.0], [0.5, 0.0, 3.0], [1.0, 2.0, 0.0], [0.0, 1.0, 0.5], [3.0, 0.0, 0.0]])
LABELS = torch.tensor([0, 2, 0, 1, 1])


def replaced(row: int, column: int, value: float) -> torch.Tensor:
    logits = LOGITS.clone()
    logits[row, column] = value
    return logits


BAD_LOGITS = {
    "NaN": (replaced(1, 2, torch.nan), "logits row 1, column 2 is nan.*leave the row out"),
    "+inf": (replaced(3, 0, torch.inf), "logits row 3, column 0 is inf"),
    "all -inf": (torch.where(torch.arange(5)[:, None] == 4, -torch.inf, LOGITS), "row 4, columns 0 to 2 are all -inf"),
    "integers": (LOGITS.long(), "floating point, got int64"),
    "ragged": ([[1.0, 2.0], [1.0]], "not a rectangular array"),
    "words": ([["a", "b"]], "must hold real numbers"),
    "sparse": (LOGITS.to_sparse(), "dense tensor"),
    "masked array": (np.ma.masked_array(LOGITS.numpy(), LOGITS.numpy() > 2), "masked entries"),
    "one class": (LOGITS[:, :1], "K = 1 classes, at least 2"),
    "a number": (torch.tensor(1.0), r"must have shape \[\.\.\., "),
}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("case", BAD_LOGITS)
def test_bad_logits_are_refused_in_fit_and_in_call(name, case):
    logits, message = BAD_LOGITS[case]
    calibrator = MAKE[name]().fit(LOGITS, LABELS)
    for call in (lambda: MAKE[name]().fit(logits, LABELS), lambda: calibrator(logits)):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (LOGITS, [0, 1, 2, 3, 0], r"labels row 3, column 0 is 3, outside \[0, 3\); leave rows without a class out"),
        (LOGITS, [0, -100, 2, 0, 0], r"labels row 1, column 0 is -100"),
        (LOGITS, LABELS.double(), "integer class indices, got float64"),
        (LOGITS, LABELS > 0, "integer class indices, got bool"),
        (LOGITS, LABELS[:3], r"labels must have shape \[5\].*got \[3\]"),
        (LOGITS[:0], LABELS[:0], r"no samples to fit to: logits have shape \[0, 3\]"),
        (LOGITS[0], LABELS[0], r"samples by classes, got \[3\]"),
        (replaced(2, 0, -torch.inf), LABELS, "labels row 2, column 0 is 0, and logits row 2, column 0 is -inf"),
    ],
)
@pytest.mark.parametrize("name", MAKE)
def test_bad_samples_are_refused_and_leave_no_fit(name, logits, labels, message):
    calibrator = MAKE[name]()
    with pytest.raises(ValueError, match=message):
        calibrator.fit(logits, labels)
    with pytest.raises(ValueError, match="not fitted"):
        calibrator(LOGITS)


@pytest.mark.parametrize("name", MAKE)
def test_a_calibrator_that_is_not_fitted_does_nothing(name, tmp_path):
    calibrator = MAKE[name]()
    message = rf"{type(calibrator).__name__} is not fitted; call fit\(logits, labels\) first"
    for use in (
        lambda: calibrator(LOGITS),
        lambda: calibrator.state,
        lambda: calibrator.save(tmp_path / "c.safetensors"),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", MAKE)
def test_another_number_of_classes_is_refused(name):
    calibrator = MAKE[name]().fit(LOGITS, LABELS)
    with pytest.raises(
        ValueError, match=r"shape \[\.\.\., 3\], as the calibrator was fitted to 3 classes, got \[5, 2\]"
    ):
        calibrator(LOGITS[:, :2])


@pytest.mark.parametrize(
    "make",
    [
        lambda: HistogramBinning(0),
        lambda: HistogramBinning(2.5),
        lambda: MatrixScaling(off_diagonal_penalty=-1.0),
        lambda: DirichletCalibration(intercept_penalty=float("nan")),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(ValueError, match="at least"):
        make()


def test_isotonic_regression_names_its_extra_and_needs_it_to_fit_only(tmp_path, monkeypatch):
    path = tmp_path / "isotonic.safetensors"
    regression = IsotonicRegression().fit(LOGITS, LABELS)
    regression.save(path)
    monkeypatch.delitem(sys.modules, "sklearn.isotonic")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert torch.equal(load_calibrator(path)(LOGITS), regression(LOGITS))
    with pytest.raises(ImportError, match=r"isotonic calibration needs .*counterpoise\[report\]"):
        IsotonicRegression().fit(LOGITS, LABELS)


# Files


@pytest.mark.parametrize("name", MAKE)
def test_a_loaded_calibrator_gives_the_same_bits(name, tmp_path):
    path = tmp_path / "calibrator.safetensors"
    calibrator = MAKE[name]().fit(LOGITS, LABELS)
    calibrator.save(path)
    loaded = load_calibrator(path)
    assert type(loaded) is type(calibrator)
    assert repr(loaded) == repr(calibrator)
    assert loaded.state is calibrator.state
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert torch.equal(loaded(LOGITS.to(dtype)), calibrator(LOGITS.to(dtype)))
    if name == "dirichlet":
        assert loaded.penalties == calibrator.penalties
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    assert {entry.name for entry in tmp_path.iterdir()} == {"calibrator.safetensors", "again.safetensors"}


def test_the_description_is_readable_and_has_no_import_path(tmp_path):
    path = tmp_path / "calibrator.safetensors"
    HistogramBinning(7).fit(LOGITS, LABELS).save(path)
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["description"])
        assert len(description.pop("sha256")) == 64
        assert description == {
            "schema": "counterpoise.calibrator",
            "schema_version": 1,
            "kind": "histogram",
            "classes": 3,
            "state": "exact",
            "settings": {"bins": 7},
            "results": {},
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["temperature", "isotonic"])
def test_a_file_with_any_byte_changed_or_missing_is_refused(name, tmp_path):
    path = tmp_path / "calibrator.safetensors"
    MAKE[name]().fit(LOGITS, LABELS).save(path)
    content = path.read_bytes()
    for position in range(len(content)):
        for damaged in (
            content[:position] + bytes([content[position] ^ (1 << position % 8)]) + content[position + 1 :],
            content[:position],
        ):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"calibrator\.safetensors"):
                load_calibrator(path)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "foreign.safetensors"
    for content in (b"", b"\x80\x04pickle", b"{}"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"foreign\.safetensors is not a safetensors file"):
            load_calibrator(path)
    for metadata in (None, {"description": "no JSON"}, {"description": "[]"}, {"description": '{"schema": "other"}'}):
        save_file({"weight": torch.zeros(3)}, path, metadata=metadata)
        with pytest.raises(ValueError, match=r"foreign\.safetensors is not the file of a calibrator"):
            load_calibrator(path)
    newer = {"schema": "counterpoise.calibrator", "schema_version": 2}
    save_file({"weight": torch.zeros(3)}, path, metadata={"description": json.dumps(newer)})
    with pytest.raises(ValueError, match="schema version 2, this release reads 1"):
        load_calibrator(path)
    with pytest.raises(FileNotFoundError):
        load_calibrator(tmp_path / "missing.safetensors")


ONES = torch.ones(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record("os.system", 3, "exact", {}, {}, {"x": ONES}), "kind 'os.system'; known are temperature"),
        (Record("vector", 3, "converged", {}, {}, {"weight": ONES}), "'bias' is missing"),
        (Record("vector", 2, "converged", {}, {}, {"weight": ONES, "bias": ONES}), r"shape \[3\].*expected \[2\]"),
        (Record("vector", 3, "converged", {}, {}, {"weight": ONES.bfloat16(), "bias": ONES}), "bfloat16, expected"),
        (Record("vector", 0, "converged", {}, {}, {"weight": ONES[:0], "bias": ONES[:0]}), "at least 2 classes, got 0"),
        (Record("matrix", 3, "converged", {}, {}, {"weight": ONES, "bias": ONES}), "'off_diagonal_penalty' is missing"),
        (Record("vector", 3, "converged", {}, {}, {"weight": ONES / 0, "bias": ONES}), "NaN or infinity"),
        (Record("vector", 3, "perfect", {}, {}, {"weight": ONES, "bias": ONES}), "'perfect' is not a valid FitState"),
        (Record("temperature", 3, "converged", {}, {}, {"temperature": -ONES[0]}), "temperature -1.0 is outside"),
        (Record("histogram", 3, "exact", {}, {}, {"values": torch.ones(3, 2).double()}), "'bins' is missing"),
        (Record("histogram", 3, "exact", {"bins": 2.0}, {}, {"values": torch.ones(3, 2).double()}), "bins must be"),
        (Record("histogram", 3, "exact", {"bins": 1}, {}, {"values": 2 * ONES[:, None]}), "from 0 to 1"),
        (Record("histogram", 3, "exact", {"bins": "2"}, {}, {"values": ONES}), "bins must be a number"),
        (Record("isotonic", 3, "exact", {}, {}, dict.fromkeys(["thresholds", "values"], ONES[:, None])), "ascending"),
    ],
)
def test_a_file_that_describes_no_calibrator_is_refused(record, message, tmp_path):
    write_record(tmp_path / "odd.safetensors", record)
    with pytest.raises(ValueError, match=rf"odd\.safetensors.*{message}"):
        load_calibrator(tmp_path / "odd.safetensors")
