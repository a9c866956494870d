"""Timm state dicts and config.json.

timm's config.json, as its repositories on the hub have it beside the weights.
timm's state dicts: ViT, DeiT (distilled too), DeiT-III, DINOv2 with registers and SwiGLU, hybrids, BiT.

Also the names of the files that DeiT's and DINOv2's authors released, which timm took over with few changes.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from vitrine.core.console import join_names
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing
from vitrine.formats.base import (
    CheckpointFormat,
    ForeignCheckpoint,
    InferredModel,
    compute_grid,
    compute_stride,
    fold_class_positions,
    positions_to_table,
    refuse_options,
    rename,
    require_transformer,
    resolve_grid,
    resolve_num_heads,
    resolve_preprocessing,
    resolve_unseen_grid,
    resolve_vit,
)
from vitrine.formats.bit import require_bit
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import Layout, TensorMapping, pair
from vitrine.models.config import HybridConfig, ModelConfig, Pool, ResNetConfig, ViTConfig
from vitrine.models.model import Model


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


def read_hub_config(given: ForeignCheckpoint) -> HubConfig:
    said = given.config or {}
    pretrained, arguments = said.get("pretrained_cfg"), said.get("model_args") or {}
    if not isinstance(pretrained, dict):
        return HubConfig()
    if not isinstance(arguments, dict):
        raise ValueError(f"{given.source}: config.json's model_args must be an object of JSON.")
    unknown = sorted(arguments.keys() - SEEN_ARGUMENTS - {"img_size", "num_heads", "act_layer", "global_pool"})
    if unknown:
        raise ValueError(f"{given.source}: config.json builds the model with {join_names(unknown)}, which is not known here.")
    pool = arguments.get("global_pool", said.get("global_pool"))
    return HubConfig(
        preprocessing=pretrained,
        image_size=parse_input_size(arguments.get("img_size")) or parse_input_size(pretrained.get("input_size")),
        num_heads=given.read_count(arguments, "num_heads"),
        gelu=parse_activation(given, arguments.get("act_layer"), said.get("architecture")),
        pool=POOLS.get(pool) if isinstance(pool, str) else None,
    )


def parse_activation(given: ForeignCheckpoint, activation: object, architecture: object) -> Literal["tanh", "erf"] | None:
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


PATCHES = "patch_embed.proj.weight"
BACKBONE = "patch_embed.backbone"
# timm and Hugging Face guard the deviation in BiT's convolutions by this instead of the released 1e-10.
PORTED_STANDARDISE_EPS = 1e-8


class Timm(CheckpointFormat):
    name = "timm"
    container = "torch"
    gelu = "erf"

    def matches(self, names: Iterable[str]) -> bool:
        names = set(names)
        return PATCHES in names or {"stem.conv.weight", "stages.0.blocks.0.conv1.weight"} <= names

    def tidy(self, tensors: Tensors) -> Tensors:
        # DINOv2's own names. Its mask token serves pre-training alone and is no part of the network.
        kept = {name: stored for name, stored in tensors.items() if name != "mask_token"}
        return rename(
            kept, [(r"^register_tokens$", "reg_token"), (r"\.mlp\.w12\.", ".mlp.fc1."), (r"\.mlp\.w3\.", ".mlp.fc2.")]
        )

    def describe(self, given: ForeignCheckpoint) -> InferredModel:
        said = read_hub_config(given)
        if PATCHES in given.tensors:
            config = resolve_vit(given, self, infer_vit(given, said), gelu=said.gelu)
        else:
            config = infer_resnet(given, said)
        if said.preprocessing is not None and given.facts.preprocess is None:
            return InferredModel(config, parse_preprocessing(said.preprocessing, config))
        usual = build_imagenet_preprocessing(config.image_size, config.num_channels)
        return InferredModel(config, resolve_preprocessing(given, usual))

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        if isinstance(model.config, ResNetConfig):
            if not model.config.stages:
                raise self.refuse("a ResNet of nothing but its root")
            return require_bit(self, model.config), dict(model.state_dict())
        config = require_transformer(self, model.config, hybrid=True)
        refuse_options(self, config, "hidden_head")
        if config.pool == "map" and config.num_prefix_tokens > 0:
            raise self.refuse("pool='map' beside prefix tokens, which timm's reads too")
        if config.pool == "mean" and config.has_class_token and not config.norm_after_pool:
            raise self.refuse("a class token with pool='mean' and a norm before the pool")
        adapted = positions_to_table(model)
        # Without its own rows for registers, timm knows positions for all prefix tokens or for none.
        return fold_class_positions(*adapted) if config.num_registers > 0 else adapted

    def layout(self, config: ModelConfig) -> Layout:
        if isinstance(config, ResNetConfig):
            return list(resnet_entries(config, "", ""))
        assert isinstance(config, ViTConfig)
        return list(vit_entries(config))


TIMM = Timm()


def infer_vit(given: ForeignCheckpoint, said: HubConfig) -> ViTConfig:
    width, channels, p, _ = given.shape(PATCHES, 4)
    is_hybrid = any(name.startswith(f"{BACKBONE}.") for name in given.tensors)
    stem: dict[str, Any] = infer_stem(given) if is_hybrid else {"num_channels": channels}
    sizes = infer_sizes(given, width, p, said) | infer_tokens(given, said)
    image_size, positions = infer_positions(given, p, stem.get("stem_stages"), said)
    kind = HybridConfig if is_hybrid else ViTConfig
    return kind(**sizes, **stem, **positions, image_size=image_size)


def infer_sizes(given: ForeignCheckpoint, width: int, patch_size: int, said: HubConfig) -> dict[str, Any]:
    depth = given.count(r"blocks\.(\d+)\.")
    num_hidden, _ = given.shape("blocks.0.mlp.fc1.weight", 2)
    _, mlp_dim = given.shape("blocks.0.mlp.fc2.weight", 2)
    return {
        "width": width,
        "depth": depth,
        "num_heads": resolve_num_heads(given, width, mlp_dim, said.num_heads),
        "mlp_dim": mlp_dim,
        "patch_size": patch_size,
        "mlp": "swiglu" if num_hidden == 2 * mlp_dim else "gelu",
        "num_classes": given.shape("head.weight", 2)[0] if "head.weight" in given.tensors else 0,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in given.tensors else None,
    }


def infer_tokens(given: ForeignCheckpoint, said: HubConfig) -> dict[str, Any]:
    """Which tokens there are beside the patches, and how features are made of all."""
    has = given.tensors.__contains__
    seen = "map" if has("attn_pool.latent") else "class" if has("cls_token") and not has("fc_norm.weight") else "mean"
    pool = said.pool or seen
    if pool == "map" and (has("cls_token") or has("reg_token")):
        raise ValueError(f"{given.source} pools by attention over prefix tokens too, which no model of ours does.")
    return {
        "pool": pool,
        "norm_after_pool": has("fc_norm.weight"),
        "hidden_head": has("pre_logits.fc.weight"),
        "class_token": True if has("cls_token") and pool != "class" else None,
        "distillation_token": has("dist_token"),
        "num_registers": given.shape("reg_token", 3)[1] if has("reg_token") else 0,
    }


def infer_positions(
    given: ForeignCheckpoint, p: int, stages: tuple[int, ...] | None, said: HubConfig
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The size of the images, and whether the readout tokens have positions."""
    num_readout = sum(name in given.tensors for name in ("cls_token", "dist_token"))
    stride = compute_stride(p, stages)
    known = None if said.image_size is None else compute_grid(said.image_size, p, stages)
    if "pos_embed" not in given.tensors:
        grid, options = resolve_unseen_grid(given, stride, known), {"position": "none"}
    else:
        rows = (num_readout, 0) if num_readout > 0 else (0,)
        grid, num_rows = resolve_grid(given, given.shape("pos_embed", 3)[1], rows, known)
        options = {"class_position": None if num_rows == num_readout else False}
    if said.image_size is not None and grid == known:
        return said.image_size, options
    return (grid[0] * stride, grid[1] * stride), options


