"""Write the table of starting points, and timm's layout of each for the tests.

    python benchmarks/pretrained_table.py

Licence, image size and number of classes are timm's metadata; parameters, tensor names and shapes are those of timm's networks
on the meta device. Nothing is downloaded: that a repository holds what timm's metadata say is not checked here.
Writes src/vitrine/formats/pretrained.csv and tests/fixtures/timm_layouts.json.
"""

import csv
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from peers import load_module
from vitrine.core.console import print_lines
from vitrine.formats.pretrained import COLUMNS

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "src" / "vitrine" / "formats" / "pretrained.csv"
LAYOUTS = ROOT / "tests" / "fixtures" / "timm_layouts.json"

# timm's name, family and our name of the network, the largest of each family last.
ROWS = (
    ("vit_tiny_patch16_224.augreg_in21k", "AugReg", "ViT-Ti/16"),
    ("vit_small_patch32_224.augreg_in21k", "AugReg", "ViT-S/32"),
    ("vit_small_patch16_224.augreg_in21k", "AugReg", "ViT-S/16"),
    ("vit_small_r26_s32_224.augreg_in21k", "AugReg", "R26+ViT-S/32"),
    ("vit_base_patch32_224.augreg_in21k", "AugReg", "ViT-B/32"),
    ("vit_base_patch16_224.augreg_in21k", "AugReg", "ViT-B/16"),
    ("vit_large_patch16_224.augreg_in21k", "AugReg", "ViT-L/16"),
    ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "AugReg", "ViT-Ti/16"),
    ("vit_small_patch16_224.augreg_in21k_ft_in1k", "AugReg", "ViT-S/16"),
    ("vit_base_patch16_224.augreg_in21k_ft_in1k", "AugReg", "ViT-B/16"),
    ("vit_large_patch16_224.augreg_in21k_ft_in1k", "AugReg", "ViT-L/16"),
    ("vit_small_patch14_reg4_dinov2.lvd142m", "DINOv2 with registers", "ViT-S/14"),
    ("vit_base_patch14_reg4_dinov2.lvd142m", "DINOv2 with registers", "ViT-B/14"),
    ("vit_large_patch14_reg4_dinov2.lvd142m", "DINOv2 with registers", "ViT-L/14"),
    ("vit_small_patch14_dinov2.lvd142m", "DINOv2", "ViT-S/14"),
    ("vit_base_patch14_dinov2.lvd142m", "DINOv2", "ViT-B/14"),
    ("vit_large_patch14_dinov2.lvd142m", "DINOv2", "ViT-L/14"),
    ("vit_base_patch32_siglip_256.v2_webli", "SigLIP", "ViT-B/32"),
    ("vit_base_patch16_siglip_224.v2_webli", "SigLIP", "ViT-B/16"),
    ("vit_large_patch16_siglip_256.v2_webli", "SigLIP", "ViT-L/16"),
    ("vit_base_patch16_clip_224.datacompxl", "CLIP", "ViT-B/16"),
    ("vit_base_patch16_clip_224.laion2b_ft_in12k_in1k", "CLIP", "ViT-B/16"),
    ("vit_large_patch14_clip_224.laion2b", "CLIP", "ViT-L/14"),
    ("vit_base_patch16_224.orig_in21k", "ViT", "ViT-B/16"),
    ("vit_large_patch16_224.orig_in21k", "ViT", "ViT-L/16"),
    ("deit3_small_patch16_224.fb_in22k_ft_in1k", "DeiT III", "ViT-S/16"),
    ("deit3_base_patch16_224.fb_in22k_ft_in1k", "DeiT III", "ViT-B/16"),
    ("deit_tiny_patch16_224.fb_in1k", "DeiT", "ViT-Ti/16"),
    ("deit_small_patch16_224.fb_in1k", "DeiT", "ViT-S/16"),
    ("deit_base_patch16_224.fb_in1k", "DeiT", "ViT-B/16"),
    ("deit_base_distilled_patch16_224.fb_in1k", "DeiT distilled", "ViT-B/16"),
    ("vit_base_patch16_224.mae", "MAE", "ViT-B/16"),
    ("resnetv2_50x1_bit.goog_in21k", "BiT", "R50x1"),
    ("resnetv2_101x1_bit.goog_in21k", "BiT", "R101x1"),
    ("resnetv2_152x2_bit.goog_in21k", "BiT", "R152x2"),
)

