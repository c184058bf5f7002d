"""Runs from recipe to report: complete folders, the engine against a plain loop, precision, ensembles, pruning."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from counterpoise import MutualTransport
from counterpoise.data import hold_out_hashed
from counterpoise.metrics.comparison import Evaluation
from counterpoise.predictions import open_predictions, read_predictions
from counterpoise.recipes import METHODS
from counterpoise.recipes.catalog import RECIPES
from counterpoise.recipes.config import DataOptions, OptimizerOptions, Recipe
from counterpoise.training import load_run, named_data, predict, resume, train
from counterpoise.training.callbacks import kept_samples
from counterpoise.training.engine import fit
from counterpoise.training.evaluation import prediction_file
from counterpoise.training.folder import EPOCH_COLUMNS, STEP_COLUMNS, RowLog, RunFolder, read_environment
from counterpoise.training.module import decay_factor
from counterpoise.training.networks import recipe_models
from counterpoise.training.progress import quiet
from runs import CLASSES, small_data, small_recipe, striped_images
from test_data_sets import encoded


def losses(folder) -> list[float]:
    return [float.fromhex(row["loss_hex"]) for row in RowLog(RunFolder(folder).steps, STEP_COLUMNS).rows()]


def networks(recipe: Recipe, seed: int) -> list[nn.Module]:
    return list(recipe_models(recipe, classes=3, channels=3)(seed))


@pytest.mark.slow
def test_a_run_folder_is_complete_in_itself(tmp_path):
    recipe = small_recipe(evaluation__corruptions=("brightness",), evaluation__severities=(1, 5))
    folder = tmp_path / "run"
    evaluation = train(recipe, folder, data=small_data(recipe, test=True))
    run = RunFolder(folder)
    assert run.recipe() == recipe
    environment = read_environment(run)
    assert (
        environment.started.versions["torch"] == torch.__version__.split("+")[0]
        or environment.started.versions["torch"]
    )
    assert environment.started.threads == 1
    assert len(json.loads(run.split.read_text())["validation"]) == 20
    assert [int(row["epoch"]) for row in RowLog(run.epochs, EPOCH_COLUMNS).rows()] == [0, 1]
    assert evaluation.to_json() == Evaluation.from_json(run.scores.read_text()).to_json()
    assert "<html" in run.report.read_text()
    test = read_predictions(run.predictions / "test.parquet")
    assert len(test) == 3 * 60
    assert test.values.dtype == "float32"
    assert test.header.config_digest == recipe.digest
    assert test.header.class_names == CLASSES
    assert open_predictions(run.predictions / "validation.parquet").rows == 20
    ood = read_predictions(run.predictions / "ood_noise.parquet")
    assert not ood.in_distribution.any()
    assert (ood.labels == -1).all()
    # What ships is the primary alone.
    assert set(load_file(run.primary)) == set(networks(recipe, 0)[0].state_dict())
    trained = load_run(folder)
    logits = trained.model.eval()(torch.zeros(2, *trained.shape))
    assert logits.shape == (2, 3)
    with pytest.raises(ValueError, match="holds a run already"):
        train(recipe, folder, data=small_data(recipe))


@pytest.mark.slow
def test_scores_without_a_page_and_without_a_word(tmp_path, capsys):
    recipe = small_recipe()
    with quiet():
        train(recipe, tmp_path / "run", data=small_data(recipe, test=True), page=False)
    run = RunFolder(tmp_path / "run")
    assert run.scores.exists()
    assert not run.report.exists()
    assert capsys.readouterr() == ("", "")
    resume(run.path, data=small_data(recipe, test=True))
    assert run.report.exists()
    assert "predicting" not in capsys.readouterr().err


@pytest.mark.slow
def test_only_so_many_images_are_predicted():
    recipe = small_recipe(data__name="digits", data__limit=60, evaluation__images=7)
    assert len(named_data(recipe).test()) == 7
    assert len(named_data(small_recipe(data__name="digits", data__limit=60)).test()) > 7


def stream_of(folder, **options):
    data = DataOptions(name=str(folder), workers=0, window=7, **{"pipeline": "stream", "validation": 12} | options)
    return small_recipe("ce", batch=4, data=data)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    for split, rows in {"train": 60, "test": 5}.items():
        images = striped_images(rows)
        pictures = [encoded(image) for image in images.pixels.permute(0, 2, 3, 1).numpy()]
        table = pa.table({"image": pictures, "label": images.labels.numpy()})
        pq.write_table(table, folder / f"{split}.parquet", row_group_size=7)
    return folder


@pytest.mark.parametrize("limits", [{}, {"limit": 40}, {"limit": 31, "spread": True}])
def test_validation_rows_of_a_stream_are_those_of_the_hash_whoever_trains(parquet, limits):
    """And those that a memory pipeline has by the same rule; all others that the limit leaves are trained on."""
    recipe = stream_of(parquet, **limits)
    data = named_data(recipe)
    limit = limits.get("limit", 60)
    rows = [row * 60 // limit if "spread" in limits else row for row in range(limit)]
    held = [rows[position] for position in hold_out_hashed(limit, size=12, seed=recipe.seed).tolist()]
    assert data.validation_rows.tolist() == data.validation.ids.tolist() == held
    for world, workers in ((1, 0), (2, 0), (4, 0)):
        many = named_data(replace(recipe, data=replace(recipe.data, workers=workers)))
        trained = [
            row for rank in range(world) for batch in many.training(0, rank, world) for row in batch.ids.tolist()
        ]
        assert len(trained) == (limit - 12) // 4 * 4
        assert set(trained) <= set(rows) - set(held)
    in_memory = named_data(stream_of(parquet, pipeline="memory", validation_rows="hashed", **limits))
    assert torch.equal(in_memory.validation.pixels, data.validation.pixels)
    assert torch.equal(in_memory.validation_rows, data.validation_rows)


def test_no_validation_image_is_read_before_it_is_needed(parquet, tmp_path):
    recipe = stream_of(parquet)
    held = named_data(recipe).validation_rows.tolist()
    table = pq.read_table(parquet / "train.parquet")
    images = table.column("image").to_pylist()
    for row in held:
        images[row] = b"damaged" if row else images[row]  # the first one tells the shape
    pq.write_table(table.set_column(0, "image", pa.array(images)), tmp_path / "train.parquet", row_group_size=7)
    pq.write_table(pq.read_table(parquet / "test.parquet"), tmp_path / "test.parquet")
    data = named_data(replace(recipe, data=replace(recipe.data, name=str(tmp_path))))
    assert len(list(data.training(0, 0, 1))) == 12
    with pytest.raises(ValueError, match=rf"row {next(filter(None, held))} of the split: not an image"):
        _ = data.validation


@pytest.mark.parametrize("pipeline", ["memory", "stream"])
def test_a_limit_may_take_images_from_the_whole_set(real_data, pipeline):
    """PACS is stored class by class: its first images are all dogs."""
    root = real_data("pacs_64")
    recipe = small_recipe(data__name="pacs_64", data__domain="photo", data__limit=70, evaluation__images=50)
    recipe = replace(recipe, data=replace(recipe.data, pipeline=pipeline, workers=0))
    first, spread = (
        named_data(replace(recipe, data=replace(recipe.data, spread=spread)), root=root) for spread in (False, True)
    )
    assert len(first.validation.labels.unique()) == len(first.test().labels.unique()) == 1
    assert len(spread.validation.labels.unique()) > 3
    assert len(spread.test().labels.unique()) == 7
    assert len(spread.test()) == 50
    assert len(spread.training(0, 0, 1)) == len(first.training(0, 0, 1)) == 2


def test_the_engine_takes_the_steps_of_a_plain_loop(tmp_path):
    recipe = small_recipe(optimizer__nesterov=True, engine__checkpoint_steps=None)
    data = small_data(recipe)
    train(recipe, tmp_path / "run", data=data)

    primary, auxiliary = networks(recipe, recipe.seed)
    model = MutualTransport(primary, [auxiliary], recipe.choice["alpha"])
    options = recipe.optimizer
    optimizer = torch.optim.SGD(
        model.parameter_groups(lr=options.lr, auxiliary_lr=options.first_auxiliary_lr),
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        nesterov=True,
    )
    loader, expected = data.training(recipe.seed, 0, 1), []
    for epoch in range(recipe.epochs):
        loader.set_epoch(epoch)
        optimizer.param_groups[0]["lr"] = options.lr * (0.1 if epoch >= 1 else 1.0)
        for images, labels, _ in loader:
            loss = model(images, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-5)
    shipped = load_file(RunFolder(tmp_path / "run").primary)
    for name, value in primary.state_dict().items():
        torch.testing.assert_close(shipped[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_its_loss_is_finite(tmp_path, method):
    recipe = small_recipe(method, epochs=1, engine__checkpoint_steps=None)
    train(recipe, tmp_path, data=small_data(recipe))
    folder = tmp_path / "members" / "0" if METHODS[method].members > 1 else tmp_path
    assert len(losses(folder)) == 5
    assert all(abs(loss) < 100 for loss in losses(folder))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_follows_float32_and_predicts_in_float32(tmp_path, precision):
    exact = small_recipe(engine__checkpoint_steps=None)
    mixed = replace(exact, engine=replace(exact.engine, precision=precision))
    train(exact, tmp_path / "exact", data=small_data(exact))
    train(mixed, tmp_path / "mixed", data=small_data(mixed, test=True))
    assert losses(tmp_path / "mixed") == pytest.approx(losses(tmp_path / "exact"), rel=0.1)
    assert losses(tmp_path / "mixed") != losses(tmp_path / "exact")
    logits = read_predictions(RunFolder(tmp_path / "mixed").predictions / "test.parquet").values
    rounded = torch.from_numpy(logits.copy()).to(torch.bfloat16 if precision == "bfloat16" else torch.float16).float()
    assert (rounded.numpy() != logits).mean() > 0.9


@pytest.mark.slow
def test_an_ensemble_is_one_run_of_independent_members(tmp_path):
    recipe = small_recipe("de3", epochs=1)
    train(recipe, tmp_path, data=small_data(recipe, test=True))
    run = RunFolder(tmp_path)
    weights = [load_file(run.member(index).primary) for index in range(3)]
    name = "0.weight"
    assert not torch.equal(weights[0][name], weights[1][name])
    first = [losses(run.member(index).path) for index in range(3)]
    assert first[0] != first[1]
    predictions = read_predictions(run.predictions / "test.parquet")
    assert predictions.members == 3
    # A lost member is trained again, and only that one.
    before = run.member(0).primary.stat().st_mtime_ns
    run.member(2).primary.unlink()
    resume(tmp_path, data=small_data(recipe, test=True))
    assert run.member(0).primary.stat().st_mtime_ns == before
    assert torch.equal(load_file(run.member(2).primary)[name], weights[2][name])


def test_dtdp_leaves_out_the_least_confident_from_the_chosen_epoch_on(tmp_path):
    recipe = small_recipe("fl-dtdp", epochs=4, pruning__share=0.4, pruning__every=2, engine__checkpoint_steps=None)
    train(recipe, tmp_path, data=small_data(recipe))
    rows = RowLog(RunFolder(tmp_path).steps, STEP_COLUMNS).rows()
    steps = [sum(int(row["epoch"]) == epoch for row in rows) for epoch in range(4)]
    assert steps == [5, 5, 3, 3]
    # Shorter epochs are validated too.
    validated = [row["validation_nll"] for row in RowLog(RunFolder(tmp_path).epochs, EPOCH_COLUMNS).rows()]
    assert len(set(validated)) == 4
    assert kept_samples(torch.tensor([0.3, 0.1, 0.2]), share=0.5).tolist() == [True, False, True]


def test_a_moving_average_is_validated_and_shipped(tmp_path):
    recipe = small_recipe("ce", engine__ema=0.9)
    module = _fitted(recipe, tmp_path / "averaged")
    plain = _fitted(small_recipe("ce"), tmp_path / "plain")
    assert losses(tmp_path / "averaged") == losses(tmp_path / "plain")
    for (name, average), weight in zip(module.shipped.named_parameters(), module.primary.parameters(), strict=True):
        assert not torch.equal(average, weight), name
    torch.testing.assert_close(list(module.primary.parameters()), list(plain.primary.parameters()))
    assert module.validation["nll"] != plain.validation["nll"]


def _fitted(recipe, folder):
    run = RunFolder(folder)
    run.checkpoints.mkdir(parents=True)
    objective = recipe.objective(networks(recipe, 0))
    return fit(recipe, run, objective, small_data(recipe), resume_from=None)


def test_gradients_are_clipped_model_by_model(tmp_path):
    clipped = small_recipe("mte2", optimizer__clip=1e-3, optimizer__momentum=0.0, optimizer__weight_decay=0.0, epochs=1)
    recipe = replace(clipped, optimizer=replace(clipped.optimizer, auxiliary_lr=0.05))
    before = [[p.detach().clone() for p in model.parameters()] for model in networks(recipe, 0)]
    module = _fitted(recipe, tmp_path)
    for start, model in zip(before, [module.objective.primary, *module.objective.auxiliaries], strict=True):
        moved = torch.cat([(a - b).flatten() for a, b in zip(model.parameters(), start, strict=True)]).norm()
        # Five steps of at most lr x clip; a joint norm would leave one model far below it.
        assert 0.2 * 5 * 0.05 * 1e-3 < moved <= 5 * 0.05 * 1e-3 * 1.001


def test_one_auxiliary_is_not_clipped_by_anothers_gradients(tmp_path):
    recipe = small_recipe("mte2", optimizer__clip=1.0)
    module = _fitted(recipe, tmp_path)
    optimizer = module.configure_optimizers()
    models = [module.objective.primary, *module.objective.auxiliaries]
    for model, size in zip(models, (0.5, 1000.0, 0.25), strict=True):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, size)
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        for parameter in model.parameters():
            parameter.grad *= size / flat.norm()
    module.configure_gradient_clipping(optimizer)
    norms = [torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item() for model in models]
    assert norms == pytest.approx([0.5, 1.0, 0.25], rel=1e-4)


@pytest.mark.slow
def test_your_own_networks_and_images(tmp_path):
    recipe = small_recipe(batch=10)

    def models(seed: int) -> list[nn.Module]:
        torch.manual_seed(seed)
        return [nn.Sequential(nn.Flatten(), nn.Linear(192, 3)) for _ in range(2)]

    train(recipe, tmp_path, models=models, data=small_data(recipe, test=True))
    assert set(load_file(tmp_path / "primary.safetensors")) == {"1.weight", "1.bias"}
    trained = load_run(tmp_path, models=models)
    assert trained.classes == CLASSES
    with pytest.raises(ValueError, match="a network of its own, Sequential"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: Recipe(method="mte9").choice, "no method 'mte9'; the methods are ce"),
        (lambda: Recipe(method="fl", hyper={"alpha": 1.0}), "Focal loss has no hyper-parameter alpha; it has gamma"),
        (lambda: Recipe(epochs=0), "epochs must be positive, got 0"),
        (lambda: Recipe(batch=0, epochs=-1), "epochs must be positive, got -1; batch must be positive, got 0"),
        (lambda: small_recipe(engine__devices=3), "batch 20 cannot be divided between 3 devices"),
        (lambda: Recipe(optimizer=OptimizerOptions(milestones=(5, 3))), "milestones must increase"),
        (lambda: small_recipe("fl-dtdp", data__pipeline="stream"), "fl-dtdp prunes its samples"),
        (lambda: small_recipe(engine__strategy="fsdp", engine__ema=0.9), "fsdp takes neither"),
        (lambda: small_recipe(engine__ema=1.5), "engine.ema must lie between 0 and 1, got 1.5"),
        (lambda: Recipe(hyper={"alpha": -1.0}), "MTE-1: hyper.alpha must be at least 0 and finite, got -1.0"),
        (lambda: Recipe(hyper={"alpha": float("nan")}), "MTE-1: hyper.alpha must be at least 0 and finite, got nan"),
        (lambda: Recipe(hyper={"alpha": float("inf")}), "MTE-1: hyper.alpha must be at least 0 and finite, got inf"),
        (
            lambda: Recipe(method="ls", hyper={"smoothing": 1.0}),
            "hyper.smoothing must be at least 0 and below 1, got 1.0",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_words(options, message):
    with pytest.raises(ValueError, match=message):
        options()


def test_ood_images_of_another_size_are_refused(tmp_path):
    recipe = small_recipe(epochs=1)
    data = replace(small_data(recipe, test=True), ood={"big": lambda: striped_images(10, size=16)})
    with pytest.raises(ValueError, match=r"images of 16 x 16 x 3 .*, the model was trained on 8 x 8 x 3"):
        train(recipe, tmp_path, data=data)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_possible_and_survives_its_file(name):
    recipe = RECIPES[name].recipe()
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_the_published_schedule():
    options = OptimizerOptions()
    factors = {
        epoch: decay_factor(epoch, steps=390, epochs=350, options=options)
        for epoch in (0, 149, 150, 200, 250, 300, 349)
    }
    assert factors == pytest.approx({0: 1, 149: 1, 150: 0.1, 200: 0.01, 250: 1e-3, 300: 1e-4, 349: 1e-4})


@pytest.mark.slow
def test_the_first_member_of_an_ensemble_is_the_run_of_one_network(tmp_path):
    for method in ("ce", "de3"):
        recipe = small_recipe(method, epochs=1, seed=3)
        train(recipe, tmp_path / method, data=small_data(recipe), page=False)
    assert losses(tmp_path / "ce") == losses(RunFolder(tmp_path / "de3").member(0).path)
    assert losses(tmp_path / "ce") != losses(RunFolder(tmp_path / "de3").member(1).path)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "trainings"), [("mte1", 1), ("de3", 3)])
def test_networks_are_built_once_for_each_training(method, trainings, tmp_path):
    recipe = small_recipe(method, epochs=1)
    build, seeds = recipe_models(recipe, classes=3, channels=3), []

    def counted(seed):
        seeds.append(seed)
        return build(seed)

    data = small_data(recipe, test=True)
    train(recipe, tmp_path / "run", data=data, models=counted, page=False)
    assert len(seeds) == len(set(seeds)) == trainings
    run = RunFolder(tmp_path / "run")
    shipped = load_run(run.path, models=build)
    predict(shipped, data.validation, tmp_path / "again.parquet", split="validation")
    written, again = (
        read_predictions(path) for path in (prediction_file(run, "validation"), tmp_path / "again.parquet")
    )
    assert np.array_equal(written.values, again.values)  # to the last bit, though these networks were not trained here
