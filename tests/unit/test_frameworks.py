"""What a trial may ask of its framework, and by what name its cell goes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.unit.records import config
from workers.contract import messages
from workers.contract.ranks import Fault
from workers.frameworks import framework

OF_BEFORE = "bee3ca4d7f"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"framework": "torch", "xla": True}, "xla is an axis of tensorflow alone, but framework is torch"),
        ({"compile": True}, "compile is an axis of torch alone, but framework is tensorflow"),
        ({"channels_last": True}, "channels_last is an axis of torch alone, but framework is tensorflow"),
        ({"framework": "torch", "strategy": "horovod"}, "ranks of torch are joined by ddp, but strategy is horovod"),
        ({"strategy": "ddp"}, "ranks of tensorflow are joined by horovod, but strategy is ddp"),
    ],
)
def test_what_a_framework_does_not_have_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(Fault) as refused:
        framework.of_trial(dataclasses.replace(config(), **fields))
    assert words in str(refused.value)


def test_cells_of_before_there_were_two_frameworks_keep_their_names() -> None:
    """This one's was written down with the version before."""
    assert dataclasses.replace(config(), framework="tensorflow", strategy="").cell == OF_BEFORE
    others: list[dict[str, Any]] = [
        {"framework": "torch"},
        {"strategy": "ddp"},
        {"compile": True},
        {"channels_last": True},
    ]
    cells = {dataclasses.replace(config(), **fields).cell for fields in others}
    assert len({*cells, OF_BEFORE}) == 5


def test_a_trial_of_torch_comes_back_from_its_json_as_it_was_and_older_ones_are_tensorflow_s() -> None:
    trial = dataclasses.replace(config(), framework="torch", compile=True)
    assert messages.trial_config(messages.to_json(trial)) == trial
    older = messages.to_json(config())
    for name in ("framework", "strategy", "compile", "channels_last"):
        del older[name]
    assert messages.trial_config(older) == config()


def test_a_strategy_that_is_not_named_is_the_framework_s_first() -> None:
    assert config().joined_by == "horovod"
    assert dataclasses.replace(config(), framework="torch").joined_by == "ddp"
