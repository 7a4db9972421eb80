"""Plain CNNs, as users write them, to lift."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def plain_net(channels: int = 3) -> nn.Module:
    """Convolution, norm, ReLU, pooling, global average."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1, padding_mode="reflect"),
        nn.BatchNorm2d(12),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.1),
        nn.Conv2d(12, 10, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class BasicBlock(nn.Module):
    def __init__(self, channels: int, kernels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, kernels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(kernels)
        self.conv2 = nn.Conv2d(kernels, kernels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(kernels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != kernels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, kernels, 1, stride, bias=False), nn.BatchNorm2d(kernels)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks = []
        before = width
        for stage, kernels in enumerate((width, 2 * width, 4 * width, 8 * width)):
            blocks += [BasicBlock(before, kernels, 1 if stage == 0 else 2), BasicBlock(kernels, kernels, 1)]
            before = kernels
        self.layers = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return torch.flatten(self.avgpool(self.layers(x)), 1)


class PreActivationNet(nn.Module):
    """Norm before convolution, with a residual stream; sigmoid keeps the activation from being homogeneous."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv1 = nn.Conv2d(8, 6, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = self.conv1(self.activation(self.norm1(x)))
        return x + self.conv2(self.activation(self.norm2(inner)))


class UNet(nn.Module):
    """Skip concatenations and transposed convolutions."""

    def __init__(self, channels: int = 1, width: int = 6) -> None:
        super().__init__()
        self.down1 = self._block(channels, width)
        self.down2 = self._block(width, 2 * width)
        self.bottom = self._block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.merge2 = self._block(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 3, 2, padding=1, output_padding=1)
        self.merge1 = self._block(2 * width, width)

    @staticmethod
    def _block(channels: int, kernels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, kernels, 3, padding=1), nn.InstanceNorm2d(kernels, affine=True), nn.LeakyReLU(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        deep = self.bottom(F.avg_pool2d(two, 2))
        two = self.merge2(torch.cat([self.up2(deep), two], dim=1))
        return self.merge1(torch.cat([self.up1(two), one], dim=1))


def net3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 6, 3, padding=1),
        nn.BatchNorm3d(6),
        nn.PReLU(),
        nn.Conv3d(6, 8, 3, stride=2, padding=1),
        nn.GroupNorm(2, 8),
        nn.PReLU(8),
        nn.Upsample(scale_factor=2),
        nn.Conv3d(8, 6, 1),
    )


class MobileNet(nn.Module):
    """Depthwise convolutions and squeeze-and-excitation by linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.BatchNorm2d(8)
        self.squeeze = nn.Linear(8, 4)
        self.excite = nn.Linear(4, 8)
        self.pointwise = nn.Conv2d(8, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.depthwise(self.stem(x))))
        scale = torch.sigmoid(self.excite(F.silu(self.squeeze(x.mean((2, 3))))))
        return self.pointwise(x * scale[:, :, None, None]).mean(dim=[2, 3])


# name -> (make, shape of a batch)
BACKBONES = {
    "plain": (plain_net, (4, 3, 32, 32)),
    "resnet18": (lambda: ResNet18(width=16), (4, 3, 64, 64)),
    "pre-activation": (PreActivationNet, (4, 3, 16, 16)),
    "unet": (UNet, (4, 1, 32, 32)),
    "net3d": (net3d, (4, 1, 8, 8, 8)),
    "mobilenet": (MobileNet, (4, 3, 32, 32)),
}
