"""A temperature in exported files: their probabilities are those of the calibrator, in every runtime."""

import json
from pathlib import Path

import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from counterpoise.calibrators import TemperatureScaling
from counterpoise.export import FORMATS, export_model, export_pt2, export_safetensors, load_pt2, load_safetensors
from counterpoise.export.primary import check_same_outputs
from counterpoise.export.temperature import Deployed
from counterpoise.models import Backbone, build_model
from example_scripts import example

METADATA = {"note": "x"}
SHAPE = (1, 8, 8)


def images(count: int, *, seed: int) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Module:
    return build_model(Backbone("cnn", width=4), classes=3, channels=1, seed=0).eval()


def trained() -> nn.Module:
    """A network whose logits differ from row to row, as those of random weights hardly do."""
    model = network()
    with torch.no_grad():
        model[-1].weight.mul_(20)
    return model


def outputs_and_metadata(to: str, path: Path, batch: Tensor) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As somebody would use the file."""
    if to == "pt2":
        program, metadata = load_pt2(path)
        return program(batch), metadata
    if to == "onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found = session.run(["logits", "probabilities"], {"images": batch.numpy()})
        metadata = session.get_modelmeta().custom_metadata_map
        return {"logits": torch.from_numpy(found[0]), "probabilities": torch.from_numpy(found[1])}, metadata
    model = network()
    metadata = load_safetensors(model, path)
    logits = model(batch).detach() / json.loads(metadata["temperature"])
    return {"logits": logits, "probabilities": logits.softmax(-1)}, metadata


@pytest.fixture(scope="module")
def scaling() -> TemperatureScaling:
    """Fitted to labels that the model is right about less often than it says."""
    logits = trained()(images(300, seed=5)).detach()
    labels = torch.multinomial((logits / 1.7).softmax(-1), 1, generator=torch.Generator().manual_seed(6)).squeeze(-1)
    return TemperatureScaling().fit(logits, labels)


@pytest.fixture(scope="module")
def files(scaling, tmp_path_factory) -> dict[str, Path]:
    """The model with the temperature, in each format."""
    folder = tmp_path_factory.mktemp("scaled")
    for to in FORMATS:
        example = torch.zeros(1, *SHAPE)
        export_model(trained(), folder / to, to=to, example=example, metadata=METADATA, temperature=scaling)
    return {to: folder / to for to in FORMATS}


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("batch", [1, 6, 64])
def test_probabilities_are_those_of_the_calibrator(files, scaling, to, batch):
    rows = images(batch, seed=batch)
    found, _ = outputs_and_metadata(to, files[to], rows)
    logits = trained()(rows).detach()
    assert 1.3 < scaling.temperature < 2.3
    torch.testing.assert_close(found["probabilities"], scaling(logits).exp(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found["logits"], logits / scaling.temperature, rtol=1e-5, atol=1e-5)
    assert torch.equal(found["probabilities"].argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize("to", FORMATS)
def test_metadata_say_whether_the_temperature_is_applied(files, scaling, to):
    _, metadata = outputs_and_metadata(to, files[to], images(1, seed=0))
    name = "temperature" if to == "safetensors" else "folded_temperature"
    assert json.loads(metadata.pop(name)) == scaling.temperature
    assert metadata.keys() == METADATA.keys() | {"counterpoise_version"}


def test_a_temperature_leaves_the_weights_alone(files):
    stored = load_file(files["safetensors"])
    assert all(torch.equal(value, stored[name]) for name, value in trained().state_dict().items())


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf"), 1e-3, TemperatureScaling()])
def test_wrong_temperatures_are_refused(to, temperature, tmp_path):
    with pytest.raises(ValueError, match=r"temperature must be a number from 0\.01 to 100|is not fitted"):
        export_model(
            nn.Linear(4, 3), tmp_path / "a", to=to, example=torch.zeros(1, 4), metadata={}, temperature=temperature
        )
    assert not list(tmp_path.iterdir())


def test_a_temperature_at_its_bound_is_refused_and_its_number_is_not(tmp_path):
    always_right = TemperatureScaling().fit(2 * torch.eye(3), torch.arange(3))
    with pytest.raises(ValueError, match=r"ended at lowest temperature, 0\.01.* pass the number itself"):
        export_safetensors(nn.Linear(4, 3), tmp_path / "a", metadata={}, temperature=always_right)
    export_safetensors(nn.Linear(4, 3), tmp_path / "a", metadata={}, temperature=always_right.temperature)


def test_metadata_of_another_temperature_are_refused(tmp_path):
    model, path = nn.Linear(4, 3), tmp_path / "a"
    export_safetensors(model, path, metadata={}, temperature=1.5)
    metadata = load_safetensors(model, path)
    for temperature in (None, 2.0):
        with pytest.raises(ValueError, match=r"name a temperature of 1\.5.*pass temperature=1\.5"):
            export_pt2(model, path, example=torch.zeros(1, 4), metadata=metadata, temperature=temperature)
    export_pt2(model, path, example=torch.zeros(1, 4), metadata=metadata, temperature=1.5)
    assert "temperature" not in load_pt2(path)[1]


@pytest.mark.slow
@settings(max_examples=30)
@given(
    temperature=st.floats(0.01, 100),
    logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=6),
)
def test_folded_probabilities_are_those_of_the_formula_in_float64(temperature, logits):
    row = torch.tensor([logits])
    found = Deployed(nn.Identity(), temperature=temperature)(row)["probabilities"].double()
    # The quotient of two float32 numbers has a relative error of 2**-24, which grows with the logit.
    rounding = row.abs().max().item() / temperature * 2.0**-23
    torch.testing.assert_close(found, (row.double() / temperature).softmax(-1), rtol=0, atol=1e-6 + rounding)


def test_a_file_that_gives_other_probabilities_is_refused():
    model, rows = Deployed(nn.Linear(4, 3).requires_grad_(False), temperature=2.0), torch.zeros(1, 4)
    with pytest.raises(ValueError, match="its probabilities differ from the softmax of its logits"):
        check_same_outputs(
            lambda images: model(images) | {"probabilities": model.primary(images).softmax(-1)}, model, rows, "a.onnx"
        )


@pytest.mark.slow
def test_the_example_deploys_the_probabilities_of_the_library():
    differences = example("deploy").main()
    assert differences.keys() == {"ONNX Runtime", "torch.export"}
    assert max(differences.values()) < 1e-5
