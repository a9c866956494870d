"""Small models on small images, labelled and masked.

Small networks from scratch on small images, in minutes on two processor cores: to see that everything works, and how.
Masked patch prediction (appendix B.1.2 of arXiv:2010.11929): learning from images alone, to be fine-tuned afterwards.
"""

from collections.abc import Callable
from typing import Any

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.finetune import FinetuneRecipe, FinetuneTask
from vitrine.recipes.pretrain import jft_masked_vit_b16
from vitrine.training.config import OptimConfig


def digits() -> Recipe:
    """A ViT of 4 blocks on the digits of scikit-learn, 8 px and grey, for 100 epochs.

    Expect 93.6 % of the test digits in a minute on one processor core (docs/results/training.md).

        vitrine train digits
    """
    return Recipe(
        model=ModelSettings(
            name="ViT-Ti/16",
            image_size=8,
            num_channels=1,
            patch_size=2,
            width=64,
            depth=4,
            num_heads=4,
            mlp_dim=128,
            pool="mean",
            position="sincos-2d",  # learned ones begin at a fiftieth of the patches' size, too little for short runs
            gelu="erf",
        ),
        data=DataConfig(source="digits", in_memory=True),
        loader=LoaderConfig(batch_size=64),
        augment=AugmentConfig(crop="pad", padding=1, flip=False),  # a digit in a mirror is none
        optim=OptimConfig(learning_rate=3e-3, weight_decay=0.05, warmup_steps=50),
        epochs=100,
    )


def shapes() -> Recipe:
    """A ViT of 4 blocks on generated shapes, 32 px, for 4 epochs.

    Expect 68.5 % of the test images in 5 minutes on one processor core (docs/results/training.md).
    Other tasks: --data.source shapes:position, or colour, size, orientation, count.

        vitrine train shapes
    """
    return Recipe(
        model=ModelSettings(
            name="ViT-Ti/16",
            image_size=32,
            patch_size=4,
            width=96,
            depth=4,
            num_heads=4,
            mlp_dim=192,
            pool="mean",
            position="sincos-2d",
            gelu="erf",
        ),
        data=DataConfig(source="shapes", in_memory=True),
        loader=LoaderConfig(batch_size=64),
        augment=AugmentConfig(crop="none", flip=False),  # where it lies and where it points are tasks of this data too
        optim=OptimConfig(learning_rate=2e-3, weight_decay=0.05, warmup_steps=100),
        epochs=4,
    )


def fashion_mnist() -> Recipe:
    """A ViT of 4 blocks on Fashion-MNIST, 28 px and grey, for 8 epochs.

    Expect 88.6 % test accuracy in 9 minutes on two processor cores (docs/results/training.md).

        vitrine train fashion-mnist --data.source DIR
    """
    return Recipe(
        model=ModelSettings(
            name="ViT-Ti/16",
            image_size=28,
            num_channels=1,
            patch_size=4,
            width=64,
            depth=4,
            num_heads=2,
            mlp_dim=128,
            pool="mean",
            position="sincos-2d",
            gelu="erf",
        ),
        data=DataConfig(source="fashion-mnist", in_memory=True),
        loader=LoaderConfig(batch_size=64),
        # So few epochs learn less from moved and mirrored images than from plain ones; and all its shoes point to the left.
        augment=AugmentConfig(crop="none", flip=False),
        optim=OptimConfig(learning_rate=2e-3, weight_decay=0.05, warmup_steps=500),
        epochs=8,
        polyak_factor=0.998,
    )


def cifar10_vit() -> Recipe:
    """A ViT of 6 blocks on CIFAR-10, 32 px, for 7,000 steps.

    Expect 57.2 % test accuracy from 10,000 images in 13 minutes on two processor cores (docs/results/training.md).

        vitrine train cifar10-vit --data.source DIR
    """
    return Recipe(
        model=CIFAR10_VIT,
        **CIFAR10,
        total_steps=7_000,
    )