def infer_stem(given: ForeignCheckpoint) -> dict[str, Any]:
    """The epsilons stay those of the released code, with which the known hybrids were trained; timm's are a little larger."""
    root = f"{BACKBONE}.stem" if f"{BACKBONE}.stem.conv.weight" in given.tensors else BACKBONE
    root_dim, channels, *_ = given.shape(f"{root}.conv.weight", 4)
    return {"stem_stages": infer_stages(given, f"{BACKBONE}."), "stem_width_factor": root_dim / 64, "num_channels": channels}


def infer_resnet(given: ForeignCheckpoint, said: HubConfig) -> ResNetConfig:
    root_dim, channels, *_ = given.shape("stem.conv.weight", 4)
    return ResNetConfig(
        stages=infer_stages(given, ""),
        width_factor=root_dim / 64,
        num_channels=channels,
        num_classes=given.shape("head.fc.weight", 4)[0] if "head.fc.weight" in given.tensors else 0,
        standardise_eps=PORTED_STANDARDISE_EPS,
        image_size=said.image_size or (224, 224),
    )


def infer_stages(given: ForeignCheckpoint, prefix: str, units: str = "blocks") -> tuple[int, ...]:
    prefix = prefix.replace(".", r"\.")
    num_stages = given.count(rf"{prefix}stages\.(\d+)\.")
    return tuple(given.count(rf"{prefix}stages\.{stage}\.{units}\.(\d+)\.") for stage in range(num_stages))


