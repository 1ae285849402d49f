"""A network small enough for a laptop and for tests: three strided convolutions and a classifier.

It normalises by groups of channels, not by batch: what it learns does not depend on how a batch is split over ranks.
"""

from __future__ import annotations

from torch import nn

from workers.frameworks.torch.models.layers import Classifier, StridedConvolution


def tiny(image_size: int, classes: int) -> nn.Sequential:
    modules: list[nn.Module] = []
    channels, side = 3, image_size
    for filters in (32, 64, 128):
        modules += [
            StridedConvolution(channels, filters, 3, stride=2),
            nn.GroupNorm(8, filters, eps=1e-3),
            nn.ReLU(inplace=True),
        ]
        channels, side = filters, (side + 1) // 2
    half = side // 2  # quarters: a digit is told by where its strokes are
    return nn.Sequential(
        *modules,
        nn.AvgPool2d(half),
        nn.Flatten(),
        Classifier(channels * (side // half) ** 2, classes),
    )
