"""Files as other programs write them: whoever takes the first answer to each question has the right scores."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise.cli import main
from form_files import NAMES, SAMPLES, Forms

pytestmark = pytest.mark.usefixtures("few_resamples")

MOST_QUESTIONS = 3


class Program(Forms):
    """What a program writes of the same predictions."""

    def csv(self, columns: dict[str, object], **options: object) -> None:
        pd.DataFrame(columns).to_csv(self.folder / "file.csv", **({"index": False} | options))

    def json_lines(self, rows: list[dict[str, object]]) -> None:
        (self.folder / "file.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def wide(self, form: str) -> dict[str, object]:
        return {form.format(name): self.probabilities[:, place] for place, name in enumerate(NAMES)}

    @property
    def answers(self) -> np.ndarray:
        return np.array(NAMES)[self.predicted]

    @property
    def sorted(self) -> np.ndarray:
        return -np.sort(-self.probabilities)


def cells(rows: np.ndarray, form: str) -> list[str]:
    return [form.format(", ".join(map(str, row))) for row in rows.tolist()]


PROGRAMS: dict[str, tuple[int, Callable[[Program], None]]] = {
    "AutoGluon": (0, lambda p: p.csv({"label": p.texts} | p.wide("{}"), index=True)),
    "Azure Machine Learning Studio": (
        1,
        lambda p: p.csv(
            {"kind": p.texts} | p.wide('Scored Probabilities for Class "{}"') | {"Scored Labels": p.answers}
        ),
    ),
    "BigQuery ML": (
        2,
        lambda p: p.json_lines(
            [
                {
                    "predicted_kind": answer,
                    "predicted_kind_probs": [{"label": NAMES[k], "prob": row[k]} for k in np.argsort(row)[::-1]],
                    "kind": text,
                }
                for answer, row, text in zip(p.answers, p.probabilities.tolist(), p.texts, strict=True)
            ]
        ),
    ),
    "caret": (
        1,
        lambda p: p.csv(p.wide("{}") | {"obs": p.texts, "pred": p.answers, "rowIndex": range(SAMPLES)}, index=True),
    ),
    "DataRobot": (1, lambda p: p.csv({"row_id": range(SAMPLES)} | p.wide("Prediction_{}") | {"target": p.texts})),
    "H2O": (1, lambda p: p.csv({"predict": p.answers} | p.wide("{}") | {"kind": p.texts})),
    "Keras": (1, lambda p: np.savez(p.folder / "file.npz", y_pred=p.probabilities, y_test=p.labels)),
    "KNIME": (
        2,
        lambda p: p.csv(
            {"Row ID": [f"Row{row}" for row in range(SAMPLES)], "kind": p.texts}
            | p.wide("P (kind={})")
            | {"Prediction (kind)": p.answers, "Prediction (kind) (Confidence)": p.sorted[:, 0]}
        ),
    ),
    "MATLAB": (
        2,
        lambda p: p.csv(
            {f"score{k + 1}": p.probabilities[:, k] for k in range(len(NAMES))} | {"trueLabel": p.labels + 1}
        ),
    ),
    "mlr3": (0, lambda p: p.csv({"row_ids": range(SAMPLES), "truth": p.texts, "response": p.answers} | p.wide("prob.{}"))),
    "NumPy 2 in cells": (
        0,
        lambda p: p.csv({"label": p.labels, "probs": [str([np.float64(x) for x in row]) for row in p.probabilities]}),
    ),
    "RapidMiner": (
        1,
        lambda p: p.csv(
            {"id": range(SAMPLES), "label": p.texts, "prediction(label)": p.answers} | p.wide("confidence({})"), sep=";"
        ),
    ),
    "SageMaker": (
        1,
        lambda p: p.json_lines(
            [
                {"predicted_label": answer, "probability": max(row), "probabilities": row, "labels": NAMES, "actual": text}
                for answer, row, text in zip(p.answers, p.probabilities.tolist(), p.texts, strict=True)
            ]
        ),
    ),
    "Spark": (
        0,
        lambda p: p.csv(
            {
                "label": p.labels.astype(float),
                "rawPrediction": cells(p.logits, "[{}]"),
                "probability": cells(p.probabilities, "DenseVector([{}])"),
                "prediction": p.predicted.astype(float),
            }
        ),
    ),
    "tidymodels": (1, lambda p: p.csv({".pred_class": p.answers} | p.wide(".pred_{}") | {".row": range(SAMPLES), "kind": p.texts})),
    "torch in cells": (
        0,
        lambda p: p.csv({"label": p.labels, "logits": cells(p.logits, "tensor([{}], device='cuda:0')")}),
    ),
    "transformers": (1, lambda p: np.savez(p.folder / "file.npz", predictions=p.logits, label_ids=p.labels)),
    "Vertex AI": (
        2,
        lambda p: p.json_lines(
            [
                {"instance": {"version": 1, "kind": text}, "prediction": {"scores": row, "classes": NAMES}}
                for row, text in zip(p.probabilities.tolist(), p.texts, strict=True)
            ]
        ),
    ),
}  # fmt: skip
"""How many questions a file asks, and what writes it."""


def questions(path: Path, capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, str, str]:
    """How many were answered, each with its first answer; the output; what could not be answered."""
    arguments, asked = [str(path), *given], 0
    while True:
        sys.argv = ["counterpoise", "evaluate", *arguments, "--json"]
        with pytest.raises(SystemExit) as ended:
            main()
        out, error = capsys.readouterr()
        answers = re.findall(r"^  counterpoise evaluate (.*)$", error, re.M)
        if ended.value.code == 0 or not answers or asked == MOST_QUESTIONS:
            return asked, out, error
        arguments = [word for word in shlex.split(answers[0], comments=True) if word != "--json"]
        asked += 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_answer_is_right(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    program = Program(tmp_path)
    most, write = PROGRAMS[name]
    write(program)
    (path,) = tmp_path.iterdir()
    asked, out, error = questions(path, capsys)
    assert out, error
    (model,) = json.loads(out)["models"]
    found = {key: model["estimates"][key]["value"] for key in program.truth}
    assert found == pytest.approx(program.truth, abs=1e-6), error
    assert asked == most


def test_the_largest_of_all_are_no_yes_or_no_for_each_class(tmp_path, capsys, monkeypatch):
    """As timm writes them; the label must come from elsewhere, and the second class is not offered for it."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    program = Program(tmp_path)
    order = np.argsort(-program.probabilities)
    columns = {f"label_{k}": order[:, k] for k in range(3)} | {f"prob_{k}": program.sorted[:, k] for k in range(3)}
    program.csv({"filename": [f"{row}.jpg" for row in range(SAMPLES)]} | columns)
    asked, out, error = questions(tmp_path / "file.csv", capsys)
    assert (asked, out) == (1, "")
    assert "name the column of labels with --label NAME" in error
    program.csv({"actual": program.labels} | columns)
    asked, out, _ = questions(tmp_path / "file.csv", capsys, "--confidence", "prob_0", "--prediction", "label_0")
    assert asked == 0
    assert json.loads(out)["models"][0]["estimates"]["accuracy"]["value"] == pytest.approx(program.truth["accuracy"])


