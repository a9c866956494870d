"""Fine-tuning as table 4 and appendix B.1.1 of arXiv:2010.11929 have it; what they leave open is as in the released code.

Dropout is the checkpoint's own. The released configurations have 0.1 for ViT-L/16, ViT-H/14, R50+ViT-B/16 and R50+ViT-L/32
(--model.dropout-rate 0.1), and none for the others.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.train.config import MachineConfig, OptimConfig


@dataclass(frozen=True)
class Transfer:
    """What a checkpoint is to be fine-tuned on, as far as a rule may ask."""

    checkpoint: str
    source: str
    """The data."""
    num_images: int
    """For training."""
    image_area: int
    """Height x width in pixels, the median of the images."""
    num_classes: int


@dataclass(frozen=True)
class TransferRecipe:
    """From what is to be done to a recipe for it."""

    build: Callable[[Transfer], Recipe]
    rates: tuple[float, ...]
    """Learning rates to choose from."""
    held_out: float
    """Share of the training images to choose on, before training on all of them; 0: there is nothing to choose."""


IMAGENET_RATES = (0.003, 0.01, 0.03, 0.06)  # the text has 0.06 for ResNets and hybrids only, table 4 for all
SMALL_RATES = (0.001, 0.003, 0.01, 0.03)


def imagenet(transfer: Transfer) -> Recipe:
    """A checkpoint on ImageNet for 20,000 steps at 384 px (table 4).

    Expect 83.97 % top-1 from ViT-B/16 of ImageNet-21k, 85.15 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe imagenet
    """
    return build_finetuning(transfer, total_steps=20_000, learning_rate=0.03)


def imagenet_polyak(transfer: Transfer) -> Recipe:
    """A checkpoint on ImageNet for 20,000 steps at 512 px, its weights averaged (tables 2 and 4).

    Expect 85.30 % top-1 from ViT-L/16 of ImageNet-21k, 88.55 % from ViT-H/14 of JFT-300M at 518 px (table 2).
    For ViT-H/14, whose patches do not fill 512 pixels: --model.image-size 518.

        vitrine finetune MODEL DATA --recipe imagenet-polyak
    """
    return with_changes(imagenet(transfer), model={"image_size": 512}, polyak_factor=0.9999)


def cifar10(transfer: Transfer) -> Recipe:
    """A checkpoint on CIFAR-10 for 10,000 steps at 384 px (table 4).

    Expect 98.95 % accuracy from ViT-B/16 of ImageNet-21k, 99.16 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe cifar10
    """
    return build_finetuning(transfer, total_steps=10_000, learning_rate=0.03)


def cifar100(transfer: Transfer) -> Recipe:
    """A checkpoint on CIFAR-100 for 10,000 steps at 384 px (table 4).

    Expect 91.67 % accuracy from ViT-B/16 of ImageNet-21k, 93.44 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe cifar100
    """
    return build_finetuning(transfer, total_steps=10_000, learning_rate=0.03)


def pets(transfer: Transfer) -> Recipe:
    """A checkpoint on Oxford-IIIT Pets for 500 steps at 384 px (table 4).

    Expect 94.43 % accuracy from ViT-B/16 of ImageNet-21k, 94.73 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe pets
    """
    return build_finetuning(transfer, total_steps=500, learning_rate=0.003, warmup_steps=100)


def flowers(transfer: Transfer) -> Recipe:
    """A checkpoint on Oxford Flowers-102 for 500 steps at 384 px (table 4).

    Expect 99.38 % accuracy from ViT-B/16 of ImageNet-21k, 99.61 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe flowers
    """
    return build_finetuning(transfer, total_steps=500, learning_rate=0.003, warmup_steps=100)


def vtab(transfer: Transfer) -> Recipe:
    """A checkpoint on a task of VTAB-1k for 2,500 steps at 384 px (table 4).

    Expect 72.72 % accuracy, the mean of 19 tasks, from ViT-L/16 of ImageNet-21k, 77.63 % from ViT-H/14 of JFT-300M (table 2).
    All tasks together, as folders of ROOT: vitrine vtab MODEL ROOT.

        vitrine finetune MODEL DATA --recipe vtab
    """
    return build_finetuning(transfer, total_steps=2_500, learning_rate=0.01)


def build_finetuning(transfer: Transfer, *, total_steps: int, learning_rate: float, warmup_steps: int = 500) -> Recipe:
    """Warm-up is not in the paper: 500 steps in the released code, and 100 for Pets and Flowers in big_vision.

    The rate is the released code's 0.03 for ImageNet and CIFAR, and for Pets and Flowers what big_vision chose for ViT-B/32.
    """
    return Recipe(
        model=ModelSettings(checkpoint=transfer.checkpoint, image_size=384),
        data=DataConfig(source=transfer.source),
        loader=LoaderConfig(batch_size=512),
        # As the released code. The paper has BiT's instead, a random part of the resized image: --augment.crop random.
        augment=AugmentConfig(crop="inception", flip=True),
        optim=OptimConfig(
            kind="sgd",
            learning_rate=learning_rate,
            momentum=0.9,
            weight_decay=0.0,
            warmup_steps=warmup_steps,
            decay="cosine",
            max_grad_norm=1.0,
        ),
        total_steps=total_steps,
        head_init="zero",
        machine=MachineConfig(accumulation_steps=8),
    )


# Shares to choose on: appendix B.1.1.
FINETUNING: dict[str, TransferRecipe] = {
    "imagenet": TransferRecipe(imagenet, IMAGENET_RATES, held_out=0.01),
    "imagenet-polyak": TransferRecipe(imagenet_polyak, IMAGENET_RATES, held_out=0.01),
    "cifar10": TransferRecipe(cifar10, SMALL_RATES, held_out=0.02),
    "cifar100": TransferRecipe(cifar100, SMALL_RATES, held_out=0.02),
    "pets": TransferRecipe(pets, SMALL_RATES, held_out=0.1),
    "flowers": TransferRecipe(flowers, SMALL_RATES, held_out=0.1),
    "vtab": TransferRecipe(vtab, (0.01,), held_out=0.0),
}
