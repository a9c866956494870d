"""Configurations refuse in a sentence what cannot be built."""

import re
from dataclasses import FrozenInstanceError

import pytest

from vitrine.models.config import ViTConfig
from vitrine.models.registry import resolve_config

VIT_MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"num_heads": 7}, "width=192 must be divisible by num_heads=7: take num_heads=6 or 8."),
    ({"num_heads": 0}, "num_heads=0 must be at least 1."),
    ({"width": 192.0}, "width=192.0 must be a whole number."),
    ({"depth": -1}, "depth=-1 must be at least 1."),
    ({"num_classes": -1}, "num_classes=-1 must be at least 0."),
    ({"num_channels": 0}, "num_channels=0 must be at least 1."),
    ({"image_size": 8}, "image_size=(8, 8) must hold at least one patch of 16 x 16 pixels"),
    ({"image_size": (224, 15)}, "image_size=(224, 15) must hold at least one patch"),
    ({"image_size": (224, 224, 3)}, "image_size=(224, 224, 3) must be two numbers, height and width."),
    (
        {"image_size": "224"},
        "image_size='224' must be a tuple of whole numbers of at least 1: height and width, as (224, 224).",
    ),
    ({"image_size": (0, 16)}, "image_size=(0, 16) must be a tuple of whole numbers of at least 1"),
    ({"pool": "gap"}, "pool='gap' must be one of class, mean, map."),
    ({"gelu": "fast"}, "gelu='fast' must be one of tanh, erf."),
    ({"position": "2d"}, "position='2d' must be one of none, learned-1d, learned-2d, relative, sincos-2d."),
    ({"class_token": False}, "pool='class' needs the class token"),
    ({"norm_after_pool": True}, "norm_after_pool belongs to pool='mean', not to pool='class'."),
    ({"distillation_token": True, "pool": "mean"}, "distillation_token needs pool='class'"),
    ({"distillation_token": True, "hidden_head": True}, "exclude each other"),
    ({"position": "relative", "position_insertion": "shared"}, "cannot be inserted 'shared'; it can be: stem."),
    ({"position": "sincos-2d", "class_position": True}, "class_position needs a class token"),
    ({"pool": "mean", "class_position": True}, "class_position needs a class token"),
    ({"position": "learned-2d", "width": 3, "num_heads": 1}, "width=3 must be divisible by 2"),
    ({"position": "sincos-2d", "width": 6, "num_heads": 1}, "width=6 must be divisible by 4"),
    ({"position": "sincos-2d", "width": 4, "num_heads": 1}, "width=4 must be at least 8"),
    ({"dropout_rate": 1.0}, "dropout_rate=1.0 must be at least 0 and below 1."),
    ({"dropout_rate": "0.1"}, "dropout_rate='0.1' must be a number."),
    ({"layer_scale": "small"}, "layer_scale='small' must be a number."),
    ({"class_token": "yes"}, "class_token='yes' must be True or False."),
    ({"num_heads": None}, "num_heads=None must be a whole number."),
    ({"image_size": [224, 224]}, "image_size=[224, 224] must be a tuple of whole numbers"),
    ({"image_size": (True, True)}, "image_size=(True, True) must be a tuple of whole numbers"),
    ({"layer_scale": -1.0}, "layer_scale=-1.0 must be at least 0."),
    ({"norm_eps": 0.0}, "norm_eps=0.0 must be above 0."),
]
RESNET_MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"stages": (3, 0)}, "stages=(3, 0) must be a tuple of whole numbers of at least 1: units in each stage, as (3, 4, 6, 3)."),
    ({"stages": [3, 4]}, "stages=[3, 4] must be a tuple"),
    ({"width_factor": 0.0}, "width_factor=0.0 must be above 0."),
    ({"num_groups": 0}, "num_groups=0 must be at least 1."),
    ({"style": "v2"}, "style='v2' must be one of pre-activation, post-activation."),
]
HYBRID_MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"stem_stages": [3, 4]}, "stem_stages=[3, 4] must be a tuple"),
    ({"stem_stages": (0,)}, "stem_stages=(0,) must be a tuple of whole numbers of at least 1"),
    ({"stem_stages": None}, "stem_stages=None must be a tuple"),
    ({"stem_width_factor": -1.0}, "stem_width_factor=-1.0 must be above 0."),
    ({"stem_num_groups": 0}, "stem_num_groups=0 must be at least 1."),
    ({"stem_norm_eps": -1.0}, "stem_norm_eps=-1.0 must be above 0."),
]
MISTAKES = {"ViT-Ti/16": VIT_MISTAKES, "R50x1": RESNET_MISTAKES, "R50+ViT-B/16": HYBRID_MISTAKES}


@pytest.mark.parametrize(
    ("name", "changes", "message"), [(name, *mistake) for name, mistakes in MISTAKES.items() for mistake in mistakes]
)
def test_mistakes_cost_a_sentence(name: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve_config(name, **changes)


def test_prefix_tokens_and_their_positions() -> None:
    def count(**changes: object) -> tuple[int, int, int]:
        config = resolve_config("ViT-Ti/16", **changes)
        assert isinstance(config, ViTConfig)
        return config.num_prefix_tokens, config.num_position_rows, config.num_tokens

    assert count() == (1, 1, 197)
    assert count(class_position=False) == (1, 0, 197)
    assert count(pool="mean") == (0, 0, 196)
    assert count(pool="mean", class_token=True, num_registers=4) == (5, 1, 201)
    assert count(distillation_token=True) == (2, 2, 198)
    assert count(position="sincos-2d") == (1, 0, 197)


def test_configurations_are_frozen() -> None:
    config = resolve_config("ViT-Ti/16")
    with pytest.raises(FrozenInstanceError):
        config.num_classes = 3  # pyright: ignore
