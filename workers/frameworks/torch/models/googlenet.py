"""GoogLeNet of "Going deeper with convolutions", 2014."""

from __future__ import annotations

from torch import nn

from workers.frameworks.torch.models.inception import chain, convolution, normalised
from workers.frameworks.torch.models.layers import (
    Branches,
    Classifier,
    GlobalAveragePool,
    HalvingMaxPool,
    StridedConvolution,
)

# Per module: 1×1 | 1×1 before 3×3, 3×3 | 1×1 before the next, 3×3 | 1×1 after the pool.
STAGES = (
    (
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
    ),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    (
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    ),
)


def googlenet(_: int, classes: int) -> nn.Sequential:
    """Return the variant of 6.6 M parameters: batch normalisation, and 3×3 where the paper has 5×5 (7.0 M)."""
    modules: list[nn.Module] = [
        StridedConvolution(3, 64, 7, stride=2),
        *normalised(64),
        HalvingMaxPool(),
        convolution(64, 64, 1),
        convolution(64, 192, 3),
    ]
    channels = 192
    for stage in STAGES:
        modules.append(HalvingMaxPool())
        for one, before_two, two, before_three, three, after_pool in stage:
            modules.append(
                Branches(
                    [
                        convolution(channels, one, 1),
                        chain(channels, (before_two, 1), (two, 3)),
                        chain(channels, (before_three, 1), (three, 3)),
                        nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), convolution(channels, after_pool, 1)),
                    ]
                )
            )
            channels = one + two + three + after_pool
    return nn.Sequential(*modules, GlobalAveragePool(), nn.Dropout(0.4), Classifier(channels, classes))
