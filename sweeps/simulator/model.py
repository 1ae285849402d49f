"""How long a step takes and how much memory a rank needs, from a few parameters that each mean something. Pure.

    step     = max(input, compute + wait + exposed)
    compute  = (batch + STARTING) × the software's pace / (the network's images/s × the GPU's speed)
    wait     = compute × sync × (ranks − 1)
    exposed  = what of the reduction outlasts the backward pass, and half a cycle of Horovod's
    reduction: a ring over the slowest link between its ranks, 2 (N − 1) / N of the gradients' bytes each way

The reduction starts as gradients appear, the last layers' first (`gradients`), and hides behind what is left of the
backward pass: the time that its FLOPs take at the rate of the densest network. What else a step does (starting
kernels, normalising, updating) hides nothing. A step that XLA compiles gives all its gradients at once, and hides
nothing of their reduction.

Fitted to references/throughput.csv and the tensorflow-horovod rows of speedups.csv by benchmarks/simulator.py, which
also leaves each row out in turn: a rate per network, what software before the reference's costs, and `sync`: 9 numbers
for 28 rows. `evidence` says how far they carry. Taken from precision.csv, not fitted: fp32 against fp16, PCIe against
SXM2, P100 against V100 (TensorFlow's). Taken from its data sheet: what InfiniBand carries.

Assumed, because nothing published says it: that a rate grows with the batch as b / (b + 12); that ResNets beyond the
50-layer one compute as many FLOP/s as it does; what NVLink, PCIe, decoding and a CPU's core do; memory as the
activations that the backward pass needs, with a fifth on top. Frameworks are not told apart, so the speed-ups of MXNet
and Caffe2 are not reproduced.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from sweeps.simulator import gradients
from workers.contract.messages import IMAGE_SIZES, WITHOUT_JPEGS, Precision, TrialConfig, Without
from workers.node import pinning

MIB, GIB = 1 << 20, 1 << 30
TRAINING = 3  # forward passes that a training step costs

STARTING = 12.0  # images that a device could have trained while a step gets going
PUBLISHED_BATCH = 128
XLA_GAIN = 1.1
DECODED_PER_S = 250.0  # images by a thread
CPU_GFLOPS = 25.0  # of a core, in fp32
RUNTIME_GIB = 0.8  # of a device, before there is any network
HOST_GIB = 4.0  # of the host, that a rank on a GPU holds
MARGIN = 1.2  # of activations: temporaries, and what fragments
USABLE = 0.95  # of a device's memory
HOST_SHARE = 0.9  # of a node's memory, for all its ranks


@dataclasses.dataclass(frozen=True)
class Network:
    """What one image costs at the published size."""

    gflops: float  # forward, two per multiply-add
    parameters_m: float  # millions, with 1000 classes
    activations_m: float  # millions of values: outputs of convolutions, dense layers and normalisations
    features: int  # inputs of the last layer


NETWORKS: dict[str, Network] = {
    "alexnet": Network(1.428, 61.10, 0.494, 4096),
    "googlenet": Network(2.997, 6.64, 6.453, 1024),
    "inception_v3": Network(11.43, 23.85, 17.94, 2048),
    "inception_v4": Network(24.51, 42.74, 30.18, 1536),
    "vgg16": Network(30.94, 138.36, 13.56, 4096),
    "vgg19": Network(39.26, 143.67, 14.86, 4096),
    "resnet50": Network(7.716, 25.61, 21.18, 2048),
    "resnet50_v1.5": Network(8.178, 25.61, 22.23, 2048),
    "resnet101": Network(15.14, 44.65, 31.41, 2048),
    "resnet152": Network(22.56, 60.34, 44.06, 2048),
    "tiny": Network(0.006185, 0.6065, 0.0153, 512),
}
TINY = 50_000.0  # images/s; nobody has published it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers that are fitted to published figures."""

    images_per_s: Mapping[str, float]  # of a V100-SXM2 alone, fp16, batch 128, of the networks that have figures
    older: float  # times that a step takes with software older than the reference's
    sync: float  # of a step, for each further rank: the slowest is waited for, and there is one coordinator

    def rate(self, model: str) -> float:
        """Images/s of the reference GPU alone."""
        if model == "tiny":
            return TINY
        if model in self.images_per_s:
            return self.images_per_s[model]
        return self.images_per_s["resnet50"] * NETWORKS["resnet50"].gflops / NETWORKS[model].gflops

    def density(self, model: str) -> float:
        """FLOP/s that a network comes to, of those of the network that comes to most."""
        most = max(NETWORKS[name].gflops * rate for name, rate in self.images_per_s.items())
        return NETWORKS[model].gflops * self.rate(model) / most


