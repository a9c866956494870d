"""The built-in dataset `digits`: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, without a download."""

import numpy as np

from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.annotations import numbered_class_names

SPLITS = ("train", "test")

# scikit-learn has no split, so this one is ours. Digits of one writer are adjacent in its order, so a cut keeps the writers of
# the two parts mostly apart; a shuffle would put each writer into both and make the test too easy.
NUM_TRAIN = 1437
WHITE = 16


def open_digits(split: str | None) -> Source:
    """Open the first 1,437 digits (train) or the last 360 (test), in scikit-learn's order."""
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)  # (N, H * W) from 0 to 16, (N)
    pixels = np.rint(values * 255 / WHITE).astype(np.uint8).reshape(-1, 8, 8, 1)  # (N, H, W, 1)
    part = slice(NUM_TRAIN) if split == "train" else slice(NUM_TRAIN, None)
    return ArraySource(pixels[part], Labels.one_each(np.asarray(labels)[part]), numbered_class_names(10), f"digits/{split}")
