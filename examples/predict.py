"""Load a checkpoint and say what is in some images.

    python examples/predict.py [MODEL IMAGE|FOLDER ...]

MODEL is a folder or file in any known format, or hf://org/name. Without arguments a small ViT is trained on digits first, and
asked what it sees in images of them.
"""

import sys
from pathlib import Path

import vitrine
from small import train_small_model, write_small_folder


def main(model: str, *images: str) -> None:
    checkpoint = vitrine.load_checkpoint(model)  # the network, its preprocessing, its classes
    predictions = vitrine.predict_files(checkpoint, [Path(image) for image in images], num_answers=3)
    for prediction in predictions.found:
        answers = zip(prediction.classes, prediction.probabilities, strict=True)
        print(f"{prediction.image}: {', '.join(f'{name} {probability:.0%}' for name, probability in answers)}")
    for reason in predictions.unreadable.values():
        print(f"not read: {reason}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), f"{write_small_folder()}/test/odd"]))
