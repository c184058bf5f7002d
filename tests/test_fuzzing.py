"""Files that somebody has damaged or made up: each is read, or refused as documented."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing.children import CORPUS, read
from fuzzing.mutations import mutated
from fuzzing.readers import READERS

ROOT = Path(__file__).parent.parent
FOUND = sorted(CORPUS.glob("*/*"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_file_that_was_once_read_wrongly_is_read_or_refused_as_documented(case, tmp_path):
    READERS[case.parent.name].seeds(tmp_path)
    assert read(case.parent.name, tmp_path, case.read_bytes()) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_what_is_damaged_was_whole_before(name, tmp_path):
    reader = READERS[name]
    for data in reader.seeds(tmp_path):
        (tmp_path / reader.file).write_bytes(data)
        reader.read(tmp_path / reader.file)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["csv", "npy", "parquet", "recipe", "rules", "webdataset"])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_bytes_of_no_format_are_refused(name, tmp_path, data):
    assert read(name, tmp_path, data) is None


@given(seeds=st.lists(st.binary(max_size=40), min_size=1), random=st.randoms(use_true_random=False))
def test_damage_takes_any_seed(seeds, random):
    assert isinstance(mutated(random, seeds), bytes)


@pytest.mark.slow
def test_every_reader_holds_for_a_moment_in_processes_that_may_not_take_all_memory():
    command = [sys.executable, "-m", "fuzzing", "--seconds", "0.2", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(", 0 findings") == len(READERS)
