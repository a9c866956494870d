"""timm's state dicts, compared with Hugging Face's models on the same weights, and its config.json."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    ViTConfig,
    ViTForImageClassification,
)

from tests.filling import fill_randomly
from tests.formats import cases
from tests.formats.cases import forget, load_quietly, make_checkpoint, run, save_quietly
from tests.peers import copy_peer_weights
from vitrine.core.console import VitrineWarning
from vitrine.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitrine.formats.config import Overrides
from vitrine.formats.load import load_checkpoint
from vitrine.models import config as configs

# From the names of tests/peers.py to timm's.
RENAMES = [
    (r"^class_token$", "cls_token"),
    (r"^distillation_token$", "dist_token"),
    (r"^registers$", "reg_token"),
    (r"^positions\.0\.table$", "pos_embed"),
    (r"^patches\.projection\.", "patch_embed.proj."),
    (r"\.norm_attention\.", ".norm1."),
    (r"\.norm_mlp\.", ".norm2."),
    (r"\.attention\.qkv\.", ".attn.qkv."),
    (r"\.attention\.out\.", ".attn.proj."),
    (r"\.branch_attention\.scale$", ".ls1.gamma"),
    (r"\.branch_mlp\.scale$", ".ls2.gamma"),
    (r"\.mlp\.(hidden|gate_hidden)\.", ".mlp.fc1."),
    (r"\.mlp\.out\.", ".mlp.fc2."),
    (r"^head_distillation\.", "head_dist."),
    (r"^pre_norm\.", "norm_pre."),
]
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "image_size": 48,
    "patch_size": 8,
}


def as_timm(peer: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, value in copy_peer_weights(peer).items():
        for pattern, replacement in RENAMES:
            name = re.sub(pattern, replacement, name)
        state[name] = value[None] if name in ("cls_token", "dist_token", "reg_token", "pos_embed") else value
    for name in ("cls_token", "dist_token"):
        if name in state:
            state[name] = state[name].reshape(1, 1, -1)
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].reshape(-1, 3, 8, 8)
    return state


def build_peer(kind: type[Any], config: Any) -> Any:
    peer = kind(config).eval()
    fill_randomly(peer)
    return peer


@torch.no_grad()
def test_vit(tmp_path: Path) -> None:
    peer = build_peer(ViTForImageClassification, ViTConfig(**SIZES, num_labels=7, layer_norm_eps=1e-6))
    save_file(as_timm(peer), tmp_path / "vit.safetensors")
    with pytest.warns(VitrineWarning, match="2 heads.*erf GELU.*1e-06") as caught:
        checkpoint = load_checkpoint(tmp_path / "vit.safetensors")
    assert len(caught) == 1
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(checkpoint.model(images), peer(images).logits, rtol=1e-5, atol=1e-5)
    # The default: short side 256 and crop 224, in proportion, bicubic, ImageNet's mean and std.
    expected = Preprocessing(resize=55, crop=(48, 48), interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    assert checkpoint.preprocessing == expected


@torch.no_grad()
def test_distilled_deit_as_its_authors_released_it(tmp_path: Path) -> None:
    peer = build_peer(DeiTForImageClassificationWithTeacher, DeiTConfig(**SIZES, num_labels=7, layer_norm_eps=1e-6))
    torch.save({"model": as_timm(peer)}, tmp_path / "deit.pth")
    model = load_quietly(tmp_path / "deit.pth").model
    assert model.config.distillation_token
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("authors_names", [False, True])
def test_dinov2_with_registers_and_swiglu(authors_names: bool, tmp_path: Path) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
    config = Dinov2WithRegistersConfig(**sizes, num_register_tokens=3, use_swiglu_ffn=True, mlp_ratio=4, layer_norm_eps=1e-6)
    peer = build_peer(Dinov2WithRegistersModel, config)
    state = as_timm(peer)
    if authors_names:
        state["register_tokens"] = state.pop("reg_token")
        state["mask_token"] = torch.zeros(1, 128)
        for name in [name for name in state if ".mlp.fc" in name]:
            state[name.replace(".fc1.", ".w12.").replace(".fc2.", ".w3.")] = state.pop(name)
    torch.save(state, tmp_path / "dinov2.pth")
    model = load_quietly(tmp_path / "dinov2.pth").model
    assert (model.config.num_registers, model.config.mlp, model.config.layer_scale) == (3, "swiglu", 1e-5)
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(model(images), peer(images).pooler_output, rtol=1e-5, atol=1e-5)


def test_positions_without_a_row_for_the_class_token(tmp_path: Path) -> None:
    """DeiT-III and timm's models with registers have such positions."""
    checkpoint = make_checkpoint(configs.ViTConfig(**cases.SMALL, class_position=False, layer_scale=1e-5))
    save_quietly(checkpoint, tmp_path / "a.safetensors", "timm")
    model = load_quietly(forget(tmp_path / "a.safetensors"), Overrides(num_heads=2, gelu="tanh")).model
    assert model.config.class_position is False
    torch.testing.assert_close(run(model), run(checkpoint.model), rtol=0, atol=0)


