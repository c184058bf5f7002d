"""Counts in place of measurements: a network's costs without running it, and the bytes that code has at its peak."""

import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from benchmarks.scaling_model import FLOAT, Network
from counterpoise.models import Backbone, build_model
from counterpoise_study.cost import forward_flops

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would speak of GPUs that are not there


@dataclass(frozen=True)
class Peak:
    """Bytes of tensors that some code has allocated: the most at a time, and what is left at its end."""

    most: int
    left: int


@cache
def network(backbone: Backbone, *, classes: int, shape: tuple[int, int, int], half: bool) -> Network:
    """Count a backbone; nothing of its size is allocated."""
    flops, parameters = forward_flops(backbone, classes, shape)
    with torch.device("meta"):
        model = build_model(backbone, classes=classes, channels=shape[0])
    units = [sum(parameter.numel() for parameter in child.parameters()) for child in model.children()]
    return Network(
        name=backbone.name,
        parameters=parameters,
        largest_unit=max(units),
        units=sum(map(bool, units)),
        flops=flops,
        activations=activation_bytes(backbone, shape=shape, half=half),
        image=FLOAT * math.prod(shape),
    )


@cache
def activation_bytes(backbone: Backbone, *, shape: tuple[int, int, int], half: bool) -> int:
    """Bytes that an image keeps for the backward pass; a linear head keeps its input, whatever the classes."""
    # The difference leaves out what does not grow with the batch, such as bfloat16 copies of the weights.
    two, three = (_saved_bytes(backbone, (images, *shape), half=half) for images in (2, 3))
    return three - two


def _saved_bytes(backbone: Backbone, shape: tuple[int, ...], *, half: bool) -> int:
    """Bytes that autograd keeps of a forward pass, beside parameters, buffers and images; each storage once."""
    with FakeTensorMode():
        model = build_model(backbone, classes=2, channels=shape[1]).train()
        images = torch.empty(shape)
        own = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers(), images)}
        kept: dict[int, Any] = {}  # the storages stay here, or one could take another's place

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                kept[storage._cdata] = storage
            return tensor

        precision = torch.autocast("cpu", torch.bfloat16) if half else nullcontext()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision:
            model(images)
        return sum(storage.nbytes() for storage in kept.values())


def peak_of(run: Callable[[], object]) -> Peak:
    """Every tensor that is allocated on the CPU counts, to the byte; what was there before does not."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        held = run()
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    del held
    return Peak(most, live)
