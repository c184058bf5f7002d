"""A search: what may be searched, which points are tried, how processes share them, and what is left when one dies."""

import multiprocessing
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from lightning.pytorch.utilities import rank_zero_only

from counterpoise import cli
from counterpoise.cli.tune import Tune, print_search
from counterpoise.data.images import load_images
from counterpoise.metrics.estimates import Key
from counterpoise.models import Backbone
from counterpoise.predictions import read_predictions
from counterpoise.recipes.catalog import digits
from counterpoise.recipes.config import OptimizerOptions, Recipe
from counterpoise.recipes.methods import ALPHA_GRID
from counterpoise.recipes.ranges import Range, with_values
from counterpoise.report.search import SearchedField, search_figure
from counterpoise.training import from_images, named_data
from counterpoise.training.checkpoints import read_manifest
from counterpoise.training.folder import RunFolder, read_environment
from counterpoise.training.study import Search, SharedStudy, Trial
from counterpoise.training.tuning import tune
from odd_images import pets
from runs import edit_environment, small_data, small_recipe, striped_images
from test_own_images import SMALL

pytestmark = pytest.mark.slow

ALPHA = Range("hyper.alpha", 0.4, 1.2)
RATE = Range("optimizer.lr", 1e-8, 1e8, log=True)


def small(**changes):
    """Digits in a tenth of a second: 170 images, a narrow network, one epoch."""
    recipe = digits()
    cnn = Backbone(name="cnn", width=4)
    return replace(
        recipe,
        primary=cnn,
        auxiliary=cnn,
        epochs=1,
        batch=50,
        data=replace(recipe.data, limit=200),
        # Weight decay, because without it a network with BatchNorm survives any learning rate.
        optimizer=OptimizerOptions(lr=0.05, schedule="cosine", warmup=0.5, nesterov=True),
        engine=replace(recipe.engine, threads=1),
        **changes,
    )


@pytest.fixture(scope="module")
def processes():
    """Real processes that can be killed, of which only the first must import everything."""
    return multiprocessing.get_context("forkserver")


def read(folder):
    return Search.from_json((folder / "search.json").read_text())


# The study


def finish_all(folder, *, total, reopened):
    """A search without training: the measure is a parabola with its minimum at 0.83."""
    recipe = Recipe()
    study = SharedStudy(folder, recipe, [ALPHA], metric="nll")
    while (claim := study.take(total)) is not None:
        alpha = claim.values["hyper.alpha"]
        study.finish(claim, metrics={"nll": 1 + (alpha - 0.83) ** 2, "accuracy": 0.5, "ece": 0.1})
        if reopened:
            study = SharedStudy(folder, recipe, [ALPHA], metric="nll")
    return study.search()


def test_a_search_of_whole_numbers_ends_when_all_were_tried(tmp_path):
    study = SharedStudy(tmp_path, Recipe(), [Range("data.padding", 0, 2, integer=True)], metric="nll")
    tried = []
    while (claim := study.take(9)) is not None:
        tried.append(claim.values["data.padding"])
        study.finish(claim, metrics={"nll": 1.0 + tried[-1], "accuracy": 0.5, "ece": 0.1})
    assert sorted(tried) == [0, 1, 2]


def test_points_are_distinct_and_approach_the_optimum_whether_or_not_the_search_is_interrupted(tmp_path):
    once, reopened = (finish_all(tmp_path / str(flag), total=9, reopened=flag) for flag in (False, True))
    points = [trial.values["hyper.alpha"] for trial in once.trials]
    assert points == [trial.values["hyper.alpha"] for trial in reopened.trials]
    assert len(set(points)) == 9
    assert once.best.hyper["alpha"] == pytest.approx(0.83, abs=0.02)


def test_a_trial_has_one_owner_and_falls_to_the_next_when_its_owner_dies(tmp_path):
    first, second, third = (SharedStudy(tmp_path, Recipe(), [ALPHA], metric="nll") for _ in range(3))
    one, two = first.take(2), second.take(2)
    assert {one.number, two.number} == {0, 1}
    assert third.take(2) is None
    one.claim.release()  # as the operating system does for a dead process
    inherited = third.take(2)
    assert (inherited.number, inherited.values) == (one.number, one.values)
    assert second.take(2) is None
    third.finish(inherited, metrics={"nll": 1.0, "accuracy": 0.5, "ece": 0.1})
    second.finish(two, metrics={"nll": 2.0, "accuracy": 0.5, "ece": 0.1})
    assert first.take(2) is None
    assert [trial.state for trial in read(tmp_path).trials] == ["complete", "complete"]
    assert list((tmp_path / "trials").iterdir()) == []


