"""What the note of a sweep's run says."""

from __future__ import annotations

from sweeps.report import answer
from sweeps.store import description
from tests.unit import studies

FILE = """
# a comment
name: noted
model: resnet50
device: gpu
space:
  batch_size: [64, 128]
  gpus: [1, 4]
repeats: 2
steps: {warmup: 10, measured: 30}
"""


def test_before_the_first_trial_it_says_what_is_asked() -> None:
    facts = studies.planted(FILE, lambda config: 100.0).facts
    said = description.write(facts)
    assert said.startswith("8 trials of\n```yaml\nname: noted")
    assert "a comment" not in said
    assert "imulated" not in said


def test_at_the_end_it_says_what_was_found_then_how_trials_ended_then_the_file() -> None:
    study = studies.planted(FILE, lambda config: -1.0 if config.batch_size == 128 else 100.0 * config.gpus)
    said = description.write(study.facts, answer.markdown(answer.find(study)))
    found = said.index("Batch size 64, 4 GPUs trains fastest: 400")
    ends = said.index("8 trials of 4 cells: 4 completed, 4 infeasible")
    assert found < ends < said.index("```yaml")
    assert "images/s" in said


def test_a_simulated_sweep_is_marked_first() -> None:
    study = studies.simulated(FILE, "nodes=1,gpus=4,gpu=v100")
    said = description.write(study.facts, answer.markdown(answer.find(study)))
    assert said.startswith("**Simulated** on nodes=1,gpus=4,gpu=v100: nothing was measured")


def test_a_long_file_is_cut_where_the_note_ends_but_not_what_was_found() -> None:
    study = studies.planted(f"{FILE}where: [{', '.join(['gpus >= 1'] * 500)}]\n", lambda config: 100.0)
    said = description.write(study.facts, "Found.")
    assert said.startswith("Found.\n")
    assert said.endswith("…\n```")
    assert len(said) <= description.LONGEST + 20
