"""How a set's labels count its classes: from 1, as in ImageNet's files where 0 is the background, or from 0."""

from __future__ import annotations

FIRST = (0, 1)  # what `labels_from` may be


def is_sound(label: int, classes: int, labels_from: int) -> bool:
    return labels_from <= label < labels_from + classes


def fault(label: int, classes: int, labels_from: int) -> str:
    """Return the rule that a label breaks, the label, and what to do about it."""
    last = labels_from + classes - 1
    rule = f"image/class/label must be from {labels_from} to {last} (labels_from: {labels_from}, classes: {classes})"
    return f"{rule}, but got {label}: {_cure(label, classes, labels_from)}"


def _cure(label: int, classes: int, labels_from: int) -> str:
    other = 1 - labels_from
    if is_sound(label, classes, other):
        return f"if the labels count from {other}, set labels_from: {other}"
    if label > 0:
        return f"set classes to the number of them, {label + 1 - labels_from} or more, or mend the record"
    return "mend the record"
