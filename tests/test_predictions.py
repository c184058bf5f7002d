"""Tables of predictions in memory, and as own Parquet files: what is written is what is read."""

import hashlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from counterpoise.predictions import (
    MISSING_LABEL,
    Category,
    Header,
    PredictionFileError,
    Predictions,
    PredictionWriter,
    concatenated,
    open_predictions,
    parquet,
    read_predictions,
    write_predictions,
)
from counterpoise.predictions.table import RIGHT, WRONG
from prediction_tables import HEADER, a_table, difference, write_digest_anew


def append(path: Path, tables: Iterable[Predictions]) -> None:
    with PredictionWriter(path) as writer:
        for table in tables:
            writer.append(table)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


LOGITS = [[0.5, 1.0, -1.0], [2.0, 0.0, 1.0]]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@st.composite
def tables(draw: st.DrawFn) -> Predictions:
    rows, classes = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    members = draw(st.none() | st.integers(1, 3))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    shape = (rows, classes) if members is None else (rows, members, classes)
    texts = st.none() | TEXT | st.lists(st.none() | TEXT, min_size=rows, max_size=rows)
    integers = st.integers(-(2**63), 2**63 - 1)
    ids = st.lists(integers, min_size=rows, max_size=rows) | st.lists(TEXT, min_size=rows, max_size=rows)
    return Predictions.of(
        **{draw(st.sampled_from(["logits", "probabilities"])): draw(hnp.arrays(dtype, shape))},
        labels=draw(st.none() | st.lists(st.integers(MISSING_LABEL, classes - 1), min_size=rows, max_size=rows)),
        ids=draw(st.none() | ids),
        **{name: draw(texts) for name in ("split", "data_set", "domain", "corruption")},
        severity=draw(st.none() | st.integers(-1, 5) | st.lists(st.integers(-1, 5), min_size=rows, max_size=rows)),
        in_distribution=draw(st.none() | st.booleans() | st.lists(st.booleans(), min_size=rows, max_size=rows)),
        header=Header(
            class_names=draw(st.none() | st.lists(TEXT, min_size=classes, max_size=classes)),
            model=draw(TEXT),
            seed=draw(st.none() | st.integers()),
            versions=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
        ),
    )


class TestRoundTrip:
    @pytest.mark.slow
    @given(table=tables())
    def test_a_file_holds_what_was_written(self, table, tmp_path_factory):
        path = tmp_path_factory.mktemp("predictions") / "p.parquet"
        with mock.patch("os.fsync"):
            write_predictions(path, table)
        opened = open_predictions(path)
        assert difference(read_predictions(path), table) is None
        assert (opened.kind, opened.classes, opened.members) == (table.kind, table.classes, table.members)
        assert (opened.rows, opened.header, opened.notices) == (len(table), table.header, ())
        assert opened.digest == hashlib.sha256(path.read_bytes()).hexdigest()

    @pytest.mark.slow
    @given(table=tables(), cuts=st.lists(st.integers(0, 9), max_size=3))
    def test_slices_make_the_whole(self, table, cuts):
        edges = [0, *sorted(min(cut, len(table)) for cut in cuts), len(table)]
        parts = [table.rows(start, stop) for start, stop in itertools.pairwise(edges)]
        assert difference(concatenated(parts), table) is None

    @given(texts=st.lists(st.none() | TEXT))
    def test_texts_survive_their_codes(self, texts):
        category = Category.of(texts, len(texts))
        assert category.texts() == [text or None for text in texts]
        assert len(set(category.names)) == len(category.names)

    @pytest.mark.slow
    @pytest.mark.parametrize("has_ids", [True, False])
    def test_in_batches(self, tmp_path, has_ids):
        """Rows so wide that no more than 256 are read at a time."""
        values = np.random.default_rng(0).standard_normal((300, 20_000)).astype(np.float32)
        table = Predictions.of(logits=values, ids=np.arange(300) + 7 if has_ids else None)
        write_predictions(tmp_path / "p.parquet", table)
        if not has_ids:
            stored = pq.read_table(tmp_path / "p.parquet").drop_columns(["id"]).replace_schema_metadata(None)
            pq.write_table(stored, tmp_path / "p.parquet")
            write_digest_anew(tmp_path / "p.parquet")
        opened = open_predictions(tmp_path / "p.parquet")
        batches = list(opened.batches())
        assert max(map(len, batches)) <= 256
        assert opened.has_ids == has_ids
        assert difference(concatenated(batches), table) is None

    def test_half_precision_halves_the_file(self, tmp_path):
        table = a_table(5_000)
        write_predictions(tmp_path / "32.parquet", table)
        write_predictions(tmp_path / "16.parquet", table.astype("float16"))
        saved = (tmp_path / "32.parquet").stat().st_size - (tmp_path / "16.parquet").stat().st_size
        assert saved == pytest.approx(table.values.nbytes / 2, rel=0.02)
        assert np.array_equal(read_predictions(tmp_path / "16.parquet").values, table.values.astype(np.float16))

    def test_other_programs_read_the_columns(self, tmp_path):
        write_predictions(tmp_path / "p.parquet", a_table(members=2))
        columns = pq.read_table(tmp_path / "p.parquet")
        assert columns.num_rows == 6
        assert columns.schema.field("logits").type.list_size == 6
        assert all(
            columns["label"][row].as_py() == (None if label == MISSING_LABEL else label)
            for row, label in enumerate(a_table(members=2).labels.tolist())
        )


