"""Writes files of one set of predictions, and keeps what `evaluate` must make of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

SAMPLES = 120
NAMES = ("ant", "bee", "cow", "dog", "eel", "fox")
CLASSES = len(NAMES)
OOD_SAMPLES = 60


@dataclass(frozen=True)
class Form:
    """One form.

    Attributes:
        name: of the form.
        arguments: of `evaluate`, in the folder of the files.
        expect: `accuracy` and `nll` of the only model, `models` where there are several, `ood` samples.
        asks: whether its names leave a choice, so that a question with the right command comes first.
        refused: words of the message, where it must not be read.
        tolerance: of the values.
    """

    name: str
    arguments: tuple[str, ...]
    expect: Mapping[str, float] = field(default_factory=dict)
    asks: bool = False
    refused: tuple[str, ...] = ()
    tolerance: float = 1e-6


class Forms:
    """Writes the files into a folder and collects the forms."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.forms = folder, list[Form]()
        rng = np.random.default_rng(11)
        self.logits = 2 * rng.standard_normal((SAMPLES, CLASSES))
        self.other = 0.8 * self.logits + 0.3 * rng.standard_normal((SAMPLES, CLASSES))
        self.probabilities = softmax(self.logits)
        self.labels = (rng.random((SAMPLES, 1)) > softmax(0.7 * self.logits).cumsum(-1)).sum(-1)
        self.far = rng.standard_normal((OOD_SAMPLES, CLASSES))
        self.far_labels = rng.integers(0, 40, OOD_SAMPLES)
        score = 2 * rng.standard_normal(SAMPLES)
        self.yes = (rng.random(SAMPLES) < 1 / (1 + np.exp(-score))).astype(int)
        self.positive = 1 / (1 + np.exp(-1.4 * score))
        self.texts = np.array(NAMES)[self.labels]
        self.predicted = self.probabilities.argmax(-1)
        own = self.probabilities[np.arange(SAMPLES), self.labels]
        self.truth = {"accuracy": (self.predicted == self.labels).mean(), "nll": -np.log(own).mean()}
        self.top = {"accuracy": self.truth["accuracy"]}
        hit = np.where(self.yes == 1, self.positive, 1 - self.positive)
        self.binary = {"accuracy": (hit > 0.5).mean(), "nll": -np.log(hit).mean()}

    def add(self, name: str, *arguments: str, expect: Mapping[str, float] | None = None, **rest: Any) -> None:
        self.forms.append(Form(name, arguments or (name,), self.truth if expect is None else expect, **rest))

    def refuse(self, name: str, *words: str, arguments: tuple[str, ...] = ()) -> None:
        self.forms.append(Form(name, arguments or (name,), refused=words))

    def table(
        self, name: str, columns: Mapping[str, Any], *, write: Mapping[str, Any] | None = None, **rest: Any
    ) -> None:
        frame, options = pd.DataFrame(columns), dict(write or {})
        writer: Callable[..., None] = frame.to_csv
        if name.endswith(".parquet"):
            writer = frame.to_parquet
        elif ".jsonl" in name:
            writer, options = frame.to_json, {"orient": "records", "lines": True}
        elif ".json" in name:
            writer = frame.to_json
        writer(self.folder / name, **({} if ".json" in name else {"index": False}) | options)
        self.add(name, **rest)

    def arrays(self, name: str, *, rest: Mapping[str, Any] | None = None, **arrays: Any) -> None:
        np.savez(self.folder / name, **arrays)
        self.add(name, **(rest or {}))

    def shards(self, name: str, values: np.ndarray, *, ids: bool) -> None:
        (self.folder / name).mkdir()
        for number, rows in enumerate(np.array_split(np.arange(SAMPLES), 5)):
            columns = {"logits": list(values[rows]), "label": self.labels[rows]} | ({"id": rows} if ids else {})
            pq.write_table(pa.table(columns), self.folder / name / f"part-{number}.parquet")


def softmax(values: np.ndarray) -> np.ndarray:
    raised = np.exp(values - values.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)
