"""Precision on CPUs: bfloat16 without instructions for it, and runs of versions that had kernels of their own for it."""

from unittest.mock import patch

import pytest
import torch

from counterpoise.training import resume, train
from counterpoise.training.devices import computes_bfloat16, mixed_precision
from counterpoise.training.folder import RunFolder, read_environment
from runs import edit_environment, small_data, small_recipe

OLD_CPU = {"architecture": "x86_64", "avx512_f": True, "avx512_bf16": False, "amx_bf16": False}


@pytest.mark.parametrize(
    ("capabilities", "device", "expected"),
    [
        (OLD_CPU, "cpu", False),
        (OLD_CPU, "cuda", True),
        (OLD_CPU | {"avx512_bf16": True}, "cpu", True),
        (OLD_CPU | {"amx_bf16": True}, "cpu", True),
        ({"architecture": "aarch64"}, "cpu", True),
    ],
)
def test_which_devices_compute_bfloat16(capabilities, device, expected):
    with patch("torch.cpu.get_capabilities", return_value=capabilities):
        assert computes_bfloat16(device) is expected


@pytest.mark.parametrize(("precision", "named"), [("bfloat16", True), ("float32", False)])
def test_a_run_in_bfloat16_on_such_a_cpu_names_float32(precision, named, tmp_path, capsys):
    recipe = small_recipe("ce", engine__precision=precision, epochs=1)
    with patch("torch.cpu.get_capabilities", return_value=OLD_CPU):
        train(recipe, tmp_path / "run", data=small_data(recipe))
    said = capsys.readouterr().err
    assert ("--engine.precision float32 is faster here, and exact" in said) is named
    assert read_environment(RunFolder(tmp_path / "run")).started.kernels == "native"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_bare_loop_computes_as_the_engine_does(precision):
    layer, rows = torch.nn.Linear(4, 3), torch.randn(2, 4)
    with mixed_precision(precision, device="cpu"):
        assert layer(rows).dtype == getattr(torch, precision)


def test_a_run_by_float32_kernels_is_read_and_not_resumed_unawares(tmp_path):
    recipe = small_recipe("ce", epochs=1)
    data = small_data(recipe)
    train(recipe, tmp_path, data=data)
    run = RunFolder(tmp_path)
    edit_environment(run, '"kernels": "native"', '"kernels": "float32"')
    assert read_environment(run).started.kernels == "float32"
    with pytest.raises(ValueError, match=r"device was cpu by float32 kernels, is cpu.*--allow device"):
        resume(tmp_path, data=data)
    resume(tmp_path, data=data, allow=["device"])
    assert read_environment(run).resumed[-1].allowed == ["device"]
