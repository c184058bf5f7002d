"""A trained primary as a folder with a model card, for the Hugging Face Hub or any other place.

The folder holds `model.safetensors`, `config.json`, `README.md`, `reliability.png`, and their SHA-256 in `SHA256SUMS`:
data and text, no code and no pickle. Loading it needs torch and safetensors; the Hub's client is imported only to write
a card and to talk to it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import nn

from counterpoise._digests import SUMS, changed_in, inside, read_sums, sums_of, write_sums
from counterpoise._extras import require
from counterpoise._files import digest_of, read_safetensors, write_text
from counterpoise._json import parsed
from counterpoise.export.config import SCHEMA, ModelConfig
from counterpoise.export.primary import describe, require_primary, uncompiled
from counterpoise.export.snippet import loading_snippet
from counterpoise.export.weights import export_safetensors, fill, require_fit
from counterpoise.metrics import Key, Scores
from counterpoise.metrics.estimates import percent
from counterpoise.models.weights import FOLDER_WEIGHTS as WEIGHTS
from counterpoise.models.weights import misfits

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, HfApi

    from counterpoise.export.card import Card

CONFIG, README = "config.json", "README.md"
_INDEX = "model.safetensors.index.json"
"""Where transformers says in which of several files each weight is."""

CONFIG_BESIDE = "counterpoise.json"
"""The configuration where `config.json` is that of transformers."""

_MODEL_FILES = (WEIGHTS, "model-*-of-*.safetensors", _INDEX, CONFIG_BESIDE)
"""Of which a folder has some, and not those of an earlier model."""


@dataclass(frozen=True)
class Pretrained:
    """A loaded model in evaluation mode, and what its folder says about it.

    `torch.softmax(model(inputs) / config.temperature, -1)` are its probabilities for normalised inputs.
    """

    model: nn.Module
    config: ModelConfig


def save_pretrained(model: nn.Module, folder: str | Path, *, config: ModelConfig, card: "Card") -> None:
    """Write a primary to a folder, with a card that says how far its confidence can be trusted.

    A model of transformers is written by its own `save_pretrained`; then `config` is in `counterpoise.json`. A model
    that the folder has already is replaced, and its card; other files stay. The folder of a run is refused.

    Args:
        model: the primary; weights are written bit by bit as they are.
        folder: made if it is not there.
        config: what somebody must know to use the weights.
        card: what you say about the model, and its scores.
    """
    from counterpoise.export.card import card_text, require_consistent, write_figure

    model = uncompiled(model)
    require_primary(model)
    require_consistent(card, config)
    of_transformers = _is_of_transformers(model)
    if not of_transformers:
        _require_loadable(model, config)
    _require_no_run(Path(folder))
    matter = _front_matter(card, library="transformers" if of_transformers else "counterpoise")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / SUMS).unlink(missing_ok=True)
    earlier = {path: _aged(path) for name in _MODEL_FILES for path in target.glob(name)}
    if of_transformers:
        model.save_pretrained(target)  # type: ignore[operator]
    else:
        metadata = describe(class_names=config.class_names, mean=config.mean or (), std=config.std or ())
        export_safetensors(model, target / WEIGHTS, metadata=metadata, temperature=config.temperature)
    config_file = CONFIG_BESIDE if of_transformers else CONFIG
    write_text(target / config_file, config.to_json())
    for path, written in earlier.items():
        if path.exists() and path.stat().st_mtime_ns == written:  # of a model of another kind or size
            path.unlink()
    write_figure(card, config, target)
    weights = sorted(path for name in _MODEL_FILES for path in target.glob(name) if path.suffix == ".safetensors")
    digests = {path.name: digest_of(path) for path in weights}
    snippet = loading_snippet(config, transformers_class=type(model).__name__ if of_transformers else None)
    text = card_text(card, config, config_file=config_file, snippet=snippet, digests=digests)
    write_text(target / README, matter + text)
    write_sums(target, sums_of(target, _files(target)))


def push_to_hub(folder: str | Path, repo: str, *, private: bool = True, api: "HfApi | None" = None) -> str:
    """Upload a folder that `save_pretrained` wrote, with all that you have put beside it, and return its address.

    Args:
        folder: its files are uploaded, but for hidden ones.
        repo: `USER/NAME`; made if it is not there.
        private: whether a new repository can be seen by you alone.
        api: a client with an address or a token of its own; by default that of the Hub's own settings.
    """
    target = Path(folder)
    # A large model of transformers has its weights in several files.
    if missing := [name for name in (README, CONFIG, "*.safetensors") if not any(target.glob(name))]:
        raise ValueError(f"{target} is no folder of save_pretrained: it has no {', '.join(missing)}")
    # A card may be edited; what computes is what was saved.
    before = {name: digest for name, digest in (read_sums(target) or {}).items() if name != README}
    if changed := changed_in(target, before):
        raise ValueError(
            f"{target}: {', '.join(changed)} changed after save_pretrained wrote the folder; save it again"
        )
    for path in _files(target):
        inside(target, path.name)  # a link would upload what it points at
    write_sums(target, sums_of(target, _files(target)))
    client = api or _hub("an upload to the Hub").HfApi()
    with _reaching_the_hub(f"{target} is complete, and not uploaded"):
        address = client.create_repo(repo, private=private, exist_ok=True)
        client.upload_folder(
            repo_id=repo, folder_path=target, ignore_patterns=[".*", "*/.*"], commit_message="Model and card"
        )
    return str(address)


def _files(folder: Path) -> list[Path]:
    """Everything in a folder that is shared, but its digests: hidden files and folders are not."""
    paths = (path for path in folder.iterdir() if not path.name.startswith(".") and path.name != SUMS)
    return sorted(path for path in paths if path.is_file())


def from_pretrained(
    source: str | Path,
    *,
    model: nn.Module | None = None,
    revision: str | None = None,
    api: "HfApi | None" = None,
) -> Pretrained:
    """Load what `save_pretrained` wrote, from a folder or, where there is no such folder, from the Hub.

    Only safetensors and JSON are read. What transformers saved is for its own `from_pretrained`.

    Args:
        source: a folder, or `USER/NAME` on the Hub.
        model: the network to fill, where the configuration names no backbone.
        revision: branch, tag or commit on the Hub. A commit is the only one that nobody can change.
        api: a client for the Hub.
    """
    folder = Path(source)
    if not folder.is_dir():
        client = api or _hub(f"{source} is no folder here, and the Hub").HfApi()
        wanted = [WEIGHTS, CONFIG, CONFIG_BESIDE]
        with _reaching_the_hub(f"{source} is no folder here"):
            folder = Path(client.snapshot_download(str(source), revision=revision, allow_patterns=wanted))
    if (folder / CONFIG_BESIDE).is_file():
        raise ValueError(
            f"{folder} was saved by transformers: load it with that, and ModelConfig.load reads {CONFIG_BESIDE}"
        )
    config = ModelConfig.load(folder / CONFIG)
    weights = folder / WEIGHTS
    metadata, tensors = read_safetensors(weights)
    if model is None:
        try:
            with torch.device("meta"):  # so that a file is refused before its sizes are taken for granted
                require_fit(config.build(), metadata, tensors, path=weights)
        except (RuntimeError, TypeError) as error:  # the latter where a size is beyond 64 bits
            raise ValueError(f"{folder / CONFIG} is of a network that cannot be built: {error}") from None
    filled = config.build() if model is None else model
    fill(filled, metadata, tensors, path=weights)
    return Pretrained(filled.eval(), config)


@contextmanager
def _reaching_the_hub(state: str) -> Iterator[None]:
    """What fails on the way to the Hub is an `OSError`: the client's own, or one that says how things stand."""
    try:
        yield
    except OSError:
        raise
    except _hub("the Hub").errors.HTTPError as error:  # of its HTTP library, whose errors are of no kind of Python's
        raise OSError(f"the Hugging Face Hub cannot be reached: {error}; {state}") from error


