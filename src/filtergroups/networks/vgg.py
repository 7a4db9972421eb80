"""VGG11: a table and one loop."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from filtergroups.network import GroupedNetwork, lift
from filtergroups.tasks import GlobalAverage, Task

POOL = 0
TABLE = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512)


class VGG11(nn.Module):
    """The plain backbone: 3×3 convolutions, norm, PReLU, pooling, and the global average of the last features."""

    def __init__(self, channels: int = 3, width: float = 1.0, extra: float = 0.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for entry in TABLE:
            if entry == POOL:
                layers.append(nn.MaxPool2d(2))
                continue
            kernels = max(1, round(entry * width)) + round(entry * width * extra)
            layers += [nn.Conv2d(channels, kernels, 3, padding=1), nn.BatchNorm2d(kernels), nn.PReLU()]
            channels = kernels
        self.layers = nn.Sequential(*layers)
        self.average = GlobalAverage()
        self.features = channels

    def forward(self, images: Tensor) -> Tensor:
        averages: Tensor = self.average(self.layers(images))
        return averages


def vgg11(
    tasks: Sequence[Task],
    *,
    width: float = 1.0,
    extra: float = 0.0,
    channels: int = 3,
    hidden: int | None = None,
    **options: Any,
) -> GroupedNetwork:
    """The paper's face network: every convolution of VGG11 is grouped.

    width scales the table of kernels, and extra adds a share of them once more; hidden is the size of each
    head's hidden layer (None: that of the features); options are those of `lift`.
    """
    return lift(VGG11(channels, width, extra), tasks, hidden=hidden, **options)