@pytest.mark.parametrize("is_of_yes", [True, False])
def test_a_number_beside_yes_or_no(is_of_yes, tmp_path, capsys, monkeypatch):
    """As MLflow writes it; whether it is of yes or of the prediction is asked, the likelier one first."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    program = Program(tmp_path)
    predicted = (program.positive > 0.5).astype(int)
    score = program.positive if is_of_yes else np.maximum(program.positive, 1 - program.positive)
    rows = [list(row) for row in zip(program.yes.tolist(), predicted.tolist(), score.tolist(), strict=True)]
    document = {"columns": ["target", "prediction", "score"], "data": rows}
    (tmp_path / "table.json").write_text(json.dumps(document))
    asked, out, _ = questions(tmp_path / "table.json", capsys)
    assert asked == 1
    (model,) = json.loads(out)["models"]
    assert model["estimates"]["accuracy"]["value"] == pytest.approx((predicted == program.yes).mean())
    assert ("nll" in model["estimates"]) is is_of_yes


def test_decimals_of_databases(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    program = Program(tmp_path)
    values = {f"prob_{k}": [Decimal(f"{x:.12f}") for x in program.probabilities[:, k]] for k in range(len(NAMES))}
    labels = pa.array([Decimal(label) for label in program.labels.tolist()], pa.decimal128(38, 0))
    pq.write_table(pa.table(values | {"label": labels}), tmp_path / "file.parquet")
    asked, out, error = questions(tmp_path / "file.parquet", capsys)
    assert out, error
    assert asked == 0
    estimates = json.loads(out)["models"][0]["estimates"]
    assert {key: estimates[key]["value"] for key in program.truth} == pytest.approx(program.truth, abs=1e-6)


def test_columns_without_a_name_may_be_several(tmp_path, capsys, monkeypatch):
    """Spreadsheets leave them at the end."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    (tmp_path / "file.csv").write_text("prob_a,prob_b,label,,\n" + "0.75,0.25,a,,\n0.5,0.5,b,,\n" * 10)
    asked, out, error = questions(tmp_path / "file.csv", capsys)
    assert out, error
    assert asked == 0
