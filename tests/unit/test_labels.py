"""Which labels name a class, and what is said of one that does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.inputs import labels

CLASSES, FIRST = st.integers(1, 1000), st.sampled_from(labels.FIRST)


@given(CLASSES, FIRST)
def test_there_are_as_many_sound_labels_as_classes(classes: int, first: int) -> None:
    sound = [label for label in range(-5, classes + 5) if labels.is_sound(label, classes, first)]
    assert sound == list(range(first, first + classes))


@given(st.integers(-10, 2000), CLASSES, FIRST)
def test_the_cure_of_a_label_of_no_class_makes_it_sound(label: int, classes: int, first: int) -> None:
    if labels.is_sound(label, classes, first):
        return
    said = labels.fault(label, classes, first)
    assert f"(labels_from: {first}, classes: {classes}), but got {label}: " in said
    cure = said.split(": ", 3)[-1]
    if "set labels_from" in cure:
        assert labels.is_sound(label, classes, int(cure.split(": ")[-1]))
    elif "set classes" in cure:
        enough = int(cure.split(", ")[1].split()[0])
        assert labels.is_sound(label, enough, first)
        assert not labels.is_sound(label, enough - 1, first)
    else:
        assert label < 0