@pytest.mark.parametrize("lost", ["before its values were drawn", "before it was begun"])
def test_a_process_that_dies_while_it_draws_values_costs_no_point(tmp_path, lost):
    SharedStudy(tmp_path, Recipe(), [ALPHA], metric="nll")
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
    study = optuna.load_study(study_name="search", storage=optuna.storages.JournalStorage(backend))
    if lost == "before its values were drawn":
        study.ask()
    else:
        study.enqueue_trial({"hyper.alpha": 0.8})
    search = finish_all(tmp_path, total=5, reopened=False)
    assert sorted(trial.values["hyper.alpha"] for trial in search.trials) == list(ALPHA_GRID)


def test_half_a_line_at_the_end_of_the_journal_is_dropped(tmp_path):
    finish_all(tmp_path, total=2, reopened=False)
    with (tmp_path / "study.log").open("ab") as file:
        file.write(b'{"op_code":4,"worker')
    assert len(finish_all(tmp_path, total=4, reopened=True).trials) == 4


def test_another_search_is_refused_with_what_is_different(tmp_path):
    recipe = small()
    SharedStudy(tmp_path, recipe, [ALPHA], metric="nll")
    others = {
        "epochs, optimizer.lr": (with_values(recipe, {"epochs": 3, "optimizer.lr": 0.2}), [ALPHA], "nll"),
        "the ranges": (recipe, [Range("hyper.alpha", 0.4, 1.0)], "nll"),
        "the metric": (recipe, [ALPHA], "accuracy"),
    }
    for named, (other, ranges, metric) in others.items():
        with pytest.raises(ValueError, match=f"other values of {named};"):
            tune(other, ranges, tmp_path, trials=1, metric=metric)


@pytest.mark.slow
def test_a_search_does_not_go_on_with_other_images(tmp_path):
    recipe = small_recipe(epochs=1)
    tune(recipe, [ALPHA], tmp_path, trials=1, data=small_data(recipe))
    with pytest.raises(ValueError, match="other values of the content of the data; go on as it was started, or use"):
        tune(recipe, [ALPHA], tmp_path, trials=2, data=from_images(recipe, striped_images(seed=5)))


def test_trials_that_are_as_good_are_ranked_by_number_and_accuracy_is_maximised(tmp_path):
    study = SharedStudy(tmp_path, Recipe(), [ALPHA], metric="accuracy")
    for accuracy in (0.5, 0.9, 0.9):
        study.finish(study.take(3), metrics={"nll": 1.0, "accuracy": accuracy, "ece": 0.1})
    assert [trial.number for trial in study.search().ranked] == [1, 2, 0]


# Training


def no_test_images():
    raise AssertionError("test images were asked for")