def vit_entries(config: ViTConfig) -> Iterator[TensorMapping]:
    d, p = config.width, config.patch_size
    if isinstance(config, HybridConfig):
        yield from resnet_entries(config.stem, "stem.", f"{BACKBONE}.")
    yield TensorMapping("patches.projection.weight", (PATCHES,), shape=(d, config.patch_channels, p, p))
    yield TensorMapping("patches.projection.bias", ("patch_embed.proj.bias",))
    if config.has_class_token:
        yield TensorMapping("class_token", ("cls_token",), shape=(1, 1, d))
    if config.distillation_token:
        yield TensorMapping("distillation_token", ("dist_token",), shape=(1, 1, d))
    if config.num_registers > 0:
        yield TensorMapping("registers", ("reg_token",), shape=(1, config.num_registers, d))
    if config.position == "learned-1d":
        yield TensorMapping("positions.0.table", ("pos_embed",), shape=(1, config.num_position_rows + config.num_patches, d))
    for index in range(config.depth):
        yield from block_entries(f"blocks.{index}", config)
    yield from pair("norm", "fc_norm" if config.norm_after_pool else "norm")
    if config.pool == "map":
        yield from attention_pool_entries(config)
    if config.hidden_head:
        yield from pair("hidden_head.dense", "pre_logits.fc")
    if config.num_classes > 0:
        yield from pair("head", "head")
        if config.distillation_token:
            yield from pair("head_distillation", "head_dist")


def block_entries(block: str, config: ViTConfig) -> Iterator[TensorMapping]:
    yield from pair(f"{block}.norm_attention", f"{block}.norm1")
    yield from pair(f"{block}.attention.qkv", f"{block}.attn.qkv")
    yield from pair(f"{block}.attention.out", f"{block}.attn.proj")
    yield from pair(f"{block}.norm_mlp", f"{block}.norm2")
    yield from pair(f"{block}.mlp.gate_hidden" if config.mlp == "swiglu" else f"{block}.mlp.hidden", f"{block}.mlp.fc1")
    yield from pair(f"{block}.mlp.out", f"{block}.mlp.fc2")
    if config.layer_scale is not None:
        yield TensorMapping(f"{block}.branch_attention.scale", (f"{block}.ls1.gamma",))
        yield TensorMapping(f"{block}.branch_mlp.scale", (f"{block}.ls2.gamma",))


def attention_pool_entries(config: ViTConfig) -> Iterator[TensorMapping]:
    ours, theirs = "attention_pool", "attn_pool"
    yield TensorMapping(f"{ours}.attention.probe", (f"{theirs}.latent",), shape=(1, 1, config.width))
    yield from pair(f"{ours}.attention.query", f"{theirs}.q")
    yield from pair(f"{ours}.attention.key_value", f"{theirs}.kv")
    yield from pair(f"{ours}.attention.out", f"{theirs}.proj")
    yield from pair(f"{ours}.norm", f"{theirs}.norm")
    yield from pair(f"{ours}.mlp.gate_hidden" if config.mlp == "swiglu" else f"{ours}.mlp.hidden", f"{theirs}.mlp.fc1")
    yield from pair(f"{ours}.mlp.out", f"{theirs}.mlp.fc2")


def resnet_entries(config: ResNetConfig, ours: str, theirs: str) -> Iterator[TensorMapping]:
    """BiT by itself, or the post-activation stem of a hybrid, which has norms in two more places."""
    is_stem = config.style == "post-activation"
    root = f"{theirs}stem." if config.stages else theirs  # a root alone is not wrapped in a ResNet there
    yield TensorMapping(f"{ours}root.conv.weight", (f"{root}conv.weight",))
    if is_stem:
        yield from pair(f"{ours}root.norm", f"{root}norm")
    for stage, unit, has_projection in config.units():
        mine, other = f"{ours}blocks.{stage}.{unit}", f"{theirs}stages.{stage}.blocks.{unit}"
        for number in (1, 2, 3):
            yield TensorMapping(f"{mine}.conv{number}.weight", (f"{other}.conv{number}.weight",))
            yield from pair(f"{mine}.norm{number}", f"{other}.norm{number}")
        if has_projection:
            yield TensorMapping(f"{mine}.projection.weight", (f"{other}.downsample.conv.weight",))
            if is_stem:
                yield from pair(f"{mine}.norm_projection", f"{other}.downsample.norm")
    if not is_stem:
        yield from pair(f"{ours}norm", f"{theirs}norm")
    if config.num_classes > 0:
        yield TensorMapping(
            f"{ours}head.weight", (f"{theirs}head.fc.weight",), shape=(config.num_classes, config.feature_dim, 1, 1)
        )
        yield TensorMapping(f"{ours}head.bias", (f"{theirs}head.fc.bias",))
