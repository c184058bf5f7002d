"""`counterpoise verify`: whole, changed, missing, without digest; and what `resume` makes of damage."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from counterpoise._addresses import Address
from counterpoise._digests import SUMS, read_sums
from counterpoise._files import read_safetensors
from counterpoise.calibrators import TemperatureScaling
from counterpoise.cli import parse
from counterpoise.export import export_pt2
from counterpoise.export.card import Card
from counterpoise.export.config import ModelConfig
from counterpoise.integrations.hub import from_pretrained, push_to_hub, save_pretrained
from counterpoise.metrics.comparison import Evaluation
from counterpoise.predictions import Predictions, write_predictions
from counterpoise.predictions.shards import write_manifest
from counterpoise.training import load_run, resume, train
from counterpoise.training.folder import RunFolder, local_run
from counterpoise.verification import verify
from runs import small_data, small_recipe

LOGITS, LABELS = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
RECIPE = small_recipe("ce", epochs=1)
MADE_AGAIN = ("primary.safetensors", "predictions/test.parquet", "predictions/ood_noise.parquet", "scores.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(RECIPE, folder, data=small_data(RECIPE, test=True), page=False)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def states(path) -> dict[str, str]:
    found = verify(path)
    root = path if path.is_dir() else path.parent
    return {each.path.relative_to(root).as_posix(): each.state for each in found}


def flip(path: Path, place: float = 0.5) -> None:
    """One bit, in a byte whose change is none of layout."""
    data = bytearray(path.read_bytes())
    place = next(at for at in range(int(place * len(data)), len(data)) if chr(data[at]).isdigit() or data[at] > 127)
    data[place] ^= 1
    path.write_bytes(data)


def test_a_finished_run_is_whole(run):
    found = states(run)
    assert set(found.values()) == {"whole"}
    assert {"config.json", "steps.csv", "checkpoints/manifest.json", *MADE_AGAIN} <= found.keys()
    assert any(name.endswith(".ckpt") for name in found)
    sums = shutil.which("sha256sum")
    if sums is not None:
        subprocess.run([sums, "--check", "--strict", "--quiet", SUMS], cwd=run, check=True)


def test_every_file_of_a_run_that_changes_or_goes_is_named(run):
    for name in states(run):
        before = (run / name).read_bytes()
        flip(run / name)
        assert [each for each, state in states(run).items() if state == "changed"] == [name]
        (run / name).unlink()
        if name != "checkpoints/manifest.json":  # which nothing else names
            assert [each for each, state in states(run).items() if state == "missing"] == [name]
        (run / name).write_bytes(before)
    assert set(states(run).values()) == {"whole"}


def test_one_file_of_a_run(run):
    for name in ("steps.csv", "scores.json", "predictions/test.parquet", "primary.safetensors"):
        assert [each.state for each in verify(run / name)] == ["whole"]
        flip(run / name)
        assert [each.state for each in verify(run / name)] == ["changed"]


def test_a_run_of_an_earlier_release_has_fewer_digests(run):
    (run / SUMS).unlink()
    document = json.loads((run / "scores.json").read_text())
    del document["sha256"]
    (run / "scores.json").write_text(json.dumps(document))
    found = states(run)
    assert {found[name] for name in ("steps.csv", "config.json", "scores.json")} == {"without digest"}
    assert found["predictions/test.parquet"] == found["primary.safetensors"] == "whole"


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_resume_makes_again_what_it_can(run, finished, name):
    flip(run / name)
    if name == "primary.safetensors":
        with pytest.raises(ValueError, match="its content is not what was written"):
            load_run(run)
    resume(run, data=small_data(RECIPE, test=True), page=False)
    assert set(states(run).values()) == {"whole"}
    found, expected = (load_run(folder).model.state_dict() for folder in (run, finished))
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    found, expected = (Evaluation.from_json((folder / "scores.json").read_text()) for folder in (run, finished))
    assert found.models[0].estimates == expected.models[0].estimates  # the rest of the file names the folder


@pytest.mark.slow
def test_weights_are_trained_anew_where_no_checkpoint_is_whole(run, finished):
    shutil.rmtree(run / "checkpoints")
    flip(run / "primary.safetensors")
    (run / "steps.csv").write_text("nothing\n1\n")
    resume(run, data=small_data(RECIPE, test=True), page=False)
    assert set(states(run).values()) == {"whole"}
    assert (run / "steps.csv").read_bytes() == (finished / "steps.csv").read_bytes()
    found, expected = (load_run(folder).model.state_dict() for folder in (run, finished))
    assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.slow
def test_resume_says_that_a_log_cannot_be_made_again_and_does_not_vouch_for_it(run, finished, capfd):
    flip(run / "steps.csv")
    for _ in range(2):
        resume(run, data=small_data(RECIPE, test=True), page=False)
        assert "steps.csv has changed since it was written; no checkpoint holds it" in "".join(capfd.readouterr())
        assert [name for name, state in states(run).items() if state != "whole"] == ["steps.csv"]
    shutil.copy(finished / "steps.csv", run / "steps.csv")
    assert set(states(run).values()) == {"whole"}


@pytest.mark.parametrize("name", ["checkpoints", "predictions", "scores.json", "primary.safetensors"])
def test_a_run_with_a_link_is_not_written_to(run, tmp_path, name):
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link, or in a folder that is one"):
        resume(run, data=small_data(RECIPE, test=True), page=False)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("size", "100000x100000", "images of .* which cannot be"),
        ("channels", "0", "images of .* which cannot be"),
        ("channels", "90000", "does not fit"),
        ("class_names", '{"a": 1}', "no lists of text and numbers"),
        ("mean", "[[", "are no JSON"),
    ],
)
def test_sizes_in_the_metadata_of_weights_are_bounded(run, entry, value, message):
    from safetensors.torch import save_file

    metadata, tensors = read_safetensors(run / "primary.safetensors")
    save_file(tensors, run / "primary.safetensors", metadata=metadata | {entry: value})
    with pytest.raises(ValueError, match=message):
        load_run(run)


def test_names_in_a_store_lead_nowhere_else(monkeypatch, tmp_path):
    monkeypatch.setattr(Address, "listed", lambda self: [(self / "..", 3)])
    monkeypatch.setattr(Address, "read_bytes", lambda _: b"abc")
    with pytest.raises(ValueError, match=r"names '\.\.', which is no file within its folder"):
        local_run("s3://bucket/of-somebody/run")


# Other folders and files


def shared(folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    save_pretrained(model, folder, config=ModelConfig(("a", "b", "c"), shape=(1, 2, 2)), card=Card("net"))


def test_a_folder_to_share(tmp_path):
    shared(tmp_path)
    assert set(states(tmp_path).values()) == {"whole"}
    assert {"README.md", "config.json", "model.safetensors"} <= states(tmp_path).keys()
    (tmp_path / "README.md").write_text("mine")
    flip(tmp_path / "model.safetensors", 0.99)
    assert sorted(name for name, state in states(tmp_path).items() if state == "changed") == [
        "README.md",
        "model.safetensors",
    ]
    with pytest.raises(ValueError, match="its content is not what was written"):
        from_pretrained(tmp_path, model=nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    with pytest.raises(
        ValueError, match=r"model\.safetensors changed after save_pretrained wrote the folder; save it again"
    ):
        push_to_hub(tmp_path, "me/net", api=object())


def test_a_link_in_a_folder_to_share_is_not_uploaded(tmp_path):
    shared(tmp_path / "hub")
    (tmp_path / "private").write_text("secret")
    (tmp_path / "hub" / "notes.txt").symlink_to(tmp_path / "private")
    with pytest.raises(ValueError, match=r"notes\.txt is a link"):
        push_to_hub(tmp_path / "hub", "me/net", api=object())


def test_shards_programs_and_calibrators(tmp_path):
    for name in ("a.parquet", "b.parquet"):
        write_predictions(tmp_path / name, Predictions.of(logits=LOGITS, labels=LABELS))
    write_manifest(tmp_path)
    TemperatureScaling().fit(LOGITS, LABELS).save(tmp_path / "t.safetensors")
    export_pt2(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), tmp_path / "p.pt2", example=torch.zeros(2, 4), metadata={})
    (tmp_path / "notes.txt").write_text("mine")
    assert states(tmp_path) == dict.fromkeys(
        ["a.parquet", "b.parquet", "manifest.json", "p.pt2", "t.safetensors"], "whole"
    ) | {"notes.txt": "without digest"}
    for name in ("a.parquet.sha256", "b.parquet"):
        (tmp_path / name).unlink()
    for name in ("a.parquet", "manifest.json", "p.pt2", "t.safetensors"):
        before = (tmp_path / name).read_bytes()
        flip(tmp_path / name, 0.9)
        assert states(tmp_path)[name] == "changed"
        (tmp_path / name).write_bytes(before)
    assert states(tmp_path)["b.parquet"] == "missing"


def test_what_vouches_names_no_file_elsewhere(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "private").write_text("secret")
    (tmp_path / "folder" / SUMS).write_text(f"{'0' * 64}  ../private\n")
    (tmp_path / "folder" / "link.csv").symlink_to(tmp_path / "private")
    assert states(tmp_path / "folder") == {SUMS: "changed", "link.csv": "without digest"}


def outcome(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        parse(["verify", *arguments]).run()
    return int(ended.value.code)


def test_the_command(run, tmp_path, capsys):
    assert outcome(str(run)) == 0
    assert capsys.readouterr().out.endswith("0 changed, 0 missing, 0 without digest\n")
    (run / "epochs.csv").unlink()
    flip(run / "scores.json")
    assert outcome(str(run), "--json") == 3
    printed = json.loads(capsys.readouterr().out)
    assert printed["counts"]["changed"] == printed["counts"]["missing"] == 1
    assert outcome(str(run)) == 3
    assert "missing        " in capsys.readouterr().out
    (tmp_path / "x.csv").touch()
    assert outcome(str(tmp_path / "x.csv")) == 4
    with pytest.raises(FileNotFoundError):
        parse(["verify", str(tmp_path / "nothing")]).run()


def test_evaluations_are_written_with_their_digest(finished):
    text = (finished / "scores.json").read_text()
    assert Evaluation.from_json(text).to_json() == text
    assert read_sums(RunFolder(finished).path).keys() >= {"scores.json", "steps.csv", "environment.json"}
