"""The peak of memory is that of the attempt, and not of what the process did before."""

import sys

import numpy as np
import pytest

from counterpoise_study import process_memory as memory

MEGABYTE = 1_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
def test_a_peak_is_counted_from_the_reset_on():
    large = np.ones(200 * MEGABYTE, dtype=np.uint8)
    before = memory.peak_memory()
    del large
    memory.reset_peak()
    after = memory.peak_memory()
    assert after < before - 150 * MEGABYTE
    assert after == pytest.approx(memory.resident_memory(), rel=0.2)
    again = np.ones(100 * MEGABYTE, dtype=np.uint8)
    assert memory.peak_memory() > after + 80 * MEGABYTE
    del again


def test_without_the_kernels_word_it_is_that_of_the_process(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "none" / "either")
    memory.reset_peak()
    assert memory.resident_memory() is None
    assert sys.platform == "win32" or memory.peak_memory() > 50 * MEGABYTE