def _aged(path: Path) -> int:
    """Make a file look old, and return its time: some file systems have seconds only, in which it is written again."""
    with suppress(PermissionError):
        os.utime(path, ns=(0, 0))
    return path.stat().st_mtime_ns


def _require_loadable(model: nn.Module, config: ModelConfig) -> None:
    """Refuse weights that `from_pretrained` would refuse: of another network than the configuration names."""
    if config.backbone is None:
        return
    with torch.device("meta"):
        expected = config.build().state_dict()
    if wrong := misfits(expected, model.state_dict()):
        raise ValueError(
            f"the model is not the {config.backbone.name} of the configuration with {len(config.class_names)} "
            f"classes: {wrong[0]}; correct the configuration, or save model.float()"
        )


def _require_no_run(folder: Path) -> None:
    """Refuse a folder whose `config.json` is another document of counterpoise, such as a run's recipe."""
    path = folder / CONFIG
    try:
        document = parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    schema = document.get("schema", "") if isinstance(document, dict) else ""
    if str(schema).startswith("counterpoise.") and schema != SCHEMA:
        raise ValueError(f"{path} is a {schema.rpartition('.')[-1]}, which would be overwritten; give another folder")


def _front_matter(card: "Card", *, library: str) -> str:
    """What the Hub reads of a card: licence, library, task, and the scores of what ships."""
    hub = _hub("a model card for the Hub")
    results = None if card.shipped is None else _results(card, card.shipped)
    data = hub.ModelCardData(
        license=card.license,
        library_name=library,
        pipeline_tag=card.task,
        tags=["calibration", "uncertainty", "counterpoise"],
        metrics=None if results is None else [result.metric_type for result in results],
        model_name=None if results is None else card.name,
        eval_results=results,
    )
    return f"---\n{data.to_yaml()}\n---\n\n"


def _results(card: "Card", scores: Scores) -> "list[EvalResult]":
    from counterpoise.export.card import public_name

    hub = _hub("a model card for the Hub")
    data_set = ", ".join(map(public_name, scores.source.data_sets)) or "unnamed"
    results = []
    for key, title in ((Key.ACCURACY, "Accuracy"), (Key.ECE, f"ECE, {scores.bins} bins")):
        estimate = scores[key]
        results.append(
            hub.EvalResult(
                task_type=card.task,
                dataset_type=data_set,
                dataset_name=data_set,
                dataset_split=", ".join(scores.source.splits) or None,
                metric_type=str(key),
                metric_name=f"{title} ({percent(scores.level)} interval {estimate.low:.4f} to {estimate.high:.4f})",
                metric_value=round(estimate.value, 4),
            )
        )
    return results


def _hub(purpose: str) -> ModuleType:
    return require("huggingface_hub", extra="hub", purpose=purpose)


def _is_of_transformers(model: nn.Module) -> bool:
    """Told by what it can do, so that transformers need not be there."""
    return callable(getattr(model, "save_pretrained", None)) and hasattr(getattr(model, "config", None), "model_type")
