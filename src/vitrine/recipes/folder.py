"""Fine-tuning for anyone's folder of images on a laptop: not in the paper, whose 384 pixels and batches of 512 ask for more."""

import math

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe
from vitrine.recipes.finetune import Transfer, TransferRecipe
from vitrine.train.config import MachineConfig, OptimConfig

# From so many images on: how large the batches are, and of them no more than so many at once.
BATCH_SIZES = {0: 32, 2_000: 64, 50_000: 256}
LARGEST_PART = 64
# Few images are seen often and many seldom: epochs fall by the root of the number of images, from the most to the least.
MOST_EPOCHS, LEAST_EPOCHS, FEW_IMAGES = 15, 3, 2_000
LEAST_STEPS = 100
WARMUP_SHARE = 0.1


def folder(transfer: Transfer) -> Recipe:
    """A checkpoint on a folder of images for 3 to 15 epochs, at the checkpoint's own resolution.

    Expect PENDING

        vitrine finetune MODEL DATA --recipe folder
    """
    batch_size = next(size for least, size in reversed(BATCH_SIZES.items()) if transfer.num_images >= least)
    epochs = compute_epochs(transfer.num_images, batch_size)
    return Recipe(
        model=ModelSettings(checkpoint=transfer.checkpoint),
        data=DataConfig(source=transfer.source),
        loader=LoaderConfig(batch_size=batch_size),
        augment=AugmentConfig(crop="inception", crop_area=(0.35, 1.0), flip=True),
        optim=OptimConfig(
            kind="adamw",
            learning_rate=5e-4,
            weight_decay=0.05,
            layer_decay=0.75,
            warmup_steps=round(WARMUP_SHARE * epochs * transfer.num_images / batch_size),
            decay="cosine",
            max_grad_norm=1.0,
        ),
        epochs=epochs,
        head_init="ridge",
        machine=MachineConfig(accumulation_steps=max(1, batch_size // LARGEST_PART)),
    )


def compute_epochs(num_images: int, batch_size: int) -> float:
    """A few images are seen even more often than the most, or the network would not have time to change."""
    by_number = MOST_EPOCHS * math.sqrt(FEW_IMAGES / num_images)
    return max(LEAST_STEPS * batch_size / num_images, min(max(by_number, LEAST_EPOCHS), MOST_EPOCHS))


FOLDER = TransferRecipe(folder, rates=(2e-4, 5e-4, 1e-3), held_out=0.2)