# ImageNet top-1 after fine-tuning at 384 pixels, from the README of google-research/vision_transformer.
README = "vision_transformer README: AugReg of this size at 384 px"
README_TOP1 = {
    "ViT-Ti/16": 78.22,
    "ViT-S/32": 79.58,
    "ViT-S/16": 83.73,
    "R26+ViT-S/32": 83.85,
    "ViT-B/32": 83.59,
    "ViT-B/16": 85.49,
    "ViT-L/16": 85.59,
}
# The same in table 5 of arXiv:2010.11929, pre-trained on ImageNet-21k.
TABLE_5 = "arXiv:2010.11929, table 5: at 384 px"
TABLE_5_TOP1 = {"ViT-B/16": 83.97, "ViT-L/16": 85.15}


def find_top1(timm: Any, name: str, model: str) -> tuple[float | None, str]:
    """Return the published figure of a row and its source; None and an empty source if there is none for these weights."""
    if name.endswith(".orig_in21k"):
        return TABLE_5_TOP1[model], TABLE_5
    if name.endswith(".augreg_in21k") and is_fine_tuned_at_384(timm, name):
        return README_TOP1[model], README
    return None, ""


def is_fine_tuned_at_384(timm: Any, name: str) -> bool:
    """Return whether timm's 384-pixel model of this size was fine-tuned from these weights, by the names of the released files.

    The README's figures are of fine-tuning at 384 pixels. timm's B/32 for 384 pixels began from weights of other settings than
    its B/32 for 224 pixels, so the figure may not belong to the latter.
    """
    upstream = timm.models.get_pretrained_cfg(name).url.removesuffix(".npz")
    tuned = timm.models.get_pretrained_cfg(name.replace("_224.", "_384.") + "_ft_in1k").url
    return tuned.startswith(f"{upstream}--imagenet2012")


def build_row(timm: Any, network: nn.Module, name: str, family: str, model: str) -> dict[str, Any]:
    """Return a row of the table, by column."""
    metadata = timm.models.get_pretrained_cfg(name)
    _, height, width = metadata.input_size
    assert height == width
    top1, source = find_top1(timm, name, model)
    return {
        "name": f"hf://{metadata.hf_hub_id}",
        "family": family,
        "model": model,
        "licence": metadata.license,
        "image_size": height,
        "num_classes": metadata.num_classes,
        "num_parameters": sum(parameter.numel() for parameter in network.parameters()),
        "imagenet_top1": top1,
        "source": source,
    }


def describe_layout(timm: Any, network: Any) -> dict[str, Any]:
    """Return what a repository of timm's holds, config.json and the shape of every tensor, and what neither of them shows."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        timm.models._hub.save_config_for_hf(network, path)  # what push_to_hub writes
        config = json.loads(path.read_text())
    shapes = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    return {"config": config, "hidden": describe_arithmetic(network), "tensors": join_blocks(shapes)}


def describe_arithmetic(network: Any) -> dict[str, Any]:
    """Return number of heads, epsilons and GELU(1) of timm's network; the last tells the kinds of GELU apart."""
    if not hasattr(network, "patch_embed"):
        return {"norm_eps": network.norm.eps, "standardise_eps": network.stem.conv.eps}
    block = network.blocks[0]
    gelu = float(block.mlp.act(torch.ones(())))
    return {"num_heads": block.attn.num_heads, "norm_eps": block.norm1.eps, "gelu": round(gelu, 6)}


def join_blocks(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the shapes with equal tensors of successive blocks as one entry: blocks.0-11.norm1.weight."""
    joined: dict[tuple[str, str], list[tuple[int, int, list[int]]]] = {}
    plain: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        match = re.fullmatch(r"(.*\bblocks\.)(\d+)(\..*)", name)
        if match is None:
            plain[name] = shape
            continue
        index, runs = int(match[2]), joined.setdefault((match[1], match[3]), [])
        if runs and runs[-1][1:] == (index - 1, shape):
            runs[-1] = (runs[-1][0], index, shape)
        else:
            runs.append((index, index, shape))
    blocks = {f"{key[0]}{first}-{last}{key[1]}": shape for key, runs in joined.items() for first, last, shape in runs}
    return plain | blocks


def main() -> None:
    """Write both files."""
    timm = load_module("timm")
    rows, layouts = [], dict[str, Any]()
    for name, family, model in ROWS:
        with torch.device("meta"):
            network = timm.create_model(name)
        rows.append(build_row(timm, network, name, family, model))
        layouts[rows[-1]["name"]] = describe_layout(timm, network)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(layout)}" for name, layout in layouts.items())
    LAYOUTS.write_text(f"{{\n{lines}\n}}\n")
    print_lines(f"{len(rows)} starting points of timm {timm.__version__} in {TABLE.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
