"""The cost of cells, and plans: against counts by hand, real runs, and grids that are played through."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.models import Backbone, build_model
from counterpoise.predictions import read_predictions
from counterpoise.recipes.config import DataOptions, EvaluationOptions, Recipe
from counterpoise_study.cells import Progress, Task, tasks
from counterpoise_study.cost import Work, combined, counted, forward_flops, shape_of, work_of
from counterpoise_study.hardware_timing import HardwareTiming, Speed, assumed_timing, seconds_of, time_hardware
from counterpoise_study.plan import plan_of, plan_text
from counterpoise_study.requests import Request
from counterpoise_study.scales import SCALES
from counterpoise_study.store import Store
from counterpoise_study.studies import request_of, studies_at
from counterpoise_study.work import attempt

DEVICE = assumed_timing(1e9)
SMALL = Backbone("cnn", width=4)


@pytest.mark.parametrize(("width", "classes", "size"), [(4, 10, 32), (7, 100, 64)])
def test_flops_and_parameters_are_those_counted_by_hand(width: int, classes: int, size: int) -> None:
    flops, parameters = forward_flops(Backbone("cnn", width), classes, (3, size, size))
    first = 2 * size**2 * 9 * 3 * width
    second = 2 * (size // 2) ** 2 * 9 * width * 2 * width
    assert flops == first + second + 2 * 2 * width * classes
    norms = 2 * width + 2 * 2 * width
    assert parameters == 27 * width + 18 * width**2 + norms + 2 * width * classes + classes


def test_parameters_are_those_of_the_model() -> None:
    model = build_model(Backbone("resnet18", 16), classes=10, seed=0)
    _, parameters = forward_flops(Backbone("resnet18", 16), 10, (3, 32, 32))
    assert parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("method", "training", "inference"),
    [("mte1", 2, 1), ("mte2", 3, 1), ("de3", 3, 3), ("dml", 2, 1), ("fl-dtdp", 1, 1)],
)
def test_cost_as_a_multiple_of_cross_entropy(method: str, training: int, inference: int) -> None:
    recipe = Recipe(primary=SMALL, auxiliary=SMALL)
    plain, other = (counted(replace(recipe, method=name), classes=10, shape=(3, 32, 32)) for name in ("ce", method))
    assert other.training_flops == training * plain.training_flops
    assert other.inference_flops == inference * plain.inference_flops
    assert (other.parameters, other.shipped_parameters) == (training * plain.parameters, inference * plain.parameters)
    assert (other.networks, other.shipped_networks) == (training, inference)


def test_work_by_hand() -> None:
    recipe = Recipe(
        method="de3",
        primary=SMALL,
        epochs=7,
        batch=30,
        data=DataOptions(name="pacs_64", domain="photo", validation=0.1, size=16),
        evaluation=EvaluationOptions(corruptions=("fog", "snow"), severities=(1, 5), corrupted_images=50),
    )
    rows = 2_048 + 2_344 + 3_929
    validation = 832
    steps = (rows - validation) // 30
    work = work_of(recipe)
    assert work.steps == 3 * 7 * steps
    assert work.training_passes == 3 * 7 * steps * 30
    assert work.inference_passes == 3 * (7 * validation + validation + 1_670 + 2 * 2 * 50)
    assert work.corrupted == 2 * 2 * 50
    assert work_of(recipe, "validation").inference_passes == 3 * 8 * validation


@pytest.mark.slow
def test_work_is_that_of_a_real_run(real_data, tmp_path) -> None:
    root = real_data("cifar10")
    request = request_of("scatter", "smoke", seeds=[0], only=["fl-dtdp"])
    store = Store(tmp_path)
    store.add([request])
    task = replace(tasks([request], Progress({}))[0], stage="complete")
    assert attempt(store, task, root=root, page=False).end == "committed"
    run, work = store.run_folder(task.cell.id), work_of(task.cell.recipe)
    assert work.steps == len(run.steps.read_text().splitlines()) - 1
    files = list(run.predictions.glob("*.parquet"))
    rows = sum(len(read_predictions(path)) for path in files)
    assert work.inference_passes == rows + task.cell.recipe.epochs * 40
    without_page = work.kept_bytes - 600_000
    assert without_page == pytest.approx(sum(path.stat().st_size for path in (*files, run.primary, run.steps)), rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_of_every_study_can_be_counted(scale) -> None:
    requests = [request_of(study, scale, seeds=[0]) for study in studies_at(scale)]
    for task in tasks(requests, Progress({})):
        work = work_of(task.cell.recipe, task.stage)
        assert all(value > 0 for name, value in vars(work).items() if name != "corrupted")


def test_unknown_data_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'my/images'"):
        shape_of(Recipe(data=DataOptions(name="my/images")))
    with pytest.raises(ValueError, match="'digits'"):
        work_of(Recipe(data=DataOptions(name="digits", validation=100)))


def played(requests: Sequence[Request], seed: int) -> tuple[set[str], Work]:
    """All cells of a grid with metrics by chance, and the work that was done for them."""
    chance, metrics, ids, works = random.Random(seed), {}, set(), []  # noqa: S311

    def left() -> list[Task]:
        progress = Progress(metrics)
        return [task for task in tasks(requests, progress) if not progress.is_done(task)]

    while ready := left():
        for task in ready:
            work = work_of(task.cell.recipe, task.stage)
            validated = (task.cell.id, "validation") in metrics
            works.append(work.minus(work_of(task.cell.recipe, "validation")) if validated else work)
            metrics[task.key] = {"nll": chance.random()}
            ids.add(task.cell.id)
    return ids, combined(works)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["smoke", "reduced", "finetune"]).flatmap(
        lambda scale: st.tuples(st.just(scale), st.sets(st.sampled_from(studies_at(scale)), min_size=1))
    ),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_a_plan_is_what_a_grid_comes_to(asked, seeds: int, chance: int) -> None:
    scale, studies = asked
    requests = [request_of(study, scale, seeds=range(seeds)) for study in sorted(studies)]
    found = plan_of(requests, timing=DEVICE)
    ids, work = played(requests, chance)
    assert found.total.cells == len(ids)
    assert found.total.work.steps == work.steps
    assert found.total.work.flops == pytest.approx(work.flops)
    assert found.total.work.corrupted == work.corrupted
    assert found.total.seconds == pytest.approx(work.flops / 1e9)
    assert found.total.cells <= sum(share.cells for share in found.studies)


def test_what_a_store_holds_is_left_out_of_a_plan(tmp_path) -> None:
    request = request_of("dml", "smoke", seeds=[0, 1])
    store = Store(tmp_path)
    store.add([request])
    before = plan_of([request], timing=DEVICE, store=store).total
    task = tasks([request], Progress({}))[0]
    with store.claim(task):
        store.commit(task, metrics={"nll": 1.0}, seconds=1.0, peak_memory=1)
    after = plan_of([request], timing=DEVICE, store=store).total
    assert (after.cells, after.done) == (before.cells, 1)
    done = work_of(task.cell.recipe, task.stage)
    assert after.work.flops == pytest.approx(before.work.flops - done.flops)
    assert after.seconds == pytest.approx(before.seconds - done.flops / 1e9)


def test_seconds_follow_from_the_constants() -> None:
    recipe = SCALES["smoke"]().tables["cifar10"][0].recipe
    other = Backbone("cnn", width=8)
    recipe = replace(recipe, method="mte1", auxiliary=other)
    speeds = (Speed(SMALL, 1.0, 1e6, 2e6, 20), Speed(other, 1.0, 4e6, 8e6, 20))
    constants = HardwareTiming("cpu", "", speeds, start_up=3.0, step=0.1, completion=5.0, corruption=0.01)
    flops, others = (forward_flops(network, 10, (3, 32, 32))[0] for network in (SMALL, other))
    epochs, validation_images = recipe.epochs, 40
    trained, steps = epochs * 100, epochs * 5
    training = trained * 3 * (flops / 1e6 + others / 4e6)
    validation = 3.0 + 0.1 * steps + training + (epochs + 1) * validation_images * flops / 2e6
    assert seconds_of(recipe, "validation", constants) == pytest.approx(validation)
    corrupted = 3 * 5 * 40
    complete = validation + 5.0 + 0.01 * corrupted + (3 * 150 + corrupted) * flops / 2e6
    assert seconds_of(recipe, "complete", constants) == pytest.approx(complete)


def test_a_network_that_was_not_measured_is_as_fast_as_the_most_alike() -> None:
    slow, fast = Speed(SMALL, 1e6, 1.0, 1.0, 20), Speed(Backbone(), 1e9, 2.0, 2.0, 20)
    constants = HardwareTiming("cpu", "", (slow, fast))
    assert constants.speed(Backbone("resnet34"), 2e9) is fast
    assert constants.speed(Backbone("cnn", 8), 4e6) is slow
    assert constants.speed(SMALL, 1e12) is slow


@pytest.mark.parametrize("flops", [0.0, -1.0, float("inf"), float("nan")])
def test_a_device_without_speed_is_refused(flops: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        assumed_timing(flops)


@pytest.mark.slow
def test_calibration_measures_every_constant_and_leaves_threads_alone() -> None:
    requests = [request_of("reliability", "smoke", seeds=[0], only=["ce"])]
    threads, said = torch.get_num_threads(), []
    started = time.monotonic()
    found = time_hardware(requests, page=False, say=said.append)
    assert time.monotonic() - started < 30
    assert [speed.network for speed in found.speeds] == [requests[0].settings[0].recipe.primary]
    assert found.device == ("cuda" if torch.cuda.is_available() else found.device)
    assert min(found.start_up, found.step, found.completion, found.corruption) > 0
    assert min(found.speeds[0].training, found.speeds[0].inference) > 1e6
    assert torch.get_num_threads() == threads
    assert "measured on this machine" in found.note
    assert len(said) == 2


@pytest.mark.slow
def test_the_text_of_a_plan() -> None:
    studies = studies_at("paper")[-2:]  # that of all is in the documentation
    requests = [request_of(study, "paper", seeds=range(3)) for study in studies]
    text = plan_text(plan_of(requests, timing=assumed_timing(3e13)))
    assert max(map(len, text.splitlines())) <= 100
    assert "assumed, not measured: 3e+13" in text
    assert [line.split()[0] for line in text.splitlines()[3 : 3 + len(studies)]] == studies
    measured = replace(assumed_timing(3e13), device="cuda")
    assert "GPU hours" in plan_text(plan_of(requests[:1], timing=measured))


@pytest.mark.long
def test_predicted_and_measured_seconds_agree(real_data, tmp_path) -> None:
    """Two cells like those of the reduced scale, with fewer epochs; a factor of two, because machines are shared."""
    root = real_data("cifar10")
    request = request_of("dml", "reduced", seeds=[0], only=["ce", "mte1"])
    (setting,) = request.settings
    data = replace(setting.recipe.data, limit=4_000, validation=2_000)
    evaluation = replace(setting.recipe.evaluation, corrupted_images=200)
    recipe = replace(setting.recipe, epochs=4, data=data, evaluation=evaluation)
    request = replace(request, settings=(replace(setting, recipe=recipe),))
    store = Store(tmp_path)
    store.add([request])
    constants = time_hardware([request])
    ready = tasks([request], Progress({}))
    for task in (ready[0], ready[-1]):
        ended = attempt(store, task, root=root)
        predicted = seconds_of(task.cell.recipe, task.stage, constants)
        print(f"{task.name}, {task.stage}: predicted {predicted:.1f} s, measured {ended.seconds:.1f} s")  # noqa: T201
        assert predicted / 2 < ended.seconds < 2 * predicted
