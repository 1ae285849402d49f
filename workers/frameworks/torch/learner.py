"""A network that learns: one step from a batch to its loss, its gradients reduced beside the backward pass."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from workers.contract.messages import Precision, TrialConfig, is_own
from workers.contract.ranks import Fault
from workers.frameworks.learning import Array, Judged, Learnt, diverged
from workers.frameworks.torch import models, optimizers, own_network, readback
from workers.inputs.source import MEAN_RGB, STDDEV_RGB
from workers.strategies.ddp import Ddp
from workers.strategies.ring import Ring

HALVES: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
SCALE, CALM_STEPS = 2.0**15, 2000  # of fp16's loss: how Keras begins, and steps until it is doubled


class Trained(nn.Module):
    """The network as a step runs it: pixels become numbers in front of it, and beside it goes the wish to stop.

    That wish is a weight whose gradient is one at a rank that asks. It is reduced with the network's gradients, in a
    bucket of theirs: all ranks know at the end of a step that it was the last, and none has waited for more than that.
    """

    def __init__(self, network: nn.Module, *, has_wish: bool, is_channels_last: bool) -> None:
        super().__init__()
        self.network = network
        self.wish = nn.Parameter(torch.zeros(1)) if has_wish else None
        self.is_channels_last = is_channels_last
        for name, values in (("mean", MEAN_RGB), ("deviation", STDDEV_RGB)):
            self.register_buffer(name, torch.tensor(values).reshape(-1, 1, 1), persistent=False)

    def forward(self, images: Any) -> Any:
        logits = self.network(self.normalised(images))
        return logits if self.wish is None else (logits, 1.0 * self.wish)

    def normalised(self, images: Any) -> Any:
        """Pixels from 0 to 255, channels last, as networks of torch want them: ImageNet's mean and deviation taken out,
        channels first. What is no RGB in uint8 is a user's own, and reaches the network as it is."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[-1] != len(MEAN_RGB):
            return images
        images = images.permute(0, 3, 1, 2)  # which lies in memory with its channels last
        if not self.is_channels_last:
            images = images.contiguous()
        return (images.float() - self.mean) / self.deviation


