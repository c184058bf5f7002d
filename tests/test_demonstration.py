"""The demonstration, on a few hundred real images: trains, predicts, and its files can be scored and compared."""

import os

import pytest
import torch

from benchmarks import demonstration
from counterpoise.predictions import open_predictions
from counterpoise.scoring import score_files


@pytest.mark.skipif("COUNTERPOISE_DATA" not in os.environ, reason="COUNTERPOISE_DATA names no folder of data sets")
def test_from_images_to_a_comparison(tmp_path, monkeypatch):
    pixels, labels = demonstration.read_images("svhn_partial/test", column="image")
    assert pixels.shape == (949, 3, 32, 32)
    labels = torch.arange(949) % 10  # the foreign set has none
    monkeypatch.setattr(demonstration, "read_images", lambda name, column: (pixels[:300], labels[:300]))
    for name, value in {"HELD_OUT": 100, "CORRUPTED_IMAGES": 40}.items():
        monkeypatch.setattr(demonstration, name, value)
    for method in demonstration.METHODS:
        weights = tmp_path / f"{method}.safetensors"
        demonstration.train(method, weights, epochs=1)
        demonstration.predict(method, weights, tmp_path, epochs=1)
    file = open_predictions(tmp_path / "mte.parquet")
    assert file.rows == 300 + 5 * 5 * 40
    assert file.header.class_names == demonstration.CLASSES
    evaluation = score_files(
        [tmp_path / "ce.parquet", tmp_path / "mte.parquet"],
        ood=[tmp_path / "ce_dtd.parquet", tmp_path / "mte_dtd.parquet"],
    )
    assert evaluation.comparison is not None
    assert set(evaluation.comparison.differences[0].ood) == {"dtd"}
    assert [len(model.groups) for model in evaluation.models] == [26, 26]
