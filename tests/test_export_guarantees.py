"""Guarantees in exported files: their sets and decisions are those of the library, in every runtime."""

import json
import math
from dataclasses import replace

import onnxruntime
import pytest
import torch
from torch import nn

from counterpoise.calibrators import ConformalSets, SelectiveThreshold, keyed_uniforms, second_half
from counterpoise.cli import parse
from counterpoise.cli.program import UsageError
from counterpoise.export import Guarantees, export_model, export_onnx, export_pt2, fit_guarantees, load_onnx, load_pt2
from counterpoise.export.guarantees import first_half_temperature
from counterpoise.export.primary import check_same_outputs
from counterpoise.export.temperature import Deployed
from counterpoise.predictions import read_predictions
from counterpoise.training import from_images, load_run, train
from runs import small_recipe, striped_images

CLASSES, FEATURES = 6, 8


def network() -> nn.Module:
    model = nn.Linear(FEATURES, CLASSES, bias=False)
    with torch.no_grad():
        model.weight.copy_(1.5 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0)))
    return model.requires_grad_(False)


def rows(count, *, seed):
    return torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))


def labelled(count, *, seed):
    images = rows(count, seed=seed)
    logits = network()(images)
    labels = torch.multinomial((logits / 1.4).softmax(-1), 1, generator=torch.Generator().manual_seed(seed + 1))
    return images, logits, labels.squeeze(-1)


def outputs_and_metadata(to, path, batch):
    if to == "pt2":
        program, metadata = load_pt2(path)
        return program(batch), metadata
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    found = zip(names, session.run(names, {"images": batch.numpy()}), strict=True)
    return {name: torch.from_numpy(value) for name, value in found}, session.get_modelmeta().custom_metadata_map


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "score", "by_class"),
    [("onnx", "lac", False), ("onnx", "aps", False), ("onnx", "raps", True), ("pt2", "raps", True)],
)
def test_files_give_the_sets_and_decisions_of_the_library(to, score, by_class, tmp_path):
    _, logits, labels = labelled(600, seed=1)
    temperature = 1.3
    sets = ConformalSets.fit(logits / temperature, labels, score=score, by_class=by_class, penalty=0.02, free_ranks=2)
    accept = SelectiveThreshold.fit(logits / temperature, labels, risk=0.2)
    given = Guarantees(sets, accept)
    path, example = tmp_path / f"model.{to}", torch.zeros(1, FEATURES)
    export_model(
        network(), path, to=to, example=example, metadata={"note": "x"}, temperature=temperature, guarantees=given
    )
    test, test_logits, test_labels = labelled(3_000, seed=9)
    found, metadata = outputs_and_metadata(to, path, test)
    assert list(found) == ["logits", "probabilities", "set", "accept"]
    scaled = test_logits / temperature
    assert torch.equal(found["set"], sets(scaled))
    assert torch.equal(found["accept"], accept(scaled))
    assert 0.87 < float(found["set"][torch.arange(3_000), test_labels].double().mean()) < 0.95
    assert 0.05 < float(found["accept"].double().mean()) < 0.95
    assert float((test_logits.argmax(-1) != test_labels)[found["accept"]].double().mean()) < 0.2
    for name, value in (("set", sets), ("accept", accept)):
        (tmp_path / name).write_text(metadata[name])
        assert type(value).load(tmp_path / name) == value
    single, _ = outputs_and_metadata(to, path, test[:1])
    assert torch.equal(single["set"], found["set"][:1])


@pytest.mark.slow
def test_thresholds_without_end_are_folded_in_as_well(tmp_path):
    _, logits, labels = labelled(8, seed=1)
    given = fit_guarantees(logits, labels, range(8), alpha=0.01, risk=0.01)
    assert (given.sets.thresholds, given.accept.threshold) == ((math.inf,), math.inf)
    export_onnx(network(), tmp_path / "a.onnx", example=torch.zeros(1, FEATURES), metadata={}, guarantees=given)
    run, _ = load_onnx(tmp_path / "a.onnx")
    found = run(rows(50, seed=2))
    assert bool(found["set"].all())
    assert not bool(found["accept"].any())


@pytest.mark.slow
def test_a_file_has_the_outputs_that_were_asked_for_and_no_promise_of_another(tmp_path):
    _, logits, labels = labelled(200, seed=1)
    path, example = tmp_path / "a.pt2", torch.zeros(1, FEATURES)
    for alpha, risk, names in ((0.1, None, ["set"]), (None, 0.2, ["accept"]), (None, None, [])):
        given = fit_guarantees(logits, labels, range(200), alpha=alpha, risk=risk)
        export_pt2(network(), path, example=example, metadata={"set": "of another", "note": "x"}, guarantees=given)
        found, metadata = outputs_and_metadata("pt2", path, rows(3, seed=2))
        assert list(found) == ["logits", "probabilities", *names]
        assert metadata.keys() - {"note", "counterpoise_version"} == set(names)


