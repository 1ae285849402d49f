"""Inception v3 of "Rethinking the Inception architecture", 2015, and v4 of "Inception-v4", 2016."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workers.frameworks.torch.models.layers import Branches, Classifier, Convolution, GlobalAveragePool, Size

Step = tuple[int, Size]  # filters, size


def inception_v3(_: int, classes: int) -> nn.Sequential:
    network = nn.Sequential(
        _halve(3, 32),
        convolution(32, 32, 3, padding="valid"),
        convolution(32, 64, 3),
        _halve_by_pool(),
        convolution(64, 80, 1),
        convolution(80, 192, 3, padding="valid"),
        _halve_by_pool(),
        _mixed_small(192, after_pool=32),
        _mixed_small(256, after_pool=64),
        _mixed_small(288, after_pool=64),
        Branches([_halve(288, 384), nn.Sequential(chain(288, (64, 1), (96, 3)), _halve(96, 96)), _halve_by_pool()]),
        _mixed_long(between=128),
        _mixed_long(between=160),
        _mixed_long(between=160),
        _mixed_long(between=192),
        Branches(
            [
                nn.Sequential(chain(768, (192, 1)), _halve(192, 320)),
                nn.Sequential(chain(768, (192, 1), (192, (1, 7)), (192, (7, 1))), _halve(192, 192)),
                _halve_by_pool(),
            ]
        ),
        _mixed_wide(1280),
        _mixed_wide(2048),
        GlobalAveragePool(),
        Classifier(2048, classes),
    )
    return network.apply(_as_keras_has_it)


def inception_v4(_: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        *_stem(),
        *(_module_a() for _ in range(4)),
        Branches([_halve(384, 384), nn.Sequential(chain(384, (192, 1), (224, 3)), _halve(224, 256)), _halve_by_pool()]),
        *(_module_b() for _ in range(7)),
        Branches(
            [
                nn.Sequential(chain(1024, (192, 1)), _halve(192, 192)),
                nn.Sequential(chain(1024, (256, 1), (256, (1, 7)), (320, (7, 1))), _halve(320, 320)),
                _halve_by_pool(),
            ]
        ),
        *(ModuleC() for _ in range(3)),
        GlobalAveragePool(),
        nn.Dropout(0.2),
        Classifier(1536, classes),
    )


def convolution(channels: int, filters: int, size: Size, stride: int = 1, padding: str = "same") -> nn.Sequential:
    """Return a convolution with batch normalisation and ReLU."""
    return nn.Sequential(
        Convolution(channels, filters, size, stride=stride, padding=padding, bias=False),
        *normalised(filters),
    )


def normalised(channels: int) -> tuple[nn.BatchNorm2d, nn.ReLU]:
    """Return batch normalisation and ReLU."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.1), nn.ReLU(inplace=True)


def chain(channels: int, *steps: Step) -> nn.Sequential:
    modules = []
    for filters, size in steps:
        modules.append(convolution(channels, filters, size))
        channels = filters
    return nn.Sequential(*modules)


class ModuleC(nn.Module):
    """Inception v4's third module, which has two branches that branch."""

    def __init__(self) -> None:
        super().__init__()
        self.short = chain(1536, (384, 1))
        self.long = chain(1536, (384, 1), (448, (3, 1)), (512, (1, 3)))
        self.plain = convolution(1536, 256, 1)
        self.of_short = Branches([convolution(384, 256, (1, 3)), convolution(384, 256, (3, 1))])
        self.of_long = Branches([convolution(512, 256, (1, 3)), convolution(512, 256, (3, 1))])
        self.pooled = _average_then(1536, 256)

    def forward(self, x: Tensor) -> Tensor:
        short, long = self.of_short(self.short(x)), self.of_long(self.long(x))
        return torch.cat([self.plain(x), short, long, self.pooled(x)], 1)


def _halve(channels: int, filters: int) -> nn.Sequential:
    return convolution(channels, filters, 3, stride=2, padding="valid")


def _halve_by_pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2)


def _average_then(channels: int, filters: int) -> nn.Sequential:
    """Return an average of each place's neighbours, of those that there are, and a convolution."""
    average = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    return nn.Sequential(average, convolution(channels, filters, 1))


def _stem() -> tuple[nn.Module, ...]:
    return (
        _halve(3, 32),
        convolution(32, 32, 3, padding="valid"),
        convolution(32, 64, 3),
        Branches([_halve_by_pool(), _halve(64, 96)]),
        Branches(
            [
                nn.Sequential(chain(160, (64, 1)), convolution(64, 96, 3, padding="valid")),
                nn.Sequential(chain(160, (64, 1), (64, (1, 7)), (64, (7, 1))), convolution(64, 96, 3, padding="valid")),
            ]
        ),
        Branches([_halve(192, 192), _halve_by_pool()]),
    )


def _module_a() -> Branches:
    return Branches(
        [
            chain(384, (96, 1)),
            chain(384, (64, 1), (96, 3)),
            chain(384, (64, 1), (96, 3), (96, 3)),
            _average_then(384, 96),
        ]
    )


def _module_b() -> Branches:
    return Branches(
        [
            chain(1024, (384, 1)),
            chain(1024, (192, 1), (224, (1, 7)), (256, (7, 1))),
            chain(1024, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
            _average_then(1024, 128),
        ]
    )


def _mixed_small(channels: int, after_pool: int) -> Branches:
    return Branches(
        [
            chain(channels, (64, 1)),
            chain(channels, (48, 1), (64, 5)),
            chain(channels, (64, 1), (96, 3), (96, 3)),
            _average_then(channels, after_pool),
        ]
    )


def _mixed_long(between: int) -> Branches:
    return Branches(
        [
            chain(768, (192, 1)),
            chain(768, (between, 1), (between, (1, 7)), (192, (7, 1))),
            chain(768, (between, 1), (between, (7, 1)), (between, (1, 7)), (between, (7, 1)), (192, (1, 7))),
            _average_then(768, 192),
        ]
    )


def _mixed_wide(channels: int) -> Branches:
    return Branches(
        [
            chain(channels, (320, 1)),
            nn.Sequential(chain(channels, (384, 1)), _both_ways(384)),
            nn.Sequential(chain(channels, (448, 1), (384, 3)), _both_ways(384)),
            _average_then(channels, 192),
        ]
    )


def _both_ways(channels: int) -> Branches:
    return Branches([convolution(channels, 384, (1, 3)), convolution(channels, 384, (3, 1))])


def _as_keras_has_it(module: nn.Module) -> None:
    """Make a layer of Inception v3 what it is in Keras' own: Glorot's kernels, and normalisation that remembers longer
    and learns no scale."""
    if isinstance(module, nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
    elif isinstance(module, nn.BatchNorm2d):
        module.momentum = 0.01
        del module.weight
        module.register_buffer("weight", torch.ones(module.num_features), persistent=False)  # cuDNN takes none without
