"""bfloat16 by float32 kernels is the arithmetic of autocast, and is what the engine takes where there are no others."""

from contextlib import nullcontext
from copy import deepcopy
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

from counterpoise.models import Backbone, build_model
from counterpoise.recipes.config import EngineOptions
from counterpoise.training.arithmetic import float32_kernels, kernels_of, mixed_precision
from counterpoise.training.engine import kernels

ROUNDING = 2.0**-8
"""The largest relative error of rounding to bfloat16."""

OLD_CPU = {"architecture": "x86_64", "avx512_f": True, "avx512_bf16": False, "amx_bf16": False}


def _gradients(model: nn.Module, images: Tensor, *, widened: bool) -> tuple[Tensor, list[Tensor]]:
    """Output and gradients of one backward pass under autocast."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16), float32_kernels() if widened else nullcontext():
        output = model(images)
    functional.cross_entropy(output.float(), torch.arange(len(images)) % output.shape[1]).backward()
    return output.detach(), [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3, bias=False),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.Conv3d(4, 6, 3),
        nn.Linear(7, 6),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_rounds_where_autocast_rounds(layer: nn.Module) -> None:
    """Against the definition in float64: operands rounded, the result rounded once; gradients likewise."""
    sizes = {nn.Conv1d: (3, 4, 7), nn.Conv3d: (3, 4, 7, 7, 7), nn.Linear: (3, 7)}
    images = torch.randn(sizes.get(type(layer), (3, 4, 7, 7)), generator=torch.Generator().manual_seed(0))
    images.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), float32_kernels():
        output = layer(images)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    output.backward(upstream)
    assert images.grad is not None
    found = [output, images.grad, *(parameter.grad for parameter in layer.parameters())]

    exact = deepcopy(layer).bfloat16().double()
    exact.zero_grad()
    rounded = images.detach().bfloat16().double().requires_grad_()
    expected = exact(rounded)
    expected.backward(upstream.double())
    wanted = [expected, rounded.grad, *(parameter.grad for parameter in exact.parameters())]

    for value, right in zip(found, wanted, strict=True):
        assert value is not None
        assert right is not None
        torch.testing.assert_close(value.double(), right, rtol=1.01 * ROUNDING, atol=1e-5)
        assert torch.equal(value, value.bfloat16().to(value.dtype))  # nothing but bfloat16 numbers


def test_a_network_agrees_with_autocast() -> None:
    """Within what another order of summation does, which is far less than what bfloat16 itself does."""
    model = build_model(Backbone("resnet10", width=8), classes=4, seed=0).eval()
    images = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    native, native_gradients = _gradients(model, images, widened=False)
    widened, gradients = _gradients(model, images, widened=True)
    assert widened.dtype == native.dtype
    torch.testing.assert_close(widened, native, rtol=0.02, atol=0.02)
    for one, other in zip(gradients, native_gradients, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm() + 1e-6


@pytest.mark.parametrize("able", [OLD_CPU, OLD_CPU | {"avx512_bf16": True}], ids=["without", "with instructions"])
def test_by_hand_as_in_the_engine(able: dict[str, object]) -> None:
    """Whoever times a step by hand times the engine's arithmetic."""
    layer, images = nn.Conv2d(3, 4, 3), torch.rand(2, 3, 5, 5)
    with patch.object(torch.cpu, "get_capabilities", lambda: able):
        with mixed_precision("bfloat16", device="cpu"):
            widened = any(isinstance(mode, float32_kernels) for mode in _get_current_function_mode_stack())
            assert layer(images).dtype == torch.bfloat16
        with mixed_precision("float32", device="cpu"):
            assert layer(images).dtype == torch.float32
    assert widened == (able is OLD_CPU)


def test_nothing_changes_without_autocast() -> None:
    """In float32, and in autocast to float16, which has scales of its own."""
    layer, images = nn.Conv2d(3, 4, 3), torch.rand(2, 3, 5, 5)
    with float32_kernels():
        assert torch.equal(layer(images), nn.Conv2d.forward(layer, images))
        with torch.autocast("cpu", torch.float16):
            assert layer(images).dtype == torch.float16


def test_the_engine_takes_them_where_there_are_no_others() -> None:
    """By what the CPU can do; never on another device, in another precision, compiled or sharded."""
    options = EngineOptions(precision="bfloat16", accelerator="cpu")
    with patch.object(torch.cpu, "get_capabilities", lambda: OLD_CPU):
        assert kernels(options) == "float32"
        assert kernels(EngineOptions(accelerator="cpu")) == "native"
        assert kernels(EngineOptions(precision="bfloat16", accelerator="cpu", compile=True)) == "native"
        assert kernels(EngineOptions(precision="bfloat16", accelerator="cpu", strategy="fsdp")) == "native"
        assert kernels_of("bfloat16", device="cuda") == "native"
    for able in (OLD_CPU | {"avx512_bf16": True}, OLD_CPU | {"amx_bf16": True}, {"architecture": "aarch64"}):
        with patch.object(torch.cpu, "get_capabilities", lambda able=able: able):
            assert kernels_of("bfloat16", device="cpu") == "native"
