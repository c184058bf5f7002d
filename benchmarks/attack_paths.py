"""Artefacts that lead out of their folder: names, links, members of archives, external data, devices."""

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.attack_code import checkpoint_folder, model_folder, run_folder
from benchmarks.attack_places import SECRET, Action, HarmedError, Place, attack, command
from counterpoise._files import digest_of
from counterpoise.predictions import Predictions, write_manifest, write_predictions
from fuzzing.documents import unsealed

FLAT = Predictions.of(logits=np.eye(4, 3, dtype=np.float32), labels=[0, 1, 2, 0])


def _read_tar(folder: Path) -> Action:
    from counterpoise.data import load_images

    return lambda: load_images(folder, "all", size=8)


def _tar(place: Place, *members: tarfile.TarInfo, content: bytes = b"") -> Action:
    from fuzzing.seeds import png

    with tarfile.open(place.folder / "train.tar", "w") as shard:
        for member in members:
            shard.addfile(member, io.BytesIO(content))
        for name, data in (("0.png", png()), ("0.cls", b"0")):
            regular = tarfile.TarInfo(name)
            regular.size = len(data)
            shard.addfile(regular, io.BytesIO(data))
    return _read_tar(place.folder / "train.tar")


def _member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@attack("paths")
def a_tar_member_climbs_out(place: Place) -> Action:
    member = _member("../outside/1.png")
    member.size = 4
    return _tar(place, member, content=b"evil")


@attack("paths")
def a_tar_member_is_absolute(place: Place) -> Action:
    member = _member(str(place.outside / "1.png"))
    member.size = 4
    return _tar(place, member, content=b"evil")


@attack("paths")
def a_tar_links_to_a_private_file(place: Place) -> Action:
    links = [_member("1.cls", kind=kind, link=str(place.private)) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)]
    return _tar(place, *links)


@attack("paths")
def a_tar_holds_devices_and_pipes(place: Place) -> Action:
    return _tar(place, *(_member(f"{n}.png", kind=kind) for n, kind in enumerate((b"3", b"4", b"6"), 1)))


def _slip(place: Place, name: str) -> Action:
    buffer = io.BytesIO()
    np.save(buffer, np.eye(4, 3))
    with zipfile.ZipFile(place.folder / "p.npz", "w") as archive:
        archive.writestr(name, buffer.getvalue())
    return command("evaluate", place.folder / "p.npz")


@attack("paths")
def an_npz_member_climbs_out(place: Place) -> Action:
    return _slip(place, "../outside/logits.npy")


@attack("paths")
def an_npz_member_is_absolute(place: Place) -> Action:
    return _slip(place, str(place.outside / "logits.npy"))


def _shards(place: Place, name: str) -> Action:
    write_predictions(place.outside / "p.parquet", FLAT)
    write_predictions(place.folder / "p.parquet", FLAT)
    path = Path(str(write_manifest(place.folder)))
    document = json.loads(unsealed(path.read_bytes()))
    document["shards"][0]["name"] = name
    path.write_text(json.dumps(document))
    return command("evaluate", place.folder)


@attack("paths")
def a_manifest_of_shards_climbs_out(place: Place) -> Action:
    return _shards(place, "../outside/p.parquet")


@attack("paths")
def a_manifest_of_shards_is_absolute(place: Place) -> Action:
    return _shards(place, str(place.outside / "p.parquet"))


def _checkpoint(place: Place, name: str) -> Action:
    from counterpoise.training.checkpoints import newest_intact, remove_strays

    folder = checkpoint_folder(place, b"state")
    document = json.loads(unsealed((folder / "manifest.json").read_bytes()))
    document["last"]["file"] = name
    (folder / "manifest.json").write_text(json.dumps(document))

    def run() -> None:
        newest_intact(folder)
        remove_strays(folder)

    return run


@attack("paths")
def a_manifest_of_checkpoints_climbs_out(place: Place) -> Action:
    return _checkpoint(place, "../outside/private")


@attack("paths")
def a_manifest_of_checkpoints_names_an_endless_device(place: Place) -> Action:
    return _checkpoint(place, "/dev/zero")


