"""The plain baseline of arXiv:2205.01580, as big_vision has it: what ImageNet alone gives when the recipe suits it."""

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.data.mixing import Mixing
from vitrine.evaluate.config import EvaluationConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe
from vitrine.train.config import OptimConfig


def imagenet_vit_s16() -> Recipe:
    """ViT-S/16 on ImageNet for 90 epochs, with RandAugment and mixup (arXiv:2205.01580).

    Expect 76.5 % top-1 on ImageNet's validation images at 224 px; 78.5 % with --epochs 150, 80.0 % with --epochs 300.
    Cost: 6 h 30 min on a TPUv3-8.

        vitrine train imagenet-vit-s16 --data.source DIR
    """
    return Recipe(
        model=ModelSettings(name="ViT-S/16", image_size=224, pool="mean", position="sincos-2d", hidden_head=True),
        data=DataConfig(source="imagenet", held_out=0.01),  # the images after the first 99 % there, random ones here
        loader=LoaderConfig(batch_size=1024),
        augment=AugmentConfig(
            crop="inception", crop_area=(0.05, 1.0), flip=True, rand_augment_ops=2, rand_augment_magnitude=10.0
        ),
        mixing=Mixing(mixup=0.2),
        optim=OptimConfig(
            kind="adamw",
            learning_rate=1e-3,
            weight_decay=0.1,  # big_vision's 1e-4, which does not multiply by the rate of 1e-3
            decay_mask="kernels",
            warmup_steps=10_000,
            decay="cosine",
            max_grad_norm=1.0,
        ),
        epochs=90,
        evaluation=EvaluationConfig(num_times=45, resize=256),
    )
