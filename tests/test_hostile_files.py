"""Files of somebody who means harm: what they name, claim or are must not reach further than an error."""

import gzip
import json
import os
import re
import resource
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from counterpoise.calibrators import load_calibrator
from counterpoise.cli.check import read_rules
from counterpoise.data import index_shards, load_images
from counterpoise.data.tars import ShardIndex
from counterpoise.export import load_onnx
from counterpoise.export.config import ModelConfig
from counterpoise.integrations.hub import from_pretrained
from counterpoise.metrics import Scores
from counterpoise.metrics.state import ScoreState
from counterpoise.models import Backbone
from counterpoise.predictions import (
    PredictionFileError,
    find_shards,
    open_predictions,
    read_predictions,
    write_predictions,
)
from counterpoise.training.checkpoints import (
    Entry,
    Manifest,
    newest_intact,
    read_manifest,
    remove_strays,
    write_manifest,
)
from counterpoise.training.folder import STEP_COLUMNS, RowLog, RunFolder, read_environment
from counterpoise.training.parts import Parts, read_parts, write_parts
from counterpoise_study.manifest import Manifest as StoreManifest
from fuzzing.documents import unsealed
from fuzzing.seeds import table

WATCHED = pa.proxy_memory_pool(pa.default_memory_pool())  # lives as long as anything that was taken from it

PIPES = {
    "p.csv": read_predictions,
    "p.parquet": read_predictions,
    "manifest.json": find_shards,
    "calibrator.safetensors": load_calibrator,
    "state.safetensors": ScoreState.load,
    "scores.json": Scores.load,
    "config.json": ModelConfig.load,
    "model.onnx": load_onnx,
    "rules.toml": read_rules,
    "train.tar": lambda path: index_shards(path.parent / "*.tar"),
    "train.parquet": lambda path: load_images(path.parent, "train"),
    "checkpoints/manifest.json": lambda path: read_manifest(path.parent),
    "parts.json": lambda path: read_parts(path.parent),
    "environment.json": lambda path: read_environment(RunFolder(path.parent)),
    "steps.csv": lambda path: RowLog(path, STEP_COLUMNS).rows(),
    "manifest.jsonl": lambda path: StoreManifest(path).refresh(),
}


@pytest.mark.parametrize(
    ("name", "text"), [("p.csv.gz", "p_a,p_b\n0.5,0.5\n"), ("p.jsonl.gz", '{"p_a": 0.5, "p_b": 0.5}\n')]
)
def test_damaged_archives_keep_no_memory(name, text, tmp_path):
    data = bytearray(gzip.compress(text.encode()))
    data[-6] ^= 1  # of its checksum
    (tmp_path / name).write_bytes(data)

    def refused(times):
        for _ in range(times):
            with pytest.raises(PredictionFileError, match="incorrect data check"):
                read_predictions(tmp_path / name)
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    before = refused(5)
    assert refused(50) - before < 100 << 20


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_refused_and_not_waited_for(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"is a pipe or a device, not a file"):
        PIPES[name](path)


def test_a_digest_that_is_a_pipe_is_refused(tmp_path):
    write_predictions(tmp_path / "p.parquet", table(4))
    (tmp_path / "p.parquet.sha256").unlink()
    os.mkfifo(tmp_path / "p.parquet.sha256")
    with pytest.raises(PredictionFileError, match=r"p\.parquet\.sha256 is a pipe"):
        read_predictions(tmp_path / "p.parquet")


@pytest.mark.parametrize(
    "lines", [b"null\n", b'\n \tnull\n{"label": 0}\n', b'{"label": 0}\nnull\n', b"\xef\xbb\xbfnull"]
)
def test_a_null_line_which_arrow_does_not_survive_is_refused(lines, tmp_path):
    (tmp_path / "p.jsonl").write_bytes(lines)
    with pytest.raises(PredictionFileError, match="a line of it is null"):
        read_predictions(tmp_path / "p.jsonl")