BAD_TABLES = {
    "neither": ({"logits": None}, "give one of logits, probabilities, confidence, multilabel, and not none"),
    "both": ({"probabilities": LOGITS}, "not logits and probabilities"),
    "integers": ({"logits": [[1, 2]]}, "float16, float32, float64, got .* int64"),
    "one axis": ({"logits": [1.0, 2.0]}, r"must be \[n, K\]"),
    "labels of another length": ({"labels": [0]}, r"labels must be \[n\] for 2 samples, got \[1\]"),
    "labels a column": ({"labels": [[0], [1]]}, r"got \[2, 1\]"),
    "label K": ({"labels": [0, 3]}, r"labels row 1 is 3, outside \[0, 3\)"),
    "label -100": ({"labels": [0, -100]}, "-1 stands for"),
    "labels not whole": ({"labels": [0.0, 1.5]}, "labels must be integers, got float64"),
    "labels boolean": ({"labels": [True, False]}, "labels must be integers"),
    "labels beyond int64": ({"labels": np.array([0, 2**64 - 1], np.uint64)}, "labels row 1 is 18446744073709551615"),
    "ids not whole": ({"ids": [0.5, 1.5]}, "ids must be integers"),
    "ids mixed": ({"ids": [1, "a"]}, "all integers or all text"),
    "ids missing": ({"ids": ["a", None]}, "all integers or all text"),
    "a single id": ({"ids": "a"}, "one a sample"),
    "split not text": ({"split": [1, 2]}, "text or None, got 1"),
    "split NaN": ({"split": ["a", float("nan")]}, "text or None, got nan"),
    "split of another length": ({"split": ["a"]}, "split must be"),
    "severity not whole": ({"severity": 2.5}, "severity must be integers"),
    "severity negative": ({"severity": -2}, "severity row 0 is -2; it is 0 for clean samples, else at least 1"),
    "flags not boolean": ({"in_distribution": [1, 0]}, "True or False, got int64"),
    "class names": ({"header": Header(class_names=("a",))}, "1 class names for 3 classes"),
    "correct beside logits": ({"correct": [True, False]}, "pass the labels of logits as labels="),
    "labels beside confidence": ({"logits": None, "confidence": [0.9], "labels": [0]}, "pass correct="),
    "confidence of classes": ({"logits": None, "confidence": LOGITS}, r"confidence must be \[n, 1\] of"),
    "correct a number": ({"logits": None, "confidence": [0.9], "correct": [2]}, "True or False"),
    "one label a sample": ({"logits": None, "multilabel": LOGITS, "labels": [0, 1]}, r"labels must be \[n, L\]"),
    "label 2": ({"logits": None, "multilabel": [[0.1, 0.2]], "labels": [[0, 2]]}, r"row 0, column 1 is 2, outside \[0, 2\)"),
    "multilabel members": ({"logits": None, "multilabel": [LOGITS]}, r"multilabel must be \[n, L\]"),
}  # fmt: skip