class TorchLearner:
    """A `learning.Learner`."""

    def __init__(self, config: TrialConfig, ring: Ring) -> None:
        self._config, self._ring = config, ring
        self._gang = ring if isinstance(ring, Ddp) else None
        self._device = torch.device("cuda", 0) if config.device == "gpu" else torch.device("cpu")
        torch.manual_seed(config.repeat_seed)
        form = torch.channels_last if config.channels_last else torch.contiguous_format
        self.network = _network(config).to(self._device, memory_format=form)
        self._optimizer = optimizers.build(config, self.network)
        is_scaled = config.precision == "fp16"
        self._scaler = torch.amp.GradScaler(
            self._device.type, init_scale=SCALE, growth_interval=CALM_STEPS, enabled=is_scaled
        )
        can_be_asked = config.protocol == "throughput" and not config.measured_steps
        has_wish = can_be_asked and self._gang is not None
        self._trained = Trained(self.network, has_wish=has_wish, is_channels_last=config.channels_last)
        self._trained.to(self._device)
        self._parallel: Any = self._gang.parallel(self._trained) if self._gang else self._trained
        # Compiled around what reduces the gradients: torch cuts the graph where a bucket is full, and it still leaves
        # while the rest is computed.
        self._stepped = torch.compile(self._parallel) if config.compile else self._parallel
        self._judged: Any = torch.compile(self._trained) if config.compile else self._trained
        self._rate = math.nan
        self._steps = torch.zeros((), dtype=torch.int64)
        self._is_asked = 0.0  # to stop after the next step
        self._taken: Any = None  # the form of the batches that were learnt from
        self._buffers: list[torch.Tensor] = []
        self.spread()

    @property
    def parameters(self) -> int:
        """How many numbers the network has, batch norm's statistics among them, as Keras counts."""
        statistics = (one for one in self.network.buffers() if one.is_floating_point())
        return sum(one.numel() for one in (*self.network.parameters(), *statistics))

    @property
    def flops(self) -> int:
        config = self._config
        if not is_own(config.model):
            shape: tuple[int, ...] = (1, len(MEAN_RGB), config.image_size, config.image_size)
        elif self._taken is None:
            return 0
        else:
            shape = (1, *self._trained.normalised(torch.empty(self._taken.shape, dtype=self._taken.dtype)).shape[1:])
        return _flops(self.network, shape)

    @property
    def _tensors(self) -> list[torch.Tensor]:
        return [
            *self.network.parameters(),
            *self.network.buffers(),
            *optimizers.state_of(self._optimizer),
            self._steps,
        ]

    def state(self) -> list[Array]:
        return [*(one.detach().cpu().numpy().copy() for one in self._tensors), self._scale().numpy()]

    def restore(self, state: Sequence[Array]) -> None:
        *values, scale = state
        with torch.no_grad():
            for tensor, value in zip(self._tensors, values, strict=True):
                if tuple(tensor.shape) != value.shape:
                    raise ValueError(f"a weight of {tuple(tensor.shape)} can't be one of {value.shape}")
                tensor.copy_(torch.from_numpy(np.array(value)))
        self._take_scale(torch.from_numpy(np.array(scale)))

    def _scale(self) -> torch.Tensor:
        """Return the scale of the loss, and the steps since it was changed; ones where it is not scaled."""
        has = self._scaler.state_dict() or {"scale": 1.0, "_growth_tracker": 1}
        return torch.tensor([has["scale"], has["_growth_tracker"]], dtype=torch.float64)

    def _take_scale(self, scale: torch.Tensor) -> None:
        if has := self._scaler.state_dict():
            value, tracker = scale.tolist()
            self._scaler.load_state_dict({**has, "scale": value, "_growth_tracker": round(tracker)})

    def spread(self) -> None:
        if self._gang:
            scale = self._scale()
            self._gang.spread([*self._tensors, scale])
            self._take_scale(scale)
        self._draw_anew()

    def _draw_anew(self) -> None:
        """Have dropout draw what this rank draws behind so many steps, whether they were taken here or before a
        checkpoint."""
        own = np.random.SeedSequence([self._config.repeat_seed, self._ring.rank, int(self._steps)])
        torch.manual_seed(int(own.generate_state(1, np.uint32)[0]))

    def agree(self) -> None:
        self._draw_anew()
        statistics = [one for one in self.network.buffers() if one.is_floating_point()]
        if statistics and self._ring.size > 1:
            flat = torch.cat([one.reshape(-1) for one in statistics]).cpu().numpy()
            mean = torch.from_numpy(self._ring.total(flat) / self._ring.size)
            for one, part in zip(statistics, mean.split([one.numel() for one in statistics]), strict=True):
                one.copy_(part.reshape(one.shape))

    def trace(self, batch: Any) -> None:
        images, labels, weights = self._here(batch)
        self._check_fits(images)
        kept = [one.clone() for one in self.network.buffers()]
        self._differentiate(images, labels, weights, is_alone=True)
        self._trained.zero_grad(set_to_none=True)
        self._hits(images, labels, weights)
        with torch.no_grad():
            for one, before in zip(self.network.buffers(), kept, strict=True):
                one.copy_(before)
        self._draw_anew()

    def set_rate(self, rate: float) -> None:
        if rate != self._rate:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._rate = rate

    def ask_to_stop(self) -> None:
        self._is_asked = 1.0

    def learn(self, images: Any, labels: Any, weights: Any) -> Learnt:
        batch = self._here((images, labels, weights))
        if self._taken is None:
            self._check_fits(batch[0])
        told = self._step(*batch, is_alone=False)
        if self._taken is None:
            self._check_all_bear()
            self._taken = batch[0][:1].clone()
        loss, sum_of_losses, count, asked = told.tolist()
        if not math.isfinite(loss):
            raise diverged(loss, self._rate, self._scaler.get_scale() if self._scaler.is_enabled() else None)
        return Learnt(loss, sum_of_losses, round(count), is_last=asked > 0)

    def judge(self, images: Any, labels: Any, weights: Any) -> Judged:
        return Judged(*(round(hits) for hits in self._hits(*self._here((images, labels, weights))).tolist()))

    def take_step(self, batch: Any, is_alone: bool) -> None:
        self._step(*self._here(batch), is_alone=is_alone).tolist()

    def reduce_alone(self) -> None:
        if self._gang:
            self._buffers = self._buffers or self._gang.buffers(self._parallel)
            self._gang.reduce(self._buffers)

    def runs(self) -> dict[str, str]:
        if self._taken is None:
            return {}
        self._trained.eval()
        with self._autocast():
            found = readback.of_network(self.network, self._trained.normalised(self._taken))
        found |= {"compile": readback.of_compiler()}
        return found | (readback.of_reduction(self._parallel) if self._gang else {})

    def _here(self, batch: Any) -> tuple[Any, Any, Any]:
        """Return a batch on the device; what comes from `feed` is there already."""
        images, labels, weights = (torch.as_tensor(one).to(self._device, non_blocking=True) for one in batch)
        return images, labels, weights

    def _autocast(self) -> Any:
        half = HALVES.get(self._config.precision)
        return torch.autocast(self._device.type, dtype=half, enabled=half is not None)

    @contextlib.contextmanager
    def _reduced(self, is_alone: bool) -> Iterator[None]:
        """Reduce the gradients of the backward pass within, or keep them to this rank."""
        with self._parallel.no_sync() if self._gang and is_alone else contextlib.nullcontext():
            yield

    def _step(self, images: Any, labels: Any, weights: Any, *, is_alone: bool) -> Any:
        sums, asked = self._differentiate(images, labels, weights, is_alone)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._steps += 1
        return torch.cat([sums, asked])

    def _differentiate(self, images: Any, labels: Any, weights: Any, is_alone: bool) -> tuple[Any, Any]:
        """Leave the gradients with the weights; return the sums of the losses, and whether a rank has asked to stop."""
        self._trained.train()
        self._trained.zero_grad(set_to_none=True)
        with self._reduced(is_alone):
            with self._autocast():
                given = self._stepped(images)
            logits, wish = given if isinstance(given, tuple) else (given, None)
            losses = self._losses(logits, labels)
            loss = (weights * losses).sum()
            total = self._scaler.scale(loss)
            if wish is not None:
                total = total + self._is_asked * wish.sum()
            total.backward()
        is_real = (weights > 0).float()
        sums = torch.stack([loss, (is_real * losses).sum(), is_real.sum()]).detach()
        asked = self._trained.wish.grad if self._trained.wish is not None else None
        return sums, sums.new_full((1,), self._is_asked) if asked is None else asked

    def _losses(self, logits: Any, labels: Any) -> Any:
        smoothing = self._config.label_smoothing
        return functional.cross_entropy(logits.float(), labels.long(), reduction="none", label_smoothing=smoothing)

    def _hits(self, images: Any, labels: Any, weights: Any) -> Any:
        self._trained.eval()
        with torch.no_grad(), self._autocast():
            given = self._judged(images)
        logits = (given[0] if isinstance(given, tuple) else given).float()
        own = logits.gather(1, labels.long()[:, None])
        before = torch.where(torch.isfinite(own), (logits > own).sum(1, keepdim=True), logits.shape[1])[:, 0]
        top1, top5 = ((weights * (before < k)).sum() for k in (1, min(5, self._config.classes)))
        return torch.stack([top1, top5, weights.sum()])

    def _check_fits(self, images: Any) -> None:
        if not is_own(self._config.model):
            return
        self._trained.eval()
        with torch.no_grad(), self._autocast():
            logits = self.network(self._trained.normalised(images[:1]))
        own_network.check_fits(logits, 1, self._config)

    def _check_all_bear(self) -> None:
        named = self.network.named_parameters()
        if unused := [name for name, one in named if one.requires_grad and one.grad is None]:
            rule = f"every weight of {self._config.model} must bear on its output"
            raise Fault("unused weights", f"{rule}, but these do not: {', '.join(unused)}")


def _network(config: TrialConfig) -> Any:
    if is_own(config.model):
        return own_network.build(config)
    return models.build(config.model, image_size=config.image_size, classes=config.classes)


def _flops(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the floating-point operations of a forward pass of this shape, counted without taking it; 0 where some
    can't be."""
    unreal = copy.deepcopy(network).to("meta").eval()
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            unreal(torch.empty(shape, device="meta"))
    except (NotImplementedError, RuntimeError):  # an operation of a user's that knows no such device
        return 0
    return int(counter.get_total_flops())
