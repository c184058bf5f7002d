"""The backbones of `counterpoise.models` in torch alone, as model cards print them.

They exist to be read and copied by people who have neither counterpoise nor torchvision: the same layers under the same
names, so that the same weights fit. A test holds them to the originals.
"""

import torch
from torch import Tensor, nn


def cnn(*, width: int, classes: int, channels: int) -> nn.Module:
    """Two hidden layers, global average, linear head."""

    def hidden(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes)]
    return nn.Sequential(*hidden(channels, width), *hidden(width, 2 * width), *head)


class Block(nn.Module):
    """A residual block of two 3x3 convolutions, or of three with a bottleneck."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        plain = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        narrow = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        self.layers = len(narrow if bottleneck else plain)
        for number, (before, after, kernel, step) in enumerate(narrow if bottleneck else plain, start=1):
            self.add_module(f"conv{number}", nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.downsample.append(nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        found = images
        for number in range(1, self.layers + 1):
            found = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(found))
            found = torch.relu(found if number < self.layers else found + self.downsample(images))
        return found


def resnet(
    *, blocks: tuple[int, ...], bottleneck: bool, width: int, classes: int, channels: int, small_images: bool
) -> nn.Module:
    """A ResNet, with a 3x3 stem and no max-pool for small images."""
    stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    model = nn.Sequential()
    model.add_module("conv1", stem if small_images else nn.Conv2d(channels, width, 7, 2, 3, bias=False))
    model.add_module("bn1", nn.BatchNorm2d(width))
    model.add_module("relu", nn.ReLU())
    model.add_module("maxpool", nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1))
    inputs = width
    for stage, count in enumerate(blocks):
        layer = nn.Sequential()
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            layer.append(Block(inputs, width * 2**stage, stride, bottleneck=bottleneck))
            inputs = width * 2**stage * (4 if bottleneck else 1)
        model.add_module(f"layer{stage + 1}", layer)
    model.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(inputs, classes))
    return model
