"""timm's config.json, as its repositories on the hub have it beside the weights."""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from vitrine.core.sentences import list_names
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing
from vitrine.formats.format import Given
from vitrine.models.config import ModelConfig, Pool


@dataclass(frozen=True)
class HubConfig:
    """What timm's config.json on the hub says that tensors do not; nothing, for a bare file."""

    preprocessing: dict[str, Any] | None = None
    image_size: tuple[int, int] | None = None
    num_heads: int | None = None
    gelu: Literal["tanh", "erf"] | None = None
    pool: Pool | None = None


POOLS: dict[str, Pool] = {"token": "class", "avg": "mean", "map": "map"}
# Arguments of timm's models that tensors show, or that matter in training alone.
SEEN_ARGUMENTS = {
    *("depth", "embed_dim", "patch_size", "mlp_ratio", "num_classes", "in_chans", "class_token", "reg_tokens", "init_values"),
    *("no_embed_class", "fc_norm", "qkv_bias", "drop_rate", "drop_path_rate", "proj_drop_rate", "pos_drop_rate"),
    *("attn_drop_rate", "patch_drop_rate", "weight_init", "dynamic_img_size", "layers", "width_factor"),
}
TANH_ARCHITECTURES = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip|vit_large_patch16_siglip_(gap_)?512"
)


def read_hub_config(given: Given) -> HubConfig:
    said = given.config or {}
    pretrained, arguments = said.get("pretrained_cfg"), said.get("model_args") or {}
    if not isinstance(pretrained, dict):
        return HubConfig()
    if not isinstance(arguments, dict):
        raise ValueError(f"{given.source}: config.json's model_args must be an object of JSON.")
    unknown = sorted(arguments.keys() - SEEN_ARGUMENTS - {"img_size", "num_heads", "act_layer", "global_pool"})
    if unknown:
        raise ValueError(f"{given.source}: config.json builds the model with {list_names(unknown)}, which is not known here.")
    pool = arguments.get("global_pool", said.get("global_pool"))
    return HubConfig(
        preprocessing=pretrained,
        image_size=parse_input_size(arguments.get("img_size")) or parse_input_size(pretrained.get("input_size")),
        num_heads=given.read_count(arguments, "num_heads"),
        gelu=parse_activation(given, arguments.get("act_layer"), said.get("architecture")),
        pool=POOLS.get(pool) if isinstance(pool, str) else None,
    )


def parse_activation(given: Given, activation: object, architecture: object) -> Literal["tanh", "erf"] | None:
    """timm's ViTs compute with erf, a few of its SigLIP ones and whoever says so with tanh."""
    if activation is None:
        return "tanh" if TANH_ARCHITECTURES.match(str(architecture)) else None
    if activation not in ("gelu", "gelu_tanh"):
        raise ValueError(f"{given.source}: config.json says act_layer={activation!r}; read are gelu and gelu_tanh.")
    return "tanh" if activation == "gelu_tanh" else "erf"


def parse_input_size(size: object) -> tuple[int, int] | None:
    """One number, two, or three with the channels first."""
    match size:
        case int() as side if side > 0:
            return side, side
        case [int() as height, int() as width] | [int(), int() as height, int() as width] if min(height, width) > 0:
            return height, width
    return None


def parse_preprocessing(known: dict[str, Any], config: ModelConfig) -> Preprocessing:
    """timm resizes the short side to the input's over `crop_pct`, rounded down; "squash" forgets the aspect."""
    usual = build_imagenet_preprocessing(config.image_size, config.num_channels)
    crop_pct = known.get("crop_pct", 0.875)
    if not isinstance(crop_pct, int | float) or not 0.01 <= crop_pct <= 2:
        raise ValueError(f"config.json says crop_pct={crop_pct!r}; needed is a share of the image, as 0.875.")
    height, width = (math.floor(side / crop_pct) for side in config.image_size)
    return Preprocessing.from_json(
        {
            "resize": [height, width] if known.get("crop_mode") == "squash" else min(height, width),
            "crop": list(config.image_size),
            "interpolation": known.get("interpolation", usual.interpolation),
            "mean": known.get("mean", usual.mean),
            "std": known.get("std", usual.std),
        }
    )
