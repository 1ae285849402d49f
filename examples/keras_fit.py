"""A script that trains by Keras' `fit`. A sweep times it as it is: nothing in it is for the sweep."""

import argparse

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--depth", type=int, default=2)
given = parser.parse_args()

x, y = np.random.rand(4096, 64).astype("float32"), np.random.randint(0, 10, 4096)
model = keras.Sequential([keras.Input([64])])
for _ in range(given.depth):
    model.add(keras.layers.Dense(256, "relu"))
model.add(keras.layers.Dense(10))
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, batch_size=given.batch, epochs=10, verbose=0, validation_split=0.125)
print(model.evaluate(x, y, verbose=0))
