"""Calibrators with what users hand them: autocast, other dtypes, masks that are not -inf, numbers of NumPy, files."""

import numpy as np
import pytest
import torch

from counterpoise.calibrators import (
    DirichletCalibration,
    FitState,
    HistogramBinning,
    IsotonicRegression,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
    load_calibrator,
)
from counterpoise.predictions import Predictions, write_predictions
from counterpoise.scoring import fit_temperature


def samples(rows=600, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator)
    return logits, torch.multinomial(torch.softmax(logits / 1.5, -1), 1, generator=generator).squeeze(-1)


ALL = [
    TemperatureScaling(),
    VectorScaling(),
    MatrixScaling(1e-2, 1e-2),
    DirichletCalibration(1e-2, 1e-2),
    HistogramBinning(),
    IsotonicRegression(),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("calibrator", ALL, ids=lambda each: type(each).__name__)
def test_autocast_changes_nothing(calibrator, dtype):
    logits, labels = samples()
    calibrator.fit(logits, labels)
    expected = calibrator(logits)
    with torch.autocast("cpu", dtype):
        found = calibrator(logits)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_isotonic_regression_of_float64_holds_for_float32():
    """Probabilities above 1 - 3e-8 are all 1 in float32; here the accuracy still rises from 0.5 to 1 among them."""
    generator = torch.Generator().manual_seed(0)
    gap = 10 + 27 * torch.rand(10_000, generator=generator, dtype=torch.float64)
    right = torch.rand(10_000, generator=generator, dtype=torch.float64) < 0.5 + 0.5 * (gap - 10) / 27
    logits = torch.stack([gap, torch.zeros_like(gap)], -1)
    calibrator = IsotonicRegression().fit(logits, (~right).long())
    confidence = {dtype: calibrator(logits.to(dtype)).exp()[:, 0].double() for dtype in (torch.float32, torch.float64)}
    assert float(confidence[torch.float32].mean()) == pytest.approx(float(right.double().mean()), abs=5e-3)
    assert float((confidence[torch.float32] - confidence[torch.float64]).abs().max()) < 0.02


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(1), 1])
def test_penalties_may_be_numbers_of_any_type(tmp_path, number):
    logits, labels = samples(100)
    for calibrator in (MatrixScaling(number, number), DirichletCalibration(number, number)):
        calibrator.fit(logits, labels).save(tmp_path / "x.safetensors")
        assert load_calibrator(tmp_path / "x.safetensors").off_diagonal_penalty == float(number)
    HistogramBinning(np.int64(5)).fit(logits, labels).save(tmp_path / "x.safetensors")
    assert load_calibrator(tmp_path / "x.safetensors").bins == 5


@pytest.mark.parametrize("wrong", [True, "1", torch.tensor(0.1), float("nan"), -1.0])
def test_what_is_no_penalty_is_refused_before_the_fit(wrong):
    for kind in (MatrixScaling, DirichletCalibration):
        with pytest.raises(ValueError, match="penalty must be a number of at least 0"):
            kind(wrong)


def test_a_mask_that_is_finite_is_refused_where_it_would_give_nonsense():
    logits, labels = samples()
    masked = logits.clone()
    masked[3, 2] = torch.finfo(torch.float32).min
    for calibrator in (MatrixScaling(), DirichletCalibration(1e-2, 1e-2)):
        with pytest.raises(ValueError, match=r"logits row 3, column 2 is -3.4e\+38; .* use TemperatureScaling"):
            calibrator.fit(logits, labels)(masked)
    turned = VectorScaling().fit(logits * torch.tensor([1.0, 1.0, -1e-3]), labels)
    with pytest.raises(ValueError, match=r"logits row 3 is too large for VectorScaling: .*mask classes with -inf"):
        turned(masked)


def test_informative_logits_of_a_large_scale_end_at_the_highest_temperature():
    generator = torch.Generator().manual_seed(0)
    first = 1000 * torch.randn(2000, generator=generator)
    labels = (torch.rand(2000, generator=generator) > torch.sigmoid(first / 300)).long()
    fitted = TemperatureScaling().fit(torch.stack([first, torch.zeros(2000)], -1), labels)
    assert fitted.state == FitState.AT_HIGHEST_TEMPERATURE


def test_a_folder_is_no_file_of_a_calibrator(tmp_path):
    with pytest.raises(ValueError, match="is a folder, not a safetensors file"):
        load_calibrator(tmp_path)


def test_a_temperature_of_a_file_leaves_out_what_it_cannot_change(tmp_path):
    logits, labels = samples()
    probabilities = torch.softmax(logits, -1)
    probabilities[20] = torch.eye(3)[(labels[20] + 1) % 3]
    unknown = torch.where(torch.arange(600) < 10, -1, labels)
    write_predictions(tmp_path / "x.parquet", Predictions.of(probabilities=probabilities, labels=unknown))
    kept = (unknown >= 0) & (torch.arange(600) != 20)
    expected = TemperatureScaling().fit(logits[kept], labels[kept]).temperature
    assert fit_temperature(tmp_path / "x.parquet").temperature == pytest.approx(expected, rel=1e-3)
    write_predictions(tmp_path / "y.parquet", Predictions.of(probabilities=probabilities, labels=[-1] * 600))
    with pytest.raises(ValueError, match=r"y.parquet: it holds no labelled, clean sample"):
        fit_temperature(tmp_path / "y.parquet")
