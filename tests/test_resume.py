"""Interrupted runs end as if nothing had happened; changed conditions and broken files are noticed."""

import json
import shlex
import shutil
from dataclasses import replace
from functools import partial

import lightning as L  # noqa: N812
import pytest
import torch

from benchmarks import interruptions
from counterpoise.recipes.config import Recipe
from counterpoise.training import resume, train
from counterpoise.training import run as runs_of_recipes
from counterpoise.training.checkpoints import begin_manifest, newest_intact, read_manifest
from counterpoise.training.engine import fit
from counterpoise.training.folder import RunFolder, conditions_now, read_environment, start
from counterpoise.training.networks import recipe_models
from runs import Stop, ending, small_data, small_recipe

pytestmark = pytest.mark.slow


def interrupt(recipe, folder, *, after: int) -> RunFolder:
    """A run that an error ends after a step."""
    run = RunFolder(folder)
    torch.set_num_threads(1)
    start(run, recipe, conditions_now(recipe, device="cpu", world_size=1))
    begin_manifest(run.checkpoints, recipe=recipe.digest, member=0)
    objective = recipe.objective(recipe_models(recipe, classes=3, channels=3)(recipe.seed))
    with pytest.raises(RuntimeError, match="stopped by the test"):
        fit(recipe, run, objective, small_data(recipe), resume_from=None, callbacks=[Stop(after)])
    return run


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("mte1", {}),
        ("dml", {"engine__precision": "bfloat16"}),
        ("ce", {"engine__ema": 0.9, "engine__precision": "float16"}),
        ("fl-dtdp", {"epochs": 3, "pruning__every": 1, "pruning__share": 0.3}),
    ],
)
@pytest.mark.parametrize("after", [1, 4, 5, 7])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, method, changes, after):
    recipe = small_recipe(method, **changes)
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    interrupt(recipe, tmp_path / "broken", after=after)
    resume(tmp_path / "broken", data=small_data(recipe))
    assert ending(tmp_path / "broken") == ending(tmp_path / "whole")
    shipped = {(tmp_path / name / "primary.safetensors").read_bytes() for name in ("broken", "whole")}
    assert len(shipped) == 1


def test_the_same_seed_twice_is_the_same_run_and_another_is_not(tmp_path):
    recipe = small_recipe()
    for name in ("one", "two"):
        torch.manual_seed(len(name))  # what happened before does not matter
        train(recipe, tmp_path / name, data=small_data(recipe))
    other = replace(recipe, seed=1)
    train(other, tmp_path / "other", data=small_data(other))
    assert ending(tmp_path / "one") == ending(tmp_path / "two")
    assert ending(tmp_path / "one")[1] != ending(tmp_path / "other")[1]


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_taken(tmp_path, capsys):
    recipe = small_recipe()
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    run = interrupt(recipe, tmp_path / "broken", after=9)
    manifest = read_manifest(run.checkpoints)
    assert (manifest.previous.step, manifest.last.step) == (6, 8)
    with (run.checkpoints / manifest.last.file).open("r+b") as file:
        file.seek(2000)
        file.write(b"\xff\x00\xff")
    resume(run.path, data=small_data(recipe))
    assert "its SHA-256 is not the manifest's; going back to step 6" in capsys.readouterr().err
    assert ending(run.path) == ending(tmp_path / "whole")


def test_what_a_crash_leaves_half_written_is_ignored(tmp_path):
    recipe = small_recipe()
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    run = interrupt(recipe, tmp_path / "broken", after=3)
    (run.checkpoints / "step-000000004.ckpt").write_bytes(b"half a checkpoint")
    with run.steps.open("a") as file:
        file.write("4,0,0.5")
    resume(run.path, data=small_data(recipe))
    assert ending(run.path) == ending(tmp_path / "whole")
    assert (
        sorted(path.name for path in run.checkpoints.iterdir())
        == [
            "manifest.json",
            "step-000000008.ckpt",
            "step-000000010.ckpt",
        ]
        or read_manifest(run.checkpoints).best.step < 8
    )