class TestTable:
    def test_tensors_arrays_and_lists_are_one(self):
        of_tensors = Predictions.of(logits=torch.tensor(LOGITS, dtype=torch.float64), labels=torch.tensor([0, 2]))
        of_lists = Predictions.of(logits=LOGITS, labels=np.array([0, 2], ">i2"))
        of_foreign_bytes = Predictions.of(logits=np.array(LOGITS, ">f8"), labels=np.array([0, 2], np.uint8))
        assert difference(of_tensors, of_lists) is None
        assert difference(of_foreign_bytes, of_lists) is None

    @pytest.mark.parametrize("name", ["logits", "labels"])
    def test_masked_entries_are_refused(self, name):
        columns = {"logits": np.array(LOGITS), "labels": np.zeros(len(LOGITS), int)}
        masked = np.ma.array(columns[name], mask=np.arange(columns[name].size).reshape(columns[name].shape) == 1)
        with pytest.raises(ValueError, match="a masked array has masked entries"):
            Predictions.of(**(columns | {name: masked}))
        Predictions.of(**(columns | {name: np.ma.array(columns[name])}))

    def test_bfloat16_becomes_float32(self):
        assert Predictions.of(logits=torch.tensor(LOGITS).bfloat16()).values.dtype == np.float32

    def test_header_is_normalised(self):
        assert Header(class_names=["a"], seed=np.int64(3)) == Header(class_names=("a",), seed=3)

    def test_a_confidence_alone_is_one_class_that_is_right_or_wrong(self):
        table = Predictions.of(confidence=[0.9, 0.6], correct=[True, False])
        assert (table.values.tolist(), table.labels.tolist(), table.classes) == ([[0.9], [0.6]], [RIGHT, WRONG], 1)
        assert Predictions.of(confidence=[0.9]).labels.tolist() == [MISSING_LABEL]

    def test_labels_of_a_multilabel_problem_have_a_column_each(self, tmp_path):
        table = Predictions.of(multilabel=[[0.9, 0.2], [0.1, 0.5]], labels=[[1, 0], [0, -1]])
        assert table.rows(1, 2).labels.tolist() == [[0, -1]]
        assert concatenated([table, table]).labels.shape == (4, 2)
        assert Predictions.of(multilabel=[[0.9, 0.2]]).labels.tolist() == [[MISSING_LABEL] * 2]
        with pytest.raises(ValueError, match="write a CSV"):
            write_predictions(tmp_path / "p.parquet", table)

    @pytest.mark.parametrize("name", BAD_TABLES)
    def test_refuses(self, name):
        arguments, message = BAD_TABLES[name]
        with pytest.raises(ValueError, match=message):
            Predictions.of(**{"logits": LOGITS, **arguments})

    @pytest.mark.parametrize(
        "fields",
        [
            {"class_names": "abc"},
            {"class_names": [1, 2]},
            {"model": None},
            {"seed": True},
            {"seed": [1]},
            {"versions": []},
            {"versions": {"torch": 2}},
        ],
        ids=str,
    )
    def test_header_refuses(self, fields):
        with pytest.raises(ValueError, match=next(iter(fields))):
            Header(**fields)

    def test_different_tables_are_not_put_after_each_other(self):
        with pytest.raises(ValueError, match="different kinds or shapes"):
            concatenated([Predictions.of(logits=LOGITS), Predictions.of(probabilities=LOGITS)])
        with pytest.raises(ValueError, match="no tables"):
            concatenated([])


NOT_WRITTEN = {
    "nothing": ([], "no predictions were appended"),
    "no rows": ([a_table(0)], "no predictions were appended"),
    "other classes": ([Predictions.of(logits=LOGITS), Predictions.of(logits=[[1.0, 2.0]])], "classes=2.*classes=3"),
    "other kind": ([Predictions.of(logits=LOGITS), Predictions.of(probabilities=LOGITS)], "probabilities"),
    "other precision": ([Predictions.of(logits=LOGITS), Predictions.of(logits=LOGITS).astype("float32")], "float32"),
    "other columns": ([Predictions.of(logits=LOGITS), Predictions.of(logits=LOGITS, split="a")], "split"),
    "other ids": ([Predictions.of(logits=LOGITS), Predictions.of(logits=LOGITS, ids=["a", "b"])], "text_ids=True"),
    "other header": ([Predictions.of(logits=LOGITS), Predictions.of(logits=LOGITS, header=Header(seed=1))], "seed=1"),
    "no classes": ([Predictions.of(logits=np.zeros((2, 0)))], "0 classes"),
    "half a character": ([Predictions.of(logits=LOGITS, ids=["a", "\ud800"])], "surrogates"),
}  # fmt: skip


