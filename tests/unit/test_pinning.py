"""Cores of ranks and decoders: disjoint, all of a node's or none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers import pinning


@given(st.integers(1, 128), st.integers(1, 8), st.integers(1, 8), st.integers(0, 16))
def test_no_core_is_anyone_else_s(cores: int, sharers: int, compute: int, decode: int) -> None:
    found = [pinning.pins(range(cores), place, sharers, compute, decode) for place in range(sharers)]
    if found[0] is None:
        assert cores // sharers < compute + decode
        return
    sets = [cores for pins in found if pins for cores in pins]
    assert sum(map(len, sets)) == len(set().union(*sets)) <= cores
    for pins in found:
        assert pins
        assert len(pins.compute) >= compute
        assert len(pins.decode) == decode


def test_two_ranks_on_two_cores_have_none_to_spare_for_decoding() -> None:
    assert pinning.pins([0, 1], 0, 2, compute=1, decode=1) is None
    assert pinning.pins([0, 1], 1, 2, compute=1, decode=0) == (frozenset([1]), frozenset())


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cores_are_written_as_the_system_does(cores: set[int]) -> None:
    assert pinning.parsed(pinning.listed(cores)) == cores


def test_pins_are_recorded_in_words() -> None:
    pins = pinning.pins(range(16), 1, 2, compute=4, decode=3)
    assert str(pins) == "compute 8-12, decode 13-15"


def test_auto_leaves_four_cores_to_each_rank_and_at_least_one_to_decoding() -> None:
    assert [pinning.decode_threads("auto", 40, ranks) for ranks in (1, 4, 10)] == [36, 24, 1]
    assert pinning.decode_threads(7, 40, 4) == 7
