"""Bit flips, truncations and splices: what a reader takes for whole although its values are others."""

import hashlib
import multiprocessing as mp
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from benchmarks.reporting import Check, progress
from counterpoise._digests import write_digest
from counterpoise._files import digest_of
from counterpoise.predictions import find_shards, read_predictions, write_manifest, write_predictions
from fuzzing import documents, seeds
from fuzzing.mutations import flipped, spliced, truncated

Values = Callable[[Path], object]
"""What a reader makes of a folder's file."""

_FORK = mp.get_context("fork")


@dataclass(frozen=True)
class Form:
    """A file that is damaged, and how it is read.

    Attributes:
        file: its name in a folder of its own.
        make: writes it, and what belongs to it.
        read: reads it; the same values for the same content.
    """

    file: str
    make: Callable[[Path], object]
    read: Values


def _predictions(name: str, made: Callable[[Path], Any], *, digest: bool) -> Form:
    def make(folder: Path) -> None:
        path = folder / name
        path.write_bytes(made(folder)[0])
        if digest:
            write_digest(path, digest_of(path))

    return Form(name, make, lambda path: _of_table(path))


def _of_table(path: Path) -> object:
    table = read_predictions(path)
    return [_part(getattr(table, field.name)) for field in fields(table)]


def _part(value: Any) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype == object else value.tobytes()
    return value.texts() if hasattr(value, "texts") else repr(value)


FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "Parquet": ("p.parquet", seeds.parquet),
    "CSV": ("p.csv", seeds.csv),
    "JSON lines": ("p.jsonl", seeds.json_lines),
    "NPZ": ("p.npz", seeds.npz),
    "safetensors": ("p.safetensors", seeds.safetensors),
    "Arrow": ("p.arrow", seeds.arrow),
}


def _shards(folder: Path) -> None:
    for number in range(2):
        write_predictions(folder / f"{number}.parquet", seeds.table(20))
        (folder / f"{number}.parquet.sha256").unlink()
    write_manifest(folder)


def _of_shards(path: Path) -> object:
    shards = find_shards(path.parent / "manifest.json").shards
    return [table.values.tobytes() for shard in shards for table in shard.opened().batches()]


def _checkpoint(folder: Path) -> None:
    from counterpoise.training.checkpoints import Entry, Manifest, write_manifest

    file = folder / "step-000000004.ckpt"
    torch.save({"state_dict": {"w": torch.randn(8, 8)}, "epoch": 1}, file)
    write_manifest(folder, Manifest(last=Entry(file.name, digest_of(file), file.stat().st_size, 4, 1)))


def _of_checkpoint(path: Path) -> object:
    from counterpoise.training.checkpoints import newest_intact, state_digest

    entry, faults = newest_intact(path.parent)
    if entry is None:
        raise ValueError(faults or "no checkpoint")
    return state_digest(path.parent / entry.file)


def _document(name: str) -> Form:
    """One that says in itself what its digest is, or has none."""
    file, made, read, is_whole = documents.DOCUMENTS[name]

    def make(folder: Path) -> None:
        (folder / file).write_bytes(made(folder)[0])

    def values(path: Path) -> object:
        return _plain(read(path if is_whole else path.read_text(encoding="utf-8")))

    return Form(file, make, values)


def _plain(value: Any) -> object:
    """What tells two of them apart: documents by their values, networks by their weights, others by their parts."""
    network = getattr(value, "model", None)
    if network is not None and hasattr(network, "state_dict"):
        return [(name, tensor.numpy().tobytes()) for name, tensor in network.state_dict().items()]
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    return value.to_json() if hasattr(value, "to_json") else repr(value)


def forms(folder: Path) -> tuple[dict[str, Form], dict[str, Form]]:
    """With a digest, and without."""
    with_digest = {name: _predictions(*each, digest=True) for name, each in FILES.items()}
    with_digest |= {
        "digest of a file": Form("p.parquet.sha256", _with_digest, lambda path: _of_table(path.with_suffix(""))),
        "shard of a manifest": Form("0.parquet", _shards, _of_shards),
        "manifest of shards": Form("manifest.json", _shards, _of_shards),
        "checkpoint": Form("step-000000004.ckpt", _checkpoint, _of_checkpoint),
    }
    without = {name: _predictions(*each, digest=False) for name, each in FILES.items()}
    for name in (
        "calibrator",
        "scores",
        "evaluation",
        "cell",
        "recipe",
        "score-state",
        "stream",
        "primary",
        "hub-weights",
    ):
        form = _document(name)
        place = folder / name
        place.mkdir()
        form.make(place)
        carries = b"sha256" in (place / form.file).read_bytes() or (place / "SHA256SUMS").exists()
        (with_digest if carries else without)[name] = form
    return with_digest, without


def _with_digest(folder: Path) -> None:
    write_predictions(folder / "p.parquet", seeds.table(20))


def damage(*, short: bool) -> tuple[dict[str, Any], list[Check]]:
    """Of each form, flips and cuts; those with a digest may be read only with the same values."""
    flips, cuts = (1000, 100) if short else (10_000, 1_000)
    figures: dict[str, Any] = {"with digest": {}, "without digest": {}}
    with tempfile.TemporaryDirectory() as folder:
        both = dict(zip(figures, forms(Path(folder)), strict=True))
    for kind, chosen in both.items():
        share = 1 if kind == "with digest" else 5
        counts = (-(-flips // share // len(chosen)), -(-cuts // share // len(chosen)))
        for name, form in chosen.items():
            figures[kind][name] = _counted(form, *counts)
            progress(f"{name}, {kind}: {figures[kind][name]}")
    total = Counter[str]()
    for counted in figures["with digest"].values():
        total.update(counted)
    figures["with digest, all"] = dict(total)
    tried = total["flips"] + total["truncations and splices"]
    return figures, [
        Check("flips of files with a digest", total["flips"], at_least=flips),
        Check("truncations and splices of files with a digest", total["truncations and splices"], at_least=cuts),
        Check("damaged files with a digest that were read with other values", total["other values"], at_most=0),
        Check(
            "damaged files with a digest that were refused, or read with the same values",
            total["refused"] + total["same values"],
            at_least=tried,
        ),
    ]


def _counted(form: Form, flips: int, cuts: int) -> dict[str, int]:
    """In a process of its own, because a library may end it."""
    answers, asked = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_child, args=(form, flips, cuts, asked))
    child.start()
    asked.close()
    try:
        counted: dict[str, int] = answers.recv()
    except EOFError:
        counted = {"aborted": 1}
    child.join()
    return counted


def _child(form: Form, flips: int, cuts: int, asked: Connection) -> None:
    warnings.simplefilter("ignore")
    counted = Counter({"flips": flips, "truncations and splices": cuts})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        form.make(folder)
        path = folder / form.file
        data = path.read_bytes()
        expected = form.read(path)
        for damaged in _damaged(data, flips, cuts):
            if path.is_dir():
                shutil.rmtree(path)
            path.write_bytes(damaged)
            try:
                found = form.read(path)
            except ValueError:
                counted["refused"] += 1
            except Exception as error:
                counted[f"crashed: {type(error).__name__}"] += 1
            else:
                counted["same values" if found == expected else "other values"] += 1
    asked.send(dict(counted))


def _damaged(data: bytes, flips: int, cuts: int) -> Iterator[bytes]:
    random = Random(hashlib.sha256(data).digest())  # noqa: S311
    for _ in range(flips):
        yield flipped(random, data)
    for number in range(cuts):
        changed = data
        while changed == data:
            changed = truncated(random, data) if number % 2 else spliced(random, data, [data])
        yield changed
