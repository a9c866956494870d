"""How good are a checkpoint's frozen features? A linear classifier in closed form, from a few images of each class.

    python examples/few_shot.py [MODEL DATA]

DATA has images by class, divided into train and test; of what is not, a fifth is held out. Without arguments: a small ViT on
the digits that are built in.
"""

import sys

import vitrine
from small import train_small_model


def main(model: str, data: str) -> None:
    checkpoint = vitrine.load_checkpoint(model)
    train, test = vitrine.open_train_and_test(data, held_out=0.2)
    split = vitrine.Split(
        train=vitrine.featurise_images(checkpoint, train),
        test=vitrine.featurise_images(checkpoint, test),
        num_classes=len(train.class_names),
    )
    for shots in (1, 5, 10):
        found = vitrine.evaluate_few_shot(split, shots, seeds=(0, 1, 2))
        print(f"{shots} images of each of {split.num_classes} classes: {found.mean:.1%} ± {found.std:.1%} of {len(split.test)}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), "digits"]))