def test_a_search_measures_the_last_epoch_on_validation_images_alone(tmp_path):
    recipe = small()
    data = replace(named_data(recipe), test=no_test_images, ood={"svhn": no_test_images})
    search = tune(recipe, [ALPHA], tmp_path, trials=2, data=data)
    assert read(tmp_path) == search
    for trial in search.trials:
        run = RunFolder(tmp_path / trial.folder)
        last = epoch_rows(run)[-1]
        for name, value in trial.metrics.items():
            assert float(last[f"validation_{name}"]) == pytest.approx(value, rel=1e-4, abs=1e-6)
        assert run.recipe() == with_values(recipe, trial.values)
    best = min(search.trials, key=lambda trial: trial.metrics["nll"])
    assert (tmp_path / "best.json").read_text() == (tmp_path / best.folder / "config.json").read_text()
    assert (tmp_path / "search.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match=r"data.padding has no effect"):
        tune(recipe, [Range("data.padding", 0, 2, integer=True)], tmp_path / "other", trials=1, data=data)


def epoch_rows(run):
    head, *rows = run.epochs.read_text().splitlines()
    return [dict(zip(head.split(","), row.split(","), strict=True)) for row in rows]


def test_an_ensemble_is_measured_as_one(tmp_path):
    search = tune(small(method="de3"), [Range("optimizer.lr", 0.01, 0.1)], tmp_path, trials=1)
    table = read_predictions(tmp_path / "trials" / "0000" / "predictions" / "validation.parquet")
    logits = table.values.astype(np.float64)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    mean = (odds / odds.sum(-1, keepdims=True)).mean(1)
    nll = -np.log(mean[np.arange(len(mean)), table.labels]).mean()
    assert search.trials[0].metrics["nll"] == pytest.approx(nll, rel=1e-5)


def test_a_training_that_diverges_is_recorded_and_the_search_goes_on(tmp_path):
    search = tune(small(), [RATE], tmp_path, trials=4)
    assert [trial.state for trial in search.trials] == ["complete", "complete", "failed", "complete"]
    failed = search.trials[2]
    assert failed.values == {"optimizer.lr": 1e8}
    assert failed.metrics == {}
    assert "NaN or infinite" in failed.reason
    assert failed not in search.ranked


def test_an_error_of_the_first_trial_is_raised_and_the_trial_kept(tmp_path, capsys):
    hopeless = [Range("optimizer.lr", 1e7, 1e9)]
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="NaN or infinite"):
            tune(small(), hopeless, tmp_path, trials=3)
        assert "trial 0 (optimizer.lr 5.05e+08) broke down" in capsys.readouterr().err
    (trial,) = SharedStudy(tmp_path, small(), hopeless, metric="nll").search().trials
    assert trial.state == "running"


def test_several_devices_are_several_independent_processes(tmp_path, monkeypatch):
    recipe = small()
    with pytest.raises(ValueError, match="start the search several times"):
        tune(replace(recipe, engine=replace(recipe.engine, devices=2)), [ALPHA], tmp_path, trials=1)
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    with pytest.raises(ValueError, match="not as the ranks of one launcher"):
        tune(recipe, [ALPHA], tmp_path, trials=1)


# Processes


