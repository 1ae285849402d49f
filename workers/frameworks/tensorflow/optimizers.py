"""How gradients become steps: momentum SGD, LARS, AdamW. Weights decay; biases and batch norm do not."""

from __future__ import annotations

from typing import Any

from workers.contract.messages import TrialConfig


def is_decayed(path: str) -> bool:
    """Convolutions' and dense layers' weights are named so; biases and batch norm are not."""
    return path.endswith("kernel")


def loss_decay(config: TrialConfig) -> float:
    """SGD's weight decay is a term of the loss; LARS and AdamW apply theirs themselves."""
    return config.weight_decay if config.optimizer == "sgd" else 0.0


def build(config: TrialConfig) -> Any:
    """Return a Keras optimizer whose rate is set before each step."""
    import keras

    if config.optimizer == "sgd":
        return keras.optimizers.SGD(momentum=config.momentum)
    if config.optimizer == "lars":
        return lars(config)
    adamw = keras.optimizers.AdamW(beta_1=config.momentum, beta_2=config.beta2, weight_decay=config.weight_decay)
    adamw.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return adamw


def lars(config: TrialConfig) -> Any:
    """Layer-wise adaptive rates (You et al. 2017): a kernel's step is as long as its norm says, not its gradient's.

    velocity = momentum · velocity + rate · ratio · (gradient + decay · kernel), where
    ratio = trust · |kernel| / (|gradient| + decay · |kernel|). Biases and batch norm step as with SGD.
    """
    import keras
    from keras import ops

    class Lars(keras.optimizers.Optimizer):
        def build(self, variables: Any) -> None:
            if self.built:
                return
            super().build(variables)
            self.velocities = [self.add_variable_from_reference(v, name="velocity") for v in variables]

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            index = self._get_variable_index(variable)
            velocity = self.velocities[index]
            rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
            if is_decayed(self._trainable_variables[index].path):
                length, slope = (ops.sqrt(ops.sum(ops.square(x))) for x in (variable, gradient))
                ratio = config.trust * length / (slope + config.weight_decay * length)
                ratio = ops.where(ops.logical_and(length > 0, slope > 0), ratio, 1.0)
                gradient = ratio * (gradient + config.weight_decay * variable)
            self.assign(velocity, config.momentum * velocity + rate * gradient)
            self.assign_sub(variable, velocity)

    return Lars(learning_rate=0.01, name="lars")
