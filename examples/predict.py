"""Load a checkpoint and predict the classes of some images.

    python examples/predict.py [MODEL IMAGE|FOLDER ...]

MODEL is a folder or file in any known format, or hf://org/name. Without arguments a small ViT is trained on digits first, and
predicts images of digits.
"""

import sys

import vitrine
from small import train_small_model, write_small_folder


def main(model: str, *images: str) -> None:
    predictor = vitrine.Predictor(model)  # loaded once; takes paths, bytes, PIL images and arrays
    result = predictor.predict(images, top=3)
    for prediction in result.predictions:
        classes = zip(prediction.classes, prediction.probabilities, strict=True)
        print(f"{prediction.image}: {', '.join(f'{name} {probability:.0%}' for name, probability in classes)}")
    for reason in result.unreadable.values():
        print(f"not read: {reason}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), f"{write_small_folder()}/test/odd"]))
