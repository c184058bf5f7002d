"""What goes wrong with long runs: kills between any two file operations, full disks, two at once, Ctrl-C, bad data."""

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import lightning as L  # noqa: N812
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from counterpoise.cli import parse
from counterpoise.data import Images
from counterpoise.models import Backbone
from counterpoise.recipes.catalog import digits
from counterpoise.recipes.config import DataOptions, EvaluationOptions, OptimizerOptions, Recipe
from counterpoise.training import from_images, load_run, resume, train
from counterpoise.training import run as runs_of_recipes
from counterpoise.training.checkpoints import read_manifest
from counterpoise.training.engine import build_logger, fit
from counterpoise.training.folder import STEP_COLUMNS, RowLog, RunFolder, in_use
from counterpoise.training.preflight import require_processes
from counterpoise.training.saving import VerifiedCheckpointIO
from runs import Stop, ending, small_data, small_recipe, striped_images


class Killed(BaseException):
    """Nothing in the package catches it."""


class FileOperations:
    """Counts what makes files durable or takes them away, and fails at one of them."""

    def __init__(self, monkeypatch, *, fail_at: str = "", with_error: BaseException | None = None) -> None:
        self.fail_at, self.with_error = fail_at, with_error
        self.seen: list[str] = []
        replace_file, sync, unlink = Path.replace, os.fsync, Path.unlink

        def replacing(path, target):
            self.count(f"before {Path(target).name}")
            replace_file(path, target)
            self.count(f"after {Path(target).name}")

        def syncing(descriptor):
            link = Path(f"/proc/self/fd/{descriptor}")
            self.count(f"sync {link.readlink().stem if link.exists() else ''}")
            sync(descriptor)

        def unlinking(path, missing_ok=False):
            if path.suffix == ".ckpt":
                self.count(f"remove {path.name}")
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "replace", replacing)
        monkeypatch.setattr(os, "fsync", syncing)
        monkeypatch.setattr(Path, "unlink", unlinking)

    def count(self, operation: str) -> None:
        number = sum(seen.rsplit(" #", 1)[0] == operation for seen in self.seen) + 1
        self.seen.append(f"{operation} #{number}")
        if self.seen[-1] == self.fail_at:
            assert self.with_error is not None
            raise self.with_error


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    recipe = small_recipe()
    train(recipe, folder, data=small_data(recipe, test=True))
    return folder


KILLED_AT = (
    "before config.json #1",
    "after config.json #1",
    "after steps.csv #1",
    "after step-000000002.ckpt #1",
    "after manifest.json #1",
    "remove step-000000004.ckpt #1",
    "after manifest.json #6",
    "after primary.safetensors #1",
    "before test.parquet.sha256 #1",
    "before report.html #1",
)
FULL_AT = ("sync steps #3", "sync epochs #1", "before manifest.json #4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "error"),
    [(place, Killed()) for place in KILLED_AT]
    + [(place, OSError(errno.ENOSPC, "No space left on device")) for place in FULL_AT],
)
def test_a_run_that_dies_between_two_file_operations_ends_the_same(tmp_path, whole, place, error):
    recipe = small_recipe()
    folder = tmp_path / "run"
    page = "report" in place  # which is drawn last, and takes longer than everything before it
    with pytest.MonkeyPatch.context() as monkeypatch:
        FileOperations(monkeypatch, fail_at=place, with_error=error)
        with pytest.raises(type(error)):
            train(recipe, folder, data=small_data(recipe, test=True), page=page)
    if (folder / "config.json").exists():
        resume(folder, data=small_data(recipe, test=True), page=page)
    else:
        train(recipe, folder, data=small_data(recipe, test=True), page=page)
    assert ending(folder) == ending(whole)
    assert files(folder) == files(whole) - (set() if page else {"report.html"})


