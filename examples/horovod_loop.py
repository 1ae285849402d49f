"""A loop of one's own, whose ranks Horovod joins. The one line for the sweep is `sweeps.steps`."""

import argparse

import horovod.tensorflow as hvd
import tensorflow as tf

import sweeps

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--width", type=int, default=256)
given = parser.parse_args()

hvd.init()
model = tf.keras.Sequential(
    [tf.keras.Input([64]), tf.keras.layers.Dense(given.width, "relu"), tf.keras.layers.Dense(10)]
)
weights = [variable.value for variable in model.trainable_variables]  # Horovod 0.28 knows no variables of Keras 3
optimizer = tf.keras.optimizers.SGD(given.lr)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


features = tf.random.normal([4096, 64])
labels = tf.random.uniform([4096], 0, 10, tf.int32)
data = tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(4096).batch(given.batch, drop_remainder=True)
for epoch in range(1000):
    for x, y in sweeps.steps(data, items=given.batch):
        loss = float(train(x, y))
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {loss:.3f}")
