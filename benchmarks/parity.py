"""Compare logits with timm and torchvision on weights that went through a file, in both directions.

    .venv-bench/bin/python benchmarks/parity.py

Every network has random weights and few blocks; the difference is relative to the largest logit. timm reads the npz files that
we write with its own loader, and we read what timm and torchvision write. Hybrids, whose epsilons differ, also have timm's own
initial weights and all of their blocks.
"""

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peers import describe_absence, load_module
from vitrine.core.console import print_table
from vitrine.formats.config import FormatName
from vitrine.formats.load import load_model
from vitrine.formats.save import save_model
from vitrine.models.model import Model
from vitrine.models.registry import build_model


def fill(module: nn.Module) -> None:
    """Fill all parameters with random values of a sensible size."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        spread = parameter[0].numel() ** -0.5 if parameter.ndim >= 2 else 0.3
        with torch.no_grad():
            parameter.normal_(generator=generator).mul_(spread).add_(0.0 if parameter.ndim >= 2 else 0.5)


def build_timm(name: str, **options: Any) -> nn.Module:
    return load_module("timm").create_model(name, **options)


def build_timm_bare(name: str, **options: Any) -> nn.Module:
    """Build a model of timm that is written without config.json."""
    model = build_timm(name, **options)
    del model.pretrained_cfg
    return model


def build_timm_giant() -> nn.Module:
    """Build timm's ViT with DINOv2's SwiGLU, register tokens and layer scale, but narrow."""
    layers = load_module("timm.layers")
    vit = load_module("timm.models.vision_transformer").VisionTransformer
    return vit(
        img_size=98,
        patch_size=14,
        embed_dim=192,
        depth=2,
        num_heads=3,
        init_values=1e-5,
        mlp_ratio=2.66667 * 2,
        mlp_layer=layers.SwiGLUPacked,
        act_layer=nn.SiLU,
        num_classes=0,
        reg_tokens=4,
        no_embed_class=True,
    )


def build_torchvision() -> nn.Module:
    vit = load_module("torchvision.models.vision_transformer").VisionTransformer
    return vit(image_size=96, patch_size=16, num_layers=2, num_heads=3, hidden_dim=192, mlp_dim=768, representation_size=192)


# Models that peers write and we read.
TO_US: list[tuple[str, Callable[[], nn.Module]]] = [
    ("timm ViT", partial(build_timm, "vit_tiny_patch16_224", depth=2)),
    ("timm ViT 96 x 160", partial(build_timm, "vit_tiny_patch16_224", depth=2, img_size=(96, 160))),
    ("timm DeiT distilled", partial(build_timm, "deit_tiny_distilled_patch16_224", depth=2)),
    ("timm DeiT-III", partial(build_timm, "deit3_small_patch16_224", depth=2)),
    ("timm DINOv2", partial(build_timm, "vit_small_patch14_dinov2", depth=2, img_size=98)),
    ("timm DINOv2 registers", partial(build_timm, "vit_small_patch14_reg4_dinov2", depth=2, img_size=98)),
    ("timm DINOv2 SwiGLU", build_timm_giant),
    ("timm mean pool, fc_norm", partial(build_timm, "vit_tiny_patch16_224", depth=2, global_pool="avg")),
    ("timm attention pool", partial(build_timm, "vit_tiny_patch16_224", depth=2, global_pool="map", class_token=False)),
    ("timm SigLIP", partial(build_timm, "vit_base_patch16_siglip_224", depth=2)),
    ("timm So400m SigLIP", partial(build_timm, "vit_so400m_patch16_siglip_256", depth=1)),
    ("timm SigLIP B/32", partial(build_timm, "vit_base_patch32_siglip_256", depth=2)),
    ("timm SigLIP B/32, bare file", partial(build_timm_bare, "vit_base_patch32_siglip_256", depth=2)),
    ("timm CLIP", partial(build_timm, "vit_base_patch32_clip_224", depth=2)),
    ("timm CLIP, bare file", partial(build_timm_bare, "vit_base_patch32_clip_224", depth=2)),
    ("timm CLIP, quick GELU", partial(build_timm, "vit_base_patch32_clip_quickgelu_224", depth=2)),
    ("timm without qkv bias", partial(build_timm, "vit_base_patch16_224_miil", depth=2)),
    ("timm So150m, positions of registers", partial(build_timm, "vit_so150m_patch16_reg4_gap_256", depth=2)),
    ("timm So150m, attention pool", partial(build_timm, "vit_so150m_patch16_reg4_map_256", depth=2)),
    ("timm So150m2", partial(build_timm, "vit_so150m2_patch16_reg1_gap_256", depth=2)),
    ("timm test_vit", partial(build_timm, "test_vit")),
    ("timm test_vit2", partial(build_timm, "test_vit2")),
    ("timm R26+S/32", partial(build_timm, "vit_small_r26_s32_224", depth=2)),
    ("timm R50+B/16", partial(build_timm, "vit_base_r50_s16_224", depth=2)),
    ("timm R+Ti/16", partial(build_timm, "vit_tiny_r_s16_p8_224", depth=2)),
    ("timm BiT R50x1", partial(build_timm, "resnetv2_50x1_bit")),
    ("torchvision ViT", build_torchvision),
]


# Hybrids with the weights that timm initialises them with.
INITIAL = ("vit_tiny_r_s16_p8_224", "vit_small_r26_s32_224", "vit_base_r50_s16_224")


def compare_reading(build: Callable[[], nn.Module], folder: Path, fills: bool = True) -> tuple[Tensor, Tensor]:
    """Let a peer write a model, read it, and return our logits and the peer's; `fills`: with our random weights."""
    peer: Any = build().eval()
    if fills:
        fill(peer)
    if hasattr(peer, "pretrained_cfg"):  # timm: written as a folder for the hub
        path, depth = folder / "peer", {"depth": len(peer.blocks)} if hasattr(peer, "blocks") else {}
        size = {"img_size": peer.patch_embed.img_size} if hasattr(peer, "patch_embed") else {}
        load_module("timm.models._hub").save_for_hf(peer, str(path), model_args={**depth, **size})
    else:
        path = folder / "peer.pth"
        torch.save(peer.state_dict(), path)
    model = load_model(path)
    images = torch.randn(2, 3, *model.config.image_size)
    return model(images), peer(images)


