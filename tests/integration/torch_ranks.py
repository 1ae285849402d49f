"""What ranks of torch do in the proofs that they train right: an entry each, as `module:function`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from tests.integration.joining_ranks import CLOSED_WITHIN_S, is_open, listening
from workers.contract import messages
from workers.contract.messages import TrialConfig
from workers.contract.ranks import Seat, Voice
from workers.frameworks.torch import body, learner, models, optimizers
from workers.inputs.opening import cores_here
from workers.measure import steady
from workers.strategies import ddp
from workers.strategies.ring import Ring
from workers.workloads.images import train
from workers.workloads.images.work import Work

FOREIGN = {"tensorflow", "keras", "horovod", "ray", "mlflow"}
BAD_RANK, BAD_STEP = 1, 3
TOO_MUCH = 1 << 50  # bytes
RATES = (0.1, 0.1, 0.02, 0.3)  # of the steps that optimizers are compared on


def tell(voice: Voice, what: Any) -> None:
    voice.beat("finish")
    voice.say("failed", kind="told", message=json.dumps(what))


def trains_clean(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Trains, and fails at its end where another framework or the control plane's libraries have come in."""
    report = voice.report

    def checked(measured: messages.RankReport) -> None:
        found = FOREIGN & {name.partition(".")[0] for name in sys.modules}
        assert not found, f"a rank of torch has imported {', '.join(sorted(found))}"
        report(measured)

    voice.report = checked  # type: ignore[method-assign]
    train.run(config, seat, voice)