class TestWriter:
    def test_small_tables_make_full_row_groups(self, tmp_path, monkeypatch):
        monkeypatch.setattr(parquet, "_ROW_GROUP_ROWS", 10)
        table = a_table(37)
        edges = [(0, 3), (3, 4), (4, 4), (4, 11), (11, 36), (36, 37)]
        append(tmp_path / "p.parquet", (table.rows(start, stop) for start, stop in edges))
        groups = pq.ParquetFile(tmp_path / "p.parquet").metadata
        assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [10, 10, 10, 7]
        assert difference(read_predictions(tmp_path / "p.parquet"), table) is None

    def test_arrays_may_be_filled_anew_after_append(self, tmp_path):
        values, labels, ids = np.zeros((2, 3), np.float32), np.zeros(2, int), np.zeros(2, int)
        severity, inside = np.zeros(2, int), np.ones(2, bool)
        with PredictionWriter(tmp_path / "p.parquet") as writer:
            for step in range(3):
                for column in (values, labels, ids, severity):
                    column[...] = step
                inside[...] = step == 1
                writer.append(
                    Predictions.of(logits=values, labels=labels, ids=ids, severity=severity, in_distribution=inside)
                )
        table = read_predictions(tmp_path / "p.parquet")
        assert table.values[:, 0].tolist() == table.labels.tolist() == table.ids.tolist() == [0, 0, 1, 1, 2, 2]
        assert table.severity.tolist() == [0, 0, 1, 1, 2, 2]
        assert table.in_distribution.tolist() == [False, False, True, True, False, False]

    def test_an_error_leaves_the_old_file_alone(self, tmp_path):
        path, table = tmp_path / "p.parquet", a_table()
        write_predictions(path, table)
        before = {each: each.read_bytes() for each in tmp_path.iterdir()}
        with pytest.raises(ZeroDivisionError):
            append(path, (a_table(seed=1 // step) for step in (1, 0)))
        assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before

    def test_a_full_disk_leaves_the_old_file_alone(self, tmp_path, monkeypatch):
        path, table = tmp_path / "p.parquet", a_table()
        write_predictions(path, table)
        monkeypatch.setattr(
            pq.ParquetWriter, "write_table", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
        )
        with pytest.raises(OSError, match="full"):
            write_predictions(path, a_table(seed=1))
        assert difference(read_predictions(path), table) is None
        assert len(list(tmp_path.iterdir())) == 2

    def test_overwrites(self, tmp_path):
        for seed in (0, 1):
            write_predictions(tmp_path / "p.parquet", a_table(seed=seed))
        assert difference(read_predictions(tmp_path / "p.parquet"), a_table(seed=1)) is None
        assert names_in(tmp_path) == ["p.parquet", "p.parquet.sha256"]

    @pytest.mark.parametrize("name", NOT_WRITTEN)
    def test_refuses(self, name, tmp_path):
        tables, message = NOT_WRITTEN[name]
        with pytest.raises(ValueError, match=message):
            append(tmp_path / "p.parquet", tables)
        assert names_in(tmp_path) == []

    def test_is_used_in_a_with_block_and_for_parquet(self, tmp_path):
        with pytest.raises(ValueError, match="with block"):
            PredictionWriter(tmp_path / "p.parquet").append(a_table())
        with pytest.raises(ValueError, match=r"written as \.parquet"):
            write_predictions(tmp_path / "p.csv", a_table())
        with pytest.raises(FileNotFoundError):
            write_predictions(tmp_path / "no folder" / "p.parquet", a_table())

    @pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
    @pytest.mark.parametrize("name", ["p.parquet", "back\\slash\n.parquet", "ß" * 115 + ".parquet"])
    def test_sha256sum_checks_the_digest(self, name, tmp_path):
        write_predictions(tmp_path / name, a_table())
        (digest,) = tmp_path.glob("*.sha256")
        subprocess.run([shutil.which("sha256sum"), "--check", "--strict", digest.name], cwd=tmp_path, check=True)
        assert open_predictions(tmp_path / name).digest is not None


def with_header(path: Path, change) -> None:
    """Write the file anew with another header, and with a digest that agrees."""
    table = pq.read_table(path)
    document = json.loads(table.schema.metadata[b"counterpoise"])
    changed = change(document)
    text = changed if isinstance(changed, bytes) else json.dumps(document if changed is None else changed).encode()
    pq.write_table(table.replace_schema_metadata({b"counterpoise": text}), path)
    write_digest_anew(path)


BAD_HEADERS = {
    "not JSON": (lambda _: b"{", "Parquet file"),
    "not text": (lambda _: b"\xff\xfe\xfd", "Parquet file"),
    "no object": (lambda _: [1], "not of the schema"),
    "nested without end": (lambda _: b"[" * 100_000, "Parquet file"),
    "other schema": (lambda d: d.update(schema="x"), "not of the schema"),
    "schema version": (lambda d: d.update(schema_version=2), "schema version 2, this release reads 1"),
    "schema version true": (lambda d: d.update(schema_version=True), "schema version True"),
    "kind": (lambda d: d.update(kind="scores"), "unknown kind"),
    "the other kind": (lambda d: d.update(kind="probabilities"), "not those that its header states"),
    "kind a list": (lambda d: d.update(kind=[]), "unknown kind"),
    "dtype": (lambda d: d.update(dtype="float8"), "precision"),
    "another dtype": (lambda d: d.update(dtype="float64"), "not those that its header states"),
    "classes": (lambda d: d.update(classes=4), "names 3 classes, and states 4"),
    "classes 0": (lambda d: d.update(classes=0), "0 classes"),
    "classes true": (lambda d: d.update(classes=True), "True classes"),
    "classes without end": (lambda d: d.update(classes=10**30, header={**d["header"], "class_names": None}), "p.parquet"),
    "members": (lambda d: d.update(members=2), "not those that its header states"),
    "members text": (lambda d: d.update(members="2"), "'2' members"),
    "text ids": (lambda d: d.update(text_ids=False), "not those that its header states"),
    "text ids 1": (lambda d: d.update(text_ids=1), "text_ids 1"),
    "unknown column": (lambda d: d["columns"].append("mood"), "unknown columns"),
    "column dropped": (lambda d: d["columns"].remove("split"), "not those that its header states"),
    "column twice": (lambda d: d["columns"].append("split"), "not those that its header states"),
    "columns a text": (lambda d: d.update(columns="split"), "columns 'split'"),
    "column a list": (lambda d: d["columns"].append([]), "malformed"),
    "no columns": (lambda d: d.pop("columns") and None, "malformed: 'columns'"),
    "no header": (lambda d: d.pop("header") and None, "malformed: 'header'"),
    "header a list": (lambda d: d.update(header=[]), "missing"),
    "header a number": (lambda d: d.update(header=7), "malformed"),
    "no seed": (lambda d: d["header"].pop("seed") and None, "seed missing"),
    "unknown field": (lambda d: d.update(mood="good"), "mood"),
    "unknown header field": (lambda d: d["header"].update(mood="good"), "mood"),
    "seed a list": (lambda d: d["header"].update(seed=[1]), "seed must be an integer"),
    "model a number": (lambda d: d["header"].update(model=3), "must be text"),
    "versions a list": (lambda d: d["header"].update(versions=[]), "versions must map"),
    "class names a text": (lambda d: d["header"].update(class_names="abc"), "class_names must be"),
    "class names too few": (lambda d: d["header"].update(class_names=["a"]), "names 1 classes, and states 3"),
}  # fmt: skip


class TestHeader:
    @pytest.mark.parametrize("name", BAD_HEADERS)
    def test_refuses(self, name, tmp_path):
        change, message = BAD_HEADERS[name]
        path = tmp_path / "p.parquet"
        write_predictions(path, a_table())
        with_header(path, change)
        with pytest.raises(PredictionFileError, match=message) as raised:
            open_predictions(path)
        assert str(path) in str(raised.value)

    def test_the_change_alone_is_no_reason(self, tmp_path):
        write_predictions(tmp_path / "p.parquet", a_table())
        with_header(tmp_path / "p.parquet", lambda document: document["header"].update(model="vit"))
        assert read_predictions(tmp_path / "p.parquet").header == Header(**{**vars(HEADER), "model": "vit"})

    def test_text_labels_are_for_foreign_files(self, tmp_path):
        path = tmp_path / "p.parquet"
        write_predictions(path, a_table())
        table = pq.read_table(path).set_column(1, "label", pa.array(["cat"] * 6))
        pq.write_table(table, path)
        write_digest_anew(path)
        with pytest.raises(PredictionFileError, match="not those that its header states"):
            open_predictions(path)
