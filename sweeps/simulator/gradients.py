"""When a network's gradients appear in its backward pass, and what of their reduction outlasts it. Pure.

The last layers' gradients appear first. AlexNet's and VGG's dense layers hold most of their parameters and little of
their work, so that nearly the whole reduction may hide behind the convolutions; a ResNet's are spread.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

# Of the backward pass that is over, by its FLOPs, and of the parameters whose gradients then exist. Gradients that come
# close together are one: Horovod fuses those of a cycle.
APPEARED: dict[str, tuple[tuple[float, float], ...]] = {
    "alexnet": ((0.006, 0.067), (0.029, 0.342), (0.082, 0.96), (0.431, 0.984), (1, 1)),
    "googlenet": (
        (0.001, 0.155), (0.028, 0.28), (0.049, 0.38), (0.071, 0.482), (0.151, 0.591), (0.245, 0.7), (0.355, 0.828),
        (0.561, 0.946), (0.681, 0.981), (1, 1),
    ),
    "inception_v3": (
        (0.005, 0.103), (0.032, 0.204), (0.068, 0.341), (0.096, 0.443), (0.125, 0.553), (0.217, 0.658),
        (0.339, 0.759), (0.462, 0.862), (0.612, 0.963), (0.705, 0.981), (1, 1),
    ),
    "inception_v4": (
        (0.015, 0.103), (0.039, 0.21), (0.063, 0.316), (0.113, 0.42), (0.222, 0.529), (0.324, 0.63), (0.429, 0.735),
        (0.531, 0.836), (0.641, 0.945), (0.793, 0.981), (1, 1),
    ),
    "vgg16": ((0.001, 0.151), (0.008, 0.894), (0.397, 0.987), (1, 1)),
    "vgg19": ((0.001, 0.145), (0.006, 0.861), (0.383, 0.976), (0.43, 0.984), (1, 1)),
    "resnet50": (
        (0.014, 0.121), (0.057, 0.255), (0.1, 0.388), (0.154, 0.553), (0.19, 0.666), (0.347, 0.787), (0.487, 0.895),
        (0.76, 0.984), (1, 1),
    ),
    "resnet50_v1.5": (
        (0.013, 0.121), (0.054, 0.255), (0.095, 0.388), (0.145, 0.553), (0.198, 0.666), (0.346, 0.787),
        (0.478, 0.895), (0.754, 0.984), (1, 1),
    ),
    "resnet101": (
        (0.022, 0.123), (0.051, 0.223), (0.094, 0.37), (0.206, 0.476), (0.321, 0.577), (0.436, 0.677),
        (0.552, 0.777), (0.667, 0.878), (0.822, 0.979), (0.828, 0.98), (1, 1),
    ),
    "resnet152": (
        (0.02, 0.108), (0.053, 0.235), (0.123, 0.338), (0.235, 0.445), (0.341, 0.547), (0.448, 0.649),
        (0.553, 0.751), (0.661, 0.854), (0.766, 0.955), (0.865, 0.981), (1, 1),
    ),
    "tiny": ((0.166, 0.846), (0.547, 0.968), (0.928, 0.998), (1, 1)),
}  # fmt: skip


def parts(model: str) -> list[tuple[float, float]]:
    """When a part of the gradients appears, of the backward pass; and how large it is, of them all."""
    shares = [0.0, *(share for _, share in APPEARED[model])]
    return [
        (at, upto - before) for (at, _), (before, upto) in zip(APPEARED[model], itertools.pairwise(shares), strict=True)
    ]


def exposed_ms(reductions: Sequence[tuple[float, float]], backward_ms: float) -> float:
    """Return what of reductions outlasts the backward pass. Each has the time at which it may begin and the time that
    it takes; they run one after the other, in this order."""
    ends = 0.0
    for begins, takes in reductions:
        ends = max(ends, begins) + takes
    return max(ends - backward_ms, 0.0)
