"""A network of one's own: a function that gives a Keras model, by the names that the sweep has for its axes."""

from keras import Input, Model, layers


def wide(image_size, classes, width=1, depth=2):
    """Residual blocks, `depth` at each of three sizes, `width` times as wide as usual. Its output takes no softmax."""
    images = Input((image_size, image_size, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(images)
    for stage in range(3):
        for block in range(depth):
            x = residual(x, 16 * width * 2**stage, strides=2 if stage and not block else 1)
    return Model(images, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)), name="wide")


def residual(x, filters, strides):
    y = x
    for n in range(2):
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.Conv2D(filters, 3, strides=1 if n else strides, padding="same", use_bias=False)(y)
    if x.shape[-1] != filters or strides > 1:
        x = layers.Conv2D(filters, 1, strides=strides, use_bias=False)(x)
    return layers.Add()([x, y])
