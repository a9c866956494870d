"""Recipes that fine-tune a checkpoint: a rule for any folder of images, table 4 of arXiv:2010.11929, and BiT's HyperRule.

`folder` is not in the paper, whose 384 pixels and batches of 512 are too much for a laptop. The others follow table 4 and
appendix B.1.1, and the released code where the paper says nothing. Dropout is the checkpoint's own. The released configurations
have 0.1 for ViT-L/16, ViT-H/14, R50+ViT-B/16 and R50+ViT-L/32 (--model.dropout-rate 0.1), and none for the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig, MixupConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.training.config import MachineConfig, OptimConfig


@dataclass(frozen=True)
class FinetuneTask:
    """A checkpoint and the data to fine-tune it on: the input of a fine-tuning recipe."""

    checkpoint: str
    source: str
    """The data."""
    num_images: int
    """Number of training images."""
    num_classes: int
    measure_area: Callable[[], int] = lambda: 0
    """Measures `image_area`; called only if a recipe asks for it."""

    @cached_property
    def image_area(self) -> int:
        """Median height x width of the training images, in pixels."""
        return self.measure_area()


@dataclass(frozen=True)
class FinetuneRecipe:
    """An entry of FINETUNE_RECIPES: a function that builds the recipe of a task, and how its learning rate is searched."""

    build: Callable[[FinetuneTask], Recipe]
    learning_rates: tuple[float, ...]
    """Learning rates to choose from."""
    held_out: float
    """Fraction of the training images to choose on, before training on all of them; 0: there is nothing to choose."""


# `folder`: batch size by the least number of images, and the most images of a batch that are computed at once.
BATCH_SIZES = {0: 32, 2_000: 64, 50_000: 256}
MAX_MICRO_BATCH = 64
# A head fitted in closed form leaves little to learn: with 5e-4 instead of 2e-4, Pets ended below where they had begun.
FOLDER_LEARNING_RATE, FOLDER_EPOCHS, FOLDER_MIN_STEPS, FOLDER_WARMUP_FRACTION = 2e-4, 7, 60, 0.1


def folder(task: FinetuneTask) -> Recipe:
    """Checkpoint on a folder of images at its own resolution, 7 epochs or at least 60 steps.

    Expect 88.3 % of 37 pets from 740 photos, with DeiT-Tiny in 8 minutes on two CPU cores (docs/results/training.md).

        vitrine finetune MODEL DATA --recipe folder
    """
    batch_size = next(size for least, size in reversed(BATCH_SIZES.items()) if task.num_images >= least)
    epochs = max(FOLDER_EPOCHS, FOLDER_MIN_STEPS * batch_size / task.num_images)
    return Recipe(
        model=ModelSettings(checkpoint=task.checkpoint),
        data=DataConfig(source=task.source),
        loader=LoaderConfig(batch_size=batch_size),
        augment=AugmentConfig(crop="inception", crop_area=(0.35, 1.0), flip=True),
        optim=OptimConfig(
            kind="adamw",
            learning_rate=FOLDER_LEARNING_RATE,
            weight_decay=0.05,
            layer_decay=0.75,
            warmup_steps=round(FOLDER_WARMUP_FRACTION * epochs * task.num_images / batch_size),
            decay="cosine",
            max_grad_norm=1.0,
        ),
        epochs=epochs,
        head_init="discriminant",
        polyak_factor=0.97,  # runs are too short for the paper's 0.9999
        machine=MachineConfig(accumulation_steps=max(1, batch_size // MAX_MICRO_BATCH)),
    )


def imagenet(task: FinetuneTask) -> Recipe:
    """Checkpoint on ImageNet at 384 px, 20,000 steps (table 4).

    Expect 83.97 % top-1 from ViT-B/16 of ImageNet-21k, 85.15 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe imagenet
    """
    return build_table4_recipe(task, total_steps=20_000, learning_rate=0.03)


def imagenet_polyak(task: FinetuneTask) -> Recipe:
    """Checkpoint on ImageNet at 512 px, 20,000 steps with Polyak averaging (tables 2 and 4).

    Expect 85.30 % top-1 from ViT-L/16 of ImageNet-21k, 88.55 % from ViT-H/14 of JFT-300M at 518 px (table 2).
    512 pixels are not a multiple of ViT-H/14's patches: use --model.image-size 518.

        vitrine finetune MODEL DATA --recipe imagenet-polyak
    """
    return with_changes(imagenet(task), model={"image_size": 512}, polyak_factor=0.9999)


def cifar10(task: FinetuneTask) -> Recipe:
    """Checkpoint on CIFAR-10 at 384 px, 10,000 steps (table 4).

    Expect 98.95 % accuracy from ViT-B/16 of ImageNet-21k, 99.16 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe cifar10
    """
    return build_table4_recipe(task, total_steps=10_000, learning_rate=0.03)


def cifar100(task: FinetuneTask) -> Recipe:
    """Checkpoint on CIFAR-100 at 384 px, 10,000 steps (table 4).

    Expect 91.67 % accuracy from ViT-B/16 of ImageNet-21k, 93.44 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe cifar100
    """
    return build_table4_recipe(task, total_steps=10_000, learning_rate=0.03)


def pets(task: FinetuneTask) -> Recipe:
    """Checkpoint on Oxford-IIIT Pets at 384 px, 500 steps (table 4).

    Expect 94.43 % accuracy from ViT-B/16 of ImageNet-21k, 94.73 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe pets
    """
    return build_table4_recipe(task, total_steps=500, learning_rate=0.003, warmup_steps=100)


def flowers(task: FinetuneTask) -> Recipe:
    """Checkpoint on Oxford Flowers-102 at 384 px, 500 steps (table 4).

    Expect 99.38 % accuracy from ViT-B/16 of ImageNet-21k, 99.61 % from ViT-L/16 (table 5).

        vitrine finetune MODEL DATA --recipe flowers
    """
    return build_table4_recipe(task, total_steps=500, learning_rate=0.003, warmup_steps=100)


def vtab(task: FinetuneTask) -> Recipe:
    """Checkpoint on one task of VTAB-1k at 384 px, 2,500 steps (table 4).

    Expect 72.72 % accuracy, the mean of 19 tasks, from ViT-L/16 of ImageNet-21k, 77.63 % from ViT-H/14 of JFT-300M (table 2).
    All tasks at once, as folders of ROOT: vitrine vtab MODEL ROOT.

        vitrine finetune MODEL DATA --recipe vtab
    """
    return build_table4_recipe(task, total_steps=2_500, learning_rate=0.01)


def build_table4_recipe(task: FinetuneTask, *, total_steps: int, learning_rate: float, warmup_steps: int = 500) -> Recipe:
    """Build a fine-tuning recipe with the settings that all rows of table 4 share.

    Warm-up is not in the paper: 500 steps in the released code, and 100 for Pets and Flowers in big_vision. Learning rates are
    the released code's 0.03 for ImageNet and CIFAR, and big_vision's choice for ViT-B/32 for Pets and Flowers.
    """
    return Recipe(
        model=ModelSettings(checkpoint=task.checkpoint, image_size=384),
        data=DataConfig(source=task.source),
        loader=LoaderConfig(batch_size=512),
        # Like the released code. The paper has BiT's instead, a random part of the resized image: --augment.crop random.
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


# `hyperrule`: numbers of images at which the rule changes, and the side in pixels below which images are small.
FEW_IMAGES, MANY_IMAGES, SMALL_SIDE = 20_000, 500_000, 96


def hyperrule(task: FinetuneTask) -> Recipe:
    """Checkpoint on any data by BiT's HyperRule, 500, 10,000 or 20,000 steps by number and size of images (appendix B.1.1).

    Expect 87.54 % top-1 on ImageNet from BiT's R152x4 of JFT-300M, with --model.image-size 480 --augment.resize 512 (table 2).
    From arXiv:1912.11370; the ResNets of arXiv:2010.11929 were fine-tuned by it too.

        vitrine finetune MODEL DATA --recipe hyperrule
    """
    is_few, is_many = task.num_images < FEW_IMAGES, task.num_images >= MANY_IMAGES
    # BiT's paper has these; its code has 512 and 480 for large images, whatever the network.
    resize, image_size = (160, 128) if task.image_area < SMALL_SIDE**2 else (448, 384)
    return Recipe(
        model=ModelSettings(checkpoint=task.checkpoint, image_size=image_size),
        data=DataConfig(source=task.source),
        loader=LoaderConfig(batch_size=512),
        augment=AugmentConfig(crop="random", resize=resize, flip=True),
        mixing=MixupConfig(mixup=0.0 if is_few else 0.1),
        optim=OptimConfig(
            kind="sgd",
            learning_rate=0.003,
            momentum=0.9,
            weight_decay=0.0,
            warmup_steps=100 if is_few else 500,
            decay="piecewise",
            # The text has 30, 60 and 90 % for all; the code's short schedule decays at steps 200, 300 and 400 of 500.
            decay_at=(0.4, 0.6, 0.8) if is_few else (0.3, 0.6, 0.9),
            max_grad_norm=None,
        ),
        total_steps=500 if is_few else 20_000 if is_many else 10_000,
        machine=MachineConfig(accumulation_steps=8),
    )


IMAGENET_LEARNING_RATES = (0.003, 0.01, 0.03, 0.06)  # the text has 0.06 for ResNets and hybrids only, table 4 for all
LEARNING_RATES = (0.001, 0.003, 0.01, 0.03)
# Held-out fractions are those of appendix B.1.1.
TABLE_4_RECIPES: dict[str, FinetuneRecipe] = {
    "imagenet": FinetuneRecipe(imagenet, IMAGENET_LEARNING_RATES, held_out=0.01),
    "imagenet-polyak": FinetuneRecipe(imagenet_polyak, IMAGENET_LEARNING_RATES, held_out=0.01),
    "cifar10": FinetuneRecipe(cifar10, LEARNING_RATES, held_out=0.02),
    "cifar100": FinetuneRecipe(cifar100, LEARNING_RATES, held_out=0.02),
    "pets": FinetuneRecipe(pets, LEARNING_RATES, held_out=0.1),
    "flowers": FinetuneRecipe(flowers, LEARNING_RATES, held_out=0.1),
    "vtab": FinetuneRecipe(vtab, (0.01,), held_out=0.0),
}
GENERAL_FINETUNE_RECIPES: dict[str, FinetuneRecipe] = {
    "folder": FinetuneRecipe(folder, learning_rates=(1e-4, 2e-4, 5e-4), held_out=0.2),
    **TABLE_4_RECIPES,
    "hyperrule": FinetuneRecipe(hyperrule, learning_rates=(0.003,), held_out=0.0),
}
