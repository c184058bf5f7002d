"""Predictions that other programs wrote: Parquet, CSV and NPZ in the layouts that are met, and what is refused of them."""

import io
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.lib import format as npy

from counterpoise.predictions import Predictions, csv, open_predictions, read_predictions
from prediction_tables import csv_file, difference, refusal

VALUES = [[0.5, 1.0], [2.0, -1.0], [0.25, 0.0]]
INF, NAN = float("inf"), float("nan")


def parquet(path: Path, columns: dict[str, object], **options: object) -> Path:
    pq.write_table(pa.table(columns), path / "p.parquet", **options)
    return path / "p.parquet"


def lists(kind: pa.DataType, rows: list[list[float] | None] = VALUES) -> pa.Array:
    return pa.array(rows, kind)


LAYOUTS: dict[str, dict[str, object]] = {
    "list of double": {"logits": lists(pa.list_(pa.float64()))},
    "large list": {"logits": lists(pa.large_list(pa.float64()))},
    "fixed size": {"logits": lists(pa.list_(pa.float64(), 2))},
    "named columns": {"logit_cat": [0.5, 2.0, 0.25], "logit_dog": [1.0, -1.0, 0.0]},
    "names with dots": {"logit_a": [0.5, 2.0, 0.25], "logit_a.b": [1.0, -1.0, 0.0], "id.x": [1, 2, 3]},
    "numbered columns": {"logit_1": [1.0, -1.0, 0.0], "logit_0": [0.5, 2.0, 0.25]},
    "with pandas' index": {"logits": lists(pa.list_(pa.float64())), "__index_level_0__": [7, 8, 9]},
}


LABELS = (
    pa.array([1, None, 0], pa.int8()),
    pa.array([1, None, 0], pa.uint64()),
    pa.array(["dog", None, "cat"]),
    pa.array(["dog", None, "cat"], pa.large_string()),
    pa.array(["dog", None, "cat"]).dictionary_encode(),
    pa.array(["1", None, "0"]),
)

