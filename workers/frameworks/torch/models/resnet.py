"""Residual networks of "Deep residual learning for image recognition", 2015, with bottleneck blocks."""

from __future__ import annotations

from torch import Tensor, nn

from workers.frameworks.torch.models.layers import (
    Classifier,
    Convolution,
    GlobalAveragePool,
    HalvingMaxPool,
    StridedConvolution,
)


def resnet50(_: int, classes: int) -> nn.Sequential:
    """Return ResNet-50 as first published (v1): the stride is in the first convolution of a block, 1×1."""
    return _resnet((3, 4, 6, 3), classes)


def resnet50_v1_5(_: int, classes: int) -> nn.Sequential:
    """Return ResNet-50 as most later tables have it: the stride is in the 3×3 convolution, which costs some 6 %
    more."""
    return _resnet((3, 4, 6, 3), classes, is_stride_in_3x3=True)


def resnet101(_: int, classes: int) -> nn.Sequential:
    """Return ResNet-101 as first published (v1)."""
    return _resnet((3, 4, 23, 3), classes)


def resnet152(_: int, classes: int) -> nn.Sequential:
    """Return ResNet-152 as first published (v1)."""
    return _resnet((3, 8, 36, 3), classes)


class Bottleneck(nn.Module):
    """Three convolutions whose result is added to what came in; `is_projected` where that has another shape."""

    def __init__(
        self, channels: int, filters: int, strides: tuple[int, int] = (1, 1), *, is_projected: bool = False
    ) -> None:
        """`strides`: of the first convolution, 1×1, and of the second, 3×3."""
        super().__init__()
        first, second = strides
        self.shortcut = _convolution(channels, 4 * filters, 1, first * second) if is_projected else nn.Identity()
        self.residual = nn.Sequential(
            _convolution(channels, filters, 1, first),
            nn.ReLU(inplace=True),
            _convolution(filters, filters, 3, second),
            nn.ReLU(inplace=True),
            _convolution(filters, 4 * filters, 1),
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.shortcut(x) + self.residual(x))


def _resnet(depths: tuple[int, ...], classes: int, *, is_stride_in_3x3: bool = False) -> nn.Sequential:
    modules: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), HalvingMaxPool()]
    channels = 64
    for stage, depth in enumerate(depths):
        filters = 64 * 2**stage
        stride = 2 if stage else 1
        strides = (1, stride) if is_stride_in_3x3 else (stride, 1)
        modules.append(Bottleneck(channels, filters, strides, is_projected=True))
        channels = 4 * filters
        modules += [Bottleneck(channels, filters) for _ in range(depth - 1)]
    return nn.Sequential(*modules, GlobalAveragePool(), Classifier(channels, classes))


def _convolution(channels: int, filters: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with batch normalisation."""
    if stride > 1:
        convolution: Convolution = StridedConvolution(channels, filters, size, stride)
    else:
        convolution = Convolution(channels, filters, size, padding="same", bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(filters, eps=1e-5, momentum=0.1))
