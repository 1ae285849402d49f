"""Open a trial's source of images: random, scikit-learn's digits, a folder of ImageNet-convention TFRecords, or what a
function of the user's own gives."""

from __future__ import annotations

from collections.abc import Callable

from workers.contract import quota
from workers.contract.messages import Phase, TrialConfig, has_jpegs, is_own
from workers.inputs.source import Cores, Source
from workers.node import pinning, topology
from workers.strategies.ring import Ring


def cores_here(config: TrialConfig, local_size: int, found: topology.Topology | None = None) -> Cores:
    """Return what a rank has before it is pinned."""
    physical = min(len((found or topology.here()).cores), quota.cores())
    of_node = pinning.decode_threads(config.decode_threads, physical, local_size)
    return Cores(of_node // local_size if has_jpegs(config.data) else 0)


def open_source(
    config: TrialConfig, ring: Ring, cores: Cores, beat: Callable[[Phase, int], None] = lambda phase, n: None
) -> Source:
    """Return the trial's data. `beat` is told of work that takes long before the first batch can."""
    # Each imports TensorFlow, which only a rank may start.
    if config.data == "synthetic":
        from workers.inputs.synthetic import Synthetic

        return Synthetic(config, ring)
    if config.data == "digits":
        from workers.inputs.digits import Digits

        return Digits(config, ring)
    if is_own(config.data):
        from workers.inputs.own import Own

        return Own(config, ring, beat)
    from workers.inputs.records import Records

    return Records(config, ring, cores, beat)
