"""The handwritten digits that scikit-learn carries: 1,797 real ones of 8 x 8 pixels, with nothing to download.

Shapes: N images of H x W pixels.
"""

import numpy as np

from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.annotations import numbered_class_names

SPLITS = ("train", "test")

# The split is ours: scikit-learn has none. In its order, what one person wrote stands together, so that a cut keeps the
# writers of the two parts mostly apart; shuffled, each would be in both, and the test too easy.
NUM_TRAIN = 1437
WHITE = 16


def open_digits(split: str | None) -> Source:
    """The first 1,437 of them for training, or the last 360 for testing, in scikit-learn's order."""
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)  # (N, H * W) from 0 to 16, (N)
    pixels = np.rint(values * 255 / WHITE).astype(np.uint8).reshape(-1, 8, 8, 1)  # (N, H, W, 1)
    part = slice(NUM_TRAIN) if split == "train" else slice(NUM_TRAIN, None)
    return ArraySource(pixels[part], Labels.one_each(np.asarray(labels)[part]), numbered_class_names(10), f"digits/{split}")
