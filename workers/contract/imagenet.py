"""ImageNet (ILSVRC2012), as it is published: what an epoch of it holds."""

from __future__ import annotations

TRAIN_IMAGES, VALIDATION_IMAGES = 1_281_167, 50_000
CLASSES = 1000
