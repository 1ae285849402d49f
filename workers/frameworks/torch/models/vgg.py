"""VGG, configurations D and E of "Very deep convolutional networks for large-scale image recognition", 2014."""

from __future__ import annotations

from torch import nn

from workers.frameworks.torch.models.layers import Classifier, Convolution, Dense


def vgg16(image_size: int, classes: int) -> nn.Sequential:
    return _vgg((2, 2, 3, 3, 3), image_size, classes)


def vgg19(image_size: int, classes: int) -> nn.Sequential:
    return _vgg((2, 2, 4, 4, 4), image_size, classes)


def _vgg(depths: tuple[int, ...], image_size: int, classes: int) -> nn.Sequential:
    modules: list[nn.Module] = []
    channels = 3
    for filters, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            modules += [Convolution(channels, filters, 3, padding="same"), nn.ReLU(inplace=True)]
            channels = filters
        modules.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *modules,
        nn.Flatten(),
        Dense(512 * (image_size // 2**5) ** 2, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        Dense(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        Classifier(4096, classes),
    )
