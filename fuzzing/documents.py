"""Readers of documents and of weights: runs, scores, studies, shared models, calibrators, states, rules."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from counterpoise._digests import SUMS, read_sums, write_sums
from counterpoise._documents import DIGEST
from counterpoise._files import METADATA_DIGEST
from fuzzing import seeds

Seeds = Callable[[Path], Sequence[bytes]]

_EXAMPLES = Path(__file__).parent.parent / "study" / "results"


def unsealed(data: bytes) -> bytes:
    """A document or a safetensors file without its digest, which would refuse every other damage first."""
    length = int.from_bytes(data[:8], "little")
    is_document = data[:1] == b"{"
    header = json.loads(data if is_document else data[8 : 8 + length])
    if is_document:
        return json.dumps({name: value for name, value in header.items() if name != DIGEST}).encode()
    metadata = header.get("__metadata__", {})
    metadata.pop(METADATA_DIGEST, None)
    for name, text in metadata.items():
        if text.startswith("{"):
            metadata[name] = json.dumps({key: value for key, value in json.loads(text).items() if key != DIGEST})
    changed = json.dumps(header).encode()
    return len(changed).to_bytes(8, "little") + changed + data[8 + length :]


def _saved(folder: Path, save: Callable[[Path], object]) -> Sequence[bytes]:
    path = folder / "seed"
    save(path)
    data = path.read_bytes()
    path.unlink()
    return [data]


def _logits() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(60, 3, generator=generator), torch.randint(3, (60,), generator=generator)


def _recipe(_: Path) -> Sequence[bytes]:
    from counterpoise.recipes.config import Recipe

    return [Recipe().to_json().encode(), Recipe(method="ce").to_json().encode()]


def _read_recipe(text: str) -> object:
    from counterpoise.recipes.config import Recipe

    recipe = Recipe.from_json(text)
    _ = recipe.digest
    return recipe


def _scores(folder: Path) -> Sequence[bytes]:
    from counterpoise.predictions import write_predictions
    from counterpoise.scoring import score_files

    write_predictions(folder / "p.parquet", seeds.table(40))
    evaluation = score_files([folder / "p.parquet"])
    return [evaluation.models[0].to_json().encode()]


def _read_scores(text: str) -> object:
    from counterpoise.metrics import Scores

    return Scores.from_json(text)


def _evaluation(folder: Path) -> Sequence[bytes]:
    from counterpoise.predictions import write_predictions
    from counterpoise.scoring import score_files

    for name in ("a", "b"):
        write_predictions(folder / f"{name}.parquet", seeds.table(20))
    return [score_files([folder / "a.parquet", folder / "b.parquet"]).to_json().encode()]


def _read_evaluation(text: str) -> object:
    from counterpoise.metrics.comparison import Evaluation

    return Evaluation.from_json(text)


def _cell(folder: Path) -> Sequence[bytes]:
    from counterpoise.metrics import Scores
    from counterpoise.recipes.config import Recipe
    from counterpoise_study.record import CellRecord, Outcome

    scores = Scores.from_json(_scores(folder)[0].decode())
    outcome = Outcome(scores.estimates, scores.misclassification.estimates, {}, [], scores.top_label)
    record = CellRecord(
        Recipe(), "ab" * 8, {"nll": 1.0, "accuracy": 0.5}, 20, 3, 0.95, 1.5, "converged", outcome, outcome
    )
    return [record.to_json().encode()]


def _read_cell(text: str) -> object:
    from counterpoise_study.record import CellRecord

    return CellRecord.from_json(text)


def _store(_: Path) -> Sequence[bytes]:
    return [(_EXAMPLES / "store.json").read_bytes()]


def _read_store(text: str) -> None:
    from counterpoise_study.store import Contents

    Contents.from_json(text)


def _events(_: Path) -> Sequence[bytes]:
    lines = (_EXAMPLES / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    lost = b'{"cell": "6cede8a67da7e14c", "stage": "validation", "kind": "lost", "step": 4}\n'
    return [b"".join(lines[:3]), lines[0] + lost, lost + lost]


def _read_events(path: Path) -> None:
    from counterpoise_study.manifest import Manifest

    manifest = Manifest(path)
    manifest.refresh()
    manifest.progress()


def _model_config(folder: Path) -> Sequence[bytes]:
    from counterpoise.export import describe, export_safetensors
    from counterpoise.export.config import ModelConfig
    from counterpoise.models import Backbone

    config = ModelConfig(("a", "b"), (3, 8, 8), (0.5,) * 3, (0.2,) * 3, 1.5, Backbone("cnn", width=4))
    metadata = describe(class_names=config.class_names, mean=config.mean or (), std=config.std or ())
    export_safetensors(config.build(), folder / "model.safetensors", metadata=metadata)
    return [config.to_json().encode()]


def _read_shared(path: Path) -> object:
    from counterpoise.integrations.hub import from_pretrained

    return from_pretrained(path.parent)


def _shared_weights(folder: Path) -> Sequence[bytes]:
    (folder / "config.json").write_bytes(_model_config(folder)[0])
    return [(folder / "model.safetensors").read_bytes()]


def _primary(folder: Path) -> Sequence[bytes]:
    from counterpoise.export import describe, export_safetensors
    from counterpoise.models import Backbone, build_model
    from counterpoise.recipes.config import Recipe

    recipe = Recipe(method="ce", primary=Backbone("cnn", width=4))
    (folder / "config.json").write_text(recipe.to_json())
    metadata = {"channels": "3", "size": "8"} | describe(class_names=("a", "b"), mean=(0.5,) * 3, std=(0.2,) * 3)
    network = build_model(recipe.primary, classes=2, channels=3)
    export_safetensors(network, folder / "primary.safetensors", metadata=metadata)
    return [(folder / "primary.safetensors").read_bytes()]


def _read_primary(path: Path) -> object:
    from counterpoise.training.networks import load_run

    return load_run(path.parent)


def _environment(_: Path) -> Sequence[bytes]:
    cell = next((_EXAMPLES / "cells").glob("*/environment.json"))
    return [cell.read_bytes()]


def _read_environment(path: Path) -> None:
    from counterpoise.training.folder import RunFolder, read_environment

    read_environment(RunFolder(path.parent))


def _steps(_: Path) -> Sequence[bytes]:
    return [b"step,epoch,loss,loss_hex,lr\n1,0,0.5,0x1p-1,0.1\n2,0,0.25,0x1p-2,0.1\n"]


def _read_steps(path: Path) -> None:
    from counterpoise.training.folder import STEP_COLUMNS, RowLog

    RowLog(path, STEP_COLUMNS).begin_after(1)


def _parts(_: Path) -> Sequence[bytes]:
    from counterpoise._documents import to_document
    from counterpoise.training.parts import SCHEMA, SCHEMA_VERSION, Parts, ShardedTensor

    parts = Parts({"state.ckpt": "ab" * 32}, {"state_dict/w": ShardedTensor([4, 2], [0, 2, 4])})
    return [to_document(parts, schema=SCHEMA, version=SCHEMA_VERSION, sealed=False).encode()]


def _read_parts(path: Path) -> None:
    from counterpoise._files import digest_of
    from counterpoise.training.checkpoints import fault_of

    fault_of(path.parent, sha256=digest_of(path))


def _calibrator(folder: Path) -> Sequence[bytes]:
    from counterpoise.calibrators import CALIBRATORS

    return [data for kind in CALIBRATORS.values() for data in _saved(folder, kind().fit(*_logits()).save)]


def _read_calibrator(path: Path) -> object:
    from counterpoise.calibrators import load_calibrator

    return load_calibrator(path)(_logits()[0])


def _conformal(folder: Path) -> Sequence[bytes]:
    from counterpoise.calibrators import ConformalSets

    return _saved(folder, ConformalSets.fit(*_logits(), alpha=0.2).save)


def _read_conformal(path: Path) -> None:
    from counterpoise.calibrators import ConformalSets

    ConformalSets.load(path)


def _selective(folder: Path) -> Sequence[bytes]:
    from counterpoise.calibrators import SelectiveThreshold

    return _saved(folder, SelectiveThreshold.fit(*_logits(), risk=0.4).save)


def _read_selective(path: Path) -> None:
    from counterpoise.calibrators import SelectiveThreshold

    SelectiveThreshold.load(path)


def _stream() -> Any:
    from counterpoise.metrics import Performance, Stream

    return Stream(Performance())


def _stream_sums(folder: Path) -> Sequence[bytes]:
    stream = _stream()
    logits, labels = _logits()
    stream.update(logits=logits, labels=labels)
    return _saved(folder, stream.save)


def _read_sums(path: Path) -> object:
    stream = _stream()
    stream.load(path)
    return stream.sums


def _score_state(folder: Path) -> Sequence[bytes]:
    from counterpoise.metrics.state import ScoreState

    state = ScoreState(classes=3)
    logits, labels = _logits()
    state.update(logits=logits, labels=labels)
    return _saved(folder, state.save)


def _read_score_state(path: Path) -> object:
    from counterpoise.metrics.state import ScoreState

    state = ScoreState.load(path)
    state.merge(ScoreState.load(path))
    return state.to_bytes()


def _sums(folder: Path) -> Sequence[bytes]:
    write_sums(folder, {"a.json": "0" * 64, "predictions/test.parquet": "f" * 64, "od\nd": "a" * 64})
    return [(folder / SUMS).read_bytes()]


def _read_sums_of_folder(path: Path) -> object:
    return read_sums(path.parent)


def _rules(_: Path) -> Sequence[bytes]:
    return [b'level = 0.9\nrequire = ["ece <= 0.05", "accuracy >= base - 0.005"]\n']


def _read_rules(path: Path) -> None:
    from counterpoise.cli.check import read_rules
    from counterpoise.metrics.gate import Requirement

    for rule in read_rules(path)[0]:
        Requirement.parsed(rule)


DOCUMENTS: dict[str, tuple[str, Seeds, Callable[[Any], object], bool]] = {
    "recipe": ("config.json", _recipe, _read_recipe, False),
    "scores": ("scores.json", _scores, _read_scores, False),
    "evaluation": ("scores.json", _evaluation, _read_evaluation, False),
    "cell": ("cell.json", _cell, _read_cell, False),
    "store": ("store.json", _store, _read_store, False),
    "store-manifest": ("manifest.jsonl", _events, _read_events, True),
    "hub-config": ("config.json", _model_config, _read_shared, True),
    "hub-weights": ("model.safetensors", _shared_weights, _read_shared, True),
    "primary": ("primary.safetensors", _primary, _read_primary, True),
    "environment": ("environment.json", _environment, _read_environment, True),
    "steps": ("steps.csv", _steps, _read_steps, True),
    "parts": ("parts.json", _parts, _read_parts, True),
    "calibrator": ("calibrator.safetensors", _calibrator, _read_calibrator, True),
    "conformal": ("sets.json", _conformal, _read_conformal, True),
    "selective": ("threshold.json", _selective, _read_selective, True),
    "stream": ("sums.safetensors", _stream_sums, _read_sums, True),
    "score-state": ("state.safetensors", _score_state, _read_score_state, True),
    "sums": (SUMS, _sums, _read_sums_of_folder, True),
    "rules": ("rules.toml", _rules, _read_rules, True),
}
"""Name of the file, valid ones, how it is read, and whether as a file or as its text."""

SEALED = (
    *("recipe", "scores", "evaluation", "cell", "store", "hub-config", "hub-weights", "primary", "environment"),
    *("conformal", "selective", "stream", "score-state"),
)
"""Whose digest may be missing, as in files of earlier releases."""
