"""Exported files: the same logits, the whole of the primary and nothing else, written whole or not at all."""

import copy
import stat
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import Tensor, nn

import counterpoise
from counterpoise.export import (
    FORMATS,
    describe,
    export_model,
    export_onnx,
    export_pt2,
    export_safetensors,
    load_pt2,
    load_safetensors,
)
from counterpoise.models import Backbone, build_model

METADATA = describe(class_names=["Käfer", "cat, dog", ""], mean=[0.5], std=[0.25])
EXAMPLE = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def trained_a_little(model: nn.Module) -> nn.Module:
    """Statistics of batch normalisation that are not those of the start."""
    for seed in range(3):
        model.train()(1 + 2 * torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(seed)))
    return model


def network() -> nn.Module:
    return trained_a_little(build_model(Backbone("resnet10", width=4), classes=3, channels=1, seed=0))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[nn.Module, dict[str, Path]]:
    """One model in evaluation mode, and its file in each format."""
    model, folder = network(), tmp_path_factory.mktemp("exported")
    paths = {to: folder / f"primary.{to}" for to in FORMATS}
    for to, path in paths.items():
        export_model(model, path, to=to, example=EXAMPLE, metadata=METADATA)
    return model.eval(), paths


def runner(to: str, path: Path):
    """From images to logits and probabilities, and the metadata, as somebody would use the file."""
    if to == "safetensors":
        model = build_model(Backbone("resnet10", width=4), classes=3, channels=1).eval()
        metadata = load_safetensors(model, path)
        return lambda images: {"logits": model(images), "probabilities": model(images).softmax(-1)}, metadata
    if to == "pt2":
        return load_pt2(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = ["logits", "probabilities"]
    return (
        lambda images: dict(
            zip(names, map(torch.from_numpy, session.run(names, {"images": images.numpy()})), strict=True)
        ),
        session.get_modelmeta().custom_metadata_map,
    )


class Tied(nn.Module):
    """Two layers of one weight, and a buffer that is a part of another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        whole = torch.arange(6.0)
        self.register_buffer("whole", whole)
        self.register_buffer("part", whole[:3].clone())

    def forward(self, values: Tensor) -> Tensor:
        return self.second(self.first(values))


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("batch", [1, 2, 7, 100])
def test_files_give_the_logits_of_the_model_for_any_batch(files, to, batch):
    model, paths = files
    run, _ = runner(to, paths[to])
    images = torch.randn(batch, 1, 8, 8, generator=torch.Generator().manual_seed(batch))
    with torch.no_grad():
        expected, found = model(images), run(images)
    torch.testing.assert_close(found["logits"], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["probabilities"], expected.softmax(-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("to", FORMATS)
def test_files_hold_the_metadata_and_the_version(files, to):
    _, metadata = runner(to, files[1][to])
    assert metadata == METADATA | {"counterpoise_version": counterpoise.__version__}


@pytest.mark.parametrize("to", FORMATS)
def test_files_are_readable_by_whom_any_other_file_is(files, to, tmp_path):
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(files[1][to].stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize("to", FORMATS)
def test_files_name_no_place_on_this_machine(files, to):
    content = files[1][to].read_bytes()
    for place in (Path(torch.__file__).parent.parent, Path(counterpoise.__file__).parent.parent):
        assert str(place).encode() not in content


def test_weights_are_equal_bit_by_bit(files):
    model, paths = files
    stored = load_file(paths["safetensors"])
    expected = model.state_dict()
    assert stored.keys() == expected.keys()
    for name, value in expected.items():
        assert stored[name].dtype == value.dtype
        assert stored[name].numpy().tobytes() == value.numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_keep_their_precision_and_layout_does_not_matter(dtype, tmp_path):
    model = network().to(dtype).to(memory_format=torch.channels_last)
    export_safetensors(model, tmp_path / "a.safetensors", metadata={})
    other = build_model(Backbone("resnet10", width=4), classes=3, channels=1).to(dtype)
    load_safetensors(other, tmp_path / "a.safetensors")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in other.state_dict().items())


def test_shared_tensors_are_written_once_and_shared_again(tmp_path):
    model, path, metadata = Tied(), tmp_path / "tied.safetensors", {"note": "x"}
    export_safetensors(model, path, metadata=metadata)
    assert metadata == {"note": "x"}
    assert len(load_file(path)) == len(model.state_dict()) - 1
    ours, theirs = Tied(), Tied()
    assert load_safetensors(ours, path) == {"note": "x", "counterpoise_version": counterpoise.__version__}
    load_model(theirs, path)
    for loaded in (ours, theirs):
        assert loaded.second.weight is loaded.first.weight
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (Backbone("resnet18", width=4), r"layer1\.1\.conv1\.weight is missing"),
        (Backbone("cnn", width=4), r"0\.weight is missing; .*; and \d+ more\. Build the model"),
        (
            Backbone("resnet10", width=8),
            r"conv1\.weight is torch\.float32 \[4, 1, 3, 3\], not torch\.float32 \[8, 1, 3, 3\]",
        ),
    ],
)
def test_weights_of_another_network_are_refused_and_change_nothing(files, other, complaint):
    model = build_model(other, classes=3, channels=1, seed=9)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=rf"primary\.safetensors does not fit .*{complaint}"):
        load_safetensors(model, files[1]["safetensors"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_that_a_network_has_no_place_for_are_refused(files):
    model = build_model(Backbone("resnet10", width=4), classes=3, channels=1)
    model.fc = nn.Linear(32, 3, bias=False)
    with pytest.raises(ValueError, match=r"does not fit ResNet: fc\.bias is unexpected\. Build"):
        load_safetensors(model, files[1]["safetensors"])


def test_weights_of_another_precision_are_refused(files):
    model = build_model(Backbone("resnet10", width=4), classes=3, channels=1).double()
    with pytest.raises(ValueError, match=r"bn1\.bias is torch\.float32 \[4\], not torch\.float64 \[4\]"):
        load_safetensors(model, files[1]["safetensors"])


@pytest.mark.parametrize("content", [b"", b"no such file", None])
def test_other_files_are_refused(files, content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(files[1]["pt2"].read_bytes()[:-1000] if content is None else content)
    with pytest.raises(ValueError, match=f"{path} is no program"):
        load_pt2(path)
    with pytest.raises(ValueError, match=f"{path} is not a safetensors file"):
        load_safetensors(nn.Linear(1, 1), path)


@pytest.mark.parametrize("to", FORMATS)
def test_exporting_leaves_the_model_as_it_is(to, tmp_path):
    model = trained_a_little(build_model(Backbone("cnn", width=2), classes=3, channels=1, seed=0))
    model[1].eval()  # one frozen layer: each flag must come back, not one for all
    next(model.parameters()).requires_grad_(False)
    before = copy.deepcopy(model)
    random = torch.get_rng_state()
    export_model(model, tmp_path / "file", to=to, example=EXAMPLE, metadata={})
    assert [module.training for module in model.modules()] == [module.training for module in before.modules()]
    assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in before.parameters()]
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("to", FORMATS)
def test_objectives_do_not_ship(to, tmp_path):
    objective = counterpoise.MutualTransport(nn.Linear(4, 3), [nn.Linear(4, 3)], 0.8)
    with pytest.raises(ValueError, match=r"MutualTransport is for training.*export objective\.primary"):
        export_model(objective, tmp_path / "file", to=to, example=torch.zeros(1, 4), metadata={})
    assert not list(tmp_path.iterdir())


def test_bfloat16_weights_run_as_float32(tmp_path):
    model = nn.Linear(4, 3).to(torch.bfloat16)
    export_pt2(model, tmp_path / "file", example=torch.zeros(1, 4), metadata={})
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(load_pt2(tmp_path / "file")[0](rows)["logits"], copy.deepcopy(model).float()(rows))


class Noisy(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images + torch.rand_like(images)


class Broken(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images / 0 - images / 0


@pytest.mark.parametrize(("export", "model"), [(export_onnx, Broken()), (export_pt2, Broken()), (export_pt2, Noisy())])
def test_a_file_that_gives_other_logits_is_not_written(export, model, tmp_path):
    path = tmp_path / "file"
    path.write_text("the old one")
    with pytest.raises(ValueError, match=f"{path} is not written: on 1 random rows"):
        export(model, path, example=torch.zeros(1, 4), metadata={})
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("export", [export_onnx, export_pt2])
def test_wrong_examples_and_outputs_are_refused(export, tmp_path):
    with pytest.raises(ValueError, match=r"normalised images.*torch\.uint8 \[1, 4\]"):
        export(nn.Linear(4, 3), tmp_path / "a", example=torch.zeros(1, 4, dtype=torch.uint8), metadata={})
    with pytest.raises(ValueError, match=r"Identity must return a tensor of logits \[n, classes\]"):
        export(nn.Identity(), tmp_path / "a", example=EXAMPLE, metadata={})


def test_onnx_file_is_one_file_with_named_ends_and_a_free_batch(files):
    path = files[1]["onnx"]
    graph = onnx.load(path, load_external_data=False)
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 18)]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [(end.name, end.shape) for end in session.get_inputs()] == [("images", ["batch", 1, 8, 8])]
    outputs = [("logits", ["batch", 3]), ("probabilities", ["batch", 3])]
    assert [(end.name, end.shape) for end in session.get_outputs()] == outputs
    assert not any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in graph.graph.initializer)
    digests = ["primary.onnx.sha256", "primary.pt2.sha256"]
    assert {file.name for file in path.parent.iterdir()} == {*digests, *(f"primary.{to}" for to in FORMATS)}


def test_weights_beyond_what_onnx_holds_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("counterpoise.export.onnx.LARGEST", 50)
    with pytest.raises(ValueError, match="at most 50 bytes, the weights take 60"):
        export_onnx(nn.Linear(4, 3), tmp_path / "a.onnx", example=torch.zeros(1, 4), metadata={})


@pytest.mark.slow
def test_export_is_silent(capfd, tmp_path):
    for to in FORMATS:
        export_model(nn.Linear(4, 3), tmp_path / to, to=to, example=torch.zeros(1, 4), metadata={})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_library_names_the_extra(missing, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"export to ONNX needs {missing}: pip install 'counterpoise\[export\]'"):
        export_onnx(nn.Linear(4, 3), tmp_path / "a.onnx", example=torch.zeros(1, 4), metadata={})


def test_unknown_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no format 'h5': choose one of safetensors, onnx, pt2"):
        export_model(nn.Linear(4, 3), tmp_path / "a", to="h5", example=torch.zeros(1, 4), metadata={})


names = st.lists(st.text(max_size=8), max_size=5)
numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=15)
@given(class_names=names, mean=numbers, std=numbers, shape=st.lists(st.integers(0, 4), max_size=3))
def test_any_metadata_and_any_tensor_come_back(tmp_path_factory, class_names, mean, std, shape):
    model = nn.Module()
    model.register_buffer("values", torch.from_numpy(np.random.default_rng(0).standard_normal(shape)))
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    metadata = describe(class_names=class_names, mean=mean, std=std)
    export_safetensors(model, path, metadata=metadata)
    other = nn.Module()
    other.register_buffer("values", torch.ones(shape, dtype=torch.float64))
    assert load_safetensors(other, path) == metadata | {"counterpoise_version": counterpoise.__version__}
    assert torch.equal(other.values, model.values)


entries = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=12)


@settings(max_examples=15)
@given(metadata=entries)
def test_the_same_weights_and_metadata_are_the_same_bytes(tmp_path_factory, metadata):
    model = nn.Linear(3, 2)
    paths = [tmp_path_factory.getbasetemp() / f"same-{number}.safetensors" for number in range(3)]
    orders = sorted(metadata.items()), sorted(metadata.items(), reverse=True), metadata.items()
    for path, order in zip(paths, orders, strict=True):
        export_safetensors(model, path, metadata=dict(order))
    assert len({path.read_bytes() for path in paths}) == 1
    with safe_open(str(paths[0]), framework="pt") as file:
        assert metadata.items() <= file.metadata().items()
    assert torch.equal(load_file(paths[0])["weight"], model.weight)
