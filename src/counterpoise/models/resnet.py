"""torchvision's ResNet with a width, any number of input channels, and the small-image stem.

Imports torchvision, so it is itself imported only where a ResNet is built.
"""

from collections.abc import Sequence

from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.resnet import ResNet as TorchvisionResNet

from counterpoise.models.cnn import convolution_3x3, he_initialised


class ResNet(TorchvisionResNet):  # type: ignore[misc]
    """torchvision's network, forward pass and parameter names, built with other sizes.

    Args:
        layers: blocks of each of the four stages.
        bottleneck: three convolutions a block (ResNet50 and deeper), not two.
        width: channels of the first stage; each stage doubles them.
        small_images: a 3x3 stem of stride 1 and no max-pool, so that the first stage sees the images in full size.
    """

    def __init__(
        self, layers: Sequence[int], *, bottleneck: bool, width: int, classes: int, channels: int, small_images: bool
    ) -> None:
        # torchvision's own constructor fixes 64 channels; this one sets what its `_make_layer` and `forward` read.
        nn.Module.__init__(self)
        block = Bottleneck if bottleneck else BasicBlock
        self._norm_layer = nn.BatchNorm2d
        self.inplanes, self.dilation, self.groups, self.base_width = width, 1, 1, 64
        self.conv1 = (
            convolution_3x3(channels, width) if small_images else nn.Conv2d(channels, width, 7, 2, 3, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._make_layer(block, width, layers[0])
        self.layer2 = self._make_layer(block, 2 * width, layers[1], stride=2)
        self.layer3 = self._make_layer(block, 4 * width, layers[2], stride=2)
        self.layer4 = self._make_layer(block, 8 * width, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                he_initialised(module)
