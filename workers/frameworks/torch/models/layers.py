"""Layers as they are in the networks of TensorFlow, where torch has them otherwise: padding, first weights, logits."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Size = int | tuple[int, int]


class Convolution(nn.Conv2d):
    """A convolution that begins with He's normal kernel, truncated, and biases of zero."""

    def reset_parameters(self) -> None:
        he_normal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class StridedConvolution(Convolution):
    """A convolution with a stride and TensorFlow's `same` padding, without bias.

    An even side is padded on the right and below more than on the left and above, which nn.Conv2d can't.
    """

    def __init__(self, channels: int, filters: int, size: int, stride: int) -> None:
        super().__init__(channels, filters, size, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        (size, _), (stride, _) = self.kernel_size, self.stride
        padding = (*same_padding(width, size, stride), *same_padding(height, size, stride))
        return super().forward(F.pad(x, padding) if any(padding) else x)


class HalvingMaxPool(nn.Module):
    """TensorFlow's max pooling of 3×3 with stride 2 and `same` padding."""

    def forward(self, x: Tensor) -> Tensor:
        # What ceil_mode adds is one more row and column below and on the right of an even side: nothing is copied.
        height, width = x.shape[-2:]
        return F.max_pool2d(x, 3, stride=2, padding=(height % 2, width % 2), ceil_mode=True)


class Dense(nn.Linear):
    """A dense layer that begins as `Convolution` does."""

    def reset_parameters(self) -> None:
        he_normal_(self.weight)
        nn.init.zeros_(self.bias)


class Classifier(nn.Linear):
    """The dense layer that gives the logits: not in autocast's format but in its own, with Glorot's uniform weights."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.amp.is_autocast_available(x.device.type):  # as on "meta", where operations are counted
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


class GlobalAveragePool(nn.Module):
    """The mean over all places of an image: a number a channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class Branches(nn.ModuleList):
    """Modules that all take the same, and whose channels are joined."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], 1)


def same_padding(side: int, size: int, stride: int) -> tuple[int, int]:
    """Return what TensorFlow's `same` adds before and after a side: as many places come out as strides begin in it."""
    total = max((math.ceil(side / stride) - 1) * stride + size - side, 0)
    return total // 2, total - total // 2


def he_normal_(weight: Tensor) -> None:
    """Draw a kernel as Keras' `he_normal` does: a normal distribution cut at two deviations, as wide as He has it after
    the cut."""
    fan_in = weight[0].numel()
    cut = 0.87962566103423978  # the deviation of a normal distribution cut at two of its own
    deviation = math.sqrt(2 / fan_in) / cut
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
