"""Recipes of the runs of `vitrine demo`: a small ViT, ResNet and hybrid of like cost, from glyphs to a few digits.

Each is pre-trained on generated characters and fine-tuned on handwritten digits at a higher resolution; the same model is also
trained on the digits from scratch. Times are of one thread on an idle core.
"""

from collections.abc import Callable
from typing import Any

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.evaluation.config import EvaluationConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.finetune import FinetuneRecipe, FinetuneTask
from vitrine.recipes.small import tiny_vit
from vitrine.training.config import OptimConfig, ReportConfig

GLYPH_SIZE, IMAGE_SIZE = 28, 35  # pixels of pre-training and transfer: 4 x 4 and 5 x 5 patches
BATCH_SIZE, PRETRAIN_STEPS, STEPS = 64, 2_500, 450
# Rate of all runs on digits: the best of 1e-3, 2e-3, 4e-3 on held-out digits, mean over the models, pre-trained and not.
LEARNING_RATE = 2e-3
# Every step of the pre-training has fresh images.
GLYPHS = f"glyphs:classes=200,images={PRETRAIN_STEPS * BATCH_SIZE},warp=0.6,noise=0@{GLYPH_SIZE}"


def demo_glyphs_vit() -> Recipe:
    """ViT of 2 blocks on generated characters of 200 classes (28 px), 2,500 steps: the demo's pre-training.

    Expect 82.5 % test accuracy in a minute on one CPU core (docs/results/training.md).

        vitrine train demo-glyphs-vit
    """
    return build_pretraining(build_vit(GLYPH_SIZE), learning_rate=4e-3)


def demo_glyphs_resnet() -> Recipe:
    """ResNet of about the ViT's cost on the same characters (28 px), 2,500 steps.

    Expect 98.1 % test accuracy in a minute on one CPU core (docs/results/training.md).

        vitrine train demo-glyphs-resnet
    """
    return build_pretraining(build_resnet(GLYPH_SIZE), learning_rate=1.6e-2)


def demo_glyphs_hybrid() -> Recipe:
    """Hybrid of about the ViT's cost on the same characters (28 px), 2,500 steps.

    Expect 95.5 % test accuracy in a minute on one CPU core (docs/results/training.md).

        vitrine train demo-glyphs-hybrid
    """
    return build_pretraining(build_hybrid(GLYPH_SIZE), learning_rate=4e-3)


def demo_vit() -> Recipe:
    """ViT of 2 blocks on ten images of each digit (35 px), 450 steps from scratch.

    Expect 81.9 % test accuracy in 10 seconds on one CPU core (docs/results/training.md).

        vitrine train demo-vit
    """
    return build_scratch(build_vit(IMAGE_SIZE))


def demo_resnet() -> Recipe:
    """ResNet of about the ViT's cost on ten images of each digit (35 px), 450 steps from scratch.

    Expect 92.8 % test accuracy in 10 seconds on one CPU core (docs/results/training.md).

        vitrine train demo-resnet
    """
    return build_scratch(build_resnet(IMAGE_SIZE))


def demo_hybrid() -> Recipe:
    """Hybrid of a small ResNet and 2 ViT blocks on ten images of each digit (35 px), 450 steps from scratch.

    Expect 89.2 % test accuracy in 10 seconds on one CPU core (docs/results/training.md).

        vitrine train demo-hybrid
    """
    return build_scratch(build_hybrid(IMAGE_SIZE))


def demo_transfer(task: FinetuneTask) -> Recipe:
    """Small checkpoint fine-tuned on a few images at 35 px, 450 steps: the demo's transfer of what it pre-trained.

    Expect 90.0 % test accuracy of the ViT from ten images of each digit, in 10 seconds on one CPU core
    (docs/results/training.md).

        vitrine finetune MODEL DATA --recipe demo-transfer
    """
    recipe = build_scratch(ModelSettings(checkpoint=task.checkpoint, image_size=IMAGE_SIZE))
    return with_changes(recipe, data={"source": task.source, "subset": "all"})


def build_vit(image_size: int) -> ModelSettings:
    """Return the settings of the ViT. Its position embeddings are learned: they are interpolated to the higher resolution."""
    return tiny_vit(image_size, patch_size=7, width=96, depth=2, num_heads=3, position=None)


def build_resnet(image_size: int) -> ModelSettings:
    """Return the settings of the ResNet, which has three stages: a fourth would reduce the image to a single position."""
    return ModelSettings(name="R26x0.3125", image_size=image_size, stages=(1, 2, 1), num_groups=4)


def build_hybrid(image_size: int) -> ModelSettings:
    """Return the settings of the hybrid, whose stem has the ViT's number of positions."""
    stem: dict[str, Any] = {"stem_width_factor": 0.375, "stem_stages": (1, 1), "stem_num_groups": 4}
    blocks: dict[str, Any] = {"patch_size": 1, "width": 48, "depth": 2, "num_heads": 2, "position": None}
    return tiny_vit(image_size, name="R26+ViT-Ti/16", **stem, **blocks)


def build_pretraining(model: ModelSettings, learning_rate: float) -> Recipe:
    """Build a run on glyphs. Only the network and its learning rate differ between models."""
    return Recipe(
        model=model,
        data=DataConfig(source=GLYPHS),
        loader=LoaderConfig(batch_size=BATCH_SIZE, num_workers=0),  # drawing takes a tenth of a step
        augment=AugmentConfig(crop="none", flip=False),
        optim=OptimConfig(learning_rate=learning_rate, weight_decay=0.05, warmup_steps=PRETRAIN_STEPS // 10),
        total_steps=PRETRAIN_STEPS,
        evaluation=EvaluationConfig(num_times=0),  # the last weights are used, whichever are best
        report=ReportConfig(every_steps=20),
    )


def build_scratch(model: ModelSettings) -> Recipe:
    """Build a run on ten images of each digit, the same for all models and starts."""
    return Recipe(
        model=model,
        data=DataConfig(source="digits", subset="10/class", in_memory=True),
        loader=LoaderConfig(batch_size=32, num_workers=0),
        augment=AugmentConfig(crop="pad", padding=2, flip=False),  # a mirrored digit is not a digit
        optim=OptimConfig(learning_rate=LEARNING_RATE, weight_decay=0.05, warmup_steps=STEPS // 10),
        total_steps=STEPS,
        evaluation=EvaluationConfig(num_times=0),  # ten of each leave none to choose weights on
    )


DEMO_RECIPES: dict[str, Callable[[], Recipe]] = {
    "demo-glyphs-vit": demo_glyphs_vit,
    "demo-glyphs-resnet": demo_glyphs_resnet,
    "demo-glyphs-hybrid": demo_glyphs_hybrid,
    "demo-vit": demo_vit,
    "demo-resnet": demo_resnet,
    "demo-hybrid": demo_hybrid,
}
DEMO_FINETUNE_RECIPES = {"demo-transfer": FinetuneRecipe(demo_transfer, learning_rates=(1e-3, 2e-3, 4e-3), held_out=0.2)}