NOT_PARQUET = {
    "no rows": ({"logits": lists(pa.list_(pa.float64()), [])}, "it has no rows"),
    "no predictions": ({"score": ["?"]}, "has no predictions: it needs .* its columns are 'score'"),
    "both kinds": ({"logits": [[1.0]], "probabilities": [[1.0]]}, "holds logits .* and probabilities .*logits='logits', or"),
    "numbered from 1": ({"logit_1": [1.0], "logit_2": [1.0], "label": [1]}, "not numbered from 0 to 1"),
    "numbered and named": ({"logit_1": [1.0], "logit_a": [1.0], "label": [1]}, "a name that is no number"),
    "names and numbers": ({"logit_a": [1.0], "logit_7": [1.0]}, "name that is no number"),
    "ragged": ({"logits": [[1.0, 2.0]] * 4 + [[1.0]]}, "row 4, column 'logits' has 1 values, the rows before it have 2"),
    "first row short": ({"logits": [[1.0]] + [[1.0, 2.0]] * 4}, "row 1, column 'logits' has 2 values"),
    "empty lists": ({"logits": pa.array([[], []], pa.list_(pa.float64()))}, "row 0, column 'logits' is empty"),
    "lists of 0": ({"logits": pa.array([[], []], pa.list_(pa.float64(), 0))}, "logits|empty|Parquet"),
    "first row missing": ({"logits": lists(pa.list_(pa.float64()), [None, [1.0]])}, "row 0, column 'logits' is empty"),
    "row missing": ({"logits": [[1.0, 2.0]] * 3 + [None]}, "row 3, column 'logits' is missing"),
    "fixed row missing": (
        {"logits": lists(pa.list_(pa.float64(), 2), [[1, 2], None])},
        "row 1, column 'logits'|Expected all lists to be of size=2",  # the latter by an old pyarrow, which cannot read it
    ),
    "element missing": ({"logits": [[1.0, 2.0]] * 3 + [[1.0, None]]}, "row 3, column 'logits' is missing"),
    "cell missing": ({"logit_a": [1.0, 1.0, None], "logit_b": [1.0] * 3}, "row 2, column 'logit_a' is missing"),
    "whole numbers": ({"logits": [[1, 2]]}, "holds int64; store it as floating point"),
    "whole number column": ({"logit_a": [1], "logit_b": [1.0]}, "'logit_a' holds int64"),
    "no lists": ({"logits": [True, False]}, "has no predictions"),
    "lists of lists": ({"logits": [[[1.0]]]}, "column 'logits' holds list"),
    "text": ({"logits": ["1 2"]}, "column 'logits' holds text, such as '1 2'; give each class a column"),
    "label K": ({"logits": VALUES, "label": [0, 1, 2]}, r"row 2, column 'label' is 2, neither an index in \[0, 2\)"),
    "label -2": ({"logits": VALUES, "label": [0, -2, 1]}, "row 1, column 'label' is -2.* leave the label"),
    "labels -1 and 1": ({"logits": VALUES, "label": [1, -1, 1]}, "row 1, column 'label' is -1, which may be a class or"),
    "labels from 1": ({"logits": VALUES, "label": [2, 1, 1]}, "row 0, column 'label' is 2.* count from 1, add --class-names 1,2"),
    "label beyond int64": (
        {"logits": VALUES, "label": pa.array([0, 1, 2**64 - 1], pa.uint64())},
        "row 2, column 'label' is 18446744073709551615, above",
    ),
    "label not whole": ({"logits": VALUES, "label": [0.0, 0.5, None]}, "row 1, column 'label' is 0.5, not a whole number"),
    "label without names": ({"logits": VALUES, "label": ["cat"] * 3}, "labels in 'label' are text .'cat'., and nothing says which"),
    "label of no class": ({**LAYOUTS["named columns"], "label": ["cat", "dog", "cow"]}, "row 2, column 'label' is 'cow'"),
    "id missing": ({"logits": VALUES, "id": ["a", None, "b"]}, "row 1, column 'id' is missing"),
    "id not whole": ({"logits": VALUES, "id": [0.5, 1.0, 2.0]}, "'id' has type double; store it as integers or text"),
    "id beyond int64": ({"logits": VALUES, "id": pa.array([0, 2**63, 1], pa.uint64())}, "row 1, column 'id'"),
    "domain a fraction": ({"logits": VALUES, "domain": [0.5, 2, 3]}, "'domain' has type double; it must hold text"),
    "severity below 0": ({"logits": VALUES, "severity": [1, 2, -2]}, "row 2, column 'severity' is -2; it is 0 for clean"),
    "flag a number": ({"logits": VALUES, "in_distribution": [1, 0, 1]}, "must hold true or false"),
    "flag missing": ({"logits": VALUES, "in_distribution": [True, None, True]}, "row 1, column 'in_distribution'"),
}  # fmt: skip


class TestParquet:
    @pytest.mark.parametrize("name", LAYOUTS)
    @pytest.mark.parametrize("store_schema", [True, False])
    def test_layouts(self, name, store_schema, tmp_path):
        path = parquet(tmp_path, LAYOUTS[name], store_schema=store_schema, row_group_size=2)
        table = read_predictions(path)
        assert (table.kind, table.values.tolist()) == ("logits", VALUES)
        assert table.ids.tolist() == [0, 1, 2]
        assert table.labels.tolist() == [-1, -1, -1]
        assert not any("digest" in notice for notice in open_predictions(path).notices)  # other programs write none

    @pytest.mark.parametrize("labels", LABELS, ids=lambda labels: str(labels.type))
    def test_labels(self, labels, tmp_path):
        columns = {**LAYOUTS["named columns" if "dog" in labels.to_pylist() else "numbered columns"], "label": labels}
        table = read_predictions(parquet(tmp_path, columns))
        assert table.labels.tolist() == [1, -1, 0]
        assert table.header.class_names == (("cat", "dog") if "dog" in labels.to_pylist() else None)

    def test_descriptive_columns(self, tmp_path):
        dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 2, None], pa.int8()), ["fog", "x", "fog"])
        columns = {
            **LAYOUTS["named columns"],
            "id": pa.array(["a", "b", "a"]).dictionary_encode(),
            "corruption": dictionary,
            "domain": pa.nulls(3),
            "split": pa.array(["test", None, ""], pa.large_string()),
            "severity": pa.array([3, None, 0], pa.uint8()),
            "in_distribution": [True, False, True],
            "mood": ["good"] * 3,
        }
        path = parquet(tmp_path, columns)
        table = read_predictions(path)
        assert table.ids.tolist() == ["a", "b", "a"]
        assert table.corruption.texts() == ["fog", "fog", None]
        assert len(set(table.corruption.codes.tolist())) == 2
        assert table.domain.texts() == [None] * 3
        assert table.split.texts() == ["test", None, None]
        assert table.severity.tolist() == [3, -1, 0]
        assert table.in_distribution.tolist() == [True, False, True]
        assert any("mood" in notice for notice in open_predictions(path).notices)

    @pytest.mark.parametrize("name", NOT_PARQUET)
    def test_refuses(self, name, tmp_path):
        columns, message = NOT_PARQUET[name]
        assert re.search(message, refusal(parquet(tmp_path, columns)))

    @pytest.mark.slow
    def test_names_the_row_of_the_file_in_later_batches(self, tmp_path):
        labels = [0] * 299 + [20_000]
        path = parquet(tmp_path, {"logits": [[0.0] * 20_000] * 300, "label": labels})
        assert "row 299, column 'label' is 20000" in refusal(path)


