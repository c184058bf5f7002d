"""Artefacts that hold code where only data should be: pickles, import paths, expressions."""

import json
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.attack_places import Action, Place, attack, command
from counterpoise._files import digest_of
from counterpoise.models import Backbone, build_model
from counterpoise.recipes.config import Recipe
from fuzzing.documents import unsealed


def model_folder(place: Place, *, backbone: dict[str, object] | None = None) -> Path:
    """A shared model, with a configuration as `save_pretrained` writes it."""
    from counterpoise.export.config import ModelConfig

    config = ModelConfig(("a", "b"), (3, 8, 8), (0.5,) * 3, (0.2,) * 3, 1.5, Backbone("cnn", width=4))
    document = json.loads(unsealed(config.to_json().encode()))
    document["backbone"] |= backbone or {}
    (place.folder / "config.json").write_text(json.dumps(document))
    return place.folder


def run_folder(place: Place) -> Path:
    """A run, as far as its recipe."""
    (place.folder / "config.json").write_text(Recipe(method="ce", primary=Backbone("cnn", width=4)).to_json())
    return place.folder


def checkpoint_folder(place: Place, data: bytes) -> Path:
    """A checkpoint whose manifest has the right digest."""
    from counterpoise.training.checkpoints import Entry, Manifest, write_manifest

    file = place.folder / "step-000000004.ckpt"
    file.write_bytes(data)
    write_manifest(place.folder, Manifest(last=Entry(file.name, digest_of(file), len(data), 4, 1)))
    return place.folder


def _from_pretrained(folder: Path) -> Action:
    from counterpoise.integrations.hub import from_pretrained

    return lambda: from_pretrained(folder)


def _read_newest(folder: Path) -> Action:
    from counterpoise.training.checkpoints import newest_intact, read_state

    def run() -> None:
        entry, faults = newest_intact(folder)
        if entry is None:
            raise ValueError(faults[0])
        read_state(folder / entry.file)

    return run


def _npz_of_objects(place: Place, name: str) -> Action:
    arrays = {"probabilities": np.full((4, 2), 0.5), "labels": np.zeros(4, int)}
    np.savez(place.folder / "p.npz", **(arrays | {name: np.array([place.code()] * 4, object)}))
    return command("evaluate", place.folder / "p.npz")


@attack("code")
def labels_of_an_npz_are_pickled_objects(place: Place) -> Action:
    return _npz_of_objects(place, "labels")


@attack("code")
def another_array_of_an_npz_is_pickled_objects(place: Place) -> Action:
    return _npz_of_objects(place, "notes")


@attack("code")
def an_npy_is_pickled_objects(place: Place) -> Action:
    np.save(place.folder / "logits.npy", np.array([[place.code()] * 2] * 2, object), allow_pickle=True)
    return command("evaluate", place.folder / "logits.npy", "--labels", place.folder / "logits.npy")


@attack("code")
def an_npy_is_a_bare_pickle(place: Place) -> Action:
    (place.folder / "logits.npy").write_bytes(place.pickled())
    return command("evaluate", place.folder / "logits.npy")


