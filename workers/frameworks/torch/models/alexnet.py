"""AlexNet."""

from __future__ import annotations

from torch import nn

from workers.frameworks.torch.models.layers import Classifier, Convolution, Dense


def alexnet(image_size: int, classes: int) -> nn.Sequential:
    """Return the single tower of "One weird trick for parallelizing convolutional neural networks", 2014."""
    side = (image_size + 2 * 2 - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return nn.Sequential(
        Convolution(3, 64, 11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        Convolution(64, 192, 5, padding="same"),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        Convolution(192, 384, 3, padding="same"),
        nn.ReLU(inplace=True),
        Convolution(384, 256, 3, padding="same"),
        nn.ReLU(inplace=True),
        Convolution(256, 256, 3, padding="same"),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Flatten(),
        nn.Dropout(0.5),
        Dense(256 * side * side, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        Dense(4096, 4096),
        nn.ReLU(inplace=True),
        Classifier(4096, classes),
    )
