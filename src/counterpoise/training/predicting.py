"""Images in many files in, predictions in as many files or their scores out, in one process or on a cluster.

The file is the unit of work: it is predicted whole, by whoever is free, and what is there already is not predicted
again. Batches end with their file, so that no prediction depends on who made it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import nn

from counterpoise._addresses import Address, as_path
from counterpoise._digests import digest_path, stated_digest
from counterpoise._documents import from_document, to_document
from counterpoise._engines import Engine, Here, in_order
from counterpoise._files import FilePath, write_text
from counterpoise.data.sources import resolve
from counterpoise.export import ModelConfig
from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.options import ScoreOptions
from counterpoise.predictions import (
    Predictions,
    PredictionWriter,
    Reading,
    write_manifest,
)
from counterpoise.predictions.formats import is_prediction_file
from counterpoise.predictions.shards import MANIFEST, Shard
from counterpoise.recipes.config import DataOptions, Unreadable
from counterpoise.scoring import Progress
from counterpoise.scoring.files import score_models
from counterpoise.scoring.models import ModelFiles
from counterpoise.training.evaluation import of_temperature
from counterpoise.training.image_shards import ImageShard, content_digests, image_shards
from counterpoise.training.own_data import OwnData
from counterpoise.training.predictors import loaded, model_source
from counterpoise.training.progress import say
from counterpoise.training.shard_predictions import Job, PredictedShard

PLAN = "plan.json"
PLAN_SCHEMA, PLAN_VERSION = "counterpoise.predicting", 2


@dataclass(frozen=True)
class Input:
    """A file of images, or a whole split.

    Attributes:
        name: of the file.
        rows: in it, where they are known beforehand.
        digest: of its content.
    """

    name: str
    rows: int | None
    digest: str


@dataclass(frozen=True)
class Plan:
    """What the predictions of a folder are of; kept there, so that nothing else is ever put beside them.

    Attributes:
        weights: SHA-256 of the model's.
        config: its classes, and the shape, normalisation and temperature that it predicts with.
        versions: of the libraries that a result depends on.
        device: the kind of device that computes.
        unreadable: what was done with images that cannot be decoded.
        data_set: what the images are called.
        split: of it.
        ood: whether they are out of distribution.
        size: that images were resized to.
        batch: images that were predicted at a time.
        inputs: the files, in order.
        domain: of the data set, if it has domains.
    """

    weights: str
    config: ModelConfig
    versions: dict[str, str]
    device: str
    unreadable: Unreadable
    data_set: str
    split: str
    ood: bool
    size: int | None
    batch: int
    inputs: tuple[Input, ...]
    domain: str | None = None


@dataclass(frozen=True)
class _Tables:
    """Of one data set."""

    name: str
    shards: Sequence[PredictedShard]


def predicted_shards(
    model: str | FilePath | nn.Module,
    data: str | Path,
    *,
    config: ModelConfig | None = None,
    split: str | None = None,
    domain: str | None = None,
    root: Path | None = None,
    size: int | None = None,
    ood: bool = False,
    unreadable: Unreadable | None = None,
    raw: bool = False,
    batch: int | None = None,
    device: str = "cpu",
) -> list[PredictedShard]:
    """What a model says of images in many files: one for each of them, which makes the predictions when it is read.

    Args:
        model: the folder of a run, an ONNX file, or a module, which other processes are sent with each file.
        data: a folder of Parquet files or tar shards of images, here or in an object store such as `s3://bucket/images`;
            or anything else that `counterpoise.data.resolve` knows, which is then one file.
        config: classes, shape and normalisation, of a module or of an ONNX file that another program wrote.
        split: of the data; by default `test`, or all where they are not divided.
        domain: of the data, for sets of domains; such a set is one file.
        root: folder of the local data sets.
        size: resize the shorter side of images to it and crop the centre; by default as the run did, or, for
            another model, to the size that its configuration or its metadata state.
        ood: out of distribution; labels are left out.
        unreadable: what is done with images that cannot be decoded; by default what the run did, or they are refused.
        raw: give the logits of a run before temperature scaling; by default they are divided by the temperature that
            ships, fitted on its validation images.
        batch: images that are predicted at a time; by default as many as the run's recipe says, or 500.
        device: where to compute.
    """
    for name, value in {"size": size, "batch": batch}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    source = model_source(model, config, raw=raw)
    about = loaded(source, "cpu")  # whoever gives out the work may have no other device
    own = about.own.options if about.own is not None else DataOptions(size=_side(about.config), unreadable="refuse")
    if about.own is not None and about.config.temperature != 1:
        say(of_temperature(about.config.temperature))
    job = Job(
        source,
        device,
        size or own.size,
        batch or about.batch,
        ood,
        about.header,
        about.members,
        unreadable or own.unreadable,
    )
    return [PredictedShard(job, images) for images in _own_shards(about.own, data, split, domain=domain, root=root)]


def _side(config: ModelConfig) -> int | None:
    """Height and width of the images that a model takes, if they are equal."""
    _, height, width = config.shape or (0, 0, 1)
    return height if height == width else None


def write_shards(
    shards: Sequence[PredictedShard],
    out: str | FilePath,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> FilePath:
    """Write for each file of images one of predictions of the same name, and a manifest at last.

    Run it again after an interruption: files that are whole are not predicted again.

    Args:
        shards: as `predicted_shards` gives them.
        out: folder for the predictions, here or in a store; or one file, `NAME.parquet`, which this process writes.
        engine: what predicts files in parallel: `counterpoise.scoring.Processes` or `counterpoise.scoring.Ray`.
        progress: called after every file.

    Returns:
        The path of the manifest, or of the one file.
    """
    folder = as_path(out)
    if folder.suffix.lower() == ".parquet":
        return _one_file(folder, shards, engine=engine, progress=progress)
    outputs = [folder / f"{name}.parquet" for name in _names(shards)]
    if any(_same(output, shard.path) for output, shard in zip(outputs, shards, strict=True)):
        raise ValueError(f"{folder} holds the images, which would be overwritten; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    there = _claimed(folder, _plan_of(shards))
    if MANIFEST in there:
        if all({output.name, digest_path(output).name} <= there for output in outputs):
            return folder / MANIFEST
        (folder / MANIFEST).unlink()
    rows, total = 0, sum(shard.images.rows or 0 for shard in shards) or None
    work, written = write_here if engine is None else write_remotely, list[Shard]()
    calls = [*zip(shards, outputs, strict=True)]
    for done, (_, shard) in enumerate(in_order(engine or Here(), work, calls), start=1):
        written.append(shard)
        rows += shard.rows or 0
        if progress is not None:
            progress(f"{done:,} of {len(shards):,} files", rows, total)
    return write_manifest(folder, written)


def score_shards(
    shards: Sequence[PredictedShard], *, engine: Engine | None = None, progress: Progress | None = None
) -> Evaluation:
    """What `score_files` gives of the files of `write_shards`, without writing them."""
    tables = _Tables(shards[0].images.source.location, shards)
    files = ModelFiles(tables, None, Reading(), shards[0].opened(Reading()))
    return score_models([files], options=ScoreOptions(), threads=1, engine=engine, progress=progress)


def write_here(shard: PredictedShard, output: FilePath) -> tuple[None, Shard]:
    """Write the predictions for one file, unless they are there, and describe them."""
    if not digest_path(output).is_file():  # which is written last
        _write(output, shard.tables())
    with output.open("rb") as file:
        rows = pq.read_metadata(file).num_rows
    size = output.stat().st_size if isinstance(output, Path) else output.identity()[0]
    return None, Shard(output, rows, stated_digest(digest_path(output)), size)


def write_remotely(*call: Any) -> tuple[None, Shard]:
    """`write_here` in a worker process, of which there is one for each core."""
    torch.set_num_threads(1)
    return write_here(*call)


def _write(path: FilePath, tables: Iterator[Predictions]) -> None:
    with PredictionWriter(path) as writer:
        for table in tables:
            writer.append(table)


def _own_shards(
    own: OwnData | None, data: str | Path, split: str | None, *, domain: str | None, root: Path | None
) -> list[ImageShard]:
    """The files of a split, or those rows of them that a run held out; a note says what it was trained on."""
    source = resolve(data, root=root)
    if own is None or domain is not None or not own.is_of(data, source, split, say=say):
        return image_shards(data, split, domain=domain, root=root)
    held = own.held_rows(source, split)
    if held is not None:
        return image_shards(data, own.training_split(source), root=root, only=held, called=split)
    shards = image_shards(data, split, root=root)
    if trained := len(own.trained_rows(data, source, shards[0].split, root=root)):
        say(own.note(trained))
    return shards


def _one_file(
    path: FilePath, shards: Sequence[PredictedShard], *, engine: Engine | None, progress: Progress | None
) -> FilePath:
    if engine is not None:
        raise ValueError(f"{path} is one file, which one process writes; name a folder")

    def every_table() -> Iterator[Predictions]:
        rows, total = 0, sum(shard.images.rows or 0 for shard in shards) or None
        for shard in shards:
            for table in shard.tables():
                yield table
                rows += len(table)
                if progress is not None:
                    progress(shard.path.name, rows, total)

    _write(path, every_table())
    return path


def _names(shards: Sequence[PredictedShard]) -> list[str]:
    """What the files are called, where that tells them apart."""
    stems = [shard.path.stem for shard in shards]
    told_apart = shards[0].images.is_file and len({*stems}) == len(stems)
    return stems if told_apart else [f"part-{place:05}" for place in range(len(shards))]


def _plan_of(shards: Sequence[PredictedShard]) -> Plan:
    job, images = shards[0].job, shards[0].images
    parts = [shard.images for shard in shards]
    inputs = zip(parts, content_digests(parts), strict=True)
    return Plan(
        weights=job.model.digest,
        config=loaded(job.model, "cpu").config,
        versions={name: job.header.versions[name] for name in ("counterpoise", "torch")},
        device=job.device.partition(":")[0],
        unreadable=job.unreadable,
        data_set=images.source.info.name,
        split=images.called or images.split,
        ood=job.ood,
        size=job.size,
        batch=job.batch,
        inputs=tuple(Input(each.path.name, each.rows, digest) for each, digest in inputs),
        domain=images.domain,
    )


def _claimed(folder: FilePath, plan: Plan) -> set[str]:
    """Names of what is in a folder, which is this plan's or nobody's, and from now on this plan's."""
    there = {each.name: each for each in folder.iterdir()} if folder.exists() else {}
    text = to_document(plan, schema=PLAN_SCHEMA, version=PLAN_VERSION)
    if PLAN in there:
        try:
            found, wanted = (
                from_document(Plan, each, schema=PLAN_SCHEMA, version=PLAN_VERSION)
                for each in ((folder / PLAN).read_text(), text)
            )
        except ValueError as error:
            raise ValueError(f"{folder / PLAN}: {error}; name another folder, or delete this one") from None
        if found != wanted:
            raise ValueError(
                f"{folder} holds predictions of another run: {_difference(found, wanted)}; name another folder, or "
                "delete this one"
            )
    elif MANIFEST in there or any(is_prediction_file(each) for each in there.values()):
        raise ValueError(f"{folder} holds predictions already, and no {PLAN} that says of what; name another folder")
    else:
        write_text(folder / PLAN, text)
    return set(there)


def _difference(found: Plan, plan: Plan) -> str:
    """Between two plans, in words."""
    theirs, ours = _by_name(found), _by_name(plan)
    for name in ours:
        if theirs.get(name) != ours[name]:
            return f"its {name} is {theirs.get(name)!s:.80}, here it is {ours[name]!s:.80}"
    if len(found.inputs) != len(plan.inputs):
        return f"it is of {len(found.inputs):,} files of images, here there are {len(plan.inputs):,}"
    its, own = next(pair for pair in zip(found.inputs, plan.inputs, strict=True) if pair[0] != pair[1])
    return f"{own.name} holds other images than {its.name} did"


def _by_name(plan: Plan) -> dict[str, object]:
    """What a plan says of everything but its inputs, by names for people."""
    versions = {f"version of {library}": version for library, version in plan.versions.items()}
    own = {name: getattr(plan, name) for name in vars(plan) if name not in ("config", "versions", "inputs")}
    return {name.replace("_", " "): value for name, value in (own | vars(plan.config) | versions).items()}


def _same(one: FilePath, other: FilePath) -> bool:
    if isinstance(one, Address) or isinstance(other, Address):
        return one == other
    return one.resolve() == other.resolve()
