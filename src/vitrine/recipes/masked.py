"""Masked patch prediction (appendix B.1.2 of arXiv:2010.11929): learning from images alone, to be fine-tuned afterwards."""

from collections.abc import Callable

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.finetune import Transfer, TransferRecipe
from vitrine.recipes.miniatures import CIFAR10, CIFAR10_VIT
from vitrine.train.config import OptimConfig


def jft_masked_vit_b16() -> Recipe:
    """ViT-B/16 on JFT-300M without labels for 1,000,000 steps, predicting mean colours (appendix B.1.2).

    Expect 79.9 % top-1 on ImageNet, fine-tuned; 77.91 % from scratch, 84.15 % after learning from JFT's labels.

        vitrine train jft-masked-vit-b16 --data.source DIR
    """
    return Recipe(
        model=ModelSettings(name="ViT-B/16", image_size=224),
        data=DataConfig(source="jft"),
        loader=LoaderConfig(batch_size=4096),
        augment=AugmentConfig(crop="inception", flip=True),  # said by the authors, not by the paper
        objective="masked-patches",
        optim=OptimConfig(
            kind="adamw",
            learning_rate=2e-4,
            weight_decay=0.1,  # not said of this run; that of all others on JFT (table 3)
            warmup_steps=10_000,
            decay="cosine",
        ),
        total_steps=1_000_000,
    )


def cifar10_masked() -> Recipe:
    """The ViT of `cifar10-vit` on CIFAR-10 without labels, 32 px, for 2,000 steps.

    Expect 40 % of the mean colours of hidden patches, and 23.9 % from 10 images of each class (docs/results/masked.md).

        vitrine train cifar10-masked --data.source DIR
    """
    return Recipe(model=CIFAR10_VIT, **CIFAR10, objective="masked-patches", total_steps=2_000)


def cifar10_small(transfer: Transfer) -> Recipe:
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
MASKED_TRANSFERS = {"cifar10-small": TransferRecipe(cifar10_small, rates=(3e-4, 1e-3, 3e-3), held_out=0.1)}