def test_processes_share_the_trials_of_a_search(tmp_path, processes):
    recipe = small()
    arguments = {"args": (recipe, [ALPHA], tmp_path), "kwargs": {"trials": 5}}
    workers = [processes.Process(target=tune, **arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    search = read(tmp_path)
    assert [trial.state for trial in search.trials] == ["complete"] * 5
    assert sorted(trial.values["hyper.alpha"] for trial in search.trials) == list(ALPHA_GRID)
    assert len(list((tmp_path / "trials").iterdir())) == 5


def test_a_killed_process_leaves_its_trial_to_the_next_that_resumes_it(tmp_path, processes):
    recipe = replace(small(), epochs=40)
    tune(recipe, [ALPHA], tmp_path, trials=1)
    worker = processes.Process(target=tune, args=(recipe, [ALPHA], tmp_path), kwargs={"trials": 2})
    worker.start()
    run = RunFolder(tmp_path / "trials" / "0001")
    limit = time.monotonic() + 100
    while read_manifest(run.checkpoints).last is None:
        assert time.monotonic() < limit
        assert worker.is_alive()
        time.sleep(0.005)
    worker.kill()
    worker.join()
    assert not run.primary.exists()

    # Under other conditions the trial is neither resumed nor taken for one that failed.
    environment = run.environment.read_text()
    edit_environment(run, '"threads": 1,', '"threads": 7,')
    with pytest.raises(ValueError, match="threads was 7, is 1"):
        tune(recipe, [ALPHA], tmp_path, trials=2)
    run.environment.write_text(environment)

    search = tune(recipe, [ALPHA], tmp_path, trials=2)
    assert [trial.state for trial in search.trials] == ["complete", "complete"]
    (resumed,) = read_environment(run).resumed
    assert resumed.step > 0
    assert [int(row["epoch"]) for row in epoch_rows(run)] == list(range(40))


# The command, and the picture


def test_the_command_prints_the_trials_and_how_to_train_the_best(tmp_path, monkeypatch, capsys):
    def training_images_only(name, split, **options):
        assert split == "train"
        return load_images(name, split, **options)

    monkeypatch.setattr("counterpoise.training.data.load_images", training_images_only)
    words = "--epochs 1 --data.limit 200 --primary.width 4 --auxiliary.width 4 --engine.threads 1 --data.no-flip"
    search = "--trials 3 --search hyper.alpha=0.4:1.2 batch=10:40:log --metric accuracy"
    arguments = ["tune", "digits", *words.split(), *search.split(), "--out", str(tmp_path / "found")]
    for trials in ("3", "4"):  # the second time it is continued
        arguments[arguments.index("--trials") + 1] = trials
        monkeypatch.setattr(sys, "argv", ["counterpoise", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 0
        out, err = capsys.readouterr()
        assert "Traceback" not in err
    assert [line for line in err.splitlines() if line.startswith("trial ")] == [
        line for line in err.splitlines() if line.startswith("trial 3: hyper.alpha")
    ]
    assert "hyper.alpha  batch  NLL, nats  Accuracy, %  ECE, %" in out
    command = out.splitlines()[-1]
    best = Recipe.from_json((tmp_path / "found" / "best.json").read_text())
    assert cli.parse(shlex.split(command)[1:]).config == best
    accuracies = [float(line.split()[4]) for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert accuracies == sorted(accuracies, reverse=True)
    assert len(accuracies) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--search", "alpha=0.4:1.2"], "did you mean hyper.alpha"),
        (["digits", "--method", "ce"], "Cross-entropy has no hyper-parameter left"),
        (["digits", "--trials", "0"], "--trials must be at least 1"),
        (["digits", "--search", "epochs=1:2", "epochs=1:3"], "one for each field"),
        (["digit"], "did you mean digits"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["counterpoise", "tune", *arguments, "--out", str(tmp_path / "x")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2
    assert message in line
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("alpha", "noted"), [(0.4, True), (0.5, False), (1.2, True)])
def test_a_best_value_at_an_end_of_its_range_is_noted(alpha, noted, tmp_path, capsys):
    metrics = {"nll": 0.5, "accuracy": 0.9, "ece": 0.1}
    trials = (
        Trial(0, "complete", {"hyper.alpha": alpha}, metrics, "trials/0000"),
        Trial(1, "running", {"hyper.alpha": 0.8}, {}, "trials/0001"),
    )
    print_search(Search(digits(), (ALPHA,), "nll", trials), tmp_path, start="digits")
    out = capsys.readouterr().out
    assert ("the best hyper.alpha lies at an end of its range" in out) == noted
    assert "trial 1 (hyper.alpha 0.8): still running in another process" in out
    assert out.endswith(f"counterpoise train digits --hyper alpha {alpha}\n")


@pytest.mark.slow
def test_images_of_ones_own_are_tuned_and_the_printed_command_trains_the_best(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pets(Path("pets"))
    cli.parse(["tune", "pets/", *SMALL, "--engine.threads=1", "--trials=1"]).run()
    (command,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("counterpoise "))
    assert "--engine.threads 1" in command
    best = Path("runs/pets-mte1-tune/best.json").read_text()
    assert cli.parse(shlex.split(command)[1:]).config == Recipe.from_json(best)


def test_a_recipe_s_name_is_enough():
    assert cli.parse(["tune", "digits"]) == Tune(start="digits", config=digits())


def test_the_picture_shows_every_trial_and_marks_the_best():
    fields = [
        SearchedField("optimizer.lr", [0.01, 0.1, 0.3], log=True),
        SearchedField("epochs", [5, 9, 7], integer=True),
    ]
    for key, best in ((Key.NLL, 2), (Key.ACCURACY, 1)):
        figure = search_figure(fields, [0.5, 0.9, 0.2], key=key)
        for axes, field in zip(figure.axes, fields, strict=True):
            drawn = {line.get_gid(): line.get_xydata().tolist() for line in axes.lines}
            scale = 100 if key == Key.ACCURACY else 1
            points = [[x, scale * y] for x, y in zip(field.values, [0.5, 0.9, 0.2], strict=True)]
            assert drawn["best"] == [points[best]]
            assert drawn["trials"] == [point for index, point in enumerate(points) if index != best]
            assert axes.get_xscale() == ("log" if field.log else "linear")
        assert figure.axes[0].get_ylabel().endswith(", %" if key == Key.ACCURACY else ", nats")