def test_a_checkpoint_that_does_not_fit_is_an_error_of_the_disk(tmp_path):
    """Torch's own error speaks of positions in an archive."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "step-000000001.ckpt"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*step-000000001\.ckpt'"):
            VerifiedCheckpointIO().save_checkpoint({"weights": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_used_by_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("counterpoise.training.folder.LOCK_PATIENCE", 0.1)
    recipe = small_recipe("ce", epochs=1)
    run = RunFolder(tmp_path / "run")
    with in_use(run), pytest.raises(ValueError, match="is in use by another process"):
        train(recipe, run.path, data=small_data(recipe))
    assert not run.config.exists()
    train(recipe, run.path, data=small_data(recipe))
    with in_use(run), pytest.raises(ValueError, match="is in use by another process"):
        resume(run.path, data=small_data(recipe))


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is(tmp_path):
    recipe = small_recipe("ce")
    first = train(recipe, tmp_path, data=small_data(recipe, test=True))
    before, kept = ending(tmp_path), {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    again = resume(tmp_path, data=small_data(recipe, test=True))
    assert again.to_json() == first.to_json()
    assert ending(tmp_path) == before
    changed = {name for name in files(tmp_path) if (tmp_path / name).read_bytes() != kept.get(name)}
    # That it was resumed, and the page's date.
    assert changed <= {"environment.json", "report.html", "SHA256SUMS"}


def test_files_of_others_among_the_checkpoints_stay(tmp_path):
    recipe = small_recipe("ce", epochs=1)
    (tmp_path / "checkpoints" / "mine").mkdir(parents=True)
    (tmp_path / "checkpoints" / "note.txt").write_text("keep")
    train(recipe, tmp_path, data=small_data(recipe))
    assert (tmp_path / "checkpoints" / "note.txt").read_text() == "keep"
    (tmp_path / "checkpoints" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json: not JSON.*restore it, or remove the checkpoints"):
        read_manifest(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 200}, "a batch of 200 is more than the 100 training images"),
        ({"data__validation": 0}, "data.validation must be positive|cannot hold out 0 of 120"),
        ({"data__validation": 120}, "cannot hold out 120 of 120 rows"),
        ({"method": "fl-dtdp", "batch": 50, "pruning__share": 0.9}, "100 training images but 90 that are pruned"),
        ({"seed": -1}, "seed must not be negative"),
        ({"seed": 20240101123456}, "seed must be at most 4,000,000,000, got 20240101123456"),
        (
            {"engine__devices": 4, "data__validation": 2, "batch": 8},
            "2 images are for validation, fewer than .* processes, 4",
        ),
        ({"optimizer__lr": float("nan")}, "optimizer.lr must be positive, got nan"),
        ({"optimizer__nesterov": True, "optimizer__momentum": 0.0}, "nesterov needs optimizer.momentum"),
        ({"data__padding": -1}, "data.padding must not be negative"),
        ({"evaluation__corruptions": ("fogg",)}, "evaluation.corruptions: there is no corruption fogg"),
        ({"evaluation__severities": (0,)}, "evaluation.severities must be among"),
        ({"evaluation__corrupted_images": 0}, "corrupted_images must be positive"),
        ({"primary": Backbone(name="resnet9")}, "no backbone is called 'resnet9'"),
    ],
)
def test_what_is_wrong_is_said_before_the_folder_is_made(tmp_path, changes, message):
    def attempt() -> None:
        recipe = small_recipe(**changes)
        train(recipe, tmp_path / "run", data=small_data(recipe))

    with pytest.raises(ValueError, match=message):
        attempt()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "ood", "message"),
    [
        (DataOptions(name="digit"), (), "did you mean 'digits'"),
        (DataOptions(name="digits", limit=20, validation=30), (), "cannot hold out 30 of 20 rows"),
        (DataOptions(name="digits", validation=30), ("svhnn",), "did you mean 'svhn'"),
        (DataOptions(name="digits", validation=30), ("noise",), r"images of 8 x 8 x 3 .*, the model was trained on"),
    ],
)
def test_names_of_sets_are_looked_up_before_training(tmp_path, monkeypatch, data, ood, message):
    monkeypatch.chdir(tmp_path)
    _write_parquet(tmp_path / "noise" / "test.parquet", striped_images(4))
    recipe = replace(digits(), data=data, evaluation=EvaluationOptions(ood=ood))
    with pytest.raises(ValueError, match=message):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_samples_without_a_label_are_refused_in_memory_and_in_a_stream(tmp_path):
    images = striped_images()
    images = replace(images, labels=torch.where(images.ids == 3, -1, images.labels))
    recipe = small_recipe("ce", data__name=str(tmp_path / "set"))
    with pytest.raises(ValueError, match=r"row 3 has no label \(1 of 120 have none\)"):
        from_images(recipe, images)
    for split in ("train", "test"):
        _write_parquet(tmp_path / "set" / f"{split}.parquet", images)
    streamed = replace(recipe, data=replace(recipe.data, pipeline="stream", workers=0, size=8))
    with pytest.raises(ValueError, match=r"row 3 has no label"):
        train(streamed, tmp_path / "run")


@pytest.mark.slow
def test_ood_sets_given_by_path_are_predicted_and_scored(tmp_path):
    for split in ("train", "test"):
        _write_parquet(tmp_path / "set" / f"{split}.parquet", striped_images(60))
    _write_parquet(tmp_path / "others" / "test.parquet", striped_images(20, seed=3))
    recipe = small_recipe("ce", epochs=1, data__name=str(tmp_path / "set"), data__size=8)
    recipe = replace(recipe, evaluation=EvaluationOptions(ood=(str(tmp_path / "others"),)))
    evaluation = train(recipe, tmp_path / "run")
    assert '"others"' in evaluation.to_json()
    assert len(list((tmp_path / "run" / "predictions").glob("ood_*.parquet"))) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # The validation would choke on the logits before anybody looked at the losses.
        ({"engine__checkpoint_steps": None}, "the loss is .* at step 2; a lower optimizer.lr"),
        ({"batch": 100}, "NaN or infinite logits after step 1; a lower optimizer.lr"),
    ],
)
def test_a_training_that_breaks_down_says_when(tmp_path, changes, message):
    recipe = small_recipe("ce", epochs=1, optimizer__lr=1e20, **changes)
    with pytest.raises(FloatingPointError, match=message):
        train(recipe, tmp_path, data=small_data(recipe))
    # What led to it is there to be looked at.
    assert len(RowLog(RunFolder(tmp_path).steps, STEP_COLUMNS).rows()) == 1


class Rates(L.Callback):
    """What the optimizer used, by group."""

    def __init__(self) -> None:
        self.used: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        self.used.append({group["name"]: group["lr"] for group in trainer.optimizers[0].param_groups})


@pytest.mark.slow
def test_the_primary_decays_and_the_auxiliaries_do_not(tmp_path, monkeypatch):
    """The paper's schedule in small: 0.1 divided by ten at each milestone, 0.01 throughout."""
    rates = Rates()
    monkeypatch.setattr(runs_of_recipes, "fit", partial(fit, callbacks=[rates]))
    recipe = small_recipe("mte2", epochs=4, optimizer=OptimizerOptions(milestones=(1, 2)))
    train(recipe, tmp_path, data=small_data(recipe))
    assert [used["primary"] for used in rates.used] == pytest.approx([0.1] * 5 + [0.01] * 5 + [0.001] * 10)
    assert {used["auxiliaries"] for used in rates.used} == {0.01}


