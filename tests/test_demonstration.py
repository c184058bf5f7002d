"""The demonstration with a small network: trains, predicts, and its files can be scored and compared."""

from dataclasses import replace

import pytest

from counterpoise.models import Backbone
from counterpoise.predictions import open_predictions
from counterpoise.scoring import score_files
from tools import demonstration

pytestmark = pytest.mark.slow


def test_from_images_to_a_comparison(real_data, tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_DATA", str(real_data("cifar10")))
    monkeypatch.setattr(demonstration, "CORRUPTED_IMAGES", 40)
    recipe = demonstration.demonstration_recipe()
    network = Backbone(name="cnn", width=4)
    small = replace(
        recipe,
        primary=network,
        auxiliary=network,
        epochs=1,
        data=replace(recipe.data, limit=600, validation=100),
        evaluation=replace(recipe.evaluation, images=300),
    )
    for method in demonstration.METHODS:
        demonstration.demonstrate(replace(small, method=method), tmp_path, images=500)
    file = open_predictions(tmp_path / "mte1.parquet")
    assert file.rows == 500 + 5 * 5 * 40
    evaluation = score_files(
        [tmp_path / "ce.parquet", tmp_path / "mte1.parquet"],
        ood=[tmp_path / method / "predictions" / "ood_dtd_32.parquet" for method in demonstration.METHODS],
    )
    assert evaluation.comparison is not None
    assert set(evaluation.comparison.differences[0].ood) == {"dtd_32"}
    assert [len(model.groups) for model in evaluation.models] == [26, 26]
