"""config.json of timm's hub folders: what it states, and what names of architectures stand for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.formats import cases
from tests.formats.cases import forget, load_quietly, make_checkpoint, run, save_quietly
from vitrine.core.console import VitrineWarning
from vitrine.formats.config import Overrides
from vitrine.formats.load import load_checkpoint
from vitrine.models import config as configs


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_config_states_the_preprocessing(crop_mode: str, tmp_path: Path) -> None:
    save_quietly(make_checkpoint(configs.ViTConfig(**cases.SMALL, gelu="erf")), tmp_path / "model.safetensors", "timm")
    forget(tmp_path / "model.safetensors")
    cfg = {
        "input_size": [3, 24, 24],
        "crop_pct": 0.9,
        "crop_mode": crop_mode,
        "interpolation": "bilinear",
        "mean": [0.4, 0.5, 0.6],
        "std": [0.1, 0.2, 0.3],
    }
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny", "pretrained_cfg": cfg}))
    with pytest.warns(VitrineWarning, match=r"defaults of timm: erf GELU .*1e-06 \(norm_eps\)\.$"):
        checkpoint = load_checkpoint(tmp_path, overrides=Overrides(num_heads=2))
    assert checkpoint.preprocessing.resize == (26 if crop_mode == "center" else (26, 26))
    assert (checkpoint.preprocessing.mean, checkpoint.preprocessing.std) == ((0.4, 0.5, 0.6), (0.1, 0.2, 0.3))
    assert checkpoint.model.config.gelu == "erf"


def write_hub_folder(config: configs.ViTConfig, folder: Path, **stated: Any) -> Any:
    """Write a folder like timm's on the hub, with our weights."""
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, folder / "model.safetensors", "timm")
    forget(folder / "model.safetensors")
    cfg = {"input_size": [3, 24, 24], "crop_pct": 1.0, "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
    (folder / "config.json").write_text(json.dumps({"architecture": "vit", "pretrained_cfg": cfg, **stated}))
    return checkpoint


@pytest.mark.parametrize(
    ("changes", "stated"),
    [
        ({"gelu": "erf"}, {"model_args": {"num_heads": 4, "depth": 2}}),
        ({"gelu": "tanh"}, {"model_args": {"num_heads": 4, "act_layer": "gelu_tanh"}}),
        ({"gelu": "tanh", "pool": "map"}, {"architecture": "vit_base_patch32_siglip_256", "model_args": {"num_heads": 4}}),
        ({"gelu": "erf", "image_size": (12, 20)}, {"model_args": {"num_heads": 4, "img_size": [12, 20]}}),
    ],
)
def test_config_states_model_arguments(changes: dict[str, Any], stated: dict[str, Any], tmp_path: Path) -> None:
    config = configs.ViTConfig(**{**cases.SMALL, "num_heads": 4, **changes}, num_classes=3)
    checkpoint = write_hub_folder(config, tmp_path, **stated)
    again = load_quietly(tmp_path)
    assert again.model.config == config
    torch.testing.assert_close(run(again.model), run(checkpoint.model), rtol=0, atol=0)


def test_config_states_mean_pooling(tmp_path: Path) -> None:
    config = configs.ViTConfig(**cases.SMALL, gelu="erf")
    write_hub_folder(config, tmp_path, global_pool="avg", model_args={"num_heads": 2, "fc_norm": False})
    model = load_quietly(tmp_path).model
    assert (model.config.pool, model.config.norm_after_pool, model.config.has_class_token) == ("mean", False, True)


def test_unknown_model_arguments_are_errors(tmp_path: Path) -> None:
    write_hub_folder(configs.ViTConfig(**cases.SMALL), tmp_path, model_args={"num_heads": 2, "qk_norm": True})
    with pytest.raises(ValueError, match="qk_norm"):
        load_quietly(tmp_path)


def test_pools_that_are_not_supported_are_errors(tmp_path: Path) -> None:
    write_hub_folder(configs.ViTConfig(**cases.SMALL), tmp_path, global_pool="avgmax", model_args={"num_heads": 2})
    with pytest.raises(ValueError, match="global_pool='avgmax'"):
        load_quietly(tmp_path)


@pytest.mark.parametrize("architecture", ["vit_base_patch16_rpn_224", "vit_pe_core_base_patch16_224"])
def test_architectures_that_tensors_do_not_show_are_errors(architecture: str, tmp_path: Path) -> None:
    write_hub_folder(configs.ViTConfig(**cases.SMALL), tmp_path, architecture=architecture, model_args={"num_heads": 2})
    with pytest.raises(ValueError, match=f"{architecture}, which"):
        load_quietly(tmp_path)


def test_the_config_tells_a_plain_model_from_one_with_norms_after_the_layers(tmp_path: Path) -> None:
    config = configs.ViTConfig(**cases.SMALL, pool="mean", norm_after_pool=True, qkv_bias=False, gelu="erf")
    write_hub_folder(config, tmp_path, architecture="vit_tiny", model_args={"num_heads": 2, "qkv_bias": False})
    assert load_quietly(tmp_path).model.config == config
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"rpn.*config\.json"):
        load_quietly(tmp_path)


def test_attention_pooling_with_registers_needs_the_config(tmp_path: Path) -> None:
    """timm's so150m models leave the registers out; test_vit3, with the same tensors, pools them too."""
    config = configs.ViTConfig(**cases.SMALL, pool="map", gelu="erf")
    write_hub_folder(config, tmp_path, architecture="vit_so150m_patch16_reg4_map_256", model_args={"num_heads": 2})
    state = load_file(tmp_path / "model.safetensors") | {"reg_token": torch.randn(1, 4, 16)}
    save_file(state, tmp_path / "model.safetensors")
    model = load_quietly(tmp_path).model
    assert (model.config.pool, model.config.num_registers) == ("map", 4)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | {"architecture": "test_vit3"}))
    with pytest.raises(ValueError, match="pools by attention over its registers"):
        load_quietly(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json"):
        load_quietly(tmp_path, Overrides(num_heads=2))


@pytest.mark.parametrize(
    ("architecture", "sizes", "num_heads"),
    [
        ("vit_base_patch16_gap_224", {"width": 768, "mlp_dim": 3072}, 16),
        ("test_vit", {"width": 64, "mlp_dim": 192}, 2),
        ("test_vit2", {"width": 64, "mlp_dim": 192}, 2),
    ],
)
def test_heads_that_are_not_64_wide(architecture: str, sizes: dict[str, int], num_heads: int, tmp_path: Path) -> None:
    config = configs.ViTConfig(**{**cases.SMALL, **sizes, "depth": 1, "num_heads": num_heads}, gelu="erf")
    write_hub_folder(config, tmp_path, architecture=architecture)
    assert load_quietly(tmp_path).model.config == config
