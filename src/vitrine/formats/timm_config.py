"""config.json of timm's hub folders: preprocessing, image size, and what the architecture's name stands for."""

import math
import re
from dataclasses import dataclass
from typing import Any

from vitrine.core.console import join_names
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing
from vitrine.formats.base import ForeignCheckpoint
from vitrine.models.config import Gelu, ModelConfig, Pool

POOLS: dict[str, Pool] = {"token": "class", "avg": "mean", "map": "map"}
# Arguments of timm's models that tensors show, or that only matter in training.
IGNORED_ARGUMENTS = {
    *("depth", "embed_dim", "patch_size", "mlp_ratio", "num_classes", "in_chans", "class_token", "reg_tokens", "init_values"),
    *("no_embed_class", "fc_norm", "qkv_bias", "pre_norm", "drop_rate", "drop_path_rate", "proj_drop_rate", "pos_drop_rate"),
    *("attn_drop_rate", "patch_drop_rate", "weight_init", "fix_init", "dynamic_img_size", "layers", "width_factor"),
}
READ_ARGUMENTS = {"img_size", "num_heads", "act_layer", "global_pool"}
GELUS: dict[str, Gelu] = {"gelu": "erf", "gelu_tanh": "tanh", "quick_gelu": "quick"}
# What names of timm's architectures stand for, where it is neither timm's default nor shown by the tensors.
TANH = re.compile(r"vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip|large_patch16_siglip_(gap_)?512)")
CLIP = re.compile(r"vit_\w+_clip_")
NUM_HEADS = {"vit_base_patch16_gap_224": 16}
UNSUPPORTED = {
    "_rpn_": "normalises each branch after its layers instead of before them",
    "vit_pe_": "has rotary positions",
    "test_vit3": "pools by attention over its registers too",
}


@dataclass(frozen=True)
class TimmConfig:
    """Settings that timm's config.json states and tensors do not show; all None for a bare file."""

    preprocessing: dict[str, Any] | None = None
    image_size: tuple[int, int] | None = None
    num_heads: int | None = None
    gelu: Gelu | None = None
    norm_eps: float | None = None
    pool: Pool | None = None
    architecture: str = ""


def read_timm_config(foreign: ForeignCheckpoint) -> TimmConfig:
    """Read the config.json beside timm's weights; an argument that we do not know is an error."""
    content = foreign.config or {}
    pretrained, arguments = content.get("pretrained_cfg"), content.get("model_args") or {}
    if not isinstance(pretrained, dict):
        return TimmConfig()
    if not isinstance(arguments, dict):
        raise ValueError(f"{foreign.source}: model_args of config.json must be a JSON object.")
    unknown = sorted(arguments.keys() - IGNORED_ARGUMENTS - READ_ARGUMENTS)
    if unknown:
        raise ValueError(f"{foreign.source}: config.json has model_args that are not supported: {join_names(unknown)}.")
    architecture = content["architecture"] if isinstance(content.get("architecture"), str) else ""
    for part, reason in UNSUPPORTED.items():
        if part in architecture:
            raise ValueError(f"{foreign.source} is timm's {architecture}, which {reason}: this is not supported.")
    return TimmConfig(
        preprocessing=pretrained,
        image_size=parse_input_size(arguments.get("img_size")) or parse_input_size(pretrained.get("input_size")),
        num_heads=foreign.read_count(arguments, "num_heads") or NUM_HEADS.get(architecture),
        gelu=parse_activation(foreign, arguments.get("act_layer"), architecture),
        norm_eps=1e-5 if CLIP.match(architecture) else None,
        pool=parse_pool(foreign, arguments.get("global_pool", content.get("global_pool"))),
        architecture=architecture,
    )


def parse_pool(foreign: ForeignCheckpoint, pool: object) -> Pool | None:
    """Return the pool that global_pool states; None if it states none."""
    if not pool:
        return None
    if not isinstance(pool, str) or pool not in POOLS:
        raise ValueError(f"{foreign.source}: config.json has global_pool={pool!r}; supported are {', '.join(POOLS)}.")
    return POOLS[pool]


def parse_activation(foreign: ForeignCheckpoint, activation: object, architecture: str) -> Gelu | None:
    """Return the kind of GELU that act_layer or the architecture states (tanh in some SigLIP models, quick in some CLIP)."""
    if activation is None:
        return "tanh" if TANH.match(architecture) else "quick" if "_clip_quickgelu_" in architecture else None
    if not isinstance(activation, str) or activation not in GELUS:
        found = f"config.json has act_layer={activation!r}"
        raise ValueError(f"{foreign.source}: {found}; supported are {', '.join(GELUS)}.")
    return GELUS[activation]


def parse_input_size(size: object) -> tuple[int, int] | None:
    """Return height and width from one number, two, or three with the channels first."""
    match size:
        case int() as side if side > 0:
            return side, side
        case [int() as height, int() as width] | [int(), int() as height, int() as width] if min(height, width) > 0:
            return height, width
    return None


def parse_preprocessing(pretrained: dict[str, Any], config: ModelConfig) -> Preprocessing:
    """Build the preprocessing of a pretrained_cfg.

    timm resizes the short side to the input size divided by `crop_pct`, rounded down; crop_mode "squash" resizes both sides,
    "border" the long side and fills the rest with the mean colour.
    """
    default = build_imagenet_preprocessing(config.image_size, config.num_channels)
    crop_pct = pretrained.get("crop_pct", 0.875)
    if not isinstance(crop_pct, int | float) or not 0.01 <= crop_pct <= 2:
        raise ValueError(f"config.json has crop_pct={crop_pct!r}; expected a fraction of the image, e.g. 0.875.")
    height, width = (math.floor(side / crop_pct) for side in config.image_size)
    crop_mode = pretrained.get("crop_mode")
    if crop_mode == "border" and crop_pct != 1:
        raise ValueError(f"config.json has crop_mode='border' with crop_pct={crop_pct}; supported is crop_pct=1.")
    return Preprocessing.from_json(
        {
            "resize": [height, width] if crop_mode in ("squash", "border") else min(height, width),
            "letterbox": crop_mode == "border",
            "crop": list(config.image_size),
            "interpolation": pretrained.get("interpolation", default.interpolation),
            "mean": pretrained.get("mean", default.mean),
            "std": pretrained.get("std", default.std),
        }
    )