@pytest.mark.slow
def test_every_step_of_pruning_can_be_the_last(tmp_path, monkeypatch):
    recipe = small_recipe(
        "fl-dtdp", epochs=3, pruning__every=1, pruning__share=0.3, engine__checkpoint_steps=1, engine__ema=0.5
    )
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    steps = len(ending(tmp_path / "whole")[1])
    assert steps == 5 + 3 + 3
    for step in range(1, steps):
        folder = tmp_path / str(step)
        interrupt(monkeypatch, recipe, folder, after=step)
        resume(folder, data=small_data(recipe))
        assert ending(folder) == ending(tmp_path / "whole"), step


@pytest.mark.slow
def test_tensorboard_holds_each_step_once_after_a_resume_from_the_start(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    recipe = small_recipe("ce", engine__loggers=("tensorboard",), engine__checkpoint_steps=None, epochs=3)
    recipe = replace(recipe, engine=replace(recipe.engine, checkpoint_epochs=3))
    interrupt(monkeypatch, recipe, tmp_path, after=12)
    resume(tmp_path, data=small_data(recipe))
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("validation/nll")] == [4, 9, 14]


@pytest.mark.slow
def test_weights_and_biases_tells_members_and_runs_of_one_name_apart(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    recipe = small_recipe("de3", epochs=1, engine__loggers=("wandb",))
    train(recipe, tmp_path, data=small_data(recipe))
    members = [RunFolder(tmp_path).member(index).path for index in range(3)]
    logged = {path.name for member in members for path in member.rglob("run-*.wandb")}
    versions = [build_logger("wandb", folder=member, step=5).version for member in members]
    assert logged == {f"run-{version}.wandb" for version in versions}
    assert len(logged) == 3


def test_a_launcher_with_another_number_of_processes_is_refused(monkeypatch):
    """Each would train alone, and all write into one folder."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"torchrun started 2 processes, the recipe is for 1; set engine.devices"):
        require_processes(Recipe().engine)
    require_processes(replace(Recipe().engine, devices=2))


@pytest.mark.slow
def test_a_member_of_an_ensemble_is_exported_alone(tmp_path, capsys):
    recipe = small_recipe("de3", epochs=1)
    train(recipe, tmp_path, data=small_data(recipe))
    with pytest.raises(ValueError, match="is an ensemble: export its members one by one, --member 0 to 2"):
        parse(["export", str(tmp_path), "--to", "safetensors"]).run()
    for member in ([], ["--member", "0"]):
        with pytest.raises(ValueError, match="an ensemble cannot be shared on the hub"):
            parse(["export", str(tmp_path), "--to", "hub", *member]).run()
    parse(["export", str(tmp_path), "--to", "safetensors", "--member", "1"]).run()
    assert capsys.readouterr().out.strip() == str(tmp_path / "member-1.safetensors")
    with pytest.raises(ValueError, match="has the members 0 to 2, not 3"):
        load_run(tmp_path, member=3)


@pytest.mark.slow
def test_an_interrupted_comparison_goes_on(tmp_path, monkeypatch, capsys):
    command = ["train", "digits", "--data.limit", "60", "--data.validation", "20", "--batch", "20", "--epochs", "1"]
    command += ["--method", "ce", "--out", str(tmp_path), "--engine.threads", "1", "--engine.accelerator", "cpu"]
    with pytest.raises(ValueError, match="--against names a method twice, or ce"):
        parse([*command, "--against", "ce"]).run()

    def stopped(recipe, *arguments, **named):
        if recipe.method == "ls":
            raise KeyboardInterrupt
        return fit(recipe, *arguments, **named)

    monkeypatch.setattr(runs_of_recipes, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        parse([*command, "--against", "ls"]).run()
    assert "to continue: the same command again" in capsys.readouterr().err
    monkeypatch.setattr(runs_of_recipes, "fit", fit)
    parse([*command, "--against", "ls"]).run()
    assert (tmp_path / "comparison.html").exists()
    with pytest.raises(ValueError, match="holds another run of ce"):
        parse([*command, "--seed", "0", "--optimizer.lr", "0.3", "--against", "ls"]).run()


def interrupt(monkeypatch, recipe: Recipe, folder: Path, *, after: int) -> None:
    """A run that an error ends after a step."""
    with monkeypatch.context() as patched:
        patched.setattr(runs_of_recipes, "fit", partial(fit, callbacks=[Stop(after)]))
        with pytest.raises(RuntimeError, match="stopped by the test"):
            train(recipe, folder, data=small_data(recipe))


def _write_parquet(path: Path, images: Images) -> None:
    from torchvision.io import encode_png

    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = [{"bytes": encode_png(pixels.contiguous()).numpy().tobytes()} for pixels in images.pixels]
    pq.write_table(pa.table({"image": encoded, "label": images.labels.tolist()}), path)
