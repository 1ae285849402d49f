"""A program that knows nothing of sweeps, and prints a line after each step."""

import sys

import numpy as np

size, steps = int(sys.argv[1]), 10_000
a = np.random.rand(size, size)
for n in range(steps):
    a = a @ a
    a /= np.abs(a).max()
    print(f"step {n} trace {np.trace(a):.4f}", flush=True)
