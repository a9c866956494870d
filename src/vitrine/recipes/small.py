"""Recipes that take minutes on two CPU cores: small models trained from scratch on small images, with labels or masked.

Masked patch prediction (appendix B.1.2 of arXiv:2010.11929) learns from images alone; its checkpoints are fine-tuned later.
"""

from collections.abc import Callable
from typing import Any

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.finetune import FinetuneRecipe, FinetuneTask
from vitrine.training.config import OptimConfig


def tiny_vit(image_size: int, *, width: int = 64, **changes: Any) -> ModelSettings:
    """Return the settings of a ViT of 4 blocks whose MLPs are twice as wide as its tokens; `changes` are other settings."""
    settings: dict[str, Any] = {
        "name": "ViT-Ti/16",
        "depth": 4,
        "num_heads": 4,
        "mlp_dim": 2 * width,
        "pool": "mean",
        "position": "sincos-2d",  # learned ones start at 1/50 of the patches' scale, too little for short runs
        "gelu": "erf",  # faster on CPUs
    }
    return ModelSettings(**{**settings, "image_size": image_size, "width": width, **changes})


def digits() -> Recipe:
    """ViT of 4 blocks on scikit-learn's digits (8 px, grey), 100 epochs.

    Expect 93.6 % test accuracy in a minute on one CPU core (docs/results/training.md).

        vitrine train digits
    """
    return Recipe(
        model=tiny_vit(8, num_channels=1, patch_size=2),
        data=DataConfig(source="digits", in_memory=True),
        loader=LoaderConfig(batch_size=64),
        augment=AugmentConfig(crop="pad", padding=1, flip=False),  # a mirrored digit is not a digit
        optim=OptimConfig(learning_rate=3e-3, weight_decay=0.05, warmup_steps=50),
        epochs=100,
    )


def shapes() -> Recipe:
    """ViT of 4 blocks on generated shapes (32 px), 4 epochs.

    Expect 68.5 % test accuracy in 5 minutes on one CPU core (docs/results/training.md).
    Other tasks: --data.source shapes:position, or colour, size, orientation, count.

        vitrine train shapes
    """
    return Recipe(
        model=tiny_vit(32, width=96, patch_size=4),
        data=DataConfig(source="shapes", in_memory=True),
        loader=LoaderConfig(batch_size=64),
        augment=AugmentConfig(crop="none", flip=False),  # position and orientation are tasks of this data too
        optim=OptimConfig(learning_rate=2e-3, weight_decay=0.05, warmup_steps=100),
        epochs=4,
    )


def fashion_mnist() -> Recipe:
    """ViT of 4 blocks on Fashion-MNIST (28 px, grey), 8 epochs.

    Expect 88.6 % test accuracy in 9 minutes on two CPU cores (docs/results/training.md).

        vitrine train fashion-mnist --data.source DIR
    """
    return Recipe(
        model=tiny_vit(28, num_channels=1, patch_size=4, num_heads=2),
        data=DataConfig(source="fashion-mnist", in_memory=True),
        loader=LoaderConfig(batch_size=64),
        # Shifts and flips do not pay off in so few epochs, and all its shoes point to the left.
        augment=AugmentConfig(crop="none", flip=False),
        optim=OptimConfig(learning_rate=2e-3, weight_decay=0.05, warmup_steps=500),
        epochs=8,
        polyak_factor=0.998,
    )


def cifar10_vit() -> Recipe:
    """ViT of 6 blocks on CIFAR-10 (32 px), 7,000 steps.

    Expect 57.2 % test accuracy from 10,000 images in 13 minutes on two CPU cores (docs/results/training.md).

        vitrine train cifar10-vit --data.source DIR
    """
    return Recipe(model=CIFAR10_VIT, **CIFAR10, total_steps=7_000)


def cifar10_hybrid() -> Recipe:
    """Hybrid on CIFAR-10 (32 px), 5,000 steps: a ResNet's root and first stage, then 4 ViT blocks.

    Expect 63.8 % test accuracy from 10,000 images in 12 minutes on two CPU cores (docs/results/training.md).

        vitrine train cifar10-hybrid --data.source DIR
    """
    stem: dict[str, Any] = {"stem_stages": (2,), "stem_num_groups": 8}  # 32 groups would be too many for 64 channels
    return Recipe(
        model=tiny_vit(32, name="R26+ViT-Ti/16", **stem, patch_size=1, width=96, num_heads=3),
        **CIFAR10,
        total_steps=5_000,  # which take as long as 7,000 of the plain ViT
    )


def cifar10_masked() -> Recipe:
    """ViT of `cifar10-vit` on CIFAR-10 without labels (32 px), 2,000 steps of masked patch prediction.

    Expect 40 % of the mean colours of masked patches, and 23.9 % from 10 images of each class (docs/results/masked.md).

        vitrine train cifar10-masked --data.source DIR
    """
    return Recipe(model=CIFAR10_VIT, **CIFAR10, objective="masked-patches", total_steps=2_000)


def cifar10_small(task: FinetuneTask) -> Recipe:
    """Small checkpoint fine-tuned on CIFAR-10 at its own resolution, 2,000 steps with the settings of `cifar10-vit`.

    Expect 53.0 % test accuracy from 10,000 images after `cifar10-masked`, 48.2 % without it (docs/results/masked.md).

        vitrine finetune MODEL DATA --recipe cifar10-small
    """
    recipe = Recipe(model=ModelSettings(checkpoint=task.checkpoint), **CIFAR10, total_steps=2_000)
    return with_changes(recipe, data={"source": task.source})


def folder_masked() -> Recipe:
    """ViT of 4 blocks on a folder of images without labels (224 px), 10 epochs of masked patch prediction.

    Expect 12 % of the mean colours of masked patches from 740 photos, in 7 minutes on one CPU core (docs/results/masked.md).

        vitrine train folder-masked --data.source DIR
    """
    return Recipe(
        model=tiny_vit(224, width=96, num_heads=3),
        data=DataConfig(source="images"),
        loader=LoaderConfig(batch_size=32),
        augment=AugmentConfig(crop="inception", crop_area=(0.35, 1.0), flip=True),
        objective="masked-patches",
        optim=OptimConfig(learning_rate=1e-3, weight_decay=0.05, warmup_steps=50),
        epochs=10,
    )


CIFAR10_VIT = tiny_vit(32, width=96, depth=6, num_heads=3, patch_size=4)
CIFAR10: dict[str, Any] = {
    "data": DataConfig(source="cifar10", in_memory=True),
    "loader": LoaderConfig(batch_size=32),
    "augment": AugmentConfig(crop="pad", padding=4, flip=True),
    "optim": OptimConfig(learning_rate=1e-3, weight_decay=0.05, warmup_steps=500),
    "polyak_factor": 0.998,
}

SMALL_RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "shapes": shapes,
    "fashion-mnist": fashion_mnist,
    "cifar10-vit": cifar10_vit,
    "cifar10-hybrid": cifar10_hybrid,
}
SMALL_MASKED_RECIPES: dict[str, Callable[[], Recipe]] = {"cifar10-masked": cifar10_masked, "folder-masked": folder_masked}
SMALL_FINETUNE_RECIPES = {"cifar10-small": FinetuneRecipe(cifar10_small, learning_rates=(3e-4, 1e-3, 3e-3), held_out=0.1)}