# Models that we write and timm reads: our name and changes, the format, timm's builder.
FROM_US: list[tuple[str, str, dict[str, Any], FormatName, Callable[[], nn.Module]]] = [
    ("google-2020 ViT", "ViT-Ti/16", {"depth": 2}, "google-2020", partial(build_timm, "vit_tiny_patch16_224", depth=2)),
    (
        "google-2020 R26+S/32",
        "R26+ViT-S/32",
        {"depth": 2},
        "google-2020",
        partial(build_timm, "vit_small_r26_s32_224", depth=2),
    ),
    ("google-2020 R+Ti/16", "R+ViT-Ti/16", {"depth": 2}, "google-2020", partial(build_timm, "vit_tiny_r_s16_p8_224", depth=2)),
    (
        "big-vision MAP head",
        "ViT-Ti/16",
        {"depth": 2, "pool": "map"},
        "big-vision",
        partial(build_timm, "vit_tiny_patch16_224", depth=2, global_pool="map", class_token=False),
    ),
    ("bit R50x1", "R50x1", {}, "bit", partial(build_timm, "resnetv2_50x1_bit")),
]


def compare_writing(
    name: str, changes: dict[str, Any], format: FormatName, build: Callable[[], nn.Module], folder: Path
) -> tuple[Tensor, Tensor]:
    """Write a model, let timm read it, and return our logits and timm's."""
    gelu = {} if name.startswith("R50x") else {"gelu": "erf"}
    model: Model[Any] = build_model(name, **gelu, **changes).eval()
    fill(model)
    path = folder / "ours.npz"
    save_model(model, path, format)
    peer: Any = build().eval()
    peer.load_pretrained(str(path))
    images = torch.randn(2, 3, *model.config.image_size)
    return model(images), peer(images)


@torch.no_grad()
def main() -> None:
    """Compare all models in both directions and print the differences."""
    for package in ("timm", "torchvision"):
        try:
            load_module(package)
        except Exception as error:
            raise SystemExit(f"missing: {package} ({describe_absence(error)}): run `make bench`, which installs it.") from None
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, build in TO_US:
            rows.append(format_row(f"{name} -> vitrine", *compare_reading(build, Path(folder))))
        for name in INITIAL:
            logits = compare_reading(partial(build_timm, name), Path(folder), fills=False)
            rows.append(format_row(f"timm {name}, its own weights", *logits))
        for name, model, changes, format, build in FROM_US:
            logits = compare_writing(model, changes, format, build, Path(folder))
            rows.append(format_row(f"vitrine -> {name} -> timm", *logits))
    print_table(("weights", "max difference", "max logit", "ratio"), rows)


def format_row(name: str, ours: Tensor, theirs: Tensor) -> list[str]:
    """Return a row of the table: the largest difference, the largest logit, and their ratio."""
    difference, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
    return [name, f"{difference:.2g}", f"{largest:.3g}", f"{difference / largest:.1e}"]


if __name__ == "__main__":
    main()