def test_norm_after_pooling(tmp_path: Path) -> None:
    config = configs.ViTConfig(**cases.SMALL, pool="mean", norm_after_pool=True, class_token=True, num_classes=3)
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, tmp_path / "a.safetensors", "timm")
    model = load_quietly(forget(tmp_path / "a.safetensors"), Overrides(num_heads=2, gelu="tanh")).model
    assert model.config == config
    torch.testing.assert_close(run(model), run(checkpoint.model), rtol=0, atol=0)


def test_an_unknown_number_of_heads(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "a.safetensors", "timm")
    with pytest.raises(ValueError, match=r"width of 16 .*num_heads"):
        load_quietly(forget(tmp_path / "a.safetensors"))


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    peer = build_peer(ViTForImageClassification, ViTConfig(**SIZES, num_labels=7))
    state = as_timm(peer) | {"other.weight": torch.ones(128), "blocks.0.attn.q_norm.weight": torch.ones(64)}
    state["norm.weight"] = torch.ones(64)
    del state["blocks.1.mlp.fc2.bias"]
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="so nothing was loaded") as error:
        load_quietly(tmp_path / "a.safetensors")
    assert "missing: blocks.1.mlp.fc2.bias; " in str(error.value)
    assert "unexpected: blocks.0.attn.q_norm.weight, other.weight; " in str(error.value)
    assert "wrong shape: norm.weight (64) instead of (128)." in str(error.value)


def test_a_training_checkpoint(tmp_path: Path) -> None:
    peer = build_peer(ViTForImageClassification, ViTConfig(**SIZES, num_labels=7))
    state = {f"module._orig_mod.{name}": value for name, value in as_timm(peer).items()}
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"state": {}}}, tmp_path / "last.pth")
    assert load_quietly(tmp_path / "last.pth").model.config.num_classes == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_head": True},
        {"pool": "map", "num_registers": 1},
        {"position": "relative"},
        {"pool": "mean", "class_token": True},
        {"pre_norm": True},
        {"patch_bias": False},
    ],
)
def test_unsupported_models(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="timm cannot hold"):
        save_quietly(make_checkpoint(configs.ViTConfig(**cases.SMALL, **changes)), tmp_path / "a.safetensors", "timm")