def stopped_in_its_second_epoch(monkeypatch, recipe, folder):
    """A run that `train` began, with the error of the test in step 7."""

    def stopping(of, *arguments, **named):
        return fit(of, *arguments, callbacks=[Stop(7)], **named)

    with monkeypatch.context() as patch:
        patch.setattr(runs_of_recipes, "fit", stopping)
        with pytest.raises(RuntimeError, match="stopped by the test"):
            train(recipe, folder, data=small_data(recipe))
    return RunFolder(folder)


@pytest.mark.slow
def test_checkpoints_of_another_seed_are_rejected(tmp_path, monkeypatch):
    runs = [
        stopped_in_its_second_epoch(monkeypatch, small_recipe("ce", seed=seed), tmp_path / f"run {seed}")
        for seed in range(2)
    ]
    shutil.rmtree(runs[0].checkpoints)
    shutil.copytree(runs[1].checkpoints, runs[0].checkpoints)
    with pytest.raises(ValueError, match=r"run 0/checkpoints holds checkpoints of another run .* rm -r '") as caught:
        resume(runs[0].path, data=small_data(small_recipe("ce")))
    assert len(read_environment(runs[0]).resumed) == 0
    shutil.rmtree(shlex.split(str(caught.value).rpartition("rm -r ")[2])[0])
    resume(runs[0].path, data=small_data(small_recipe("ce")))
    train(small_recipe("ce"), tmp_path / "whole", data=small_data(small_recipe("ce")))
    assert ending(runs[0].path) == ending(tmp_path / "whole")


@pytest.mark.slow
def test_checkpoints_of_another_member_are_rejected(tmp_path):
    recipe = small_recipe("de3", epochs=1)
    train(recipe, tmp_path / "run", data=small_data(recipe))
    run = RunFolder(tmp_path / "run")
    for member in range(2):
        run.member(member).primary.unlink()
    shutil.rmtree(run.member(0).checkpoints)
    shutil.copytree(run.member(1).checkpoints, run.member(0).checkpoints)
    with pytest.raises(ValueError, match=r"member 1\), and this run is recipe \w{12}, member 0"):
        resume(run.path, data=small_data(recipe))


def test_the_best_checkpoint_survives_a_resume(tmp_path):
    recipe = small_recipe("ce", epochs=3, optimizer__milestones=(), optimizer__lr=3.0, engine__checkpoint_steps=None)
    train(recipe, tmp_path / "whole", data=small_data(recipe))
    run = interrupt(recipe, tmp_path / "broken", after=11)
    best = read_manifest(run.checkpoints).best
    resume(run.path, data=small_data(recipe))
    kept = read_manifest(run.checkpoints).best
    assert kept == read_manifest(RunFolder(tmp_path / "whole").checkpoints).best or kept.value <= best.value
    assert (run.checkpoints / kept.file).exists()


def test_other_conditions_are_refused_unless_allowed_and_then_recorded(tmp_path, monkeypatch):
    recipe = small_recipe()
    run = interrupt(recipe, tmp_path, after=3)
    document = json.loads(run.config.read_text())
    document["epochs"] = 3
    run.config.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"the configuration .* was .*, is .*accept the change with --allow config"):
        resume(run.path, data=small_data(recipe))
    document["engine"]["threads"] = 2
    run.config.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="--allow config threads, which is recorded"):
        resume(run.path, data=small_data(recipe))
    document["engine"]["threads"] = 1
    run.config.write_text(json.dumps(document))
    longer = replace(recipe, epochs=3)
    resume(run.path, data=small_data(longer), allow=["config"])
    (resumed,) = read_environment(run).resumed
    assert (resumed.allowed, resumed.step) == (["config"], 2)
    assert len(ending(run.path)[1]) == 15
    torch.set_num_threads(1)


