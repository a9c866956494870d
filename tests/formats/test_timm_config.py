"""What timm's config.json says beside the weights counts, and what it says that nobody knows is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.formats import cases
from tests.formats.cases import forget, load_quietly, make_checkpoint, run, save_quietly
from vitrine.core.notices import Notice
from vitrine.formats.config import Facts
from vitrine.formats.load import load_checkpoint
from vitrine.models import config as configs


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_a_folder_from_the_hub_says_its_preprocessing(crop_mode: str, tmp_path: Path) -> None:
    save_quietly(make_checkpoint(configs.ViTConfig(**cases.SMALL, gelu="erf")), tmp_path / "model.safetensors", "timm")
    forget(tmp_path / "model.safetensors")
    cfg = {
        "input_size": [3, 24, 24],
        "crop_pct": 0.9,
        "crop_mode": crop_mode,
        "interpolation": "bilinear",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    }
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny", "pretrained_cfg": cfg}))
    with pytest.warns(Notice, match=r"usual for timm: erf GELU \(--gelu\); LayerNorm epsilon 1e-06 \(--norm-eps\)\.$"):
        checkpoint = load_checkpoint(tmp_path, facts=Facts(num_heads=2))
    assert checkpoint.preprocessing.resize == (26 if crop_mode == "center" else (26, 26))
    assert checkpoint.preprocessing.mean == (0.5, 0.5, 0.5)
    assert checkpoint.model.config.gelu == "erf"


def write_hub_folder(config: configs.ViTConfig, folder: Path, **said: Any) -> Any:
    """A folder as timm's on the hub, with our weights."""
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, folder / "model.safetensors", "timm")
    forget(folder / "model.safetensors")
    cfg = {"input_size": [3, 24, 24], "crop_pct": 1.0, "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
    (folder / "config.json").write_text(json.dumps({"architecture": "vit", "pretrained_cfg": cfg, **said}))
    return checkpoint


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gelu": "erf"}, {"model_args": {"num_heads": 4, "depth": 2}}),
        ({"gelu": "tanh"}, {"model_args": {"num_heads": 4, "act_layer": "gelu_tanh"}}),
        ({"gelu": "tanh", "pool": "map"}, {"architecture": "vit_base_patch32_siglip_256", "model_args": {"num_heads": 4}}),
        ({"gelu": "erf", "image_size": (12, 20)}, {"model_args": {"num_heads": 4, "img_size": [12, 20]}}),
    ],
)
def test_what_the_hubs_configuration_says_counts(changes: dict[str, Any], said: dict[str, Any], tmp_path: Path) -> None:
    config = configs.ViTConfig(**{**cases.SMALL, "num_heads": 4, **changes}, num_classes=3)
    checkpoint = write_hub_folder(config, tmp_path, **said)
    again = load_quietly(tmp_path)
    assert again.model.config == config
    torch.testing.assert_close(run(again.model), run(checkpoint.model), rtol=0, atol=0)


def test_a_mean_that_only_the_configuration_tells(tmp_path: Path) -> None:
    config = configs.ViTConfig(**cases.SMALL, gelu="erf")
    write_hub_folder(config, tmp_path, global_pool="avg", model_args={"num_heads": 2, "fc_norm": False})
    model = load_quietly(tmp_path).model
    assert (model.config.pool, model.config.norm_after_pool, model.config.has_class_token) == ("mean", False, True)


def test_arguments_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    write_hub_folder(configs.ViTConfig(**cases.SMALL), tmp_path, model_args={"num_heads": 2, "qk_norm": True})
    with pytest.raises(ValueError, match=r"config\.json builds the model with qk_norm, which is not known here"):
        load_quietly(tmp_path)
