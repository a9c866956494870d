"""The runs of `vitrine demo`: a small ViT from generated shapes to a few handwritten digits, beside networks of like cost."""

from collections.abc import Callable
from typing import Any

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.evaluation.config import EvaluationConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.finetune import FinetuneRecipe, FinetuneTask
from vitrine.training.config import OptimConfig

# A step of the demo is a run of a fraction of a minute; all of them fit into four minutes of two processor cores.
IMAGE_SIZE = 32
VIT: dict[str, Any] = {
    "patch_size": 4,
    "width": 64,
    "depth": 4,
    "num_heads": 4,
    "mlp_dim": 128,
    "pool": "mean",
    "gelu": "erf",
}


def demo_shapes() -> Recipe:
    """A ViT of 4 blocks on where generated shapes point, 24 px, for 700 steps: what the demo pre-trains.

    Expect 71.7 % of the test images in a minute on one processor core (docs/results/training.md).

        vitrine train demo-shapes
    """
    return Recipe(
        model=ModelSettings(name="ViT-Ti/16", image_size=24, **VIT),
        data=DataConfig(source="shapes:orientation@24", in_memory=True),
        loader=LoaderConfig(batch_size=64),
        augment=AugmentConfig(crop="none", flip=False),
        optim=OptimConfig(learning_rate=2e-3, weight_decay=0.05, warmup_steps=70),
        total_steps=700,
        evaluation=EvaluationConfig(num_times=0),  # nothing is chosen on the way
    )


def demo_vit() -> Recipe:
    """A ViT of 4 blocks on ten digits of each kind, 32 px, for 450 steps, from scratch.

    Expect 82.8 % of the test digits in a minute on one processor core (docs/results/training.md).

        vitrine train demo-vit
    """
    return Recipe(model=ModelSettings(name="ViT-Ti/16", image_size=IMAGE_SIZE, **VIT), **FEW_DIGITS)


def demo_resnet() -> Recipe:
    """A ResNet of like cost on ten digits of each kind, 32 px, for 450 steps, from scratch.

    Expect 94.2 % of the test digits in a minute on one processor core (docs/results/training.md).

        vitrine train demo-resnet
    """
    # Of three stages, since a fourth would leave one place of an image of 32 pixels.
    return Recipe(model=ModelSettings(name="R26x0.5", image_size=IMAGE_SIZE, stages=(2, 2, 2), num_groups=8), **FEW_DIGITS)


def demo_hybrid() -> Recipe:
    """A ViT of 3 blocks behind a small ResNet on ten digits of each kind, 32 px, for 450 steps, from scratch.

    Expect 90.0 % of the test digits in a minute on one processor core (docs/results/training.md).

        vitrine train demo-hybrid
    """
    stem: dict[str, Any] = {"stem_stages": (1,), "stem_num_groups": 8}
    vit = {**VIT, "patch_size": 1, "depth": 3}
    return Recipe(model=ModelSettings(name="R26x0.5+ViT-Ti/16", image_size=IMAGE_SIZE, **stem, **vit), **FEW_DIGITS)


def demo_transfer(transfer: FinetuneTask) -> Recipe:
    """A small checkpoint on a few images for 450 steps, at 32 px: what the demo does with what it pre-trained.

    Expect 85.8 % of the test digits from ten of each kind, in a minute on one processor core (docs/results/training.md).

        vitrine finetune MODEL DATA --recipe demo-transfer
    """
    model = ModelSettings(checkpoint=transfer.checkpoint, image_size=IMAGE_SIZE)
    recipe = Recipe(model=model, **FEW_DIGITS)
    return with_changes(recipe, data={"source": transfer.source, "subset": "all"}, optim={"learning_rate": 2e-3})


# The same for all of them, but for the rate: of 2e-3 and 3e-3, the ViT did better on held-out digits with the first where it
# had been pre-trained (89.4 and 87.8 %), and with the second from scratch (80.3 and 86.9 %).
FEW_DIGITS: dict[str, Any] = {
    "data": DataConfig(source="digits", subset="10/class", in_memory=True),
    "loader": LoaderConfig(batch_size=32),
    "augment": AugmentConfig(crop="pad", padding=2, flip=False),
    "optim": OptimConfig(learning_rate=3e-3, weight_decay=0.05, warmup_steps=45),
    "total_steps": 450,
}

DEMO: dict[str, Callable[[], Recipe]] = {
    "demo-shapes": demo_shapes,
    "demo-vit": demo_vit,
    "demo-resnet": demo_resnet,
    "demo-hybrid": demo_hybrid,
}
DEMO_TRANSFERS: dict[str, FinetuneRecipe] = {"demo-transfer": FinetuneRecipe(demo_transfer, (1e-3, 2e-3, 3e-3), held_out=0.2)}
