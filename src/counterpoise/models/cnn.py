"""The smallest backbone, and the convolution that all for small images begin with."""

from torch import nn


def small_cnn(*, width: int, classes: int, channels: int) -> nn.Module:
    """Two hidden layers: 3x3 convolutions of `width` and `2 width` channels, then global average and a linear head.

    The paper's ablation of auxiliaries names a "CNN with two hidden layers" and says no more. Each convolution here has
    the batch normalisation and ReLU of a ResNet's, so that the primary's learning rate suits it, and halves the image.
    Takes images of any size from 4x4 on.
    """
    return nn.Sequential(
        *_hidden(channels, width),
        *_hidden(width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


def _hidden(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        convolution_3x3(inputs, outputs),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]


def convolution_3x3(inputs: int, outputs: int) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size of the image; the stem of every network for small images."""
    return he_initialised(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))


def he_initialised(convolution: nn.Conv2d) -> nn.Conv2d:
    """The convolution, with the weights that torchvision's ResNet starts from: normal, of variance 2 / fan-out."""
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
