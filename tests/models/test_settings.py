"""The network of a recipe: settings by name, changes to a checkpoint, and mistakes."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from tests.test_package import BLOCK_TORCH
from vitrine import load_model
from vitrine.cli import main
from vitrine.models.config import HybridConfig, ResNetConfig, ViTConfig
from vitrine.models.cost import compute_cost
from vitrine.models.settings import CHECKPOINT_SETTINGS, ModelSettings

# A value for every setting of each family, none of them the default.
VALUES: dict[str, dict[str, object]] = {
    "ViT-Ti/16": {
        "num_channels": 1,
        "patch_size": 8,
        "width": 64,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 32,
        "gelu": "erf",
        "norm_eps": 1e-5,
        "pool": "mean",
        "readout_layers": (0, 1),
        "readout": "mean",
        "head_bias": -10.0,
        "num_registers": 4,
        "position": "learned-2d",
        "position_insertion": "shared",
        "layer_scale": 0.1,
        "dropout_rate": 0.1,
        "stochastic_depth_rate": 0.2,
    },
    "R50x1": {"stages": (1, 2), "width_factor": 0.5, "num_groups": 8, "num_channels": 1, "head_bias": -10.0},
    "R50+ViT-B/16": {
        "hidden_head": True,
        "stem_stages": (1,),
        "stem_width_factor": 0.5,
        "stem_num_groups": 8,
        "width": 24,
        "num_heads": 2,
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_every_setting_arrives_in_the_config(name: str) -> None:
    config = ModelSettings(name=name, image_size=64, **VALUES[name]).resolve(7)
    assert (config.num_classes, config.image_size) == (7, (64, 64))
    assert {key: getattr(config, key) for key in VALUES[name]} == VALUES[name]


def test_every_setting_has_a_value_above() -> None:
    tried = {key for values in VALUES.values() for key in values} | {"name", "checkpoint", "preprocess", "image_size"}
    assert {field.name for field in fields(ModelSettings)} == tried


@pytest.mark.parametrize(
    ("name", "number"),
    # Published counts: timm and the paper's tables list 5.7, 86.6 and 25.5 million.
    [("ViT-Ti/16", 5_717_416), ("ViT-B/16", 86_567_656), ("R50x1", 25_549_352)],
)
def test_a_name_alone_is_the_network_of_that_name(name: str, number: int) -> None:
    settings = ModelSettings(name=name)
    assert settings.changes == {}
    assert compute_cost(settings.resolve(1000)).num_parameters == number


def test_false_and_zero_are_changes_too() -> None:
    settings = ModelSettings(name="ViT-Ti/16", hidden_head=False, dropout_rate=0.0, num_registers=0)
    assert settings.changes == {"hidden_head": False, "dropout_rate": 0.0, "num_registers": 0}


def test_preprocessing_does_not_change_the_network() -> None:
    settings = ModelSettings(name="ViT-Ti/16", preprocess="imagenet")
    assert settings.resolve(2) == ModelSettings(name="ViT-Ti/16").resolve(2)


def test_every_family_has_its_config() -> None:
    kinds = {name: type(ModelSettings(name=name).resolve(2)) for name in VALUES}
    assert kinds == {"ViT-Ti/16": ViTConfig, "R50x1": ResNetConfig, "R50+ViT-B/16": HybridConfig}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "model.name=None.*model.checkpoint=None"),
        ({"name": "ViT-Ti/16", "checkpoint": "weights"}, "'ViT-Ti/16'.*'weights'"),
        ({"name": "ViT-Ti16"}, "'ViT-Ti16'.*ViT-Ti/16"),
        ({"name": ""}, "Unknown model ''"),
        ({"checkpoint": ""}, "model.checkpoint=''"),
        ({"name": "ViT-Ti/16", "num_heads": 7}, "num_heads=7"),
        ({"name": "ViT-Ti/16", "image_size": 8}, r"image_size=\(8, 8\).*16 x 16"),
        ({"name": "ViT-Ti/16", "image_size": 0}, r"image_size=\(0, 0\)"),
        ({"name": "ViT-Ti/16", "image_size": 224.0}, "image_size=224.0"),
        ({"name": "ViT-Ti/16", "pool": "gap"}, "pool='gap'.*class, mean, map"),
        ({"name": "ViT-Ti/16", "preprocess": "clip"}, "preprocess='clip'.*imagenet, inception"),
        ({"name": "ViT-Ti/16", "stages": (3, 4)}, "'stages'"),
        ({"name": "ViT-Ti/16", "readout_layers": (12,)}, r"readout_layers=\(12,\)"),
        ({"name": "R50x1", "dropout_rate": 0.1}, "'dropout_rate'"),
        ({"name": "R50x1", "stages": (0,)}, r"stages=\(0,\)"),
        ({"checkpoint": "weights", "norm_eps": "small"}, "norm_eps='small'"),
    ],
)
def test_mistakes_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSettings(**settings)


def test_a_checkpoint_takes_only_changes_that_its_weights_allow() -> None:
    allowed = {
        "preprocess": "imagenet",
        "head_bias": -10.0,
        "image_size": 32,
        "gelu": "erf",
        "norm_eps": 1e-6,
        "dropout_rate": 0.0,
        "stochastic_depth_rate": 0.1,
        "readout_layers": (1,),
        "readout": "both",
    }
    assert set(allowed) == set(CHECKPOINT_SETTINGS)
    settings = ModelSettings(checkpoint="weights", **allowed)
    assert settings.changes == allowed
    assert settings.readout_changes == {"readout_layers": (1,), "readout": "both"}
    refused = {key: value for values in VALUES.values() for key, value in values.items() if key not in allowed}
    for key, value in refused.items():
        with pytest.raises(ValueError, match=rf"model\.{key}=.*model\.checkpoint"):
            ModelSettings(checkpoint="weights", **{key: value})


def test_a_new_head_without_layers_reads_the_pool_again() -> None:
    assert ModelSettings(checkpoint="weights", readout_layers=()).readout_changes == {"readout_layers": (), "readout": None}
    assert ModelSettings(checkpoint="weights", readout="mean").readout_changes == {"readout": "mean"}
    assert ModelSettings(checkpoint="weights").readout_changes == {}


def test_heads_of_several_layers_are_trained_and_fine_tuned_from_the_command_line(tmp_path: Path) -> None:
    short = ["--total-steps", "2", "--optim.warmup-steps", "1", "--out"]
    main(["train", "digits", "--model.readout-layers", "0", "3", *short, str(tmp_path / "a")])
    first = load_model(tmp_path / "a" / "model")
    assert (first.config.readout_layers, first.head.in_features) == ((0, 3), 2 * first.config.width)
    assert first.head.weight.any()
    main(["finetune", str(tmp_path / "a" / "model"), "digits", "--model.readout-layers", "3", *short, str(tmp_path / "b")])
    second = load_model(tmp_path / "b" / "model")
    assert (second.config.readout_layers, second.head.in_features) == ((3,), second.config.width)


def test_a_checkpoint_has_to_be_loaded_to_be_known() -> None:
    with pytest.raises(ValueError, match="weights is a checkpoint"):
        ModelSettings(checkpoint="weights").resolve(2)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        ModelSettings(name="ViT-Ti/16").width = 3  # pyright: ignore


def test_settings_need_no_torch() -> None:
    code = f"{BLOCK_TORCH}\nfrom vitrine.models.settings import *; print(ModelSettings(name='R50+ViT-B/16').resolve(9).grid)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "(14, 14)\n"), result.stderr
