"""A network that learns: one compiled step from a batch to its loss, one from a batch to its hits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from workers.contract.messages import TrialConfig, is_own
from workers.contract.ranks import Fault
from workers.frameworks.learning import Array, Judged, Learnt, diverged
from workers.frameworks.tensorflow import models, optimizers, own_network, precision, readback
from workers.inputs.source import MEAN_RGB, STDDEV_RGB
from workers.strategies.ring import ReducingRing, Solo


class KerasLearner:
    """A `learning.Learner`."""

    def __init__(self, config: TrialConfig, ring: ReducingRing) -> None:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(config.repeat_seed)
        self._ring = ring
        self._config = config
        self.network = _network(config)
        self._optimizer = optimizers.build(config)
        self._scaled = precision.loss_scaled(self._optimizer, config.precision)
        self._scaled.build(self.network.trainable_variables)
        self._decayed = [v for v in self.network.trainable_variables if optimizers.is_decayed(v.path)]
        # Compiled, the backward pass is one operation; else its gradients appear one by one, and are reduced so. A
        # function of its own, traced once for all steps, would cost that: each reduction would wait for all of it.
        compiled = tf.function(self._differentiate, autograph=False, jit_compile=True)
        self._gradients = compiled if config.xla else self._differentiate
        self._step = tf.function(lambda *batch: self._learn(ring, *batch), autograph=False)
        self._lone_step = tf.function(lambda *batch: self._learn(Solo(), *batch), autograph=False)
        self._reduction = tf.function(self._reduced, autograph=False)
        self._judge = tf.function(self._hits, autograph=False, jit_compile=config.xla or None)
        self._rate = math.nan
        self._is_asked = tf.Variable(0.0, trainable=False)  # to stop after the next step
        self._taken: list[Any] = []  # the form of the batches that were learnt from
        self._can_be_asked = config.protocol == "throughput" and not config.measured_steps
        self.spread()

    @property
    def variables(self) -> list[Any]:
        """All that a step changes, in one order."""
        return [*self.network.variables, *self._scaled.variables]

    @property
    def parameters(self) -> int:
        return int(self.network.count_params())

    @property
    def flops(self) -> int:
        return own_network.flops(self.network) if is_own(self._config.model) else models.flops(self.network)

    def state(self) -> list[Array]:
        return [variable.numpy() for variable in self.variables]

    def restore(self, state: Sequence[Array]) -> None:
        for variable, value in zip(self.variables, state, strict=True):
            variable.assign(value)

    def spread(self) -> None:
        """Give every rank what rank 0 has. Dropout alone differs from rank to rank."""
        self._ring.spread(self.variables)
        for variable in self.network.variables:
            if variable.path.endswith("seed_generator_state"):
                seed, count = variable.numpy()
                variable.assign([seed + self._ring.rank, count])

    def agree(self) -> None:
        """Batch norm's statistics are each rank's own: go on with their mean."""
        statistics = [v for v in self.network.non_trainable_variables if "float" in v.dtype]  # no seed, no counter
        if statistics and self._ring.size > 1:
            flat = np.concatenate([variable.numpy().ravel() for variable in statistics])
            mean, start = self._ring.total(flat) / self._ring.size, 0
            for variable in statistics:
                variable.assign(
                    mean[start : (start := start + variable.value.shape.num_elements())].reshape(variable.shape)
                )

    def trace(self, batch: Any) -> None:
        """Build both steps for batches like this one, without taking them."""
        own_network.check_fits(self.network, batch[0], self._config)
        self._step.get_concrete_function(*batch)
        self._judge.get_concrete_function(*batch)

    def set_rate(self, rate: float) -> None:
        if rate != self._rate:
            self._optimizer.learning_rate.assign(rate)
            self._rate = rate

    def ask_to_stop(self) -> None:
        """Have all ranks know at the end of the next step that it was the last."""
        self._is_asked.assign(1.0)

    def runs(self) -> dict[str, str]:
        """Return what of the trial's settings the step has that was taken; nothing where none was."""
        if not self._taken:
            return {}
        return readback.of_step(self._step.get_concrete_function(*self._taken).graph.as_graph_def())

    def learn(self, images: Any, labels: Any, weights: Any) -> Learnt:
        if not self._taken:
            own_network.check_fits(self.network, images, self._config)
            self._taken = [_form(images), _form(labels), _form(weights)]
        loss, sum_of_losses, count, asked = self._step(images, labels, weights).numpy().tolist()
        if not math.isfinite(loss):
            scale = getattr(self._scaled, "dynamic_scale", None)
            raise diverged(loss, self._rate, None if scale is None else float(scale))
        return Learnt(loss, sum_of_losses, round(count), is_last=asked > 0)

    def judge(self, images: Any, labels: Any, weights: Any) -> Judged:
        return Judged(*(round(hits) for hits in self._judge(images, labels, weights).numpy().tolist()))

    def take_step(self, batch: Any, is_alone: bool) -> None:
        """Take a step that is only timed, its gradients reduced over the ring or kept to itself.

        Ranks that have stepped alone no longer agree: nothing is learnt from then on.
        """
        (self._lone_step if is_alone else self._step)(*batch).numpy()

    def reduce_alone(self) -> None:
        """Reduce as much as a step does, and nothing else."""
        self._reduction().numpy()

    def _reduced(self) -> Any:
        import tensorflow as tf

        reduced = self._ring.average([v.value for v in self.network.trainable_variables])
        reduced.append(self._stop_requests(self._ring))
        return tf.add_n([tf.reshape(one, [-1])[0] for one in reduced])  # TensorFlow leaves out what nobody looks at

    def _stop_requests(self, ring: ReducingRing) -> Any:
        """How many ranks have asked to stop, over the ring; where none can ask nothing is reduced."""
        import tensorflow as tf

        return ring.sum_of(self._is_asked) if self._can_be_asked else tf.zeros([])

    def _learn(self, ring: ReducingRing, images: Any, labels: Any, weights: Any) -> Any:
        import tensorflow as tf

        gradients, sums = self._gradients(images, labels, weights)
        with tf.control_dependencies(gradients[:1]):  # the last to appear: what is asked travels with it
            asked = self._stop_requests(ring)
        self._scaled.apply(ring.average(gradients))
        return tf.concat([sums, [asked]], axis=0)

    def _differentiate(self, images: Any, labels: Any, weights: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            losses = self._losses(self.network(normalised(images), training=True), labels)
            loss = tf.reduce_sum(weights * losses)
            decay = optimizers.loss_decay(self._config)
            total = loss + decay * tf.add_n([tf.nn.l2_loss(v.value) for v in self._decayed]) if decay else loss
            if self.network.losses:  # a user's network may have penalties of its own
                total += tf.add_n([tf.cast(one, tf.float32) for one in self.network.losses])
            total = self._scaled.scale_loss(total)
        variables = self.network.trainable_variables
        gradients = tape.gradient(total, [v.value for v in variables])
        if unused := [v.path for v, gradient in zip(variables, gradients, strict=True) if gradient is None]:
            rule = f"every weight of {self._config.model} must bear on its output"
            raise Fault("unused weights", f"{rule}, but these do not: {', '.join(unused)}")
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]  # an embedding's names rows alone
        is_real = tf.cast(weights > 0, tf.float32)
        return gradients, tf.stack([loss, tf.reduce_sum(is_real * losses), tf.reduce_sum(is_real)])

    def _losses(self, logits: Any, labels: Any) -> Any:
        import tensorflow as tf

        logits = tf.cast(logits, tf.float32)
        smoothing = self._config.label_smoothing
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if smoothing:
            losses = (1 - smoothing) * losses - smoothing * tf.reduce_mean(tf.nn.log_softmax(logits), axis=1)
        return losses

    def _hits(self, images: Any, labels: Any, weights: Any) -> Any:
        import tensorflow as tf

        logits = tf.cast(self.network(normalised(images), training=False), tf.float32)
        top1, top5 = (
            tf.reduce_sum(weights * tf.cast(tf.math.in_top_k(labels, logits, k), tf.float32))
            for k in (1, min(5, self._config.classes))
        )
        return tf.stack([top1, top5, tf.reduce_sum(weights)])


def _network(config: TrialConfig) -> Any:
    if is_own(config.model):
        return own_network.build(config)
    return models.build(config.model, image_size=config.image_size, classes=config.classes)


def _form(batch: Any) -> Any:
    import tensorflow as tf

    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(batch))


def normalised(images: Any) -> Any:
    """Pixels from 0 to 255 as networks want them: ImageNet's mean and deviation taken out, on the device. What is no
    RGB in uint8 is a user's own, and reaches the network as it is."""
    import tensorflow as tf

    if images.dtype != tf.uint8 or images.shape[-1] != len(MEAN_RGB):
        return images
    return (tf.cast(images, tf.float32) - tf.constant(MEAN_RGB)) / tf.constant(STDDEV_RGB)