HEAD = "id,label,logit_cat,logit_dog\n"
NUMBERED = "id,label,logit_0,logit_1\n"
NOT_CSV = {
    "no rows": (HEAD, "a header line and no rows"),
    "lists": ("label,logits\n0,1 2\n", "'logits' holds text, such as .* give each class a column"),
    "column twice": ("logit_a,logit_a\n1,2\n", "'logit_a' appears more than once"),
    "no separator": ("id-logit\n1-2\n", "its columns are 'id-logit'"),
    "cell missing": (HEAD + "1,cat,1,2\n\n2,cat,,2\n", "row 1, column 'logit_cat' is missing"),
    "cell too few": (HEAD + "1,cat,1,2\n2,cat,1\n", "row 1: Expected 4 columns, got 3"),
    "no number": (HEAD + '1,cat,1,2\n2,"dog",1,two\n', "column 'logit_dog': row 1: .* invalid value 'two'"),
    "text id after integers": (HEAD + "1,cat,1,2\nb,dog,1,2\n", "row 1, column 'id' is 'b'; ids are all integers of 64"),
    "id beyond 64 bits": (HEAD + "1,cat,1,2\n,dog,1,2\n9223372036854775808,dog,1,2\n", "row 2, column 'id' is '9223372036"),
    "id of many digits": (HEAD + "1,cat,1,2\n-" + "9" * 5000 + ",dog,1,2\n", "row 1, column 'id' is '-999"),
    "two names of a number": (HEAD + "10,cat,1,2\n7,dog,1,2\n007,dog,1,2\n", "row 2, column 'id' is '007'; ids are all"),
    "id missing": (HEAD + ",cat,1,2\n", "row 0, column 'id' is missing"),
    "label K": (NUMBERED + "1,2,1,2\n", "row 0, column 'label' is 2, neither"),
    "label of no class": (HEAD + "1,cow,1,2\n", "row 0, column 'label' is 'cow'"),
    "label not whole": (NUMBERED + "1,1.5,1,2\n", "row 0, column 'label' is '1.5'"),
    "flag": ("in_distribution,logit_1\nperhaps,1\n", "row 0, column 'in_distribution' is 'perhaps'; write true or false"),
    "severity": ("severity,logit_1\n1.5,1\n", "row 0, column 'severity' is 1.5; it is 0 for clean samples, else a whole number"),
    "open quote": (HEAD + '1,"cat,1,2\n2,dog,1,2\n', "row 0"),
    "header not UTF-8": ("label,prob_a,prob_ö\n".encode("latin-1"), "header line is not UTF-8 after 'label,prob_a,prob_'; save"),
    "not UTF-8": (HEAD.encode() + b"1,\xff,1,2\n", "column 'label': row 0: .*UTF8.*; save it as UTF-8"),
    "not UTF-8 later": (HEAD.encode() + b"1,cat,1,2\n" * 5_000 + b"1,\xff,1,2\n", "UTF8"),
}  # fmt: skip


