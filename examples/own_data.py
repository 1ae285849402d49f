"""Data of one's own, and a network that learns them: a rank's part of some words at a time."""

import keras
import numpy as np
from keras import layers

LETTERS, LENGTH, WORDS = 26, 12, 4096


def words(rank, size, batch_size, seed, split="train", epoch=0):
    """One pass over this rank's part, in an order of the epoch's own: batches of (letters, class)."""
    letters = np.random.default_rng(1).integers(0, LETTERS, (WORDS, LENGTH), np.int32)
    classes = (letters < LETTERS // 2).sum(axis=1) > LENGTH // 2  # more of the first letters than of the last
    held_back = np.arange(WORDS) % 5 == 0
    numbers = np.flatnonzero(held_back if split == "validation" else ~held_back)
    mine = np.random.default_rng((seed, epoch)).permutation(numbers)[rank::size]
    for start in range(0, len(mine), batch_size):
        chosen = mine[start : start + batch_size]
        yield letters[chosen], classes[chosen].astype(np.int32)


def bag(classes, width=16):
    """Classify words by the mean of what each letter says."""
    letters = keras.Input((LENGTH,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(LETTERS, width)(letters))
    return keras.Model(letters, layers.Dense(classes)(layers.Dense(width, "relu")(x)))
