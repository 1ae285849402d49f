"""Networks, precision and the compiled step, in TensorFlow."""
