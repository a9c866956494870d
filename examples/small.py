"""What the examples start from when they are given nothing: a small ViT of their own, and a folder of images.

Both are made in seconds in the folder `runs` of where you are, once: the next example finds them there.
"""

from pathlib import Path

import vitrine

MODEL, IMAGES = Path("runs/example"), Path("runs/example-images")
NUM_IMAGES = {"train": 160, "test": 40}


def train_small_model() -> str:
    """The recipe `digits` with half of its blocks, for a few seconds; a run that is finished is only read."""
    recipe = vitrine.with_changes(
        vitrine.find_recipe("digits")(),
        model={"depth": 2},
        loader={"batch_size": 32},
        augment={"crop": "none"},
        optim={"warmup_steps": 20},
        total_steps=300,
        evaluation={"num_times": 0},
    )
    summary = vitrine.run_recipe(recipe, MODEL)
    assert summary.is_finished, "interrupted: start the example again, and the training goes on."
    return str(MODEL / "model")


def write_small_folder() -> str:
    """Some of the digits as files in train/even, train/odd, test/even and test/odd: another task than the model was taught."""
    for split, count in NUM_IMAGES.items():
        source = vitrine.open_data("digits", split)
        for index in range(count):
            image, label = source.read(index)
            assert isinstance(label, int)  # one for each image, and not several
            folder = IMAGES / split / ("odd" if label % 2 else "even")
            folder.mkdir(parents=True, exist_ok=True)
            image.to_pil().save(folder / f"{index}-is-a-{label}.png")
    return str(IMAGES)
