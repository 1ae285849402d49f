"""How gradients become steps: momentum SGD, LARS, AdamW, by the formulas of `frameworks.tensorflow.optimizers`. Weights
decay; biases and norms do not.

Keras' formulas are not torch's where a rate changes: the rate of a step stays with its part of the velocity. What
torch's own optimizers compute is brought to that by a factor that changes with the rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from workers.contract.messages import TrialConfig

LEAST_RATE = 1e-12  # in place of zero, by which no velocity can be divided
EPSILON = 1e-7  # Keras'


def decayed(network: nn.Module) -> list[nn.Parameter]:
    """Return the weights of convolutions and dense layers: biases and norms do not decay."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
    return [module.weight for module in network.modules() if isinstance(module, kinds) and module.weight.requires_grad]


def build(config: TrialConfig, network: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer whose rate is set before each step, with all that its steps will change."""
    weights = list(dict.fromkeys(decayed(network)))  # a weight that two layers share is one
    known = {id(one) for one in weights}
    others = [one for one in network.parameters() if one.requires_grad and id(one) not in known]
    groups = [
        {"params": weights, "weight_decay": config.weight_decay, "is_scaled": True},
        {"params": others, "weight_decay": 0.0, "is_scaled": False},
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "sgd":
        return Momentum(groups, config)
    return LayerwiseRates(groups, config) if config.optimizer == "lars" else LateAdamW(groups, config)


def state_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all that an optimizer's steps change beside the weights, in one order."""
    every = [one for group in optimizer.param_groups for one in group["params"]]
    found = [value for one in every for _, value in sorted(optimizer.state[one].items())]
    return [*found, optimizer.applied] if isinstance(optimizer, Momentum) else found


class Momentum(torch.optim.SGD):
    """velocity = momentum · velocity + rate · gradient, and a weight goes back by its velocity.

    torch's buffer is that velocity over the rate: where the rate changes, momentum times old over new keeps it so.
    """

    def __init__(self, groups: Any, config: TrialConfig) -> None:
        super().__init__(groups, lr=LEAST_RATE, momentum=config.momentum)
        self._momentum = config.momentum
        self.applied = torch.full((), math.nan, dtype=torch.float64)  # the rate of the last step that was taken
        if config.momentum:
            _prepare(self, lambda one: {"momentum_buffer": torch.zeros_like(one)})

    def step(self, closure: Any = None) -> Any:
        before = float(self.applied)
        for group in self.param_groups:
            group["lr"] = rate = max(group["lr"], LEAST_RATE)
            group["momentum"] = self._momentum * (1.0 if math.isnan(before) else before / rate)
        done = super().step(closure)
        self.applied.fill_(rate)
        return done


class LateAdamW(torch.optim.AdamW):
    """Keras adds epsilon to the second moment as it is, torch to the one whose bias is corrected."""

    def __init__(self, groups: Any, config: TrialConfig) -> None:
        super().__init__(groups, lr=LEAST_RATE, betas=(config.momentum, config.beta2), eps=EPSILON)
        _prepare(
            self,
            lambda one: {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(one),
                "exp_avg_sq": torch.zeros_like(one),
            },
        )

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            taken = float(self.state[group["params"][0]]["step"]) + 1
            group["eps"] = EPSILON / math.sqrt(1 - group["betas"][1] ** taken)
        return super().step(closure)


class LayerwiseRates(torch.optim.Optimizer):
    """Layer-wise adaptive rates (You et al. 2017): a weight's step is as long as its norm says, not its gradient's.

    velocity = momentum · velocity + rate · ratio · (gradient + decay · weight), where
    ratio = trust · |weight| / (|gradient| + decay · |weight|). Biases and norms step as with SGD.
    """

    def __init__(self, groups: Any, config: TrialConfig) -> None:
        super().__init__(groups, {"lr": LEAST_RATE})
        self._momentum, self._trust = config.momentum, config.trust
        _prepare(self, lambda one: {"velocity": torch.zeros_like(one)})

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                weights = [one for one in group["params"] if one.grad is not None]
                gradients = [one.grad for one in weights]
                if group["is_scaled"]:
                    gradients = self._scaled(weights, gradients, group["weight_decay"])
                velocities = [self.state[one]["velocity"] for one in weights]
                torch._foreach_mul_(velocities, self._momentum)
                torch._foreach_add_(velocities, gradients, alpha=group["lr"])
                torch._foreach_sub_(weights, velocities)

    def _scaled(self, weights: list[Any], gradients: list[Any], decay: float) -> list[Any]:
        lengths, slopes = (torch.stack(torch._foreach_norm(of)) for of in (weights, gradients))
        ratios = self._trust * lengths / (slopes + decay * lengths)
        ratios = torch.where((lengths > 0) & (slopes > 0), ratios, 1.0)
        decaying = torch._foreach_add(gradients, weights, alpha=decay)
        return list(torch._foreach_mul(decaying, list(ratios.unbind())))


def _prepare(optimizer: torch.optim.Optimizer, made: Callable[[Any], dict[str, torch.Tensor]]) -> None:
    """Give each weight what its first step would: what a checkpoint holds is the same before it and behind it."""
    for group in optimizer.param_groups:
        for one in group["params"]:
            optimizer.state[one].update(made(one))
