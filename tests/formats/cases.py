"""Models for tests of formats: one of each kind by name, and random ones."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.filling import build_filled
from vitrine.core.console import VitrineWarning
from vitrine.data.preprocessing import Preprocessing, build_inception_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.config import Overrides
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.config import HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.model import Model

ENDINGS = {
    "vitrine": "",
    "google-2020": ".npz",
    "google-linen": ".npz",
    "big-vision": ".npz",
    "bit": ".npz",
    "timm": ".safetensors",
    "hf": "",
    "torchvision": ".pth",
}

SMALL: dict[str, Any] = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 24, "patch_size": 4, "image_size": (24, 24)}
VIT = ViTConfig(**SMALL, num_classes=5)
OBLONG = ViTConfig(**{**SMALL, "image_size": (12, 28)}, num_classes=5, gelu="erf")
HYBRID = HybridConfig(
    **{**SMALL, "patch_size": 1, "image_size": (32, 48)}, num_classes=5, stem_stages=(1, 2), stem_width_factor=0.25
)
ROOT_HYBRID = HybridConfig(**{**SMALL, "patch_size": 2, "image_size": (32, 32)}, stem_stages=(), stem_width_factor=0.5)
BIT = ResNetConfig(stages=(1, 2), width_factor=0.5, num_classes=5, image_size=(32, 40))


def make_checkpoint(config: ModelConfig) -> Checkpoint:
    """Build a checkpoint with random weights and no default settings."""
    model = build_filled(config)
    straight = build_inception_preprocessing(config.image_size, config.num_channels)
    preprocessing = Preprocessing(
        resize=max(config.image_size) + 3,
        crop=config.image_size,
        interpolation="lanczos",
        mean=tuple(0.4 + 0.1 * i for i in range(config.num_channels)),
        std=straight.std,
    )
    names = tuple(f"class {index}" for index in range(config.num_classes)) if config.num_classes > 0 else None
    return Checkpoint(model, preprocessing, names, {"trained": "for a test"})


def save_quietly(checkpoint: Checkpoint, path: Path, form: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VitrineWarning)
        save_checkpoint(checkpoint, path, form)


def load_quietly(path: Path | Checkpoint, overrides: Overrides | None = None, **options: Any) -> Checkpoint:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VitrineWarning)
        return load_checkpoint(path, overrides=overrides, **options)


def forget(path: Path) -> Path:
    """Remove our metadata, so that only what the format itself holds is left."""
    from safetensors.torch import load_file, save_file

    side = path.with_name(f"{path.name}.vitrine.json")
    if side.exists():
        side.unlink()
    file = path / "model.safetensors" if path.is_dir() else path
    if file.suffix == ".safetensors":
        save_file(load_file(file), file, metadata={"format": "pt"})
    return path


@torch.no_grad()
def run(model: Model[Any], seed: int = 0) -> Tensor:
    shape = (3, model.config.num_channels, *model.config.image_size)
    return model(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def assert_same_weights(actual: Model[Any], expected: Model[Any]) -> None:
    state, expected_state = actual.state_dict(), expected.state_dict()
    assert state.keys() == expected_state.keys()
    assert [name for name in state if not torch.equal(state[name], expected_state[name])] == []


@st.composite
def plain_vits(draw: st.DrawFn, pools: tuple[str, ...] = ("class",)) -> ViTConfig:
    """Draw a ViT of random size that nearly every format can hold."""
    num_heads = draw(st.integers(1, 3))
    patch_size = draw(st.integers(1, 4))
    grid = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    return ViTConfig(
        width=num_heads * draw(st.sampled_from([8, 12])),
        depth=draw(st.integers(1, 3)),
        num_heads=num_heads,
        mlp_dim=draw(st.integers(1, 24)),
        patch_size=patch_size,
        image_size=(grid[0] * patch_size, grid[1] * patch_size),
        num_channels=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(0, 4)),
        gelu=draw(st.sampled_from(["tanh", "erf", "quick"])),
        norm_eps=draw(st.sampled_from([1e-6, 1e-5, 1e-12])),
        pool=draw(st.sampled_from(pools)),
        position=draw(st.sampled_from(["learned-1d", "learned-1d", "learned-2d", "sincos-2d", "none"])),
        class_position=draw(st.sampled_from([None, False])),
    )


@st.composite
def vits(draw: st.DrawFn) -> ViTConfig:
    plain = draw(plain_vits(("class", "class", "mean", "map", "first")))
    distillation = plain.pool == "class" and draw(st.booleans())
    hidden_head = not distillation and draw(st.booleans())
    has_plain_head = not (plain.pool in ("map", "first") or distillation or hidden_head)
    num_registers = draw(st.sampled_from([0, 0, 2]))
    can_place_registers = num_registers > 0 and plain.position.startswith("learned") and plain.class_position is None
    pre_norm = draw(st.sampled_from([False, False, True]))
    return replace(
        plain,
        readout_layers=(plain.depth - 1,) if has_plain_head and draw(st.integers(0, 4)) == 0 else (),
        mlp=draw(st.sampled_from(["gelu", "gelu", "swiglu"])),
        norm_after_pool=plain.pool == "mean" and draw(st.booleans()),
        hidden_head=hidden_head,
        hidden_head_dim=draw(st.sampled_from([None, 10])) if hidden_head else None,
        pre_norm=pre_norm,
        patch_bias=not pre_norm,
        qkv_bias=draw(st.sampled_from([True, True, False])),
        class_token=plain.pool == "class" or (plain.pool != "first" and draw(st.booleans())),
        num_registers=num_registers,
        register_position=can_place_registers and draw(st.booleans()),
        distillation_token=distillation,
        layer_scale=draw(st.sampled_from([None, None, 1e-5])),
    )


@st.composite
def hybrids(draw: st.DrawFn) -> HybridConfig:
    stages = draw(st.sampled_from([(), (1,), (2,), (1, 1)]))
    patch_size = draw(st.integers(1, 2))
    stride = patch_size * 2 ** (2 + max(0, len(stages) - 1))
    grid = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    pool = draw(st.sampled_from(["class", "mean"]))
    return HybridConfig(
        width=16,
        depth=1,
        num_heads=draw(st.sampled_from([1, 2, 4])),
        mlp_dim=12,
        patch_size=patch_size,
        image_size=(grid[0] * stride, grid[1] * stride),
        num_channels=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(0, 4)),
        pool=pool,
        norm_after_pool=pool == "mean" and draw(st.booleans()),
        stem_stages=stages,
        stem_width_factor=draw(st.sampled_from([0.125, 0.5])),
        stem_num_groups=draw(st.sampled_from([4, 32])),
    )


@st.composite
def resnets(draw: st.DrawFn) -> ResNetConfig:
    style = draw(st.sampled_from(["pre-activation", "pre-activation", "post-activation"]))
    return ResNetConfig(
        stages=draw(st.sampled_from([(1,), (2, 1), (1, 1, 2)])),
        width_factor=draw(st.sampled_from([0.125, 0.25, 0.5])),
        style=style,
        num_classes=draw(st.integers(0, 4)),
        num_channels=draw(st.sampled_from([1, 3])),
        image_size=draw(st.tuples(st.integers(8, 40), st.integers(8, 40))),
        num_groups=draw(st.sampled_from([4, 8, 32])),
        pool_padding="none" if style == "pre-activation" and draw(st.integers(0, 3)) == 0 else "zeros",
    )