class TestCsv:
    def test_what_spreadsheets_write(self, tmp_path):
        text = (
            '\ufefflabel,"logit_cat, tame","logit_ä ""dog""\n",domain,in_distribution,severity,note\r\n'
            '"cat, tame",0.5,1,"a\r\nb",true,3,x\r\n'
            '\r\n"ä ""dog""\n", 2 ,-1,,False,,y\r\n,inf,-inf,c,1,0,\r\n"ä ""dog""\n",nan,1e3,c,0,0,'
        )
        table = read_predictions(csv_file(tmp_path, text))
        assert table.header.class_names == ("cat, tame", 'ä "dog"\n')
        assert table.labels.tolist() == [0, 1, -1, 1]
        np.testing.assert_array_equal(table.values, [[0.5, 1], [2, -1], [INF, -INF], [NAN, 1000]])
        assert table.domain.texts() == ["a\r\nb", None, "c", "c"]
        assert table.in_distribution.tolist() == [True, False, True, False]
        assert table.severity.tolist() == [3, -1, 0, 0]
        assert len(open_predictions(tmp_path / "p.csv").notices) == 1

    def test_probabilities_by_number(self, tmp_path):
        path = csv_file(tmp_path, "probability_1,probability_0,label\n0.75,0.25,\n0.5,0.5,1\n")
        table = read_predictions(path)
        assert (table.kind, table.values.tolist()) == ("probabilities", [[0.25, 0.75], [0.5, 0.5]])
        assert (table.labels.tolist(), table.header.class_names) == ([-1, 1], None)

    IDS = (
        ("7,-3", [7, -3]),
        ("7,9223372036854775807", [7, 2**63 - 1]),
        ("007,8", ["007", "8"]),
        ("a,8", ["a", "8"]),
        ("9" * 5000 + ",8", ["9" * 5000, "8"]),
    )

    @pytest.mark.parametrize(("cells", "ids"), IDS, ids=str)
    def test_ids_are_what_the_first_one_is(self, cells, ids, tmp_path):
        text = "id,logit_1\n" + "".join(f"{cell},1\n" for cell in cells.split(","))
        assert read_predictions(csv_file(tmp_path, text)).ids.tolist() == ids

    def test_an_empty_line_below_the_header_hides_no_column(self, tmp_path):
        table = read_predictions(csv_file(tmp_path, "\n" + HEAD + "\n\n5,dog,1,2\n"))
        assert (table.ids.tolist(), table.labels.tolist()) == ([5], [1])

    @pytest.mark.parametrize("name", NOT_CSV)
    def test_refuses(self, name, tmp_path):
        text, message = NOT_CSV[name]
        assert re.search(message, refusal(csv_file(tmp_path, text)))

    def test_in_blocks(self, tmp_path, monkeypatch):
        monkeypatch.setattr(csv, "_BLOCK_BYTES", 64)
        good = HEAD + "".join(f"{row},cat,{row},2\n" for row in range(50))
        path = csv_file(tmp_path, good)
        batches = list(open_predictions(path).batches())
        assert len(batches) > 5
        assert np.concatenate([batch.ids for batch in batches]).tolist() == list(range(50))
        assert np.concatenate([batch.values[:, 0] for batch in batches]).tolist() == list(range(50))
        assert "row 50, column 'label' is 'cow'" in refusal(csv_file(tmp_path, good + "0,cow,1,2\n"))
        assert "column 'logit_dog': row 50" in refusal(csv_file(tmp_path, good + "0,cat,1,two\n"))


def npz(folder: Path, *, method: int = zipfile.ZIP_STORED, **arrays: object) -> Path:
    """An archive of arrays, or of bytes as they are."""
    with zipfile.ZipFile(folder / "p.npz", "w", method) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else npy_bytes(array))
    return folder / "p.npz"


