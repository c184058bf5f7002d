"""Tables of predictions that tests write and read back, what it means that two are the same, and why one is refused."""

import hashlib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from counterpoise.predictions import Category, Header, PredictionFileError, Predictions, read_predictions

HEADER = Header(
    class_names=("cat", "dog, big", "Ötzi\n\0"),
    model="resnet34",
    method="mte-1",
    seed=2**63,
    config_digest="ab" * 32,
    versions={"torch": "2.8"},
)


def a_table(rows: int = 6, *, seed: int = 0, members: int | None = None, header: Header = HEADER) -> Predictions:
    """With every column."""
    generator = np.random.default_rng(seed)
    shape = (rows, 3) if members is None else (rows, members, 3)
    return Predictions.of(
        logits=generator.standard_normal(shape).astype(np.float32),
        labels=generator.integers(-1, 3, rows),
        ids=[f"image-{index}" for index in range(rows)],
        split="test",
        data_set=["a", "b"] * (rows // 2) + ["a"] * (rows % 2),
        domain=[None] * rows,
        corruption=generator.choice(np.array([None, "fog", "søl", ""], object), rows).tolist(),
        severity=generator.integers(0, 6, rows),
        in_distribution=generator.random(rows) < 0.7,
        header=header,
    )


def difference(one: Predictions, other: Predictions) -> str | None:
    """The first field in which two tables differ; values bit by bit, so that NaN equals itself."""
    for field in (each for each in fields(Predictions) if each.compare):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, Category) and isinstance(b, Category):
            same = a.texts() == b.texts()
        elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            same = a.shape == b.shape and a.dtype == b.dtype
            same = same and (np.array_equal(a, b) if a.dtype == object else a.tobytes() == b.tobytes())
        else:
            same = a == b
        if not same:
            return field.name
    return None


def write_digest_anew(path: Path) -> None:
    """As `sha256sum` would, after a change that is meant."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name(f"{path.name}.sha256").write_text(f"{digest}  {path.name}\n")


def csv_file(folder: Path, text: str | bytes) -> Path:
    (folder / "p.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "p.csv"


def refusal(path: Path) -> str:
    """Why a file is refused, without the name of the file, which must come first."""
    with pytest.raises(PredictionFileError) as raised:
        read_predictions(path)
    assert str(raised.value).startswith(f"{path}: ")
    return str(raised.value).removeprefix(f"{path}: ")
