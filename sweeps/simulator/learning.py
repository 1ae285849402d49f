"""How accurate a simulated trial becomes, and after how many epochs. Pure.

An accuracy approaches its network's best as 1 − exp(−epoch / pace). Where the learning rate suits the batch, the pace
is that of references/convergence.csv: ResNet-50 v1.5 comes to 74.9% after 61, 62, 65 and 81 epochs on 4, 8, 16 and 32
GPUs. Best accuracies and how top-5 goes with top-1 are those of references/int8_accuracy.csv.

Assumed: that those runs had 256 images a GPU; the best of the networks that the table leaves out; and what a learning
rate far from a tenth for each 256 images of the global batch costs.
"""

from __future__ import annotations

import math

from workers.contract import imagenet, schedules
from workers.contract.messages import TrialConfig

BEST: dict[str, float] = {
    "alexnet": 0.5682,
    "googlenet": 0.6895,
    "inception_v3": 0.78,
    "inception_v4": 0.80,
    "vgg16": 0.6835,
    "vgg19": 0.6847,
    "resnet50": 0.7290,
    "resnet50_v1.5": 0.763,
    "resnet101": 0.7433,
    "resnet152": 0.7490,
    "tiny": 0.45,
}
DIGITS_BEST = 0.985
EPOCHS, DIGITS_EPOCHS = 60.4, 12.0  # that a small batch needs to 98% of the best
LARGE, DIGITS_LARGE = 8192, 512  # global batches that need a third more of them
SLOWER, POWER = 20.3 / 60.4, 2.2
PACES = 4.0  # of the exponential, in those epochs: 1 − exp(−4) is 98%
TOP5 = 1.87  # power of the error
BEST_RATE = 0.1 / 256  # of SGD, for each image of the global batch
RATE_COSTS = 0.5  # of the epochs, for a rate ten times too large or too small
DIVERGES = 30.0  # times the best rate

DIGITS_TRAIN, DIGITS_VALIDATION = 1437, 360


def images(config: TrialConfig) -> tuple[int, int]:
    """Return the images to train with and to validate with, in an epoch."""
    is_digits = config.data == "digits"
    of_folder = imagenet.TRAIN_IMAGES, imagenet.VALIDATION_IMAGES  # whatever it holds
    return (DIGITS_TRAIN, DIGITS_VALIDATION) if is_digits else of_folder


def top1(config: TrialConfig, epoch: float) -> float:
    best = DIGITS_BEST if config.data == "digits" else BEST[config.model]
    return best * (1 - math.exp(-epoch / pace(config)))


def top5(top1: float) -> float:
    return float(1 - (1 - top1) ** TOP5)


def loss(config: TrialConfig, epoch: float) -> float:
    return 1 + (math.log(config.classes) - 1) * math.exp(-epoch / pace(config))


def start_loss(config: TrialConfig, step: int) -> float:
    """After so many steps of a throughput trial."""
    return math.log(config.classes) * (1 - min(1e-3 * step, 0.5))


def rate(config: TrialConfig, epoch: int) -> float:
    """Return the rate in force as an epoch ends."""
    return schedules.parse(config.lr_schedule).rate(epoch, config.epochs, config.global_batch)


def pace(config: TrialConfig) -> float:
    """Epochs after which all but a part in e of the way is done: more with a large batch or an unfit rate."""
    is_digits = config.data == "digits"
    epochs, large = (DIGITS_EPOCHS, DIGITS_LARGE) if is_digits else (EPOCHS, LARGE)
    slowed = float(1 + SLOWER * (config.global_batch / large) ** POWER)
    return epochs / PACES * slowed * (1 + RATE_COSTS * math.log10(rate_ratio(config)) ** 2)


def rate_ratio(config: TrialConfig) -> float:
    """Return the largest rate of SGD's schedule over the best for this batch; other optimisers are taken to be set
    well."""
    if config.optimizer != "sgd":
        return 1.0
    schedule = schedules.parse(config.lr_schedule)
    largest = max(schedules.curve(schedule, config.epochs, config.global_batch, points=50))
    return largest / (BEST_RATE * config.global_batch)


def epochs_needed(config: TrialConfig) -> int:
    """Until the trial stops, at its target or at its end."""
    for epoch in range(1, config.epochs + 1):
        if (epoch % config.evaluate_every == 0 or epoch == config.epochs) and is_reached(config, top1(config, epoch)):
            return epoch
    return config.epochs


def is_reached(config: TrialConfig, top1: float) -> bool:
    has_target = bool(config.target_top1 or config.target_top5)
    return has_target and top1 >= config.target_top1 and top5(top1) >= config.target_top5
