"""A small ViT and a folder of images, for examples that are called without arguments.

Both are made in seconds, below `runs` in the working folder; the next example reuses them.
"""

from pathlib import Path

import vitrine

MODEL, IMAGES = Path("runs/example"), Path("runs/example-images")
NUM_IMAGES = {"train": 160, "test": 40}


def train_small_model() -> str:
    """Train the recipe `digits` with half of its blocks for a few seconds, unless that was done before."""
    recipe = vitrine.with_changes(
        vitrine.find_recipe("digits")(),
        model={"depth": 2},
        loader={"batch_size": 32},
        augment=vitrine.AugmentConfig(crop="none", flip=False),
        optim={"warmup_steps": 20},
        total_steps=300,
        evaluation={"num_times": 0},
    )
    summary = vitrine.run_recipe(recipe, MODEL)
    assert summary.is_finished, "Interrupted: run the example again to resume training."
    return str(MODEL / "model")


def write_small_folder() -> str:
    """Write some digits to train/even, train/odd, test/even and test/odd: another task than the model was trained on."""
    for split, count in NUM_IMAGES.items():
        source = vitrine.open_data("digits", split)
        for index in range(count):
            image, label = source.read(index)
            assert isinstance(label, int)  # one label per image
            folder = IMAGES / split / ("odd" if label % 2 else "even")
            folder.mkdir(parents=True, exist_ok=True)
            image.to_pil().save(folder / f"{index}-is-a-{label}.png")
    return str(IMAGES)
