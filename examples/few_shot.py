"""Measure a checkpoint's frozen features: a linear classifier in closed form, from a few images of each class.

    python examples/few_shot.py [MODEL DATA]

DATA has images in class folders, split into train and test; without splits, a fifth is held out. Without arguments: a small
ViT on the built-in digits.
"""

import sys

import vitrine
from small import train_small_model


def main(model: str, data: str) -> None:
    for result in vitrine.few_shot(model, data, shots=(1, 5, 10)):
        print(f"{result.shots} images per class: {result.mean:.1%} ± {result.std:.1%} of {result.num_test_images} test images")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), "digits"]))