def cifar10_hybrid() -> Recipe:
    """A ViT of 4 blocks behind a ResNet's root and first stage on CIFAR-10, 32 px, for 5,000 steps.

    Expect 63.8 % test accuracy from 10,000 images in 12 minutes on two processor cores (docs/results/training.md).

        vitrine train cifar10-hybrid --data.source DIR
    """
    return Recipe(
        model=ModelSettings(
            name="R26+ViT-Ti/16",
            image_size=32,
            stem_stages=(2,),
            stem_num_groups=8,  # not 32, which would leave the norms of 64 channels little to compare
            patch_size=1,
            width=96,
            depth=4,
            num_heads=3,
            mlp_dim=192,
            pool="mean",
            position="sincos-2d",
            gelu="erf",
        ),
        **CIFAR10,
        total_steps=5_000,  # which take as long as 7,000 of the plain ViT
    )


CIFAR10_VIT = ModelSettings(
    name="ViT-Ti/16",
    image_size=32,
    patch_size=4,
    width=96,
    depth=6,
    num_heads=3,
    mlp_dim=192,
    pool="mean",
    position="sincos-2d",
    gelu="erf",
)
CIFAR10: dict[str, Any] = {
    "data": DataConfig(source="cifar10", in_memory=True),
    "loader": LoaderConfig(batch_size=32),
    "augment": AugmentConfig(crop="pad", padding=4, flip=True),
    "optim": OptimConfig(learning_rate=1e-3, weight_decay=0.05, warmup_steps=500),
    "polyak_factor": 0.998,
}

MINIATURES: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "shapes": shapes,
    "fashion-mnist": fashion_mnist,
    "cifar10-vit": cifar10_vit,
    "cifar10-hybrid": cifar10_hybrid,
}


def cifar10_masked() -> Recipe:
    """The ViT of `cifar10-vit` on CIFAR-10 without labels, 32 px, for 2,000 steps.

    Expect 40 % of the mean colours of hidden patches, and 23.9 % from 10 images of each class (docs/results/masked.md).

        vitrine train cifar10-masked --data.source DIR
    """
    return Recipe(model=CIFAR10_VIT, **CIFAR10, objective="masked-patches", total_steps=2_000)


def cifar10_small(transfer: FinetuneTask) -> Recipe:
    """A small checkpoint on CIFAR-10 for 2,000 steps at its own resolution, as `cifar10-vit` learns from scratch.

    Expect 53.0 % test accuracy from 10,000 images after `cifar10-masked`, 48.2 % without it (docs/results/masked.md).

        vitrine finetune MODEL DATA --recipe cifar10-small
    """
    recipe = Recipe(model=ModelSettings(checkpoint=transfer.checkpoint), **CIFAR10, total_steps=2_000)
    return with_changes(recipe, data={"source": transfer.source})


def folder_masked() -> Recipe:
    """A ViT of 4 blocks on a folder of images without labels, 224 px, for 10 epochs.

    Expect 12 % of the mean colours of hidden patches from 740 photos, in 7 minutes on one core (docs/results/masked.md).

        vitrine train folder-masked --data.source DIR
    """
    return Recipe(
        model=ModelSettings(
            name="ViT-Ti/16",
            image_size=224,
            width=96,
            depth=4,
            num_heads=3,
            mlp_dim=192,
            pool="mean",
            position="sincos-2d",
            gelu="erf",
        ),
        data=DataConfig(source="images"),
        loader=LoaderConfig(batch_size=32),
        augment=AugmentConfig(crop="inception", crop_area=(0.35, 1.0), flip=True),
        objective="masked-patches",
        optim=OptimConfig(learning_rate=1e-3, weight_decay=0.05, warmup_steps=50),
        epochs=10,
    )


MASKED: dict[str, Callable[[], Recipe]] = {
    "jft-masked-vit-b16": jft_masked_vit_b16,
    "cifar10-masked": cifar10_masked,
    "folder-masked": folder_masked,
}
MASKED_TRANSFERS = {"cifar10-small": FinetuneRecipe(cifar10_small, rates=(3e-4, 1e-3, 3e-3), held_out=0.1)}