@torch.no_grad()
@pytest.mark.parametrize("gelu", ["quick", "erf"])
@pytest.mark.parametrize("is_bare", [False, True])
def test_image_towers_of_clip(gelu: Any, is_bare: bool, tmp_path: Path) -> None:
    sizes = {**SIZES, "hidden_act": "quick_gelu" if gelu == "quick" else "gelu"}
    peer = build_peer(CLIPVisionModel, CLIPVisionConfig(**sizes))
    save_file(as_timm(peer), tmp_path / "model.safetensors")
    overrides = Overrides(gelu=gelu) if is_bare else Overrides()
    if not is_bare:
        name = "vit_base_patch16_clip_quickgelu_224" if gelu == "quick" else "vit_base_patch16_clip_224"
        cfg = {"input_size": [3, 48, 48], "mean": [0.5] * 3, "std": [0.5] * 3}
        (tmp_path / "config.json").write_text(json.dumps({"architecture": name, "pretrained_cfg": cfg}))
    with pytest.warns(VitrineWarning) as caught:
        checkpoint = load_checkpoint(tmp_path, overrides=overrides)
    text = str(caught[0].message)
    assert ("epsilon 1e-05" in text, "CLIP's mean" in text) == (is_bare, is_bare)
    assert (checkpoint.model.config.pre_norm, checkpoint.model.config.patch_bias) == (True, False)
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(checkpoint.model(images), peer(images).pooler_output, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_projections_without_bias(tmp_path: Path) -> None:
    peer = build_peer(ViTForImageClassification, ViTConfig(**SIZES, num_labels=7, layer_norm_eps=1e-6, qkv_bias=False))
    save_file(as_timm(peer), tmp_path / "vit.safetensors")
    model = load_quietly(tmp_path / "vit.safetensors").model
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("has_class_token", [True, False])
def test_positions_of_registers(has_class_token: bool, tmp_path: Path) -> None:
    """timm's positions cover all prefix tokens, unless no_embed_class: the same as adding them to the tokens beforehand."""
    sizes = {**SIZES, "intermediate_size": 512}
    config = Dinov2WithRegistersConfig(**{**sizes, "mlp_ratio": 4}, num_register_tokens=3, layer_norm_eps=1e-6)
    state = as_timm(build_peer(Dinov2WithRegistersModel, config))
    class_row, patch_rows = state["pos_embed"].reshape(1, -1, 128).split([1, 36], dim=1)
    register_rows = torch.randn(1, 3, 128)
    folded = state | {"reg_token": state["reg_token"] + register_rows}
    state["pos_embed"] = torch.cat([class_row, register_rows, patch_rows], dim=1)
    if not has_class_token:
        state["pos_embed"], folded["pos_embed"] = state["pos_embed"][:, 1:], patch_rows
        for tensors in (state, folded):
            del tensors["cls_token"]
    save_file(state, tmp_path / "a.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in folded.items()}, tmp_path / "b.safetensors")
    model, expected = (load_quietly(tmp_path / f"{name}.safetensors").model for name in "ab")
    assert (model.config.register_position, expected.config.register_position) == (True, False)
    torch.testing.assert_close(run(model), run(expected), rtol=0, atol=0)
    save_quietly(make_checkpoint(model.config), tmp_path / "c.safetensors", "timm")
    assert load_quietly(forget(tmp_path / "c.safetensors"), Overrides(num_heads=2)).model.config == model.config


def test_tanh_gelu_of_siglip_models_without_their_config(tmp_path: Path) -> None:
    """timm's SigLIP models have erf apart from some, which are recognised by their sizes."""
    sizes: dict[str, Any] = {"depth": 1, "mlp_dim": 8, "num_heads": 12, "pool": "map", "num_classes": 0}
    for patch_size, pool, gelu in ((32, "map", "tanh"), (16, "map", "erf"), (32, "mean", "tanh"), (32, "class", "erf")):
        config = configs.ViTConfig(width=768, patch_size=patch_size, image_size=(64, 64), **{**sizes, "pool": pool})
        save_quietly(make_checkpoint(config), tmp_path / "a.safetensors", "timm")
        with pytest.warns(VitrineWarning, match=rf"{gelu} GELU \(gelu\)"):
            assert load_checkpoint(forget(tmp_path / "a.safetensors")).model.config.gelu == gelu
        (tmp_path / "a.safetensors").unlink()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"blocks.0.norm1.bias": None}, "RMSNorm"),
        ({"blocks.3.proj.weight": (2, 2)}, "Hiera"),
        ({"blocks.0.attn.qkv.bias": None, "fc_norm.weight": (128,), "cls_token": None}, "rpn"),
    ],
)
def test_the_true_reason_is_given(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Neither grid nor num_heads can help here."""
    peer = build_peer(ViTForImageClassification, ViTConfig(**{**SIZES, "hidden_size": 96, "num_attention_heads": 3}))
    state = as_timm(peer)
    for name, shape in changes.items():
        state.pop(name, None)
        if shape is not None:
            state[name] = torch.ones(shape)
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=reason) as error:
        load_quietly(tmp_path / "a.safetensors")
    assert "--" not in str(error.value)
