"""A network of the user's own: a function that gives a module of torch, and what is asked of it.

A sweep's network takes a batch of examples, of images with their channels first, and gives one number a class, of which
no softmax is taken (logits).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from workers.contract import functions
from workers.contract.messages import TrialConfig
from workers.contract.ranks import Fault


def build(config: TrialConfig) -> nn.Module:
    """Return the network that the trial's function gives."""
    word = config.model
    handed = {"image_size": config.image_size, "classes": config.classes, "framework": config.framework}
    network = functions.called("model", config, handed)
    if not isinstance(network, nn.Module):
        rule = f"{word} must give a torch.nn.Module where framework is torch"
        raise Fault("no network", f"{rule}, but gave {type(network).__name__}")
    if any(isinstance(one, nn.parameter.UninitializedParameter) for one in network.parameters()):
        rule = f"{word} must give a module that has its weights already: no lazy layers"
        raise Fault("network not built", f"{rule}, but {type(network).__name__} has some")
    if not any(one.requires_grad for one in network.parameters()):
        rule = f"{word} must give a network with weights to learn"
        raise Fault("nothing to learn", f"{rule}, but {type(network).__name__} has none")
    return network


def check_fits(logits: Any, batch: int, config: TrialConfig) -> None:
    """Raise a fault where a network's output is not one number a class."""
    if tuple(getattr(logits, "shape", ())) != (batch, config.classes):
        rule = f"{config.model} must give one number a class, (batch, {config.classes}), as `classes` of the sweep file"
        given = tuple(logits.shape) if hasattr(logits, "shape") else type(logits).__name__
        raise Fault("network does not fit the classes", f"{rule} says, but for {batch} examples its output is {given}")