def stops_when_told(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Trains until 20 steps are found to be enough, however noisy the machine."""
    stop, go_on = steady.Decision(kind="stop", reason="interval"), steady.Decision(kind="go on")
    steady.decide = lambda trace, *_: stop if len(trace) >= 20 else go_on
    train.run(config, seat, voice)


def normed(image_size: int, classes: int) -> nn.Module:
    """A network with batch norm and dropout: what a step changes and no gradient does."""
    side = (image_size + 3) // 4
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=4, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.4),
        nn.Linear(16 * side * side, classes),
    )


def large(image_size: int, classes: int) -> nn.Module:
    """A network of 48 MiB in layers of 16: more than one bucket."""
    wide = [layer for _ in range(3) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(nn.AvgPool2d(image_size), nn.Flatten(), nn.Linear(3, 2048), *wide, nn.Linear(2048, classes))


NETWORKS = {"normed": normed, "large": large}


def of_another_network(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Trains with the network that a variable names."""
    if network := NETWORKS.get(os.environ["NCCL_PLANTED_NETWORK"]):
        models.build = lambda name, image_size, classes: network(image_size, classes)
    train.run(config, seat, voice)


def dies_in_the_second_epoch(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    from tests.integration.learning import DyingVoice

    of_another_network(config, seat, DyingVoice(voice) if seat.rank == 0 else voice)


def loss_curve(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Tells the loss of every global batch of two epochs."""
    body.place(config)
    with body.joined(seat, config) as ring:
        work = Work(config, ring, voice, cores_here(config, 1))
        work.learner.set_rate(float(config.lr_schedule))
        losses = [work.learner.learn(*batch).loss for epoch in (1, 2) for batch in work.source.epoch(epoch)]
        means = ring.total(np.array(losses)) / ring.size
    tell(voice, means.tolist())


def has_strangers(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Tells who listens once all have joined, whether the gang's rendezvous does, what a stranger hears who says some
    bytes to each rank's port in the midst of its work, and whether the ranks still add up."""
    with body.joined(seat, config) as ring:
        give_up = time.monotonic() + CLOSED_WITHIN_S
        while is_open(seat.rendezvous) and time.monotonic() < give_up:
            time.sleep(0.05)
        found = listening([psutil.Process()])
        ports = np.zeros(ring.size)
        ports[ring.rank] = found[0][1]
        ports = ring.total(ports)
        heard = [len(answer(int(port), said)) for port in ports for said in (b"\0" * 8, b"GET / HTTP/1.0\r\n\r\n")]
        total = float(ring.total(np.full(1 << 12, ring.rank + 1.0))[0])
    listens, is_rendezvous = [address for address, _ in found], is_open(seat.rendezvous)
    tell(voice, {"listens": listens, "rendezvous": is_rendezvous, "heard": heard, "total": total})


def learns_until_told(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Learns until there is a file `over` beside the checkpoint; says by a file `stepping` that it does. Tells how many
    ranks add up then."""
    body.place(config)
    over, stepping = (Path(seat.checkpoint).with_name(name) for name in ("over", "stepping"))
    with body.joined(seat, config) as ring:
        work = Work(config, ring, voice, cores_here(config, 1))
        work.learner.set_rate(0.001)
        batch = next(work.source.stream())
        for step in range(1_000_000):
            voice.beat("step", step)
            work.learner.learn(*batch)
            if step == 3:
                stepping.touch()
            if ring.total(np.array([float(over.exists())]))[0]:
                break
        total = float(ring.total(np.ones(1))[0])
    tell(voice, total)


def answer(port: int, said: bytes) -> bytes:
    """Return what comes back, until the other side hangs up or is silent."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as line:
        line.settimeout(0.3)
        line.sendall(said)
        return line.recv(1 << 12)
    return b""


def record_of_ddp(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Tells what DistributedDataParallel has noted of a few steps of `large`."""
    models.build = lambda name, image_size, classes: large(image_size, classes)
    body.place(config)
    with body.joined(seat, config) as ring:
        work = Work(config, ring, voice, cores_here(config, 1))
        assert isinstance(work.learner, learner.TorchLearner)
        work.learner.set_rate(0.001)
        batch = next(work.source.stream())
        for _ in range(6):
            work.learner.learn(*batch)
        record = work.learner._parallel._get_ddp_logging_data()
    tell(voice, {name: value for name, value in record.items() if "avg" in name or "bucket" in name})


def asks_for_too_much(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Trains with a step that wants more of the host than there is."""
    losses = learner.TorchLearner._losses

    def greedy(self: Any, logits: Any, labels: Any) -> Any:
        return losses(self, logits, labels) + torch.empty(TOO_MUCH, dtype=torch.uint8).sum()

    learner.TorchLearner._losses = greedy  # type: ignore[method-assign]
    train.run(config, seat, voice)


def raises_beside_others(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """The second rank raises in the midst of the others' steps."""
    body.place(config)
    voice.beat("ring")
    with body.joined(seat, config) as ring:
        for step in range(600):
            voice.beat("step", step)
            ring.barrier()
            if seat.rank == BAD_RANK and step == BAD_STEP:
                raise ValueError("planted")
            time.sleep(0.02)


def ring_contract(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Runs in every rank: what a training loop relies on."""
    with body.joined(seat, config) as ring:
        assert (ring.rank, ring.size) == (seat.rank, seat.size)
        for kind in (np.int64, np.float64, np.float32):
            given = np.array([1, ring.rank], kind)
            assert ring.total(given).tolist() == [ring.size, sum(range(ring.size))]
            assert given.tolist() == [1, ring.rank], "what is added up stays as it was"
        spreads(ring)
        ring.barrier()
    voice.beat("finish")
    voice.say("failed", kind="checked", message="all holds")


def spreads(ring: Ring) -> None:
    if isinstance(ring, ddp.Ddp):
        given = [torch.full((2, 2), float(ring.rank)), torch.tensor(ring.rank), torch.tensor([ring.rank + 0.5])]
        ring.spread(given)
        assert [one.tolist() for one in given] == [[[0.0, 0.0], [0.0, 0.0]], 0, [0.5]]


def steps_of_optimizers(config: TrialConfig, seat: Seat, voice: Voice) -> None:
    """Tells the weight and the bias of a dense layer after each of a few steps of known gradients."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2))
    weight, bias = network[0].weight, network[0].bias
    with torch.no_grad():
        weight.copy_(torch.arange(1.0, 7.0).reshape(2, 3) / 10)
        bias.copy_(torch.tensor([0.5, -0.5]))
    optimizer = optimizers.build(config, network)
    told = []
    for n, rate in enumerate(RATES):
        for group in optimizer.param_groups:
            group["lr"] = rate
        weight.grad, bias.grad = torch.full_like(weight, 0.1 * (n + 1)), torch.tensor([1.0, -2.0]) / (n + 1)
        optimizer.step()
        told.append([weight.detach().reshape(-1).tolist(), bias.detach().tolist()])
    assert all(math.isfinite(one) for step in told for part in step for one in part)
    tell(voice, told)