@attack("paths")
def a_checkpoint_is_a_link_to_a_folder_outside(place: Place) -> Action:
    from counterpoise.training.checkpoints import remove_strays

    folder = checkpoint_folder(place, b"state")
    (folder / "step-000000009.ckpt").symlink_to(place.outside, target_is_directory=True)
    return lambda: remove_strays(folder)


@attack("paths")
def the_parts_of_a_checkpoint_climb_out(place: Place) -> Action:
    from counterpoise.training.checkpoints import fault_of
    from counterpoise.training.parts import Parts, write_parts

    folder = place.folder / "step-000000004.ckpt"
    folder.mkdir()
    (folder / "state.ckpt").write_bytes(b"")
    write_parts(folder, Parts({"state.ckpt": "0" * 64}, {}))
    text = (folder / "parts.json").read_text().replace("state.ckpt", "/dev/zero")
    (folder / "parts.json").write_text(text)
    return lambda: fault_of(folder, sha256=digest_of(folder / "parts.json"))


def _store(place: Place, cell: str) -> Path:
    store = place.folder / "store"
    (store / "cells").mkdir(parents=True)
    event = {"cell": cell, "stage": "validation", "kind": "committed", "measures": {"nll": 1.0}}
    (store / "manifest.jsonl").write_text(json.dumps(event) + "\n")
    (store / "store.json").write_text((Path(__file__).parent.parent / "study/results/store.json").read_text())
    return store


def _study(*arguments: str | Path) -> Action:
    import sys

    from counterpoise_study.cli import main

    def run() -> None:
        sys.argv = ["counterpoise-study", *map(str, arguments)]
        main()

    return run


@attack("paths")
def the_cell_of_a_store_is_an_absolute_path(place: Place) -> Action:
    return _study("keep", _store(place, str(place.outside)), place.folder / "kept")


@attack("paths")
def the_cell_of_a_store_climbs_out(place: Place) -> Action:
    return _study("keep", _store(place, "../../../outside"), place.folder / "kept")


@attack("paths")
def a_cell_of_a_store_links_to_a_private_file(place: Place) -> Action:
    store = _store(place, "0" * 16)
    (store / "cells" / ("0" * 16)).mkdir()
    for name in ("cell.json", "environment.json", "epochs.csv"):
        (store / "cells" / ("0" * 16) / name).symlink_to(place.private)
    return _study("keep", store, place.folder / "kept")


