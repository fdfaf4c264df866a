"""ResNet: a deep convolutional network whose blocks add a correction to their input instead of replacing it.

He et al. 2015, arXiv:1512.03385, with the stride in the 3×3 convolution of a bottleneck ("ResNet v1.5"), the form
that is benchmarked everywhere. Parameters have the names of the published checkpoints (`layer1.0.conv1.weight`).
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["BasicBlock", "Bottleneck", "ResNet", "convolution", "resnet18", "resnet20", "resnet50"]


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps height and width (up to the stride). It needs no bias, since a batch norm follows."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions (ResNet-18 and -34)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1 = convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width * self.expansion, stride)

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs h w"]:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return functional.relu(y + self.downsample(x))


class Bottleneck(nn.Module):
    """1×1 down to `width` channels, 3×3 on those few, 1×1 up to 4·`width` (ResNet-50 and deeper)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1 = convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = _shortcut(inputs, width * self.expansion, stride)

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs h w"]:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return functional.relu(y + self.downsample(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The path around a block: the identity if the shape stays, else a 1×1 convolution to the new shape."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A stem, one to four stages, each half as high and wide and twice as deep as the previous one, and a classifier.

    `blocks` is the number of blocks of each stage. `width` is the number of channels of the first stage, and `channels`
    that of an image. The stem halves height and width twice. With `small_images` it keeps them, as He et al. do for the
    32×32 images of CIFAR (section 4.2). Raises ValueError for a wrong number of stages or a size below 1.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, ...],
        *,
        classes: int = 1000,
        width: int = 64,
        channels: int = 3,
        small_images: bool = False,
    ):
        super().__init__()
        if not 1 <= len(blocks) <= 4 or min(blocks) < 1:
            raise ValueError(f"blocks = {blocks}: expected one to four positive numbers, such as (3, 4, 6, 3)")
        for name, value in (("classes", classes), ("width", width), ("channels", channels)):
            if value < 1:
                raise ValueError(f"{name} = {value}: expected a positive number")
        self.conv1 = convolution(channels, width, 3) if small_images else convolution(channels, width, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = len(blocks)
        channels = width
        for stage, count in enumerate(blocks):
            stage_width = width * 2**stage
            layers = []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(block(channels, stage_width, stride))
                channels = stage_width * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        # Shapes for ResNet-50 at 224×224.
        x = functional.relu(self.bn1(self.conv1(x)))  # batch 64 112 112
        x = self.maxpool(x)  # batch 64 56 56
        for stage in range(self.stages):  # batch 256 56 56, batch 512 28 28, batch 1024 14 14, batch 2048 7 7
            x = getattr(self, f"layer{stage + 1}")(x)
        x = x.mean(dim=(2, 3))  # batch 2048
        return self.fc(x)  # batch 1000


def resnet18(*, classes: int = 1000, width: int = 64) -> ResNet:
    """ResNet-18, randomly initialised: 11,689,512 parameters, 1.81 G multiply-adds at 224×224."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes=classes, width=width)


def resnet50(*, classes: int = 1000, width: int = 64) -> ResNet:
    """ResNet-50, randomly initialised: 25,557,032 parameters, 4.09 G multiply-adds at 224×224.

    `width=16` leaves 1,993,976 parameters and 278 M multiply-adds, for machines without a GPU.
    """
    return ResNet(Bottleneck, (3, 4, 6, 3), classes=classes, width=width)


def resnet20(*, classes: int = 10, width: int = 16, channels: int = 3) -> ResNet:
    """ResNet-20 for small images, randomly initialised: 272,474 parameters, 41 M multiply-adds at 32×32.

    From He et al. 2015, section 4.2, with convolutions as shortcuts where the shape changes.
    """
    return ResNet(BasicBlock, (3, 3, 3), classes=classes, width=width, channels=channels, small_images=True)
