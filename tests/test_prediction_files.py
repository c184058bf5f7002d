"""Damage, lies and crashes: a file of predictions is read as it was written, or refused by one exception."""

import json
import os
import pickle
import signal
import subprocess
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise.predictions import (
    PredictionFileError,
    Predictions,
    open_predictions,
    parquet,
    read_predictions,
    write_predictions,
)
from counterpoise.predictions import footer as footer_module
from prediction_tables import a_table, difference, write_digest_anew

FLIPS, TRUNCATIONS = 1_000, 100
ROWS = 300


def outcome(path: Path, original: Predictions) -> str | None:
    """What reading a file comes to: refused, a field that changed, or None; any other exception is a failure."""
    try:
        table = read_predictions(path)
    except PredictionFileError as error:
        return "refused" if str(path) in str(error) else "refused without its name"
    return difference(table, original)


def flip_and_read(path: Path, original: Predictions, bits: Iterable[int]) -> Counter[str | None]:
    """Flip single bits, each in the undamaged file."""
    data, outcomes = path.read_bytes(), Counter[str | None]()
    for bit in bits:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        outcomes[outcome(path, original)] += 1
    path.write_bytes(data)
    return outcomes


def random_bits(path: Path, *, times: int, seed: int, start: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(8 * start, 8 * path.stat().st_size, times).tolist()


def digest_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


@pytest.fixture
def written(tmp_path) -> tuple[Path, Predictions]:
    write_predictions(tmp_path / "p.parquet", a_table(ROWS))
    return tmp_path / "p.parquet", a_table(ROWS)


class TestDamage:
    @pytest.mark.slow
    def test_every_flipped_bit_is_noticed(self, written):
        path, table = written
        assert flip_and_read(path, table, random_bits(path, times=FLIPS, seed=0)) == {"refused": FLIPS}

    def test_the_digest_comes_before_everything_else(self, written, monkeypatch):
        path, _ = written
        path.write_bytes(b"x" + path.read_bytes()[1:])
        monkeypatch.setattr(parquet, "read_footer", lambda *_: pytest.fail("the footer was parsed"))
        with pytest.raises(PredictionFileError, match="do not agree with the digest"):
            open_predictions(path)

    @pytest.mark.parametrize("digest", [True, False])
    def test_every_truncation_is_noticed(self, digest, written):
        path, table = written
        if not digest:
            digest_beside(path).unlink()
        data, outcomes = path.read_bytes(), Counter[str | None]()
        for length in np.random.default_rng(1).choice(len(data), TRUNCATIONS, replace=False).tolist():
            path.write_bytes(data[:length])
            outcomes[outcome(path, table)] += 1
        assert outcomes == {"refused": TRUNCATIONS}

    @pytest.mark.slow
    def test_a_damaged_digest_accepts_nothing_else(self, written):
        path, table = written
        digest = digest_beside(path)
        text = digest.read_bytes()
        for bit in range(8 * len(text)):
            damaged = bytearray(text)
            damaged[bit // 8] ^= 1 << bit % 8
            digest.write_bytes(damaged)
            # The name behind the digest is for sha256sum, and not read.
            assert outcome(path, table) == "refused" or (bit >= 8 * 65 and outcome(path, table) is None)
        for other in (b"", b"\n", text[:63], text[:64], b"0" * 64 + text[64:], b"\xff" * 5_000):
            digest.write_bytes(other)
            assert outcome(path, table) == "refused"

    def test_without_a_digest_no_row_changes_and_the_process_lives(self, tmp_path, programs):
        """In a process of its own: on some damaged footers Arrow's bindings would end it (see `predictions.footer`)."""
        printed = run_python(
            programs / "python",
            f"""
            from test_prediction_files import *
            own, foreign, table = Path({str(tmp_path / "own.parquet")!r}), Path({str(tmp_path / "p.parquet")!r}), a_table(ROWS)
            write_predictions(own, table)
            digest_beside(own).unlink()
            print(json.dumps(flip_and_read(own, table, random_bits(own, times=FLIPS, seed=2))))
            pq.write_table(pa.table({{"label": [0] * 50, "logits": [[1.0, 2.0]] * 50}}), foreign)
            data = foreign.read_bytes()
            start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
            bits = random_bits(foreign, times=300, seed=3, start=start)
            print(json.dumps(flip_and_read(foreign, read_predictions(foreign), bits)))
            """,
        )
        own, foreign = map(json.loads, printed.splitlines())
        assert (sum(own.values()), sum(foreign.values())) == (FLIPS, 300)
        # Page checksums guard the rows of an own file; the texts of its header lie outside them.
        assert set(own) <= {"refused", "null", "header"}
        assert own.get("header", 0) < 0.02 * FLIPS


def test_a_footer_that_ends_the_process_of_pyarrow_is_refused(programs):
    """One byte of a footer was changed. Of 2,500 such files, asking pyarrow for the sizes of columns ended 7 processes.

    So their sizes are read by `predictions.footer`, which no digest of somebody else's file replaces; a child process
    for every file that is opened would cost the import of pyarrow each time.
    """
    path = Path(__file__).parent / "golden" / "predictions" / "damaged-footer.parquet"
    with pytest.raises(PredictionFileError, match="not a readable Parquet file"):
        list(open_predictions(path).batches())
    code = f"""
        import pyarrow.parquet as pq
        metadata = pq.ParquetFile({str(path)!r}).metadata
        [metadata.row_group(0).column(column).total_uncompressed_size for column in range(metadata.num_columns)]
        """
    with pytest.raises(subprocess.CalledProcessError) as ended:
        run_python(programs / "python", code)
    assert ended.value.returncode == -signal.SIGABRT


def run_python(python: Path, code: str) -> str:
    """What a new process prints that can import this folder's modules."""
    lines = code.splitlines()[1:]
    indent = len(lines[0]) - len(lines[0].lstrip())
    return subprocess.run(
        [python, "-c", "\n".join(line[indent:] for line in lines)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def varint(value: int) -> bytes:
    """A positive integer as Parquet's footer has it."""
    value, parts = 2 * value, []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def eight_terabytes(folder: Path, *, places: int = -1) -> Path:
    """An own file of 123 457 rows whose footer says 2^40: for the file, then for its columns and its row group."""
    path = folder / "p.parquet"
    write_predictions(path, Predictions.of(logits=np.zeros((123_457, 1)), labels=np.zeros(123_457, int)))
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8].replace(varint(123_457), varint(2**40), places)
    assert footer.count(varint(2**40)) >= abs(places)
    path.write_bytes(data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    write_digest_anew(path)
    return path


def constant_columns(folder: Path, *, dictionary: bool = True) -> Path:
    zeros = np.zeros(5_000_000)
    table = pa.table({"logit_a": zeros, "logit_b": zeros})
    pq.write_table(table, folder / "p.parquet", use_dictionary=dictionary, compression="zstd")
    return folder / "p.parquet"


def one_long_row(folder: Path) -> Path:
    """The first row is short, so that its length says nothing of the others."""
    lists = pa.ListArray.from_arrays([0, 1, 10_000_001], pa.array(np.zeros(10_000_001)))
    pq.write_table(pa.table({"logits": lists}), folder / "p.parquet", compression="zstd")
    return folder / "p.parquet"


def deflated(folder: Path) -> Path:
    np.savez_compressed(folder / "p.npz", logits=np.zeros((5_000_000, 2)))
    return folder / "p.npz"


def declared_shape(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "p.npz", "w") as archive, archive.open("logits.npy", "w") as stream:
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**40, 1)}
        np.lib.format.write_array_header_1_0(stream, header)
    return folder / "p.npz"


def objects(folder: Path) -> Path:
    np.savez(folder / "p.npz", logits=np.array([[1.0, None]], object))
    return folder / "p.npz"


LIES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "8 TB in a footer": (eight_terabytes, r"it declares [0-9]+(,[0-9]{3}){4} bytes and stores"),
    "rows that do not add up": (
        lambda folder: eight_terabytes(folder, places=1),
        "1,099,511,627,776 rows, its parts do not add up",
    ),
    "8 TB in an array's header": (declared_shape, "8,796,093,022,208 bytes, and holds 0"),
    "dictionary bomb": (constant_columns, "it declares 80,000,000 bytes and stores"),
    "zstd bomb": (lambda folder: constant_columns(folder, dictionary=False), "declares 80,"),
    "one long row": (one_long_row, "it declares 80,000,008 bytes"),
    "deflate bomb": (deflated, "'logits' declares 80,000,128 bytes and stores .* no more than 100 for 1"),
    "objects": (objects, "dtype object"),
}


class TestLies:
    @pytest.mark.parametrize("name", LIES)
    def test_refused_within_a_second(self, name, tmp_path):
        make, message = LIES[name]
        path = make(tmp_path)
        started = time.perf_counter()
        with pytest.raises(PredictionFileError, match=message):
            open_predictions(path)
        assert time.perf_counter() - started < 1

    @pytest.mark.slow
    def test_a_long_text_that_repeats_is_kept_once(self, tmp_path):
        """100 000 rows of one megabyte each, in a file of a few hundred bytes, stand for one megabyte."""
        codes = pa.array(np.zeros(100_000, np.int32))
        text = pa.DictionaryArray.from_arrays(codes, pa.array(["x" * 1_000_000]))
        columns = {"logit_1": np.random.default_rng(0).random(100_000), "id": text, "domain": text}
        pq.write_table(pa.table(columns), tmp_path / "p.parquet", store_schema=False)
        table = read_predictions(tmp_path / "p.parquet")
        assert table.domain.names == ("x" * 1_000_000,)
        assert len({id(each) for each in table.ids}) <= 2


@pytest.mark.slow
def test_a_row_group_as_large_as_the_file_is_read_in_batches(tmp_path):
    values = pa.array(np.random.default_rng(0).random(20_000_000))
    pq.write_table(
        pa.table({"logits": pa.FixedSizeListArray.from_arrays(values, 100)}),
        tmp_path / "p.parquet",
        row_group_size=200_000,
    )
    assert pq.ParquetFile(tmp_path / "p.parquet").metadata.num_row_groups == 1
    del values
    before = pa.total_allocated_bytes()
    taken = [pa.total_allocated_bytes() - before for _ in open_predictions(tmp_path / "p.parquet").batches()]
    assert len(taken) > 4
    assert max(taken) < (tmp_path / "p.parquet").stat().st_size / 3


def test_short_row_groups_are_read_together(tmp_path):
    """Measuring a batch has a cost of its own, and text that is read as a dictionary ends a batch with its row group."""
    towns = [f"town {row // 7}" for row in range(1000)]
    columns = {"logit_1": np.arange(1000.0), "id": [f"{row}.png" for row in range(1000)], "domain": towns}
    pq.write_table(pa.table(columns), tmp_path / "p.parquet", row_group_size=10)
    (table,) = open_predictions(tmp_path / "p.parquet").batches()
    assert table.values[:, 1].tolist() == columns["logit_1"].tolist()
    assert list(table.ids) == columns["id"]
    assert [table.domain.names[code] for code in table.domain.codes] == towns


@pytest.mark.slow
def test_what_is_written_can_be_read_and_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_ROW_GROUP_ROWS", 1)
    rows = 500
    monkeypatch.setattr(parquet, "MOST_ROW_GROUPS", rows)
    path = tmp_path / "most.parquet"
    table = Predictions.of(
        logits=np.zeros((rows + 1, 2), np.float32),
        labels=np.zeros(rows + 1, int),
        ids=[f"images/{index:010}.png" for index in range(rows + 1)],
        split="test",
        data_set="a set",
        domain="sketch",
        corruption="fog",
        severity=3,
        in_distribution=True,
    )
    write_predictions(path, table.rows(0, rows))
    assert open_predictions(path).rows == rows
    footer = int.from_bytes(path.read_bytes()[-8:-4], "little")
    assert footer / rows * (1 << 16) < footer_module._LONGEST_FOOTER
    with pytest.raises(
        ValueError, match=r"more.parquet: a file holds at most 500 rows of 2 values; write several files"
    ):
        write_predictions(tmp_path / "more.parquet", table)
    assert not (tmp_path / "more.parquet").exists()


def test_a_type_that_is_a_pickle_stays_one(tmp_path):
    """Old releases of PyArrow unpickled the type of such a column when they read it."""
    trap = tmp_path / "run"
    stored = pickle.dumps(Trap(trap))
    tag = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": stored}
    schema = pa.schema([pa.field("id", pa.int64(), metadata=tag), pa.field("logit_1", pa.float64())])
    pq.write_table(pa.table([[1, 2], [0.5, 1.0]], schema=schema), tmp_path / "p.parquet")
    assert read_predictions(tmp_path / "p.parquet").ids.tolist() == [1, 2]
    assert not trap.exists()
    pickle.loads(stored)  # noqa: S301
    assert trap.exists()


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


class TestPaths:
    @pytest.mark.parametrize("name", ["p.parquet", "p.csv", "p.npz"])
    def test_what_is_no_file(self, name, tmp_path):
        with pytest.raises(FileNotFoundError):
            open_predictions(tmp_path / name)
        (tmp_path / name).mkdir()
        with pytest.raises(PredictionFileError, match=f"{name}: it is a folder"):
            open_predictions(tmp_path / name)

    @pytest.mark.parametrize("name", ["p.parquet", "p.csv", "p.npz"])
    @pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"\0" * 100, b"PAR1\xff\xff\xff\xffPAR1", b"PK\5\6"])
    def test_what_is_no_prediction(self, name, data, tmp_path):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(PredictionFileError, match=name):
            read_predictions(tmp_path / name)

    @pytest.mark.parametrize("name", ["p.txt", "p", "p.parquet.sha256", "p.pkl", "p.ckpt"])
    def test_other_formats(self, name, tmp_path):
        (tmp_path / name).write_bytes(b"1")
        with pytest.raises(PredictionFileError, match=r"read from \.parquet, \.csv, "):
            open_predictions(tmp_path / name)

    def test_a_digest_guards_every_format(self, tmp_path):
        for name, data in {"p.csv": b"logit_1\n1\n", "p.npz": None}.items():
            path = tmp_path / name
            np.savez(path, logits=np.zeros((1, 2))) if data is None else path.write_bytes(data)
            assert open_predictions(path).digest is None
            write_digest_anew(path)
            assert open_predictions(path).digest
            path.write_bytes(path.read_bytes() + b"\n")
            with pytest.raises(PredictionFileError, match="do not agree with the digest"):
                open_predictions(path)

    @pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
    def test_what_is_read_is_what_was_checked(self, name, tmp_path):
        path = tmp_path / name
        path.write_text("logit_1\n1\n") if name == "p.csv" else write_predictions(path, a_table())
        opened = open_predictions(path)
        path.write_text("logit_1\n2.0\n") if name == "p.csv" else write_predictions(path, a_table(seed=1))
        with pytest.raises(PredictionFileError, match="replaced after it was opened; open it again"):
            next(opened.batches())
        path.unlink()
        with pytest.raises(FileNotFoundError):
            next(opened.batches())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path, programs):
    run_python(
        programs / "python",
        f"""
        import signal
        from test_prediction_files import *
        path, tables = Path({str(tmp_path / "p.parquet")!r}), [a_table(40, seed=seed) for seed in range(2)]
        write_predictions(path, tables[0])
        delays = np.random.default_rng(0).uniform(0.001, 0.05, 30)
        for delay in delays:
            child = os.fork()
            while not child:
                for table in tables:
                    write_predictions(path, table)
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            table = read_predictions(path)
            assert any(difference(table, each) is None for each in tables)
        """,
    )
    assert (tmp_path / "p.parquet").exists()
