"""Predicting many files of images: as one process does, whole or not at all, once, and never into another run's folder."""

import io
import json
import os
import pickle
import shutil
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from benchmarks.object_store import object_store
from benchmarks.scaleout_predict import Size, cifar_shards, faults, largest_difference, untrained_run, whole
from counterpoise.cli import parse
from counterpoise.cli.program import UsageError
from counterpoise.data import load_images
from counterpoise.data.sets import SETS
from counterpoise.export import ModelConfig, export_model
from counterpoise.predictions import PredictionFileError, find_shards, read_predictions
from counterpoise.scoring import score_files
from counterpoise.training import load_run, predict, predicted_shards, score_shards, write_shards
from counterpoise.training.image_shards import image_shards
from counterpoise.training.predicting import PLAN
from counterpoise.training.predictors import OwnModel, loaded, model_source

pytestmark = pytest.mark.usefixtures("real_cifar")
ROWS, SHARDS = 120, 4


@pytest.fixture(scope="module")
def real_cifar(real_data):
    real_data("cifar10")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def images(tmp_path_factory, real_cifar):
    return cifar_shards(tmp_path_factory.mktemp("data") / "images", ROWS, SHARDS)


@pytest.fixture(scope="module")
def predicted(tmp_path_factory, run, images):
    out = tmp_path_factory.mktemp("out") / "predictions"
    write_shards(predicted_shards(run, images), out)
    return out


def values(folder):
    tables = [read_predictions(shard.path) for shard in find_shards(folder).shards]
    return np.concatenate([table.values for table in tables]), np.concatenate([table.ids for table in tables])