@attack("code")
def the_header_of_an_npy_is_an_expression(place: Place) -> Action:
    header = f"__import__('os').system('touch {place.canary}')\n".encode()
    (place.folder / "logits.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    return command("evaluate", place.folder / "logits.npy")


@attack("code")
def an_npz_member_is_a_bare_pickle(place: Place) -> Action:
    with zipfile.ZipFile(place.folder / "p.npz", "w") as archive:
        archive.writestr("logits.npy", place.pickled())
        archive.writestr("labels", place.pickled())
    return command("evaluate", place.folder / "p.npz")


@attack("code")
def a_joblib_file_is_called_parquet(place: Place) -> Action:
    (place.folder / "p.parquet").write_bytes(place.pickled())
    return command("evaluate", place.folder / "p.parquet")


@attack("code")
def predictions_of_torch_hold_code(place: Place) -> Action:
    torch.save({"logits": place.code(), "labels": torch.zeros(3)}, place.folder / "p.pt")
    return command("evaluate", place.folder / "p.pt")


@attack("code")
def predictions_of_safetensors_are_a_torch_pickle(place: Place) -> Action:
    torch.save({"logits": place.code()}, place.folder / "p.safetensors")
    return command("evaluate", place.folder / "p.safetensors")


@attack("code")
def a_checkpoint_holds_code(place: Place) -> Action:
    torch.save({"state_dict": place.code()}, place.folder / "x")
    return _read_newest(checkpoint_folder(place, (place.folder / "x").read_bytes()))


@attack("code")
def a_checkpoint_is_of_the_format_before_zip(place: Place) -> Action:
    torch.save({"state_dict": place.code()}, place.folder / "x", _use_new_zipfile_serialization=False)
    return _read_newest(checkpoint_folder(place, (place.folder / "x").read_bytes()))


@attack("code")
def a_checkpoint_is_a_bare_pickle(place: Place) -> Action:
    return _read_newest(checkpoint_folder(place, place.pickled()))


@attack("code")
def a_checkpoint_is_a_torchscript_archive(place: Place) -> Action:
    with zipfile.ZipFile(place.folder / "x", "w") as archive:
        archive.writestr("x/data.pkl", place.pickled())
        archive.writestr("x/constants.pkl", place.pickled())
        archive.writestr("x/code/__torch__.py", f"import os\nos.system('touch {place.canary}')\n")
        archive.writestr("x/version", "3\n")
    return _read_newest(checkpoint_folder(place, (place.folder / "x").read_bytes()))


@attack("code")
def a_sharded_checkpoint_holds_code(place: Place) -> Action:
    from counterpoise.training.checkpoints import read_state
    from counterpoise.training.parts import Parts, write_parts

    folder = place.folder / "step-000000004.ckpt"
    folder.mkdir()
    torch.save({"state_dict": place.code()}, folder / "state.ckpt")
    (folder / ".metadata").write_bytes(place.pickled())
    write_parts(folder, Parts({"state.ckpt": digest_of(folder / "state.ckpt")}, {}))
    return lambda: read_state(folder)


@attack("code")
def the_weights_of_a_run_are_a_torch_pickle(place: Place) -> Action:
    from counterpoise.training.networks import load_run

    torch.save(place.code(), run_folder(place) / "primary.safetensors")
    return lambda: load_run(place.folder)


@attack("code")
def initial_weights_are_a_pth(place: Place) -> Action:
    torch.save(place.code(), place.folder / "weights.pth")
    return lambda: build_model(Backbone("cnn", weights=str(place.folder / "weights.pth")), classes=2, channels=3)


@attack("code")
def initial_weights_are_a_pth_called_safetensors(place: Place) -> Action:
    torch.save(place.code(), place.folder / "weights.safetensors")
    path = str(place.folder / "weights.safetensors")
    return lambda: build_model(Backbone("cnn", weights=path), classes=2, channels=3)


@attack("code")
def a_shared_folder_has_pickled_weights_alone(place: Place) -> Action:
    torch.save(place.code(), model_folder(place) / "pytorch_model.bin")
    (place.folder / "model.joblib").write_bytes(place.pickled())
    (place.folder / "modeling.py").write_text(f"import os\nos.system('touch {place.canary}')\n")
    return _from_pretrained(place.folder)


@attack("code")
def a_shared_folder_has_a_pickle_called_safetensors(place: Place) -> Action:
    torch.save(place.code(), model_folder(place) / "model.safetensors")
    return _from_pretrained(place.folder)


@attack("code")
def a_shared_configuration_names_an_import_path(place: Place) -> Action:
    model_folder(place, backbone={"name": "os.system"})
    save_file({"w": torch.zeros(2)}, place.folder / "model.safetensors")
    return _from_pretrained(place.folder)


@attack("code")
def a_shared_configuration_names_a_model_elsewhere(place: Place) -> Action:
    folder = place.folder / "evil"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": {"file": "w.pth"}}))
    torch.save(place.code(), folder / "pytorch_model.bin")
    model_folder(place, backbone={"name": f"timm/local-dir:{folder}", "width": 64, "small_images": False})
    save_file({"w": torch.zeros(2)}, place.folder / "model.safetensors")
    return _from_pretrained(place.folder)


@attack("code")
def a_recipe_names_an_import_path(place: Place) -> Action:
    document = json.loads(unsealed(Recipe().to_json().encode())) | {"method": "os.system"}
    (place.folder / "config.json").write_text(json.dumps(document))
    return command("resume", place.folder)


@attack("code")
def a_calibrator_is_a_pickle(place: Place) -> Action:
    from counterpoise.calibrators import load_calibrator

    torch.save(place.code(), place.folder / "calibrator.safetensors")
    return lambda: load_calibrator(place.folder / "calibrator.safetensors")


@attack("code")
def a_score_state_is_a_pickle(place: Place) -> Action:
    from counterpoise.metrics.state import ScoreState

    (place.folder / "state.safetensors").write_bytes(place.pickled())
    return lambda: ScoreState.load(place.folder / "state.safetensors")


@attack("code")
def an_onnx_file_is_a_pickle(place: Place) -> Action:
    from counterpoise.export import load_onnx

    (place.folder / "model.onnx").write_bytes(place.pickled())
    return lambda: load_onnx(place.folder / "model.onnx")


@attack("code")
def rules_are_an_expression(place: Place) -> Action:
    (place.folder / "p.csv").write_text("label,p0,p1\n0,0.5,0.5\n1,0.5,0.5\n")
    rule = f"__import__('os').system('touch {place.canary}')"
    (place.folder / "rules.toml").write_text(f"require = [{json.dumps(rule)}]\n")
    return command("check", place.folder / "p.csv", "--rules", place.folder / "rules.toml")
