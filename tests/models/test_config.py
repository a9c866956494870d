"""Configs reject what cannot be built."""

from dataclasses import FrozenInstanceError

import pytest

from vitrine.models.config import ViTConfig
from vitrine.models.registry import resolve_config

Mistake = tuple[dict[str, object], tuple[str, ...]]
VIT_MISTAKES: list[Mistake] = [
    ({"num_heads": 7}, ("width=192", "num_heads=7", "6 or 8")),
    ({"num_heads": 0}, ("num_heads=0", "1")),
    ({"width": 192.0}, ("width=192.0",)),
    ({"depth": -1}, ("depth=-1",)),
    ({"num_classes": -1}, ("num_classes=-1",)),
    ({"num_channels": 0}, ("num_channels=0",)),
    ({"image_size": 8}, ("image_size=(8, 8)", "16 x 16")),
    ({"image_size": (224, 15)}, ("image_size=(224, 15)",)),
    ({"image_size": (224, 224, 3)}, ("image_size=(224, 224, 3)", "two")),
    ({"image_size": "224"}, ("image_size='224'", "(224, 224)")),
    ({"image_size": (0, 16)}, ("image_size=(0, 16)",)),
    ({"image_size": [224, 224]}, ("image_size=[224, 224]", "tuple")),
    ({"image_size": (True, True)}, ("image_size=(True, True)",)),
    ({"pool": "gap"}, ("pool='gap'", "class, mean, map")),
    ({"gelu": "fast"}, ("gelu='fast'", "tanh, erf")),
    ({"position": "2d"}, ("position='2d'", "none, learned-1d, learned-2d, relative, sincos-2d")),
    ({"class_token": False}, ("pool='class'", "class token")),
    ({"norm_after_pool": True}, ("norm_after_pool", "pool='mean'", "pool='class'")),
    ({"distillation_token": True, "pool": "mean"}, ("distillation_token", "pool='class'")),
    ({"distillation_token": True, "hidden_head": True}, ("hidden_head", "distillation_token")),
    ({"pool": "first", "class_token": True}, ("pool='first'", "class token")),
    ({"hidden_head_dim": 8}, ("hidden_head_dim=8", "hidden_head")),
    ({"hidden_head": True, "hidden_head_dim": 0}, ("hidden_head_dim=0", "1")),
    ({"register_position": True}, ("register_position", "num_registers=0")),
    ({"register_position": True, "num_registers": 2, "position": "relative"}, ("register_position", "relative")),
    ({"register_position": True, "num_registers": 2, "class_position": False}, ("register_position", "class_position")),
    ({"position": "relative", "position_insertion": "shared"}, ("'shared'", "stem")),
    ({"position": "sincos-2d", "class_position": True}, ("class_position",)),
    ({"pool": "mean", "class_position": True}, ("class_position",)),
    ({"position": "learned-2d", "width": 3, "num_heads": 1}, ("width=3", "2")),
    ({"position": "sincos-2d", "width": 6, "num_heads": 1}, ("width=6", "4")),
    ({"position": "sincos-2d", "width": 4, "num_heads": 1}, ("width=4", "8")),
    ({"dropout_rate": 1.0}, ("dropout_rate=1.0",)),
    ({"dropout_rate": "0.1"}, ("dropout_rate='0.1'",)),
    ({"layer_scale": "small"}, ("layer_scale='small'",)),
    ({"layer_scale": -1.0}, ("layer_scale=-1.0",)),
    ({"class_token": "yes"}, ("class_token='yes'", "True or False")),
    ({"num_heads": None}, ("num_heads=None",)),
    ({"norm_eps": 0.0}, ("norm_eps=0.0",)),
    ({"readout": "mean"}, ("readout_layers",)),
    ({"readout_layers": (12,)}, ("readout_layers=(12,)", "11")),
    ({"readout_layers": (10,)}, ("readout_layers=(10,)", "11")),
    ({"readout_layers": (-1, 11)}, ("readout_layers=(-1, 11)",)),
    ({"readout_layers": (11, 11)}, ("readout_layers=(11, 11)",)),
    ({"readout_layers": (9, 3, 11)}, ("readout_layers=(9, 3, 11)",)),
    ({"readout_layers": [11]}, ("readout_layers=[11]",)),
    ({"readout_layers": ("11",)}, ("readout_layers=('11',)",)),
    ({"readout_layers": (11,), "readout": "last"}, ("readout='last'", "class, mean, both")),
    ({"readout_layers": (11,), "readout": "both", "pool": "mean"}, ("readout='both'", "class token")),
    ({"readout_layers": (11,), "pool": "map"}, ("readout_layers", "map")),
    ({"readout_layers": (11,), "pool": "first"}, ("readout_layers", "first")),
    ({"readout_layers": (11,), "hidden_head": True}, ("readout_layers", "hidden_head")),
    ({"readout_layers": (11,), "distillation_token": True}, ("readout_layers", "distillation_token")),
]
RESNET_MISTAKES: list[Mistake] = [
    ({"stages": (3, 0)}, ("stages=(3, 0)", "(3, 4, 6, 3)")),
    ({"style": "post-activation", "pool_padding": "none"}, ("pool_padding='none'", "post-activation")),
    ({"stages": [3, 4]}, ("stages=[3, 4]", "tuple")),
    ({"width_factor": 0.0}, ("width_factor=0.0",)),
    ({"num_groups": 0}, ("num_groups=0",)),
    ({"style": "v2"}, ("style='v2'", "pre-activation, post-activation")),
    ({"readout_layers": (3,)}, ("readout_layers",)),
]
HYBRID_MISTAKES: list[Mistake] = [
    ({"stem_stages": [3, 4]}, ("stem_stages=[3, 4]", "tuple")),
    ({"stem_stages": (0,)}, ("stem_stages=(0,)",)),
    ({"stem_stages": None}, ("stem_stages=None", "tuple")),
    ({"stem_width_factor": -1.0}, ("stem_width_factor=-1.0",)),
    ({"stem_num_groups": 0}, ("stem_num_groups=0",)),
    ({"stem_norm_eps": -1.0}, ("stem_norm_eps=-1.0",)),
]
MISTAKES = {"ViT-Ti/16": VIT_MISTAKES, "R50x1": RESNET_MISTAKES, "R50+ViT-B/16": HYBRID_MISTAKES}


@pytest.mark.parametrize(
    ("name", "changes", "words"), [(name, *mistake) for name, mistakes in MISTAKES.items() for mistake in mistakes]
)
def test_mistakes_are_named(name: str, changes: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"=|has no field|needs|combined|exclude") as error:
        resolve_config(name, **changes)
    assert all(word in str(error.value) for word in words)


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


def test_configs_are_frozen() -> None:
    config = resolve_config("ViT-Ti/16")
    with pytest.raises(FrozenInstanceError):
        config.num_classes = 3  # pyright: ignore