def _external(place: Place, location: str) -> Action:
    from onnx import TensorProto, helper

    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", "8")):
        weights.external_data.add(key=key, value=value)
    described = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["logits"])],
        "g",
        [described("x", TensorProto.FLOAT, [2])],
        [described("logits", TensorProto.FLOAT, [2])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (place.folder / "model.onnx").write_bytes(model.SerializeToString())

    def run() -> None:
        import torch

        from counterpoise.export import load_onnx

        session, _ = load_onnx(place.folder / "model.onnx")
        read = session(torch.zeros(2))["logits"].numpy().tobytes()
        if read == SECRET.encode()[:8]:
            raise HarmedError("a private file was read as weights")

    return run


@attack("paths")
def external_data_of_onnx_climb_out(place: Place) -> Action:
    return _external(place, "../outside/private")


@attack("paths")
def external_data_of_onnx_are_absolute(place: Place) -> Action:
    return _external(place, str(place.private))


@attack("devices")
def predictions_are_a_pipe(place: Place) -> Action:
    os.mkfifo(place.folder / "p.csv")
    return command("evaluate", place.folder / "p.csv")


@attack("devices")
def a_shard_is_a_pipe(place: Place) -> Action:
    write_predictions(place.folder / "0.parquet", FLAT)
    os.mkfifo(place.folder / "1.parquet")
    return command("evaluate", place.folder)


@attack("devices")
def a_digest_is_a_pipe(place: Place) -> Action:
    write_predictions(place.folder / "p.parquet", FLAT)
    (place.folder / "p.parquet.sha256").unlink()
    os.mkfifo(place.folder / "p.parquet.sha256")
    return command("evaluate", place.folder / "p.parquet")


@attack("devices")
def a_manifest_of_shards_is_a_pipe(place: Place) -> Action:
    os.mkfifo(place.folder / "manifest.json")
    return command("evaluate", place.folder)


@attack("devices")
def predictions_are_an_endless_device(place: Place) -> Action:
    (place.folder / "logits.npy").symlink_to("/dev/zero")
    return command("evaluate", place.folder / "logits.npy")


@attack("devices")
def rules_are_a_pipe(place: Place) -> Action:
    write_predictions(place.folder / "p.parquet", FLAT)
    os.mkfifo(place.folder / "rules.toml")
    return command("check", place.folder / "p.parquet", "--rules", place.folder / "rules.toml")


@attack("devices")
def the_recipe_of_a_run_is_a_pipe(place: Place) -> Action:
    os.mkfifo(place.folder / "config.json")
    return command("resume", place.folder)


@attack("devices")
def the_recipe_of_a_run_is_an_endless_device(place: Place) -> Action:
    (place.folder / "config.json").symlink_to("/dev/zero")
    return command("export", place.folder, "--to", "safetensors")


@attack("devices")
def the_weights_of_a_run_are_a_pipe(place: Place) -> Action:
    from counterpoise.training.networks import load_run

    os.mkfifo(run_folder(place) / "primary.safetensors")
    return lambda: load_run(place.folder)


@attack("devices")
def the_configuration_of_a_shared_model_is_an_endless_device(place: Place) -> Action:
    from counterpoise.integrations.hub import from_pretrained

    model_folder(place)
    (place.folder / "config.json").unlink()
    (place.folder / "config.json").symlink_to("/dev/zero")
    return lambda: from_pretrained(place.folder)


@attack("devices")
def a_manifest_of_checkpoints_is_a_pipe(place: Place) -> Action:
    from counterpoise.training.checkpoints import newest_intact

    os.mkfifo(place.folder / "manifest.json")
    return lambda: newest_intact(place.folder)


@attack("devices")
def a_checkpoint_is_a_pipe(place: Place) -> Action:
    from counterpoise.training.checkpoints import newest_intact

    folder = checkpoint_folder(place, b"state")
    (folder / "step-000000004.ckpt").unlink()
    os.mkfifo(folder / "step-000000004.ckpt")
    return lambda: newest_intact(folder)


@attack("devices")
def a_class_folder_holds_a_pipe_and_devices_and_a_circle(place: Place) -> Action:
    from fuzzing.seeds import png

    for name in ("cat", "dog"):
        (place.folder / name).mkdir()
        (place.folder / name / "0.png").write_bytes(png())
    os.mkfifo(place.folder / "cat" / "1.png")
    (place.folder / "cat" / "2.png").symlink_to("/dev/zero")
    (place.folder / "dog" / "around").symlink_to(place.folder, target_is_directory=True)
    return _read_tar(place.folder)


@attack("devices")
def a_table_of_images_names_a_pipe_and_a_device(place: Place) -> Action:
    os.mkfifo(place.folder / "pipe.png")
    (place.folder / "photos.csv").write_text("path,label\npipe.png,cat\n/dev/zero,dog\n../outside/private,dog\n")
    return _read_tar(place.folder / "photos.csv")


@attack("devices")
def a_tar_shard_is_an_endless_device(place: Place) -> Action:
    (place.folder / "shard.tar").symlink_to("/dev/zero")
    return _read_tar(place.folder)


@attack("devices")
def a_calibrator_is_a_pipe(place: Place) -> Action:
    from counterpoise.calibrators import load_calibrator

    os.mkfifo(place.folder / "calibrator.safetensors")
    return lambda: load_calibrator(place.folder / "calibrator.safetensors")


@attack("devices")
def the_manifest_of_a_store_is_an_endless_device(place: Place) -> Action:
    store = _store(place, "0" * 16)
    (store / "manifest.jsonl").unlink()
    (store / "manifest.jsonl").symlink_to("/dev/zero")
    return _study("status", store)
