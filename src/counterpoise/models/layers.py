"""What several backbones share."""

from torch import nn


def convolution_3x3(inputs: int, outputs: int) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size of the image; the stem of every network for small images."""
    return he_initialised(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))


def he_initialised(convolution: nn.Conv2d) -> nn.Conv2d:
    """The convolution, with the weights that torchvision's ResNet starts from: normal, of variance 2 / fan-out."""
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
