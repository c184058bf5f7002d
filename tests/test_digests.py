"""What ships has a digest, and every reader verifies it: bit flips, older files, names that lead elsewhere."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from counterpoise._digests import (
    SUMS,
    changed_in,
    inside,
    read_sums,
    read_vouched,
    replacing_vouched,
    sums_of,
    write_sums,
)
from counterpoise._files import read_safetensors
from counterpoise.calibrators import ConformalSets, SelectiveThreshold, TemperatureScaling, load_calibrator
from counterpoise.export import export_pt2, export_safetensors, load_pt2
from counterpoise.export.config import ModelConfig
from counterpoise.metrics import Performance, Stream
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.scores import Scores
from counterpoise.predictions import Predictions, find_shards, write_predictions
from counterpoise.predictions.shards import write_manifest
from counterpoise.training.checkpoints import Entry, Manifest, read_manifest, read_state
from counterpoise.training.checkpoints import write_manifest as write_checkpoints
from counterpoise.training.parts import read_parts
from counterpoise.training.splits import require_same_split
from runs import small_data, small_recipe

GOLDEN = Path(__file__).parent / "golden" / "documents"
LOGITS, LABELS = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def weights(path: Path) -> None:
    export_safetensors(network(), path, metadata={"class_names": '["a", "b", "c"]'}, temperature=1.5)


def stream(path: Path) -> None:
    found = Stream(Performance())
    found.update(logits=LOGITS, labels=LABELS)
    found.save(path)


def summed(path: Path) -> dict:
    found = Stream(Performance())
    found.load(path)
    return {name: value.tolist() for name, value in found.sums.items()}


def manifest(path: Path) -> None:
    folder = path.parent / "shards"
    folder.mkdir(exist_ok=True)
    write_predictions(folder / "a.parquet", Predictions.of(logits=LOGITS, labels=LABELS))
    shutil.copy(write_manifest(folder), path)


def shards(path: Path) -> list:
    shutil.copy(path, path.parent / "shards" / "manifest.json")
    return [(each.path.name, each.rows, each.digest, each.size) for each in find_shards(path.parent / "shards").shards]


def checkpoints(path: Path) -> None:
    write_checkpoints(path.parent, Manifest(last=Entry("step-000000002.ckpt", "0" * 64, 1, step=2, epoch=0)))


def tensors(path: Path) -> dict:
    metadata, found = read_safetensors(path)
    # A flip in the name of the digest itself leaves a file without one, whose values are the same.
    known = {name: metadata.get(name) for name in ("class_names", "temperature", "counterpoise_version")}
    return known | {name: value.tolist() for name, value in found.items()}


CASES = {
    "w.safetensors": (weights, tensors),
    "s.safetensors": (stream, summed),
    "t.safetensors": (
        lambda path: TemperatureScaling().fit(LOGITS, LABELS).save(path),
        lambda path: repr(load_calibrator(path).temperature),
    ),
    "sets.json": (lambda path: ConformalSets.fit(LOGITS, LABELS, alpha=0.2).save(path), ConformalSets.load),
    "accept.json": (
        lambda path: SelectiveThreshold.fit(LOGITS, LABELS, risk=0.9, delta=0.1).save(path),
        SelectiveThreshold.load,
    ),
    "config.json": (lambda path: path.write_text(ModelConfig(("a", "b"), temperature=1.7).to_json()), ModelConfig.load),
    "scores.json": (
        lambda path: Scores.load(GOLDEN / "scores-1.json").save(path),
        lambda path: repr(vars(Scores.load(path))),
    ),
    "evaluation.json": (
        lambda path: path.write_text(Evaluation.from_json((GOLDEN / "evaluation-1.json").read_text()).to_json()),
        lambda path: repr(vars(Evaluation.from_json(path.read_text(encoding="utf-8")))),
    ),
    "manifest.json": (checkpoints, lambda path: read_manifest(path.parent)),
    "shards.json": (manifest, shards),
}
FLIPS = 150


@pytest.mark.parametrize("name", CASES)
def test_no_bit_flip_is_read_as_something_else(tmp_path, name):
    write, read = CASES[name]
    path = tmp_path / name
    write(path)
    data, expected, draw = path.read_bytes(), read(path), np.random.default_rng(0)
    refused = 0
    for _ in range(FLIPS):
        damaged = bytearray(data)
        damaged[draw.integers(len(data))] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        try:
            assert read(path) == expected
        except ValueError:
            refused += 1
    assert refused > FLIPS / 2  # others have changed the layout, which says nothing


@pytest.mark.slow
def test_no_bit_flip_of_a_program_is_run(tmp_path):
    path = tmp_path / "p.pt2"
    export_pt2(network(), path, example=torch.zeros(2, 4), metadata={})
    data, draw = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        damaged = bytearray(data)
        damaged[draw.integers(len(data))] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"do not agree with the digest in p\.pt2\.sha256"):
            load_pt2(path)
    path.write_bytes(data)
    load_pt2(path)
    path.with_name("p.pt2.sha256").unlink()
    load_pt2(path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("scores-1.json", Scores.load),
        ("model-1.json", ModelConfig.load),
        ("conformal-sets-1.json", ConformalSets.load),
        ("selective-threshold-1.json", SelectiveThreshold.load),
    ],
)
def test_documents_without_a_digest_read_and_get_one_when_they_are_written(tmp_path, name, read):
    assert "sha256" not in json.loads((GOLDEN / name).read_text())
    assert "sha256" in json.loads(read(GOLDEN / name).to_json())


def test_an_edit_that_was_meant_needs_the_digest_removed(tmp_path):
    path = tmp_path / "config.json"
    document = json.loads(ModelConfig(("a", "b")).to_json()) | {"temperature": 2.0}
    path.write_text(json.dumps(document))
    with pytest.raises(
        ValueError, match=r"config\.json: its content is not what was written.*remove its field 'sha256'"
    ):
        ModelConfig.load(path)
    del document["sha256"]
    path.write_text(json.dumps(document))
    assert ModelConfig.load(path).temperature == 2


def test_weights_of_other_programs_have_no_digest_and_read(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    assert read_safetensors(tmp_path / "x.safetensors")[0] == {"format": "pt"}


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_sums_are_those_of_sha256sum(tmp_path):
    names = ["a.txt", "b c.txt", "d/e.txt", "back\\slash", "new\nline"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(str(number))
    plain = [name for name in names if "\\" not in name]  # of which Windows has none
    write_sums(tmp_path, sums_of(tmp_path, [tmp_path / name for name in plain]))
    assert sorted(read_sums(tmp_path)) == sorted(plain)
    command = [shutil.which("sha256sum"), "--check", "--strict", SUMS]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "a.txt").write_text("other")
    (tmp_path / "d/e.txt").unlink()
    assert changed_in(tmp_path, read_sums(tmp_path)) == ["a.txt", "d/e.txt"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", ".", "a\\b"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    (tmp_path / SUMS).write_text(f"{'0' * 64}  {name}\n")
    with pytest.raises(ValueError, match=r"SHA256SUMS, line 1 names .* no file within its folder"):
        read_sums(tmp_path)


@pytest.mark.parametrize("line", ["x", "0" * 63 + "  a", "0" * 64 + " a", "G" * 64 + "  a"])
def test_a_line_that_is_none_is_refused(tmp_path, line):
    (tmp_path / SUMS).write_text(f"{line}\n")
    with pytest.raises(ValueError, match="line 1 is no SHA-256 and name of a file"):
        read_sums(tmp_path)


def test_links_are_not_followed(tmp_path):
    (tmp_path / "private").write_text("secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "private")
    (folder / "way").symlink_to(tmp_path)
    for name in ("link", "way/private"):
        with pytest.raises(ValueError, match="is a link, or in a folder that is one"):
            inside(folder, name)
    (tmp_path / "other").symlink_to(folder)  # the folder itself may be reached by one
    (folder / "file").touch()
    assert inside(tmp_path / "other", "file").name == "file"


def test_a_file_that_is_replaced_never_has_the_digest_of_another(tmp_path):
    path = tmp_path / "x.onnx"
    with replacing_vouched(path) as temporary:
        temporary.write_bytes(b"one")
    assert read_vouched(path) == b"one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt), replacing_vouched(path) as temporary:
            temporary.write_bytes(b"two")
    assert read_vouched(path) == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["x.onnx"]


@pytest.mark.parametrize("file", ["../x.ckpt", "/x/step-1.ckpt", "step-1.ckpt/../../x", "other.ckpt"])
def test_checkpoints_are_named_by_their_step(tmp_path, file):
    write_text = (tmp_path / "manifest.json").write_text
    document = {
        "schema": "counterpoise.checkpoints",
        "schema_version": 2,
        "last": {"file": file, "sha256": "0" * 64, "bytes": 1, "step": 1, "epoch": 0},
    }
    write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"manifest\.json: it names .* which is no checkpoint"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "part-00000.safetensors/..", "x.safetensors"])
def test_parts_are_named_by_their_number(tmp_path, file):
    document = {"schema": "counterpoise.parts", "schema_version": 1, "sha256": {file: "0"}, "tensors": {}}
    (tmp_path / "parts.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"parts\.json: it names .* which is no file of a checkpoint"):
        read_parts(tmp_path)


def test_a_checkpoint_that_holds_code_is_refused(tmp_path):
    class Code:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"state": Code()}, tmp_path / "step-000000001.ckpt")
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        read_state(tmp_path / "step-000000001.ckpt")
    assert not (tmp_path / "ran").exists()


def test_an_onnx_file_cannot_name_another_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from counterpoise.export import load_onnx

    (tmp_path / "private").write_bytes(bytes(16))
    weight = onnx.TensorProto(name="w", dims=[4], data_type=onnx.TensorProto.FLOAT, data_location=1)
    for key, value in {"location": str(tmp_path / "private"), "offset": "0", "length": "16"}.items():
        weight.external_data.add(key=key, value=value)
    info = onnx.helper.make_tensor_value_info
    float32 = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [info("x", float32, [4])],
        [info("y", float32, [4])],
        [weight],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    for location in (str(tmp_path / "private"), "private", "../private"):
        weight_of = model.graph.initializer[0]
        weight_of.external_data[0].value = location
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ValueError, match="is no ONNX file that this ONNX Runtime can read"):
            load_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("text", ['{"validation": [1, 2]}', "[1]", "{", '{"validation": 5}'])
def test_a_split_is_compared_and_not_used(tmp_path, text):
    recipe = small_recipe()
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(ValueError, match=r"split\.json (is damaged|holds other images)"):
        require_same_split(tmp_path / "split.json", small_data(recipe).held_out)
