"""Fine-tuning for anyone's folder of images on a laptop: not in the paper, whose 384 pixels and batches of 512 ask for more."""

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe
from vitrine.recipes.finetune import Transfer, TransferRecipe
from vitrine.train.config import MachineConfig, OptimConfig

# From so many images on: how large the batches are, and of them no more than so many at once.
BATCH_SIZES = {0: 32, 2_000: 64, 50_000: 256}
LARGEST_PART = 64
# From a fitted head little is left to learn: with 5e-4 instead of 2e-4, Pets ended below where they had begun.
EPOCHS, LEAST_STEPS, WARMUP_SHARE = 7, 60, 0.1


def folder(transfer: Transfer) -> Recipe:
    """A checkpoint on a folder of images for 7 epochs, or at least 60 steps, at the checkpoint's own resolution.

    Expect 88.3 % of 37 pets from 740 photos, with DeiT-Tiny in 8 minutes on two processor cores (docs/results/training.md).

        vitrine finetune MODEL DATA --recipe folder
    """
    batch_size = next(size for least, size in reversed(BATCH_SIZES.items()) if transfer.num_images >= least)
    epochs = max(EPOCHS, LEAST_STEPS * batch_size / transfer.num_images)
    return Recipe(
        model=ModelSettings(checkpoint=transfer.checkpoint),
        data=DataConfig(source=transfer.source),
        loader=LoaderConfig(batch_size=batch_size),
        augment=AugmentConfig(crop="inception", crop_area=(0.35, 1.0), flip=True),
        optim=OptimConfig(
            kind="adamw",
            learning_rate=2e-4,
            weight_decay=0.05,
            layer_decay=0.75,
            warmup_steps=round(WARMUP_SHARE * epochs * transfer.num_images / batch_size),
            decay="cosine",
            max_grad_norm=1.0,
        ),
        epochs=epochs,
        head_init="discriminant",
        polyak_factor=0.97,  # runs are too short for the paper's 0.9999
        machine=MachineConfig(accumulation_steps=max(1, batch_size // LARGEST_PART)),
    )


FOLDER = TransferRecipe(folder, rates=(1e-4, 2e-4, 5e-4), held_out=0.2)