def test_what_no_file_can_hold_is_refused(tmp_path):
    _, logits, labels = labelled(200, seed=1)
    with pytest.raises(ValueError, match="these sets take slices: fit them without"):
        Guarantees(ConformalSets.fit(logits, labels, slices=["a"] * 200))
    with pytest.raises(ValueError, match="these sets take random numbers"):
        Guarantees(ConformalSets.fit(logits, labels, score="aps", u=keyed_uniforms(range(200))))
    given = fit_guarantees(logits, labels, range(200), alpha=0.1)
    with pytest.raises(ValueError, match="export guarantees to onnx or pt2"):
        export_model(
            network(), tmp_path / "a", to="safetensors", example=torch.zeros(1, 8), metadata={}, guarantees=given
        )
    with pytest.raises(ValueError, match="ConformalSets was fitted to 6 classes, and the model has 3"):
        export_onnx(nn.Linear(8, 3), tmp_path / "a", example=torch.zeros(1, 8), metadata={}, guarantees=given)
    assert not list(tmp_path.iterdir())


def test_a_file_that_gives_other_sets_is_refused():
    _, logits, labels = labelled(200, seed=1)
    model = Deployed(network(), temperature=1.0, guarantees=fit_guarantees(logits, labels, range(200), alpha=0.3))
    with pytest.raises(ValueError, match="its output 'set' is not what its logits give"):
        check_same_outputs(
            lambda images: model(images) | {"set": ~model(images)["set"]}, model, torch.zeros(1, FEATURES), "a.onnx"
        )


def test_the_half_that_a_guarantee_is_fitted_to_has_no_part_in_the_temperature():
    _, logits, labels = labelled(400, seed=1)
    kept = second_half(range(400))
    changed = torch.where(kept, labels.flip(0), labels)
    temperature = first_half_temperature(logits, labels, range(400)).temperature
    assert first_half_temperature(logits, changed, range(400)).temperature == temperature
    before, after = (
        fit_guarantees(logits, each, range(400), temperature=temperature, alpha=0.1)
        for each in (labels, torch.where(kept, labels, labels.flip(0)))
    )
    assert before == after
    assert before.sets.samples == (int(kept.sum()),)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "stripes"
    recipe = small_recipe("ce", epochs=3, patience=3, data__validation=300)
    train(recipe, path, data=from_images(recipe, striped_images(420)))
    return path


@pytest.mark.slow
def test_the_command_line_fits_guarantees_on_halves_of_the_validation_images(run, capsys):
    parse(
        ["export", str(run), "--to", "onnx", "--temperature", "fitted", "--sets", "0.2", "--accept-risk", "0.4"]
    ).run()
    printed = capsys.readouterr()
    assert printed.out.strip() == str(run / "primary.onnx")
    assert "with a probability of at least 0.8" in printed.err
    assert "have also decided which epoch ships (--patience)" in printed.err
    table = read_predictions(run / "predictions" / "validation.parquet")
    logits, labels = torch.tensor(table.values), torch.tensor(table.labels)
    call, metadata = load_onnx(run / "primary.onnx")
    temperature = first_half_temperature(logits, labels, table.ids).temperature
    assert json.loads(metadata["folded_temperature"]) == temperature
    expected = fit_guarantees(logits, labels, table.ids, temperature=temperature, alpha=0.2, risk=0.4)
    assert metadata["set"] == expected.sets.to_json(indent=None)
    assert metadata["accept"] == expected.accept.to_json(indent=None)
    images = striped_images(100, seed=5)
    pixels = (images.pixels.float() / 255 - 0.3) / 0.2
    found = call(pixels)
    with torch.inference_mode():
        scaled = load_run(run).model.eval()(pixels) / temperature
    assert torch.equal(found["set"], expected.sets(scaled))
    assert torch.equal(found["accept"], expected.accept(scaled))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "safetensors", "--sets", "0.1"], "give --to onnx or --to pt2"),
        (["--to", "hub", "--accept-risk", "0.1"], "give --to onnx or --to pt2"),
        (["--to", "onnx", "--sets", "1"], "--sets must lie between 0 and 1, such as 0.1"),
        (["--to", "onnx", "--accept-risk", "-0.1"], "--accept-risk must be at least 0"),
        (["--to", "onnx", "--accept-risk", "0.1", "--delta", "0"], "--delta must lie between 0 and 1"),
        (["--to", "onnx", "--sets", "0.1", "--member", "0"], "validation predictions are of the whole ensemble"),
    ],
)
def test_the_command_line_refuses_what_cannot_be(arguments, message):
    with pytest.raises(UsageError, match=message):
        parse(["export", "no-run", *arguments]).run()


def test_nothing_is_promised_of_another_number_of_classes():
    _, logits, labels = labelled(200, seed=1)
    given = fit_guarantees(logits, labels, range(200), alpha=0.1, risk=0.2)
    with pytest.raises(ValueError, match="SelectiveThreshold was fitted to 7 classes"):
        Guarantees(accept=replace(given.accept, classes=7)).require_classes(6)