@pytest.mark.slow
def test_files_in_a_store_are_predicted_once_whatever_is_killed(tmp_path, monkeypatch):
    """The short form of `python -m benchmarks.scaleout_predict`: a worker is killed, then the program itself.

    Nobody is left behind, and the command given again ends the work.
    """
    size = Size(ROWS, SHARDS, "processes", width=8)
    run, bucket = untrained_run(tmp_path / "run"), tmp_path / "store" / "bucket"
    cifar_shards(bucket / "images", ROWS, SHARDS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with object_store(tmp_path / "store"):
        outcome = faults(run, size, behind=bucket)
    assert [check.name for check in outcome.checks(size) if not check.passed] == []


def test_run_images_and_predictions_may_all_be_in_a_store(tmp_path, run, images, predicted, capsys):
    bucket = tmp_path / "bucket"
    shutil.copytree(run, bucket / "run")
    shutil.copytree(images, bucket / "images")
    with object_store(tmp_path):
        parse(["predict", "s3://bucket/run", "--data", "s3://bucket/images", "--out", "s3://bucket/out"]).run()
        assert capsys.readouterr().out.strip() == "s3://bucket/out/manifest.json"
        parse(["predict", "s3://bucket/run", "--data", "s3://bucket/images", "--score-only", "--json"]).run()
    assert largest_difference(score_files([predicted]).to_json(), capsys.readouterr().out) <= 1e-12
    assert np.array_equal(values(bucket / "out")[0], values(predicted)[0])


def test_predictions_are_those_of_the_model_on_the_images_in_memory(tmp_path, run, images, predicted):
    trained, found = load_run(run), values(predicted)
    predict(trained, load_images(images, "all"), tmp_path / "memory.parquet", split="all")
    expected = read_predictions(tmp_path / "memory.parquet")
    np.testing.assert_allclose(found[0], expected.values, rtol=1e-5, atol=1e-6)
    assert np.array_equal(found[1], expected.ids)
    # Of one file, batches are the same, and so is every bit.
    predict(trained, load_images(images / "part-00000.parquet", "all"), tmp_path / "first.parquet", split="all")
    first, again = read_predictions(tmp_path / "first.parquet"), read_predictions(predicted / "part-00000.parquet")
    assert np.array_equal(first.values, again.values)
    assert np.array_equal(first.labels, again.labels)
    assert first.header == again.header
    assert [each.path.name for each in find_shards(predicted).shards] == [f"part-0000{n}.parquet" for n in range(4)]


def test_what_is_sent_to_a_worker_does_not_grow_with_the_number_of_files(images):
    all_of_them = image_shards(images, None)
    (alone,) = image_shards(images / "part-00000.parquet", None)
    assert len(pickle.dumps(all_of_them[0])) < len(pickle.dumps(alone)) + 20
    assert [shard.first for shard in all_of_them] == [0, 30, 60, 90]


def test_what_is_whole_is_not_predicted_again(tmp_path, run, images, predicted):
    out = shutil.copytree(predicted, tmp_path / "out")
    before = whole(out)
    manifest = (out / "manifest.json").read_bytes()
    (out / "part-00002.parquet.sha256").unlink()  # as if it had been killed before the end
    write_shards(predicted_shards(run, images), out)
    after = whole(out)
    assert [name for name in before if before[name] != after[name]] == ["part-00002.parquet"]
    assert np.array_equal(values(out)[0], values(predicted)[0])
    assert (out / "manifest.json").read_bytes() == manifest
    identities = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    write_shards(predicted_shards(run, images), out)
    assert identities == {path: path.stat().st_mtime_ns for path in out.iterdir()}


def test_a_folder_of_another_run_is_refused(tmp_path, run, images, predicted):
    other = untrained_run(tmp_path / "other", width=4)
    before = {path: path.stat().st_mtime_ns for path in predicted.iterdir()}
    with pytest.raises(ValueError, match=r"holds predictions of another run: its weights is \w+, here it is \w+; name"):
        write_shards(predicted_shards(other, images), predicted)
    with pytest.raises(ValueError, match="its size is None, here it is 32"):
        write_shards(predicted_shards(run, images, size=32), predicted)
    fewer = tmp_path / "images"
    fewer.mkdir()
    shutil.copy(images / "part-00001.parquet", fewer / "part-00000.parquet")
    with pytest.raises(ValueError, match="it is of 4 files of images, here there are 1"):
        write_shards(predicted_shards(run, fewer), predicted)
    for name in ("part-00001", "part-00002", "part-00003"):
        shutil.copy(images / f"{name}.parquet", fewer)
    with pytest.raises(ValueError, match=r"part-00000.parquet holds other images than part-00000.parquet did"):
        write_shards(predicted_shards(run, fewer), predicted)
    (tmp_path / "foreign").mkdir()
    shutil.copy(predicted / "part-00000.parquet", tmp_path / "foreign")
    with pytest.raises(ValueError, match=f"foreign holds predictions already, and no {PLAN}"):
        write_shards(predicted_shards(run, images), tmp_path / "foreign")
    with pytest.raises(ValueError, match="holds the images, which would be overwritten"):
        write_shards(predicted_shards(run, images), images)
    assert before == {path: path.stat().st_mtime_ns for path in predicted.iterdir()}


def damaged(images, tmp_path, column, row, value):
    """A copy of the images with one value of the third file changed."""
    folder = shutil.copytree(images, tmp_path / "damaged")
    table = pq.read_table(path := folder / "part-00002.parquet")
    place = table.schema.get_field_index(column)
    rows = table.column(column).to_pylist()
    rows[row] = value
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(rows, table.schema.types[place])), path)
    return folder


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (
            "img",
            {"bytes": b"\x89PNG no", "path": None},
            r"part-00002.parquet, row 77 .*not an image .*\(row 17 of this",
        ),
        (
            "img",
            {"bytes": None, "path": "a.png"},
            r"part-00002.parquet, row 77 .*no image bytes.*\(row 17 of this file",
        ),
        ("label", 10, r"part-00002.parquet: the label of row 77 is 10, outside \[0, 10\)"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_its_file_and_row(tmp_path, run, images, column, value, message):
    folder = damaged(images, tmp_path, column, 17, value)
    with pytest.raises(ValueError, match=message):
        write_shards(predicted_shards(run, folder), tmp_path / "out")
    assert set(whole(tmp_path / "out")) == {"part-00000.parquet", "part-00001.parquet"}
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_images_that_the_model_does_not_take_are_refused(tmp_path, run, images):
    with pytest.raises(
        ValueError, match=r"16 x 16 pixels, the model takes 32 x 32; .* --size 32 \(row 0 of this file\)"
    ):
        write_shards(predicted_shards(run, images, size=16), tmp_path / "small")
    others = tmp_path / "others"
    shutil.copytree(images, others)
    names = json.dumps({"info": {"features": {"label": {"names": ["whale", *SETS["cifar10"].classes[1:]]}}}})
    for path in others.iterdir():
        pq.write_table(pq.read_table(path).replace_schema_metadata({"huggingface": names}), path)
    with pytest.raises(ValueError, match=r"has 'whale' among its classes, which the model does not know: .* add --ood"):
        write_shards(predicted_shards(run, others), tmp_path / "out")
    write_shards(predicted_shards(run, others, ood=True), tmp_path / "ood")
    table = read_predictions(tmp_path / "ood" / "part-00000.parquet")
    assert set(table.labels) == {-1}
    assert not table.in_distribution.any()
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "part.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"part.parquet cannot be read as Parquet"):
        write_shards(predicted_shards(run, tmp_path / "none"), tmp_path / "out")


@pytest.mark.slow
def test_scores_without_files_are_those_of_the_files(run, images, predicted, capsys):
    expected = score_files([predicted]).to_json()
    assert largest_difference(expected, score_shards(predicted_shards(run, images)).to_json()) <= 1e-12
    parse(["predict", str(run), "--data", str(images), "--score-only", "--json"]).run()
    assert largest_difference(expected, capsys.readouterr().out) <= 1e-12
    parse(["predict", str(run), "--data", str(images), "--score-only"]).run()
    assert "accuracy" in capsys.readouterr().out.lower()


@pytest.mark.slow
def test_an_onnx_file_predicts_as_the_run_that_it_is_of(tmp_path, run, images, predicted, capsys):
    trained = load_run(run)
    path = tmp_path / "model.onnx"
    export_model(
        trained.model, path, to="onnx", example=torch.zeros(2, 3, 32, 32), metadata=trained.metadata, temperature=2.0
    )
    out = tmp_path / "out"
    parse(["predict", str(path), "--data", str(images), "--out", str(out)]).run()
    assert capsys.readouterr().out.strip() == str(out / "manifest.json")
    np.testing.assert_allclose(values(out)[0], values(predicted)[0] / 2, rtol=1e-4, atol=1e-5)
    header = read_predictions(out / "part-00000.parquet").header
    assert (header.class_names, header.config_digest) == (trained.classes, trained.recipe.digest)
    parse(["predict", str(path), "--data", str(images), "--out", str(tmp_path / "one.parquet")]).run()
    assert np.array_equal(read_predictions(tmp_path / "one.parquet").values, values(out)[0])
    with pytest.raises(ValueError, match="its weights is"):  # the temperature is a part of them
        write_shards(predicted_shards(path, images), predicted)
    (tmp_path / "damaged.onnx").write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"damaged.onnx is no ONNX file that this ONNX Runtime can read"):
        write_shards(predicted_shards(tmp_path / "damaged.onnx", images), tmp_path / "nothing")