@pytest.mark.parametrize("before", range(6))
def test_a_null_line_across_two_blocks_is_refused(before, tmp_path):
    line = b'{"label": 0, "probability_0": 0.25, "probability_1": 0.75}\n'
    block = 1 << 23
    filled = line * (block // len(line))
    ending = b" " * (block - len(filled) - before)
    (tmp_path / "p.jsonl").write_bytes(filled + ending + b"null\n" + line)
    with pytest.raises(PredictionFileError, match="a line of it is null"):
        read_predictions(tmp_path / "p.jsonl")


def test_null_inside_a_line_is_a_missing_value(tmp_path):
    rows = [{"id": "null", "label": 0, "logits": [1.0, 2.0]}, {"id": "b", "label": None, "logits": [1.0, 2.0]}]
    (tmp_path / "p.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert read_predictions(tmp_path / "p.jsonl").labels.tolist() == [0, -1]


@settings(max_examples=15)
@given(
    text=st.text(alphabet='[]{}"\\\\ a\u5b5b', max_size=12),
    brackets=st.integers(60, 66),
    name=st.sampled_from(["p.jsonl", "p.json"]),
)
@example(text="", brackets=30_000, name="p.jsonl")
@example(text="", brackets=30_000, name="p.json")
def test_json_is_read_to_a_depth_of_64(tmp_path_factory, text, brackets, name):
    path = tmp_path_factory.getbasetemp() / name
    plain = {"label": 0, "logits": [1.0, 2.0], text: text}
    row = f'{json.dumps(plain)[:-1]}, "x": {"[" * brackets}{json.dumps(text)}{"]" * brackets}}}'
    path.write_text(f"{json.dumps(plain)}\n{row}\n" if name == "p.jsonl" else f"[{json.dumps(plain)},\n{row}]")
    if brackets + 1 + (name == "p.json") <= 64:
        assert read_predictions(path).values.tolist() == [[1, 2]] * 2
    else:
        with pytest.raises(PredictionFileError, match="line 2 is nested deeper than 64 levels"):
            read_predictions(path)


def test_a_nested_line_across_two_blocks_is_rejected(tmp_path):
    line = b'{"label": 0, "logits": [0.25, 0.75]}\n'
    filled = line * ((1 << 23) // len(line)) + b" " * ((1 << 23) % len(line) - 40)
    (tmp_path / "p.jsonl").write_bytes(filled + b'{"label": 0, "logits": [0.25, 0.75], "x": ' + b"[" * 30_000)
    with pytest.raises(PredictionFileError, match=r"line \d+ is nested deeper than 64 levels"):
        read_predictions(tmp_path / "p.jsonl")


@pytest.mark.parametrize(
    "name", ["manifest.json", "scores.json", "config.json", "checkpoints/manifest.json", "environment.json"]
)
def test_nested_documents_are_rejected(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"schema": ' + "[" * 100_000)
    with pytest.raises(ValueError, match="line 1 is nested deeper than 64 levels"):
        PIPES[name](path)


def test_lists_of_json_that_begin_with_null_lead_nowhere(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"label": 0, "logits": [null, 1.0]}\n' * 3)
    with pytest.raises(PredictionFileError, match=r"not a readable file of JSON lines.*out of bounds"):
        read_predictions(tmp_path / "p.jsonl")


@pytest.mark.parametrize("name", ["../step-000000001.ckpt", "/dev/zero", "step-1.ckpt/x", "", "manifest.json"])
def test_a_checkpoint_is_named_as_checkpoints_are(name, tmp_path):
    write_manifest(tmp_path, Manifest(last=Entry("step-000000001.ckpt", "0" * 64, 1, 1, 0)))
    path = tmp_path / "manifest.json"
    path.write_bytes(unsealed(path.read_bytes()).replace(b"step-000000001.ckpt", name.encode()))
    with pytest.raises(ValueError, match="which is no checkpoint"):
        newest_intact(tmp_path)


def test_a_part_is_named_as_parts_are(tmp_path):
    write_parts(tmp_path, Parts({"part-00001.safetensors": "0" * 64}, {}))
    text = (tmp_path / "parts.json").read_text()
    assert read_parts(tmp_path).sha256
    (tmp_path / "parts.json").write_text(text.replace("part-00001.safetensors", "../../x"))
    with pytest.raises(ValueError, match="which is no file of a checkpoint"):
        read_parts(tmp_path)


def test_nested_rules_are_refused(tmp_path):
    (tmp_path / "rules.toml").write_text("require = " + "[" * 10_000)
    with pytest.raises(ValueError, match=r"--rules .*recursion"):
        read_rules(tmp_path / "rules.toml")


def test_an_index_has_no_more_samples_than_its_shard_has_room_for():
    index = ShardIndex(bytes=10_240, samples=3, group=1000, places=[0])
    with pytest.raises(ValueError, match="not those of a shard"):
        replace(index, samples=1000)


@pytest.mark.parametrize("channels", [10**18, 10**20])
def test_a_network_that_nobody_can_build_is_refused(tmp_path, channels):
    from safetensors.numpy import save_file

    config = ModelConfig(("a", "b"), (channels, 8, 8), backbone=Backbone("cnn", width=8))
    (tmp_path / "config.json").write_text(config.to_json())
    save_file({"w": np.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"config\.json is of a network that cannot be built"):
        from_pretrained(tmp_path)


def test_a_tar_that_goes_on_beyond_every_file_is_cut_off(tmp_path):
    member = tarfile.TarInfo("0.png")
    member.size = 1 << 60
    (tmp_path / "train.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(ValueError, match=r"train\.tar is cut off: it ends at byte 1,536"):
        load_images(tmp_path / "train.tar", "all")


def test_of_a_stray_link_to_a_folder_only_the_link_is_removed(tmp_path):
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "step-000000002.ckpt").symlink_to(tmp_path / "else", target_is_directory=True)
    remove_strays(folder)
    assert not any(folder.iterdir())
    assert (tmp_path / "else" / "file").exists()


def test_a_picture_starts_no_program(tmp_path, monkeypatch):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # where Pillow keeps what it has found
    (tmp_path / "photos" / "dog").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "dog" / "dog.jpg", "EPS")
    with pytest.raises(ValueError, match=r"dog\.jpg.*its format is not known") as caught:
        load_images(tmp_path / "photos", "all")
    assert not (tmp_path / "started").exists()
    assert "save it as PNG" in str(caught.value)


def test_images_are_opened_with_a_list_of_formats():
    root = Path(__file__).parents[1]
    sources = [path for folder in ("src", "study/src", "examples") for path in (root / folder).rglob("*.py")]
    opened = [
        line.strip()
        for text in (path.read_text() for path in sources)
        if "PIL" in text
        for line in text.splitlines()
        if re.search(r"(image\w*|PIL.*)\.open\(", line, re.IGNORECASE)
    ]
    assert len(opened) == 1
    assert opened[0].endswith("(file, formats=FORMATS)")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_that_another_takes_the_place_of_while_it_is_read_is_rejected(tmp_path, suffix, in_place):
    """Either content has all predictions right or all wrong; a mixture would have some accuracy between."""
    labels = np.arange(400_000) % 2
    for name, right in (("right", True), ("wrong", False)):
        write_plain(tmp_path / f"{name}.{suffix}", labels, labels if right else 1 - labels)
    path, other = tmp_path / f"right.{suffix}", tmp_path / f"wrong.{suffix}"
    assert path.stat().st_size == other.stat().st_size
    batches = open_predictions(path).batches()
    assert (next(batches).values.argmax(-1) == labels[0]).any()
    if in_place:
        path.write_bytes(other.read_bytes())
    else:
        other.replace(path)
    with pytest.raises(PredictionFileError, match=rf"right.{suffix}: it was changed or replaced after it was opened"):
        list(batches)


def write_plain(path, labels, predicted):
    """Without digests or checksums, of one size whatever is predicted."""
    columns = {"label": labels, "prob_0": 0.75 - predicted / 2, "prob_1": 0.25 + predicted / 2}
    if path.suffix == ".parquet":
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        pq.write_table(pa.table(columns), path, row_group_size=50_000, **options)
    elif path.suffix == ".csv":
        pa_csv.write_csv(pa.table(columns), path)
    else:
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        path.write_text("".join(f'{{"label": {y}, "prob_0": {p}, "prob_1": {q}}}\n' for y, p, q in rows))


@pytest.mark.parametrize("name", ["note", "domain", "id"])
def test_a_long_text_that_repeats_is_held_once(tmp_path, name):
    rows, text = 2000, "x" * 1_000_000
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    columns = {"label": np.arange(rows) % 2, "prob_0": np.full(rows, 0.5), "prob_1": np.full(rows, 0.5), name: repeated}
    pq.write_table(pa.table(columns), tmp_path / "p.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "p.parquet").stat().st_size < 10_000
    usual = pa.default_memory_pool()
    pa.set_memory_pool(WATCHED)
    try:
        (table,) = open_predictions(tmp_path / "p.parquet").batches()
    finally:
        pa.set_memory_pool(usual)
    assert len(table) == rows
    assert WATCHED.max_memory() < 1 << 26