class Options(L.Callback):
    """What the optimizer took its last step with, by group."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        names = ("lr", "momentum", "nesterov", "weight_decay")
        self.used = {
            group["name"]: {name: group[name] for name in names} for group in trainer.optimizers[0].param_groups
        }


def test_edited_options_of_the_optimizer_are_used(tmp_path, monkeypatch):
    """A checkpoint holds the options that it was saved with."""
    recipe = small_recipe(optimizer__milestones=())
    run = interrupt(recipe, tmp_path, after=3)
    document = json.loads(run.config.read_text())
    edited = {"momentum": 0.5, "nesterov": True, "weight_decay": 1e-3}
    document["optimizer"] |= edited | {"lr": 0.02, "auxiliary_lr": 0.003}
    run.config.write_text(json.dumps(document))
    options = Options()
    monkeypatch.setattr(runs_of_recipes, "fit", partial(fit, callbacks=[options]))
    resume(run.path, data=small_data(recipe), allow=["config"])
    assert options.used == {"primary": {"lr": 0.02} | edited, "auxiliaries": {"lr": 0.003} | edited}


def test_an_integer_for_a_float_is_the_same_experiment(tmp_path):
    """JSON is read with the declared types: 1 comes back as 1.0."""
    given, declared = (small_recipe(hyper={"alpha": alpha}, optimizer__lr=lr) for alpha, lr in ((1, 1), (1.0, 1.0)))
    assert given.digest == declared.digest == Recipe.from_json(given.to_json()).digest
    assert given.digest != small_recipe(hyper={"alpha": 0.8}, optimizer__lr=1).digest
    recipe = small_recipe("ce", epochs=1, optimizer__lr=1)
    run = interrupt(recipe, tmp_path, after=3)
    resume(run.path, data=small_data(recipe))
    assert read_environment(run).resumed[0].allowed == []


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is no run: it has no config.json"):
        resume(tmp_path)
    (tmp_path / "config.json").write_text('{"schema": "other"}')
    with pytest.raises(ValueError, match=r"config.json: not a recipe document"):
        resume(tmp_path)


def test_checkpoints_hold_data_and_never_code(tmp_path):
    recipe = small_recipe("ce", epochs=1)
    run = interrupt(recipe, tmp_path, after=3)
    entry, _ = newest_intact(run.checkpoints)

    class Code:
        def __reduce__(self):
            return print, ("code ran",)

    torch.save({"state_dict": Code()}, run.checkpoints / entry.file)
    manifest = json.loads((run.checkpoints / "manifest.json").read_text())
    from counterpoise._files import digest_of

    manifest["last"]["sha256"] = digest_of(run.checkpoints / entry.file)
    del manifest["sha256"]  # as an attacker would
    (run.checkpoints / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        resume(run.path, data=small_data(recipe))


@pytest.mark.parametrize(
    ("recipes", "trials"),
    [
        (lambda _: interruptions.from_scratch(), 1),
        pytest.param(lambda _: interruptions.from_scratch(), 3, marks=pytest.mark.long),
        (lambda _: {"mte1, memory": interruptions.finetuning()["mte1, memory"]}, 1),
        pytest.param(lambda _: interruptions.finetuning(), 6, marks=pytest.mark.long),
        (interruptions.webdataset, 1),
        pytest.param(interruptions.webdataset, 8, marks=pytest.mark.long),
        (lambda _: {"mte1": next(iter(interruptions.remote().values()))}, 2),
    ],
)
def test_killed_runs_end_with_the_same_bits(real_data, tmp_path, monkeypatch, recipes, trials):
    """The short form of `python -m benchmarks.interruptions`, and of `python -m benchmarks.faults --kills`."""
    monkeypatch.setenv("COUNTERPOISE_DATA", str(real_data("cifar10")))
    done = interruptions.run_trials(recipes(tmp_path), trials, seed=0)
    assert (done.same, done.left) == (trials, 0)