class Means(nn.Module):
    """Logits from the mean of each channel."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 10)

    def forward(self, pixels):
        return self.head(pixels.mean((2, 3)))


def test_a_module_is_predicted_with_as_it_is_and_sent_to_others_once(tmp_path, images):
    torch.manual_seed(0)
    model, info = Means().train(), SETS["cifar10"]
    with pytest.raises(ValueError, match=r"give config=ModelConfig\(..., shape=...\)"):
        write_shards(predicted_shards(model, images), tmp_path / "out")
    config = ModelConfig(info.classes, shape=(3, 32, 32), mean=info.mean, std=info.std, temperature=2.0)
    write_shards(predicted_shards(model, images, config=config), tmp_path / "out")
    assert model.training
    found = load_images(images, "all")
    pixels = (found.pixels / 255 - torch.tensor(info.mean).view(3, 1, 1)) / torch.tensor(info.std).view(3, 1, 1)
    expected = model(pixels).detach() / 2
    torch.testing.assert_close(torch.from_numpy(values(tmp_path / "out")[0]), expected, rtol=1e-4, atol=1e-5)
    source = model_source(model, config)
    one, other = pickle.loads(pickle.dumps(source)), pickle.loads(pickle.dumps(source))  # noqa: S301
    assert loaded(one, "cpu") is loaded(other, "cpu")
    assert one.digest == source.digest
    model.head.bias.data += 1
    assert model_source(model, config).digest != source.digest
    local = type("Local", (nn.Module,), {"forward": lambda self, pixels: pixels})()
    with pytest.raises(ValueError, match="Local cannot be sent to other processes"):
        pickle.dumps(OwnModel(local, config))


def test_images_that_are_not_in_files_of_rows_are_one_shard(tmp_path, run):
    from PIL import Image

    for label, name in enumerate(SETS["cifar10"].classes):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), (25 * label, 0, 0)).save(tmp_path / "photos" / name / "a.png")
    write_shards(predicted_shards(run, tmp_path / "photos"), tmp_path / "out")
    (shard,) = find_shards(tmp_path / "out").shards
    assert shard.path.name == "part-00000.parquet"
    assert list(read_predictions(shard.path).labels) == list(range(10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2"], "several workers write several files: name a folder with --out"),
        (["--score-only", "--out", "x"], "leave out --out and --ood"),
        (["--score-only", "--workers", "2", "--ray", "auto"], "choose one of --workers and --ray"),
        (["--out", "x", "--corruptions", "fog"], "--corruptions are for a run whose predictions go to one"),
        (["--out", "x.csv"], "give it the ending .parquet"),
        (["--json"], "--json is for --score-only"),
        (["--out", "x", "--gpus-per-worker", "1"], "--gpus-per-worker must be 0 or more, and is for --ray"),
    ],
)
def test_options_that_do_not_agree_are_refused_before_anything_is_read(arguments, message):
    with pytest.raises(UsageError, match=message):
        parse(["predict", "nowhere", "--data", "nothing", *arguments]).run()
    with pytest.raises(UsageError, match="name the file or folder for the predictions with --out"):
        parse(["predict", "nowhere.onnx", "--data", "nothing"]).run()


def test_a_damaged_file_of_predictions_is_found_by_its_manifest(tmp_path, predicted):
    out = shutil.copytree(predicted, tmp_path / "out")
    path = out / "part-00001.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(PredictionFileError, match=r"part-00001.parquet: it is not the file that the manifest names"):
        score_files([out])


@pytest.mark.slow
def test_a_cluster_predicts_what_one_process_does(tmp_path, run, images, predicted):
    ray = pytest.importorskip("ray")
    from counterpoise._engines import Ray

    engine = Ray("local", cpus=os.cpu_count() or 1)
    try:
        write_shards(predicted_shards(run, images), tmp_path / "out", engine=engine)
        scores = score_shards(predicted_shards(run, images), engine=engine)
    finally:
        engine.close()
    assert not ray.is_initialized()
    assert np.array_equal(values(tmp_path / "out")[0], values(predicted)[0])
    assert largest_difference(scores.to_json(), score_files([predicted]).to_json()) <= 1e-12


def test_tar_shards_are_predicted_as_the_same_images_in_parquet(tmp_path, run, images, predicted):
    (tmp_path / "shards").mkdir()
    for path in sorted(images.iterdir()):
        with tarfile.open(tmp_path / "shards" / f"{path.stem}.tar", "w") as shard:
            for row, (image, label) in enumerate(zip(*pq.read_table(path).to_pydict().values(), strict=True)):
                for name, data in ((f"{row:03}.png", image["bytes"]), (f"{row:03}.cls", str(label).encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    shard.addfile(member, io.BytesIO(data))
    write_shards(predicted_shards(run, tmp_path / "shards"), tmp_path / "out")
    assert [each.path.name for each in find_shards(tmp_path / "out").shards] == [
        f"part-0000{n}.parquet" for n in range(4)
    ]
    for found, expected in zip(values(tmp_path / "out"), values(predicted), strict=True):
        assert np.array_equal(found, expected)
