"""HighResNet (Li et al., IPMI 2017) in 2-D and 3-D: a table and one loop."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from filtergroups.network import GroupedNetwork, lift
from filtergroups.tasks import Task

CONVOLUTION = {2: nn.Conv2d, 3: nn.Conv3d}
NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
STAGES = ((1, 16), (2, 32), (4, 64))  # dilation of the residual blocks, kernels


class Block(nn.Module):
    """A residual block: norm, PReLU, convolution, twice, plus the skip."""

    def __init__(self, spatial_dims: int, kernels: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                layer
                for _ in range(2)
                for layer in (
                    NORM[spatial_dims](kernels),
                    nn.PReLU(),
                    CONVOLUTION[spatial_dims](kernels, kernels, 3, padding=dilation, dilation=dilation, bias=False),
                )
            )
        )

    def forward(self, features: Tensor) -> Tensor:
        changed: Tensor = self.layers(features)
        return features + changed


class HighResNet(nn.Module):
    """The plain backbone, at full resolution throughout. The five convolutions outside the blocks are named `conv`."""

    def __init__(self, spatial_dims: int = 2, channels: int = 1, width: float = 1.0) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for dilation, entry in STAGES:
            kernels = max(1, round(entry * width))
            stages.append(self._layer(spatial_dims, channels, kernels))
            stages += [Block(spatial_dims, kernels, dilation) for _ in range(2)]
            channels = kernels
        stages += [self._layer(spatial_dims, channels, channels) for _ in range(2)]
        self.stages = nn.Sequential(*stages)

    @staticmethod
    def _layer(spatial_dims: int, channels: int, kernels: int) -> nn.Module:
        layer = nn.Sequential()
        layer.add_module("conv", CONVOLUTION[spatial_dims](channels, kernels, 3, padding=1))
        layer.add_module("norm", NORM[spatial_dims](kernels))
        layer.add_module("activation", nn.PReLU())
        return layer

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.stages(images)
        return features


def highresnet(
    tasks: Sequence[Task], *, spatial_dims: int = 2, width: float = 1.0, channels: int = 1, **options: Any
) -> GroupedNetwork:
    """The paper's scan network: the five 3×3 convolutions outside the residual blocks are grouped.

    The blocks are copied for each stream; after them streams merge by concatenation and a 1×1 convolution. options are
    those of `lift`.
    """
    if spatial_dims not in CONVOLUTION:
        raise ValueError(f"spatial_dims is 2 or 3, found {spatial_dims}")
    options.setdefault("group", "stages.*.conv")
    return lift(HighResNet(spatial_dims, channels, width), tasks, **options)
