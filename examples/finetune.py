"""Fine-tune a checkpoint on a folder of images, and measure what came out.

    python examples/finetune.py [MODEL DATA OUT]

DATA is a folder with a folder of images for each class, divided into train and test or not. OUT gets the run; the model is in
OUT/model. The same call again goes on where it stopped. Without arguments a small ViT that knows digits learns odd from even.
"""

import sys
from pathlib import Path

import vitrine
from small import train_small_model, write_small_folder
from vitrine.commands.finetune import describe_transfer, keep_some_out


def main(model: str, data: str, out: str) -> None:
    task = describe_transfer(model, vitrine.DataConfig(source=data))  # how many images and classes there are
    recipe = keep_some_out(vitrine.find_finetune_recipe("folder").build(task), task.num_images)
    recipe = vitrine.with_changes(recipe, seed=1)  # any field can be changed so
    summary = vitrine.run_recipe(recipe, out)
    measured = summary.best if summary.test_top1 is None else summary.test_top1
    print(f"{summary.num_train_images} images, {summary.steps} steps: top-1", "-" if measured is None else f"{measured:.1%}")

    tuned = vitrine.load_checkpoint(Path(out) / "model")
    print(f"{out}/model tells apart: {', '.join(tuned.class_names or ())}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), write_small_folder(), "runs/example-finetuned"]))