def npy_bytes(array: object, *, version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    npy.write_array(stream, np.asanyarray(array), version=version)
    return stream.getvalue()


def declaring(shape: tuple[int, ...], data: bytes) -> bytes:
    """What an npy file looks like that declares a shape of float64, whatever it holds."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


def patched(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    return path


class Trap:
    """Unpickling this would be noticed."""

    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("what users load is data, never code",)


ARRAY = np.array(VALUES)
NOT_NPZ = {
    "objects": ({"logits": np.array([[1.0, None]], object)}, "dtype object; only numbers"),
    "a trap": ({"logits": np.array([[Trap()]], object)}, "dtype object; only numbers"),
    "a trap beside": ({"logits": ARRAY, "ids": np.array([Trap()] * 3, object)}, "array 'ids' has dtype object"),
    "structured": ({"logits": np.zeros(3, [("a", "<f8"), ("ß", "<f8")])}, "only numbers"),
    "dates": ({"logits": np.zeros((3, 2), "M8[s]")}, "only numbers"),
    "bytes": ({"logits": ARRAY, "ids": np.array([b"a", b"b", b"c"])}, "only numbers, booleans and text"),
    "whole numbers": ({"logits": np.ones((3, 2), int)}, "holds int64; store it as floating point"),
    "long double": ({"logits": ARRAY.astype(np.longdouble)}, "dtype float128; only"),
    "no values": ({"labels": np.zeros(3, int)}, "has no predictions: it needs .*its columns are 'labels'"),
    "both kinds": ({"logits": ARRAY, "probabilities": ARRAY}, "holds logits .* and probabilities"),
    "one axis": ({"logits": np.zeros(())}, "no array of predictions"),
    "no rows": ({"logits": np.zeros((0, 3))}, "its arrays are empty"),
    "label K": ({"logits": ARRAY, "labels": [0, 1, 2]}, r"row 2, column 'labels' is 2, neither an index in \[0, 2\)"),
    "labels not whole": ({"logits": ARRAY, "labels": [0.0, 1.5, 1.0]}, "row 1, column 'labels' is 1.5, not a whole number"),
    "labels in threes": ({"logits": ARRAY, "labels": np.zeros((3, 3), int)}, "has 3 labels a row for 2 classes"),
    "labels too few": ({"logits": ARRAY, "labels": [0, 1]}, "array 'labels' has 2 rows and 'logits' has 3"),
    "ids beyond int64": ({"logits": ARRAY, "ids": np.array([0, 1, 2**63], np.uint64)}, "row 2, column 'ids' is 9223372036854775808"),
    "ids a column": ({"logits": ARRAY, "ids": [["a"], ["b"], ["c"]]}, "must be .n. of text"),
    "flags a number": ({"logits": ARRAY, "in_distribution": [1, 0, 1]}, "'in_distribution' has type int64; it must hold true or false"),
    "severity not whole": ({"logits": ARRAY, "severity": [0.5, 1, 1]}, "row 0, column 'severity' is 0.5; it is 0 for clean"),
    "domain a fraction": ({"logits": ARRAY, "domain": [0.5, 2, 3]}, "'domain' has type double; it must hold text"),
    "class names": ({"logits": ARRAY, "class_names": ["a"]}, "1 class names for 2 classes"),
    "class numbers": ({"logits": ARRAY, "class_names": [1, 2]}, "'class_names' must be .* text"),
    "half a character": ({"logits": ARRAY, "domain": np.array(["a", "\ud800", "b"])}, "surrogates"),
    "no character": ({"logits": ARRAY, "domain": np.full(3, 2**31 - 1, "<i4").view("<U1")}, "NumPy archive"),
    "no array": ({"logits": b"hello"}, "NumPy archive"),
    "version 9": ({"logits": npy_bytes(ARRAY).replace(b"NUMPY\x01", b"NUMPY\x09")}, "version|major"),
    "no header": ({"logits": npy_bytes(ARRAY).replace(b"'descr'", b"(((((((")}, "NumPy archive"),
    "8 TB": ({"logits": declaring((2**40, 1), b"\0" * 16)}, "8,796,093,022,208 bytes, and holds 16"),
    "less than stored": ({"logits": declaring((1, 1), b"\0" * 16)}, "8 bytes, and holds 16"),
    "negative": ({"logits": declaring((-1, -2), b"\0" * 16)}, r"shape \[-1, -2\]"),
}  # fmt: skip


class TestNpz:
    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    @pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_arrays_of_every_kind(self, method, dtype, order, tmp_path):
        values = np.arange(24.0).reshape(3, 4, 2).astype(dtype, order=order)
        path = npz(
            tmp_path,
            method=method,
            probabilities=values,
            labels=np.array([1, 0, 1], np.uint8),
            ids=np.array(["a", "ß", "c"], ">U3"),
            domain=np.array(["x", "", "y"]),
            class_names=np.array(["cat", "dog"]),
            in_distribution=np.array([True, False, True]),
            severity=np.array([0, 5, 1], ">i2"),
            mood=b"not even an array",
        )
        table, opened = read_predictions(path), open_predictions(path)
        assert table.values.dtype == values.dtype.newbyteorder("=")
        assert np.array_equal(table.values, values)
        assert (table.labels.tolist(), table.severity.tolist()) == ([1, 0, 1], [0, 5, 1])
        assert (table.ids.tolist(), table.domain.texts()) == (["a", "ß", "c"], ["x", None, "y"])
        assert (opened.kind, opened.members, opened.classes, opened.rows) == ("probabilities", 4, 2, 3)
        assert opened.header.class_names == ("cat", "dog")
        assert len(opened.notices) == 1
        assert opened.has_ids

    @pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
    def test_versions_of_the_format(self, version, tmp_path):
        path = npz(tmp_path, logits=npy_bytes(ARRAY, version=version), labels=[1, 0, 1])
        assert read_predictions(path).values.tolist() == VALUES

    def test_in_batches(self, tmp_path):
        opened = open_predictions(npz(tmp_path, logits=np.zeros((300, 20_000), np.float32)))
        assert [len(batch) for batch in opened.batches()] == [256, 44]
        assert not opened.has_ids

    @pytest.mark.filterwarnings("ignore:Stored array in format 3.0:UserWarning")
    @pytest.mark.parametrize("name", NOT_NPZ)
    def test_refuses(self, name, tmp_path):
        arrays, message = NOT_NPZ[name]
        assert re.search(message, refusal(npz(tmp_path, **arrays)))

    def test_refuses_archives_that_are_not_what_they_say(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
            archive.writestr("logits.npy", npy_bytes(ARRAY))
            archive.writestr("logits", npy_bytes(ARRAY))
        assert "two of its arrays have one name" in refusal(tmp_path / "p.npz")
        assert "compressed by method 14" in refusal(npz(tmp_path, method=zipfile.ZIP_LZMA, logits=ARRAY))
        assert "CRC" in refusal(patched(npz(tmp_path, logits=ARRAY), ARRAY[0].tobytes(), ARRAY[1].tobytes()))
        local, central = b"PK\x03\x04\x14\0", b"PK\x01\x02\x14\x03\x14\0"
        path = patched(npz(tmp_path, logits=ARRAY), local + b"\0", local + b"\1")
        assert "encrypted" in refusal(patched(path, central + b"\0", central + b"\1"))
        (tmp_path / "p.npz").write_bytes(npy_bytes(ARRAY))
        assert "not a zip file" in refusal(tmp_path / "p.npz")

    @pytest.mark.parametrize("declared", [16, 1 << 20])
    def test_a_directory_that_lies_takes_no_memory(self, declared, tmp_path):
        """The entry unpacks to 64 MB; the directory says less, and so does the array's own header."""
        head = declaring((1, declared // 8), b"")
        path = npz(tmp_path, method=zipfile.ZIP_DEFLATED, logits=head + bytes(1 << 26))
        size = struct.pack("<I", len(head) + (1 << 26))
        patched(path, size, struct.pack("<I", len(head) + declared))
        tracemalloc.start()
        assert "CRC" in refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20


def test_a_table_says_the_same_in_every_format(tmp_path):
    columns = {
        "logit_cat": ARRAY[:, 0],
        "logit_dog": ARRAY[:, 1],
        "label": ["dog", "cat", "dog"],
        "id": ["a", "b", "c"],
    }
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    paths = [
        parquet(tmp_path, columns),
        csv_file(tmp_path, "\n".join(lines)),
        npz(
            tmp_path,
            logits=ARRAY,
            labels=[1, 0, 1],
            ids=np.array(["a", "b", "c"]),
            class_names=np.array(["cat", "dog"]),
        ),
    ]
    tables: list[Predictions] = [read_predictions(path) for path in paths]
    assert [difference(table, tables[0]) for table in tables] == [None] * 3
