"""Open a trial's source of images as NumPy arrays: random, scikit-learn's digits, a folder of ImageNet-convention
TFRecords, or what a function of the user's own gives."""

from __future__ import annotations

from collections.abc import Callable

from workers.contract.messages import Phase, TrialConfig, is_own
from workers.inputs.plain.digits import PlainDigits
from workers.inputs.plain.own import PlainOwn
from workers.inputs.plain.synthetic import PlainSynthetic
from workers.inputs.source import Cores, Source
from workers.strategies.ring import Ring


def open_source(
    config: TrialConfig, ring: Ring, cores: Cores, beat: Callable[[Phase, int], None] = lambda phase, n: None
) -> Source:
    """Return the trial's data. `beat` is told of work that takes long before the first batch can."""
    if config.data == "synthetic":
        return PlainSynthetic(config, ring)
    if config.data == "digits":
        return PlainDigits(config, ring)
    if is_own(config.data):
        return PlainOwn(config, ring, beat)
    from workers.inputs.plain.records import PlainRecords  # its decoders are native libraries

    return PlainRecords(config, ring, cores, beat)
