"""A field that somebody adds to the configuration: what was run before it still reads, and is still the same."""

import json
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import get_type_hints

import pytest

from counterpoise.recipes import DataOptions, EngineOptions, EvaluationOptions, OptimizerOptions, Recipe
from counterpoise.recipes.identity import CHANGES_NO_RESULT, config_digest, first_value

GOLDEN = Path(__file__).parent / "golden"
FIRST = (GOLDEN / "documents" / "recipe-2.json").read_text()


@dataclass(frozen=True)
class GrownEngine(EngineOptions):
    """As if two fields had been added to `EngineOptions`."""

    lookahead: int = 0
    bar_colour: str = field(default="red", metadata=CHANGES_NO_RESULT)


@dataclass(frozen=True)
class GrownRecipe(Recipe):
    """As if another had been added to `Recipe`."""

    engine: GrownEngine = field(default_factory=GrownEngine)
    mixup: float | None = None


def test_recipes_of_earlier_versions_read_with_the_defaults_of_what_is_new():
    before, grown = Recipe.from_json(FIRST), GrownRecipe.from_json(FIRST)
    assert (grown.mixup, grown.engine.lookahead, grown.engine.bar_colour) == (None, 0, "red")
    assert (grown.method, grown.hyper, grown.engine.threads) == (before.method, before.hyper, before.engine.threads)


def test_a_new_field_changes_no_digest_until_it_changes_a_result():
    before, grown = Recipe.from_json(FIRST), GrownRecipe.from_json(FIRST)
    assert grown.digest == before.digest
    assert replace(grown, engine=replace(grown.engine, bar_colour="blue")).digest == before.digest
    assert replace(grown, mixup=0.2).digest != before.digest
    assert replace(grown, engine=replace(grown.engine, lookahead=1)).digest != before.digest


def test_what_is_new_is_written_and_read():
    grown = replace(GrownRecipe.from_json(FIRST), mixup=0.2)
    assert GrownRecipe.from_json(grown.to_json()) == grown
    with pytest.raises(ValueError, match="bar_colour, lookahead"):
        Recipe.from_json(json.dumps({**json.loads(FIRST), "engine": json.loads(grown.to_json())["engine"]}))


@pytest.mark.parametrize(
    "engine",
    [
        EngineOptions(checkpoint_steps=7),
        EngineOptions(checkpoint_epochs=7),
        EngineOptions(monitor="ece"),
        EngineOptions(loggers=("wandb",)),
    ],
)
def test_what_cannot_change_a_result_is_no_part_of_the_digest(engine):
    assert Recipe(engine=engine).digest == Recipe().digest
    assert Recipe(evaluation=EvaluationOptions(batch=7)).digest == Recipe().digest


@pytest.mark.parametrize(
    "other",
    [
        Recipe(seed=1),
        Recipe(hyper={"alpha": 0.8}),
        Recipe(data=DataOptions(limit=10)),
        Recipe(optimizer=OptimizerOptions(lr=0.2)),
        Recipe(engine=EngineOptions(threads=1)),
        Recipe(evaluation=EvaluationOptions(ood=("svhn",))),
    ],
)
def test_what_can_change_a_result_is_a_part_of_the_digest(other):
    assert other.digest != Recipe().digest


@pytest.mark.parametrize(
    ("method", "rate"), [("ce", 0.01), ("mte1", 0.01), ("mte2", 0.01), ("mte-lite", None), ("nobody's", 0.01)]
)
def test_auxiliaries_learn_at_the_methods_rate_unless_told(method, rate):
    """Of mte-lite at the primary's."""
    recipe = Recipe(method=method)
    assert recipe.optimizer_in_force.first_auxiliary_lr == (rate or recipe.optimizer.lr)
    told = OptimizerOptions(auxiliary_lr=rate) if rate else OptimizerOptions(auxiliary_factor=1.0)
    assert replace(recipe, optimizer=told).digest == recipe.digest
    other = replace(recipe, optimizer=OptimizerOptions(auxiliary_lr=0.02))
    assert other.optimizer_in_force.first_auxiliary_lr == 0.02
    assert other.digest != recipe.digest
    factor = replace(recipe, optimizer=OptimizerOptions(auxiliary_factor=0.5, lr=0.2))
    assert factor.optimizer_in_force.first_auxiliary_lr == 0.1


def test_a_default_that_changes_keeps_its_first_value_in_the_digest():
    @dataclass(frozen=True)
    class Before:
        rate: float = 0.1

    @dataclass(frozen=True)
    class After:
        rate: float = field(default=0.2, metadata=first_value(0.1))

    assert config_digest(After(0.1)) == config_digest(Before())
    assert config_digest(After()) == config_digest(Before(0.2)) != config_digest(Before())


def first_values(kind: type, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    hints = get_type_hints(kind)
    for each in fields(kind):
        if is_dataclass(hints[each.name]):
            found |= first_values(hints[each.name], f"{prefix}{each.name}.")
        elif each.metadata.get("changes_result", True):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            found[prefix + each.name] = each.metadata.get("first_value", default)
    return json.loads(json.dumps(found))


def test_first_values_stay_what_they_were():
    """Or the digest of every run that had them would be another's. A new field is added to the file with its default."""
    assert first_values(Recipe) == json.loads((GOLDEN / "recipe-first-values.json").read_text())
