"""Fine-tune a checkpoint on a folder of images, and print its accuracy.

    python examples/finetune.py [MODEL DATA OUT]

DATA is a folder with a folder of images for each class, with or without train and test folders above them. OUT is the run
folder; the model is in OUT/model. The same call again resumes an interrupted run. Without arguments a small ViT trained on
digits learns to tell odd from even ones.
"""

import sys

import vitrine
from small import train_small_model, write_small_folder


def main(model: str, data: str, out: str) -> None:
    result = vitrine.finetune(model, data, out, seed=1)  # any field of the recipe can be changed like the seed
    (run,) = result.runs
    top1 = run.best if run.test_top1 is None else run.test_top1
    print(f"{run.num_train_images} images, {run.steps} steps: top-1", "-" if top1 is None else f"{top1:.1%}")

    classifier = vitrine.load_checkpoint(f"{out}/model")
    print(f"{out}/model has the classes {', '.join(classifier.class_names or ())}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), write_small_folder(), "runs/example-finetuned"]))
