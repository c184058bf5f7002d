"""Prediction files in the forms that people have them, each with the arguments of `evaluate` and what must come out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file

from form_files import CLASSES, NAMES, OOD_SAMPLES, SAMPLES, Form, Forms


def write_forms(folder: Path) -> list[Form]:
    """Write every form into a folder."""
    forms = Forms(folder)
    _wide_tables(forms)
    _labels(forms)
    _text_files(forms)
    _lists(forms)
    _arrays(forms)
    _tensors(forms)
    _documents(forms)
    _binary(forms)
    _top_label(forms)
    _several_files(forms)
    _refused(forms)
    return forms.forms


def _wide(forms: Forms, pattern: str, values: np.ndarray | None = None) -> dict[str, Any]:
    columns = forms.probabilities if values is None else values
    return {pattern.format(index=index, name=name): columns[:, index] for index, name in enumerate(NAMES)}


def _wide_from_one(forms: Forms) -> dict[str, Any]:
    return {f"prob_{index + 1}": forms.probabilities[:, index] for index in range(CLASSES)}


def _wide_tables(forms: Forms) -> None:
    ask = {"class_{index}", "score_{index}", "out{index}"}
    patterns = (
        "probability_{index}", "prob_{index}", "p{index}", "p_{index}", "{index}", "prob_{name}", "{name}", "proba_{index}",
        "probs_{index}", "Prob {index}", "PROB_{name}", "y_prob_{index}", "softmax_{index}", *sorted(ask),
    )  # fmt: skip
    for number, pattern in enumerate(("logits/{index}", "logits[{index}]", "logit:{name}")):
        labels = forms.texts if "{name}" in pattern else forms.labels
        forms.table(f"separated_{number}.csv", _wide(forms, pattern, forms.logits) | {"label": labels})
    for number, pattern in enumerate(patterns):
        labels = forms.texts if "{name}" in pattern else forms.labels
        forms.table(f"wide_{number}.csv", _wide(forms, pattern) | {"label": labels}, asks=pattern in ask)
    for number, pattern in enumerate(("p({name})", "P(y={name})", "{name}_prob", "score_of_{name}")):
        forms.table(f"named_{number}.csv", _wide(forms, pattern) | {"label": forms.texts}, asks=True)
        forms.forms.pop()
        forms.add(f"named_{number}.csv", f"named_{number}.csv", "--probabilities", ",".join(_wide(forms, pattern)))
    forms.table("wide_logit.csv", _wide(forms, "logit_{index}", forms.logits) | {"label": forms.labels})
    forms.table("wide.parquet", _wide(forms, "prob_{index}") | {"label": forms.labels})
    forms.table("from_one.csv", _wide_from_one(forms) | {"label": forms.labels + 1}, asks=True)
    turned = dict(reversed(_wide(forms, "prob_{index}").items()))
    forms.table("wide_turned.csv", turned | {"label": forms.labels})
    extra = {"path": [f"{row}.png" for row in range(SAMPLES)], "loss": np.zeros(SAMPLES), "pred": forms.predicted}
    forms.table("extra.csv", _wide(forms, "prob_{index}") | {"label": forms.labels} | extra)


def _labels(forms: Forms) -> None:
    known = (
        "y_true", "target", "targets", "labels", "y", "true_label", "ground_truth", "Label", "gt", "y_test", "gold", "actual", "expected",
    )  # fmt: skip
    for name in known:
        forms.table(f"label_{name}.csv", _wide(forms, "prob_{index}") | {name: forms.labels})
    forms.table("label_odd.csv", _wide(forms, "prob_{index}") | {"what": forms.labels}, asks=True)
    forms.table("label_class.csv", _wide(forms, "prob_{name}") | {"class": forms.texts, "file": "x"}, asks=True)
    base = _wide(forms, "prob_{index}")
    forms.table("label_float.csv", base | {"label": forms.labels.astype(float)})
    forms.table("label_float.parquet", base | {"label": forms.labels.astype(float)})
    rounded = {name: np.round(column, 3) for name, column in base.items()}
    forms.table("rounded_3.csv", rounded | {"label": forms.labels}, tolerance=2e-3)
    rounded = {name: np.round(column, 2) for name, column in base.items()}
    forms.table("rounded_2.csv", rounded | {"label": forms.labels}, expect=forms.top, tolerance=0.02)
    percent = {name: np.round(100 * column, 4) for name, column in base.items()}
    forms.table("percent.csv", percent | {"label": forms.labels}, asks=True, tolerance=1e-5)


def _text_files(forms: Forms) -> None:
    base = _wide(forms, "prob_{index}") | {"label": forms.labels}
    forms.table("with_index.csv", base, write={"index": True})
    forms.table("tabs.tsv", base, write={"sep": "\t"})
    forms.table("tabs.csv", base, write={"sep": "\t"})
    forms.table("pipes.csv", base, write={"sep": "|"})
    forms.table("spaces.csv", base, write={"sep": " "})
    forms.table("semicolons.csv", base, write={"sep": ";"})
    forms.table("decimal_commas.csv", base, write={"sep": ";", "decimal": ","})
    for suffix in ("gz", "bz2", "xz", "zst"):
        if suffix != "zst":
            forms.table(f"packed.csv.{suffix}", base)
    packed = pa.compress((forms.folder / "tabs.csv").read_bytes(), "zstd", asbytes=True)
    (forms.folder / "packed.csv.zst").write_bytes(packed)
    forms.add("packed.csv.zst")
    forms.table("marked.csv", base, write={"encoding": "utf-8-sig"})
    forms.table("utf16.csv", base, write={"encoding": "utf-16"})
    plain = (forms.folder / "plain.csv").write_text
    plain("# by eval.py\n#\n" + pd.DataFrame(base).to_csv(index=False))
    forms.add("comments.csv", "plain.csv")
    numbers = np.column_stack(list(base.values()))
    for name, separator in (("savetxt.csv", ","), ("savetxt_spaces.csv", " ")):
        np.savetxt(forms.folder / name, numbers, delimiter=separator, header=f"by eval.py\n{separator.join(base)}")
        forms.add(name)
    capitals = _wide(forms, "prob_{name}") | {"label": [text.upper() for text in forms.texts]}
    forms.table("capitals.csv", capitals)
    signs = {name: [f"{100 * each:.6f}%" for each in column] for name, column in _wide(forms, "prob_{name}").items()}
    forms.table("percent_signs.csv", signs | {"label": forms.texts})
    commas = {
        name: [each.replace(".", ",").replace("%", "\u202f%") for each in column] for name, column in signs.items()
    }
    forms.table("percent_signs_and_commas.csv", commas | {"label": forms.texts}, write={"sep": ";"})
    forms.table("lists.csv", {"probs": list(map(list, forms.probabilities.tolist())), "label": forms.labels})
    arrays = [str(row.round(6)).replace(" ", "\n ", 1) for row in forms.probabilities]
    forms.table("arrays.csv", {"probs": arrays, "label": forms.labels}, tolerance=1e-5)
    objects = [dict(zip(NAMES, row, strict=True)) for row in forms.probabilities.tolist()]
    forms.table("objects.jsonl", {"probs": objects, "gold": forms.texts})
    forms.table("lines.jsonl", base)
    forms.table("lines.jsonl.gz", base)


def _lists(forms: Forms) -> None:
    for name in ("logits", "log_probs", "probs", "probabilities", "proba", "scores"):
        values = forms.logits if name == "logits" else forms.probabilities
        values = np.log(values) if name == "log_probs" else values
        forms.table(f"list_{name}.parquet", {name: list(values), "label": forms.labels}, asks=name == "scores")
    rows = [row.tolist() for row in forms.logits]
    forms.table("list.jsonl", {"logits": rows, "label": forms.labels})
    forms.table("list_text.parquet", {"logits": rows, "label": forms.texts}, asks=True)
    category = pd.Categorical(forms.texts, categories=NAMES)
    forms.table("list_category.parquet", {"logits": rows, "label": category}, asks=True)
    frame = pd.DataFrame(
        {"logits": rows, "label": forms.labels}, index=pd.Index([f"s{row}" for row in range(SAMPLES)], name="id")
    )
    frame.to_parquet(forms.folder / "list_index.parquet")
    forms.add("list_index.parquet")
    feather.write_feather(pa.table({"logits": rows, "label": forms.labels}), forms.folder / "list.feather")
    forms.add("list.feather")
    table = pa.table({"logits": rows, "label": forms.labels})
    with pa.ipc.new_stream(forms.folder / "stream.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=50)
    forms.add("stream.arrow")


def _arrays(forms: Forms) -> None:
    p, z, y = forms.probabilities, forms.logits, forms.labels
    ask = {"rest": {"asks": True}}
    forms.arrays("plain.npz", probabilities=p, labels=y)
    forms.arrays("sklearn.npz", y_prob=p, y_true=y)
    forms.arrays("proba.npz", proba=p, y=y)
    forms.arrays("probs.npz", probs=p, labels=y)
    forms.arrays("predict_proba.npz", predict_proba=p, y_test=y)
    forms.arrays("singular.npz", probabilities=p, label=y)
    forms.arrays("targets.npz", logits=z, targets=y)
    forms.arrays("names.npz", probabilities=p, labels=forms.texts, class_names=np.array(NAMES))
    forms.arrays("floats.npz", probabilities=p, labels=y.astype(float))
    forms.arrays("column.npz", probabilities=p, labels=y[:, None])
    forms.arrays("float32.npz", logits=z.astype(np.float32), labels=y.astype(np.int32), rest={"tolerance": 1e-5})
    forms.arrays("one_hot.npz", probabilities=p, labels=np.eye(CLASSES)[y], **ask)
    forms.arrays("log_probs.npz", log_probs=np.log(p), labels=y)
    np.savez(forms.folder / "unnamed.npz", p, y)
    forms.add("unnamed.npz", asks=True)
    np.save(forms.folder / "logits.npy", z)
    np.save(forms.folder / "labels.npy", y)
    forms.add("npy and labels", "logits.npy", "--labels", "labels.npy")
    forms.add("npy alone", "logits.npy", asks=True)
    pd.DataFrame({"y": forms.texts}).to_csv(forms.folder / "texts.csv", index=False)
    pd.DataFrame({"id": range(SAMPLES), "label": forms.texts})[::-1].to_csv(forms.folder / "truth.csv", index=False)
    forms.table("bare.csv", _wide(forms, "{name}") | {"id": range(SAMPLES)})
    forms.forms.pop()
    forms.add("names in labels of a file", "bare.csv", "--labels", "truth.csv")
    files = [f"{row}.png" for row in range(SAMPLES)]
    pd.DataFrame({"file": files, "label": forms.texts})[::-1].to_csv(forms.folder / "truth_by_file.csv", index=False)
    forms.table("by_file.csv", _wide(forms, "prob_{name}") | {"file": files})
    forms.forms.pop()
    forms.add("labels by a column of both", "by_file.csv", "--labels", "truth_by_file.csv", asks=True)
    forms.add("ids of labels alone", "logits.npy", "--labels", "numbered.csv", asks=True)
    pd.DataFrame({"id": range(SAMPLES), "label": y}).to_csv(forms.folder / "numbered.csv", index=False)
    turned = dict(reversed(_wide(forms, "prob_class_{index}").items()))
    forms.table("numbered_names.csv", turned | {"label": y})
    rows = {f"label_{name}": (y == index).astype(int) for index, name in enumerate(NAMES)}
    forms.table("one_hot.csv", _wide(forms, "prob_{name}") | rows, asks=True)
    forms.arrays("splits.npz", train_logits=np.r_[z, z], train_labels=np.r_[y, y], test_logits=z, test_labels=y, **ask)
    missing = np.where(np.arange(2 * SAMPLES) < SAMPLES, np.r_[forms.texts, forms.texts], "NA")
    twice = {name: np.r_[column, column] for name, column in _wide(forms, "prob_{name}").items()}
    forms.table("missing.csv", twice | {"label": missing})
    forms.add("labels as text", "logits.npy", "--labels", "texts.csv", "--class-names", ",".join(NAMES))
    save_file({"logits": z, "labels": y}, forms.folder / "pair.safetensors")
    forms.add("pair.safetensors")


def _tensors(forms: Forms) -> None:
    z, y = torch.from_numpy(forms.logits), torch.from_numpy(forms.labels)
    batches = list(zip(z.split(50), y.split(50), strict=True))
    named = [{"logits": logits, "labels": labels} for logits, labels in batches]
    for name, held, ask in (
        ("named.pt", {"logits": z, "labels": y, "epoch": 3}, False),
        ("named.pth", {"logits": z.requires_grad_(), "labels": y.tolist()}, False),
        ("texts.pt", {"logits": z, "labels": forms.texts.tolist(), "class_names": list(NAMES)}, False),
        ("batches.pt", named, False),
        ("of_lists.pt", {"logits": [each for each, _ in batches], "labels": [each for _, each in batches]}, False),
        ("pair.pt", (z, y), True),
        ("pair_in_list.pt", [z, y], True),
        ("pairs.pt", batches, True),
        ("alone/logits.pt", z, True),
        ("alone/labels.pt", y, None),
    ):
        (forms.folder / name).parent.mkdir(exist_ok=True)
        torch.save(held, forms.folder / name)
        if ask is not None:
            forms.add(name, asks=ask)
    forms.add("pt and labels", "alone/logits.pt", "--labels", "alone/labels.pt")


def _documents(forms: Forms) -> None:
    rows, names = forms.probabilities.tolist(), forms.texts.tolist()
    scores = [[{"label": NAMES[k], "score": row[k]} for k in np.argsort(row).tolist()] for row in rows]
    for name, held, ask in (
        (
            "records.json",
            [
                {"probs": row, "y_true": text} | dict(zip(NAMES, row, strict=True))
                for row, text in zip(rows, names, strict=True)
            ],
            True,
        ),
        ("lists.json", {"probs": rows, "labels": forms.labels.tolist(), "model_name": "cnn", "epochs": [1, 2]}, False),
        ("names.json", {"probs": rows, "labels": names, "class_names": NAMES}, False),
        ("pipeline.json", [{"label": text, "scores": each} for text, each in zip(names, scores, strict=True)], True),
        ("pipeline_alone.json", scores, None),
    ):
        (forms.folder / name).write_text(json.dumps(held))
        if ask is not None:
            forms.add(name, asks=ask)
    lines = "".join(f"{json.dumps({'label': text, 'prob': each})}\n" for text, each in zip(names, scores, strict=True))
    (forms.folder / "pipeline.jsonl").write_text(lines)
    forms.add("pipeline.jsonl")
    pd.DataFrame({"y": forms.texts}).to_csv(forms.folder / "texts.csv", index=False)
    forms.add(
        "pipeline and labels", "pipeline_alone.json", "--labels", "texts.csv", "--probabilities", "pipeline_alone.*"
    )
    forms.table("pandas.json", _wide(forms, "prob_{index}") | {"label": forms.labels}, tolerance=1e-5)
    forms.table("pandas.json.gz", _wide(forms, "prob_{name}") | {"label": forms.texts}, tolerance=1e-5)


def _binary(forms: Forms) -> None:
    y, p = forms.yes, forms.positive
    truth = {"expect": forms.binary}
    for name in ("probability", "probability_1", "prob", "proba", "prob_positive", "p1"):
        forms.table(f"binary_{name}.csv", {"label": y, name: p}, **truth)
    forms.table("binary_score.csv", {"y_true": y, "y_score": p}, asks=True, **truth)
    forms.table("binary_bool.parquet", {"label": y.astype(bool), "probability": p}, **truth)
    forms.table("binary_bool.csv", {"label": y.astype(bool), "probability": p}, **truth)
    forms.arrays("binary_1.npz", probabilities=p, labels=y, rest=truth)
    forms.arrays("binary_2.npz", probabilities=p[:, None], labels=y, rest=truth)
    forms.arrays("binary_3.npz", logits=np.log(p / (1 - p)), labels=y, rest=truth)
    forms.table("binary_predicted.csv", {"label": y, "pred_proba": p}, asks=True, **truth)
    texts = np.where(y == 1, "yes", "no")
    forms.table("binary_text.csv", {"label": texts, "probability": p}, asks=True, **truth)
    answers = np.where(y == 1, "true", "false")
    forms.table("binary_bare.csv", {"label": answers, "true": p, "false": 1 - p}, asks=True, **truth)
    forms.table("binary_true.csv", {"label": answers, "prob_True": p, "prob_False": 1 - p}, **truth)
    forms.table("binary_true.parquet", {"label": y == 1, "prob_true": p, "prob_false": 1 - p}, **truth)
    for name, label in (("pos", y), ("pos_bool", y == 1), ("pos_float", y.astype(float))):
        forms.table(f"binary_{name}.csv", {"label": label, "prob_pos": p, "prob_neg": 1 - p}, **truth)
    forms.table("binary_neg.csv", {"label": y, "prob_neg": 1 - p, "prob_pos": p}, **truth)
    forms.table("binary_two.csv", {"label": y, "prob_0": 1 - p, "prob_1": p}, **truth)


def _top_label(forms: Forms) -> None:
    truth = {"expect": forms.top}
    y, predicted, confidence = forms.labels, forms.predicted, forms.probabilities.max(-1)
    forms.table("top_score.csv", {"y_true": y, "y_pred": predicted, "score": confidence}, asks=True, **truth)
    forms.table("top.csv", {"label": y, "prediction": predicted, "confidence": confidence}, **truth)
    forms.table("top_correct.csv", {"correct": predicted == y, "confidence": confidence}, **truth)
    forms.table("top_ones.parquet", {"correct": (predicted == y).astype(int), "confidence": confidence}, **truth)
    words = np.where(predicted == y, "Yes", "no")
    forms.table("top_words.csv", {"is_correct": words, "max_prob": confidence}, **truth)
    percentages = {"label": y, "prediction": predicted, "confidence": 100 * confidence}
    forms.table("top_percent.csv", percentages, asks=True, **truth)
    texts = {"label": forms.texts, "prediction": np.array(NAMES)[predicted], "confidence": confidence}
    firsts = {"target": forms.texts, "top1": texts["prediction"], "top1_prob": confidence, "top2_prob": 0.1}
    forms.table("top_firsts.csv", firsts, **truth)
    forms.table("top_text.parquet", texts, **truth)
    forms.table(
        "top_true.csv", {"true": forms.texts, "predicted": texts["prediction"], "conf": confidence}, asks=True, **truth
    )
    forms.table("top_text.csv", texts, **truth)
    forms.table("top_prob.csv", {"label": y, "pred": predicted, "prob": confidence}, asks=True, **truth)


def _several_files(forms: Forms) -> None:
    two = {"expect": {"models": 2}}
    for name, values, ids in (
        ("shards", forms.logits, True),
        ("plain", forms.logits, False),
        ("others", forms.other, True),
    ):
        forms.shards(name, values, ids=ids)
    forms.add("folder of shards", "shards")
    forms.add("folder of shards without ids", "plain")
    forms.add("glob of shards", "shards/part-*.parquet")
    forms.add("shards as the shell gives them", *(f"shards/part-{number}.parquet" for number in range(5)), asks=True)
    forms.add("two folders of shards", "shards", "others", **two)
    rows = {"id": np.arange(SAMPLES), "label": forms.labels}
    for name, values in (("a", forms.logits), ("b", forms.other)):
        pq.write_table(pa.table(rows | {"logits": list(values)}), forms.folder / f"{name}.parquet")
    forms.add("two models", "a.parquet", "b.parquet", **two)
    forms.add("two named models", "plain CE=a.parquet", "MTE=b.parquet", **two)
    forms.add("a CSV and a Parquet file", "a.parquet", "wide_0.csv", **two)
    frames = [
        pd.DataFrame(rows | {"model": name, "logits": list(values)})
        for name, values in (("A", forms.logits), ("B", forms.other))
    ]
    pd.concat(frames).to_parquet(forms.folder / "long.parquet", index=False)
    forms.add("a column of models", "long.parquet", **two)
    pd.concat(frames).drop(columns="id").to_parquet(forms.folder / "long_plain.parquet", index=False)
    forms.add("a column of models without ids", "long_plain.parquet", **two)
    far = {"expect": forms.truth | {"ood": OOD_SAMPLES}}
    minus = np.full(OOD_SAMPLES, -1)
    for name, labels in (("none", None), ("minus", minus), ("theirs", forms.far_labels)):
        columns = {"logits": list(forms.far)} | ({} if labels is None else {"label": labels})
        pq.write_table(pa.table(columns), forms.folder / f"ood_{name}.parquet")
        forms.add(f"ood, labels: {name}", "a.parquet", "--ood", f"ood_{name}.parquet", **far)
    np.save(forms.folder / "ood.npy", forms.far)
    forms.add("ood, npy", "a.parquet", "--ood", "ood.npy", **far)


def _refused(forms: Forms) -> None:
    p, y = forms.probabilities, forms.labels
    twice = {"id": [*range(SAMPLES)] * 2, "logits": list(forms.logits) * 2, "label": [*y] * 2}
    pq.write_table(pa.table(twice), forms.folder / "twice.parquet")
    forms.refuse("twice.parquet", "same id", "row 0")
    bad = forms.logits.copy()
    bad[7, 3] = np.nan
    pq.write_table(pa.table({"logits": list(bad), "label": y}), forms.folder / "nan.parquet")
    forms.refuse("nan.parquet", "row 7", "3")
    files = {
        "sums.npz": (p * np.where(np.arange(SAMPLES) == 5, 1.1, 1)[:, None], y, ("row 5",)),
        "not_probabilities.npz": (forms.logits, y, ("logits",)),
        "from_one.npz": (p, y + 1, ("label", "count from 1")),
        "signs.npz": (
            p[:, :2] / p[:, :2].sum(-1, keepdims=True),
            np.where(y > 2, 1, -1),
            ("--class-names=-1,1", "--class-names 0,1"),
        ),
    }
    for name, (values, labels, words) in files.items():
        np.savez(forms.folder / name, probabilities=values, labels=labels)
        forms.refuse(name, *words)
    forms.refuse("no such file", "nope.parquet", arguments=("nope.parquet",))
    forms.refuse("no such column", "what", "prob_0", arguments=("wide.parquet", "--label", "what"))
    (forms.folder / "notes.txt").write_text("predictions\n")
    forms.refuse("notes.txt", ".parquet", ".csv")