FITTED = Numbers(
    images_per_s={
        "alexnet": 3223,
        "googlenet": 1482,
        "inception_v3": 512.3,
        "inception_v4": 282.9,
        "vgg16": 501.5,
        "vgg19": 434.2,
        "resnet50": 808.3,
    },
    older=1.303,
    sync=0.01266,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of node: its GPUs, its links, and the software of its time."""

    what: str
    speed: Mapping[Precision, float]  # of a GPU; the reference's fp16 is 1
    is_latest: bool = False  # the reference's NCCL and TensorFlow; print says that its other systems had older ones
    capability: tuple[int, int]  # CUDA's
    gpus: int
    gpu_gib: float
    cores: int
    memory_gib: float
    inside_gb_per_s: float
    between_gb_per_s: float = 12.5  # InfiniBand EDR: 100 Gbit/s
    inside_us: float = 5.0  # a message, one hop
    between_us: float = 15.0


V100: dict[Precision, float] = {"fp16": 1.0, "fp32": 1 / 1.8}
V100_PCIE: dict[Precision, float] = {name: speed / 1.06 for name, speed in V100.items()}
P100: dict[Precision, float] = {"fp16": V100_PCIE["fp16"] / 2.03, "fp32": V100_PCIE["fp32"] / 1.26}
NVLINK, PCIE = 40.0, 10.0

KINDS: dict[str, Kind] = {
    "v100": Kind(
        what="PowerEdge C4140-M, Xeon 6148, V100-SXM2: the reference",
        speed=V100, is_latest=True, capability=(7, 0), gpus=4, gpu_gib=16, cores=40, memory_gib=384,
        inside_gb_per_s=NVLINK,
    ),
    "v100-k": Kind(
        what="PowerEdge C4140-K, Xeon 4116, V100-SXM2",
        speed=V100, capability=(7, 0), gpus=4, gpu_gib=16, cores=24, memory_gib=256, inside_gb_per_s=NVLINK,
    ),
    "v100-8x": Kind(
        what="eight V100-SXM2 in a node",
        speed=V100, capability=(7, 0), gpus=8, gpu_gib=16, cores=40, memory_gib=512, inside_gb_per_s=NVLINK,
    ),
    "v100-pcie": Kind(
        what="PowerEdge C4140, V100-PCIe",
        speed=V100_PCIE, capability=(7, 0), gpus=4, gpu_gib=16, cores=40, memory_gib=384,
        inside_gb_per_s=PCIE,
    ),
    "p100": Kind(
        what="PowerEdge C4130, P100-PCIe",
        speed=P100, capability=(6, 0), gpus=4, gpu_gib=16, cores=28, memory_gib=256, inside_gb_per_s=PCIE,
    ),
    "none": Kind(
        what="a node without GPUs",
        speed={}, capability=(0, 0), gpus=0, gpu_gib=0, cores=16, memory_gib=64,
        inside_gb_per_s=2.0, between_gb_per_s=1.0, inside_us=30, between_us=60,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepParts:
    """What a step is made of, in milliseconds."""

    compute_ms: float
    input_ms: float  # hides behind the rest, or the rest behind it
    wait_ms: float
    exposed_ms: float  # of the reduction
    reduction_ms: float = 0.0  # alone

    @property
    def step_ms(self) -> float:
        return max(self.input_ms, self.compute_ms + self.wait_ms + self.exposed_ms)

    def without(self, part: Without) -> float:
        """Return the parts without one. A rank that reduces nothing waits for nobody."""
        if part == "compute":
            return self.reduction_ms + self.wait_ms
        gone = {"nothing": (), "input": ("input_ms",), "comm": ("wait_ms", "exposed_ms")}
        gone["both"] = (*gone["input"], *gone["comm"])
        return dataclasses.replace(self, **dict.fromkeys(gone[part], 0.0)).step_ms


def step(config: TrialConfig, kind: Kind, ranks: Sequence[int], cores: int = 0, numbers: Numbers = FITTED) -> StepParts:
    """Return a step of a trial with so many ranks on each of its nodes, which have so many cores (else the kind's
    own)."""
    images = config.batch_size * flops(config) / (1e9 * NETWORKS[config.model].gflops)  # of the published size
    image_ms = _image_ms(config, kind, numbers)
    compute_ms = (images + STARTING) * image_ms
    size = sum(ranks)
    exposed_ms = whole_ms = 0.0
    if size > 1:
        whole_ms = reduction_ms(gradient_bytes(config), config, kind, ranks) + config.cycle_ms / 2
        density = numbers.density(config.model) if config.device == "gpu" else 1.0
        backward_ms = images * image_ms * density * (TRAINING - 1) / TRAINING
        exposed_ms = _exposed_ms(config, kind, ranks, backward_ms)
    return StepParts(
        compute_ms=compute_ms,
        input_ms=_input_ms(config, max(ranks), cores or kind.cores),
        wait_ms=compute_ms * numbers.sync * (size - 1),
        exposed_ms=exposed_ms,
        reduction_ms=whole_ms,
    )


def _image_ms(config: TrialConfig, kind: Kind, numbers: Numbers) -> float:
    """Return the milliseconds to train on one image of the published size."""
    network = NETWORKS[config.model]
    gain = XLA_GAIN if config.xla else 1.0
    if config.device == "cpu":
        return 1e3 * TRAINING * network.gflops / (CPU_GFLOPS * config.cores_per_worker * gain)
    speed = kind.speed.get(config.precision, kind.speed["fp32"])
    pace = 1.0 if kind.is_latest else numbers.older
    return 1e3 * pace / ((1 + STARTING / PUBLISHED_BATCH) * numbers.rate(config.model) * speed * gain)


def _exposed_ms(config: TrialConfig, kind: Kind, ranks: Sequence[int], backward_ms: float) -> float:
    """Each part of the gradients waits for half a cycle of Horovod's, then for those before it."""
    sent = gradient_bytes(config)
    one_by_one = config.reduction == "overlapped" and not config.xla
    parts = gradients.parts(config.model) if one_by_one else [(1.0, 1.0)]
    reductions = [
        (at * backward_ms + config.cycle_ms / 2, reduction_ms(share * sent, config, kind, ranks)) for at, share in parts
    ]
    return gradients.exposed_ms(reductions, backward_ms)


def gradient_bytes(config: TrialConfig) -> float:
    return 1e6 * parameters_m(config) * (2 if config.compression == "fp16" else 4)


def reduction_ms(sent: float, config: TrialConfig, kind: Kind, ranks: Sequence[int]) -> float:
    """Return the milliseconds to reduce so many bytes, over a ring of all the ranks."""
    size = sum(ranks)
    inside, between = (kind.inside_gb_per_s, kind.inside_us), (kind.between_gb_per_s, kind.between_us)
    gb_per_s, us = inside if len(ranks) == 1 else between
    messages = math.ceil(sent / MIB / max(config.fusion_mib, 1.0))
    return 2 * (size - 1) * (sent / size / (1e6 * gb_per_s) + messages * us / 1e3)


def _input_ms(config: TrialConfig, local: int, cores: int) -> float:
    if config.data in WITHOUT_JPEGS:
        return 0.0
    return 1e3 * local * config.batch_size / (DECODED_PER_S * min(cores, decode_threads(config, local, cores)))


def decode_threads(config: TrialConfig, local: int, cores: int) -> int:
    """Return the decode threads of a node; 0 where nothing is decoded."""
    if config.data in WITHOUT_JPEGS:
        return 0
    return pinning.decode_threads(config.decode_threads, cores, local)


def area(config: TrialConfig) -> float:
    """Return the area of an image, beside the published size."""
    return (config.image_size / IMAGE_SIZES[config.model][1]) ** 2


def parameters_m(config: TrialConfig) -> float:
    """Millions. A last layer of fewer classes is smaller; that dense layers shrink with the image is left out."""
    network = NETWORKS[config.model]
    return network.parameters_m + (network.features + 1) * (config.classes - 1000) / 1e6


def flops(config: TrialConfig) -> int:
    """Return the operations of one image's forward pass."""
    network = NETWORKS[config.model]
    last = 2 * network.features
    return round((1e9 * network.gflops - last * 1000) * area(config) + last * config.classes)


def memory_gib(config: TrialConfig) -> float:
    """Return the memory that a rank needs, of its GPU or of its host: it grows with every image of the batch."""
    is_half = config.precision in ("fp16", "bf16")
    copies = 4 + 4 + 4 * (2 if config.optimizer == "adamw" else 1) + 2 * is_half  # weights, gradients, moments
    weights = 1e6 * parameters_m(config) * copies
    activations = 1e6 * NETWORKS[config.model].activations_m * area(config) * (2 if is_half else 4)
    fusion_gib = config.fusion_mib / 1024 if config.gpus > 1 else 0.0
    return RUNTIME_GIB + fusion_gib + (weights + MARGIN * config.batch_size * activations) / GIB


def host_memory_gib(config: TrialConfig) -> float:
    """Return the memory that a rank holds of its host; one that computes on it holds all there."""
    return memory_gib(config) if config.device == "cpu" else HOST_GIB
