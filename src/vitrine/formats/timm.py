"""timm's state dicts and config.json: ViT, DeiT (distilled too), DeiT-III, DINOv2, hybrids, BiT.

The files released by DeiT's and DINOv2's authors are read too: timm took over their names with few changes.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from vitrine.core.console import join_names
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel, Stored, positions_to_table, rename
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import TensorMapping, map_layers
from vitrine.models.config import HybridConfig, ModelConfig, Pool, ResNetConfig, ViTConfig, resnet_grid
from vitrine.models.model import Model
from vitrine.models.patches import compute_stride

PATCHES = "patch_embed.proj.weight"
BACKBONE = "patch_embed.backbone"
# timm and Hugging Face use this epsilon in BiT's standardised convolutions, instead of the released 1e-10.
PORTED_STANDARDISE_EPS = 1e-8

POOLS: dict[str, Pool] = {"token": "class", "avg": "mean", "map": "map"}
# Arguments of timm's models that tensors show, or that only matter in training.
IGNORED_ARGUMENTS = {
    *("depth", "embed_dim", "patch_size", "mlp_ratio", "num_classes", "in_chans", "class_token", "reg_tokens", "init_values"),
    *("no_embed_class", "fc_norm", "qkv_bias", "drop_rate", "drop_path_rate", "proj_drop_rate", "pos_drop_rate"),
    *("attn_drop_rate", "patch_drop_rate", "weight_init", "dynamic_img_size", "layers", "width_factor"),
}
DINOV2_NAMES = [(r"^register_tokens$", "reg_token"), (r"\.mlp\.w12\.", ".mlp.fc1."), (r"\.mlp\.w3\.", ".mlp.fc2.")]
TANH_ARCHITECTURES = re.compile(r"vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip|large_patch16_siglip_(gap_)?512)")


class Timm(CheckpointFormat):
    """State dicts of timm, alone or with the config.json of its hub folders."""

    name = "timm"
    container = "torch"
    gelu = "erf"

    def matches(self, names: Iterable[str]) -> bool:
        names = set(names)
        return PATCHES in names or {"stem.conv.weight", "stages.0.blocks.0.conv1.weight"} <= names

    def normalise_names(self, tensors: Tensors) -> Tensors:
        """Rename the tensors of DINOv2's own files; drop its mask token, which is used in pre-training only."""
        kept = {name: tensor for name, tensor in tensors.items() if name != "mask_token"}
        return rename(kept, DINOV2_NAMES)

    def infer_model(self, foreign: ForeignCheckpoint) -> InferredModel:
        """Infer a ViT, hybrid or BiT ResNet from its tensors and config.json."""
        stated = read_timm_config(foreign)
        if PATCHES in foreign.tensors:
            config = self.resolve_vit(foreign, infer_vit(foreign, stated), gelu=stated.gelu)
        else:
            config = infer_resnet(foreign, stated)
        default = build_imagenet_preprocessing(config.image_size, config.num_channels)
        parse = None if stated.preprocessing is None else partial(parse_preprocessing, stated.preprocessing, config)
        return InferredModel(config, foreign.resolve_preprocessing(default, parse))

    def to_storable(self, model: Model[Any]) -> Stored:
        """Return the model with one position table; class positions are folded into the tokens if there are registers."""
        if isinstance(model.config, ResNetConfig):
            if not model.config.stages:
                raise self.unsupported("a ResNet without stages")
            return self.require_bit(model)
        config = self.require_transformer(model.config, "hidden_head", hybrid=True)
        if config.pool == "map" and config.num_prefix_tokens > 0:
            raise self.unsupported("pool='map' with prefix tokens, which timm's pooling would read too")
        if config.pool == "mean" and config.has_class_token and not config.norm_after_pool:
            raise self.unsupported("a class token with pool='mean' and a norm before the pool")
        # timm stores positions for all prefix tokens or for none, and registers have none.
        return positions_to_table(model, "fold" if config.num_registers > 0 else "keep")

    def tensor_mappings(self, config: ViTConfig | ResNetConfig) -> Iterator[TensorMapping]:
        return map_resnet(config, "", "") if isinstance(config, ResNetConfig) else map_vit(config)


TIMM = Timm()


@dataclass(frozen=True)
class TimmConfig:
    """Settings that timm's config.json states and tensors do not show; all None for a bare file."""

    preprocessing: dict[str, Any] | None = None
    image_size: tuple[int, int] | None = None
    num_heads: int | None = None
    gelu: Literal["tanh", "erf"] | None = None
    pool: Pool | None = None


def read_timm_config(foreign: ForeignCheckpoint) -> TimmConfig:
    """Read the config.json beside timm's weights; an argument that we do not know is an error."""
    content = foreign.config or {}
    pretrained, arguments = content.get("pretrained_cfg"), content.get("model_args") or {}
    if not isinstance(pretrained, dict):
        return TimmConfig()
    if not isinstance(arguments, dict):
        raise ValueError(f"{foreign.source}: model_args of config.json must be a JSON object.")
    unknown = sorted(arguments.keys() - IGNORED_ARGUMENTS - {"img_size", "num_heads", "act_layer", "global_pool"})
    if unknown:
        raise ValueError(f"{foreign.source}: config.json has model_args that are not supported: {join_names(unknown)}.")
    pool = arguments.get("global_pool", content.get("global_pool"))
    return TimmConfig(
        preprocessing=pretrained,
        image_size=parse_input_size(arguments.get("img_size")) or parse_input_size(pretrained.get("input_size")),
        num_heads=foreign.read_count(arguments, "num_heads"),
        gelu=parse_activation(foreign, arguments.get("act_layer"), content.get("architecture")),
        pool=POOLS.get(pool) if isinstance(pool, str) else None,
    )


def parse_activation(foreign: ForeignCheckpoint, activation: object, architecture: object) -> Literal["tanh", "erf"] | None:
    """Return the kind of GELU that act_layer or the architecture states (tanh in some SigLIP models)."""
    if activation is None:
        return "tanh" if TANH_ARCHITECTURES.match(str(architecture)) else None
    if activation not in ("gelu", "gelu_tanh"):
        raise ValueError(f"{foreign.source}: config.json has act_layer={activation!r}; supported are gelu and gelu_tanh.")
    return "tanh" if activation == "gelu_tanh" else "erf"


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

    timm resizes the short side to the input size divided by `crop_pct`, rounded down; crop_mode "squash" resizes both sides.
    """
    default = build_imagenet_preprocessing(config.image_size, config.num_channels)
    crop_pct = pretrained.get("crop_pct", 0.875)
    if not isinstance(crop_pct, int | float) or not 0.01 <= crop_pct <= 2:
        raise ValueError(f"config.json has crop_pct={crop_pct!r}; expected a fraction of the image, e.g. 0.875.")
    height, width = (math.floor(side / crop_pct) for side in config.image_size)
    return Preprocessing.from_json(
        {
            "resize": [height, width] if pretrained.get("crop_mode") == "squash" else min(height, width),
            "crop": list(config.image_size),
            "interpolation": pretrained.get("interpolation", default.interpolation),
            "mean": pretrained.get("mean", default.mean),
            "std": pretrained.get("std", default.std),
        }
    )


def infer_vit(foreign: ForeignCheckpoint, stated: TimmConfig) -> ViTConfig:
    """Infer the config of a ViT or hybrid from its tensors and config.json."""
    width, channels, p, _ = foreign.shape(PATCHES, 4)
    num_hidden, _ = foreign.shape("blocks.0.mlp.fc1.weight", 2)
    _, mlp_dim = foreign.shape("blocks.0.mlp.fc2.weight", 2)
    values: dict[str, Any] = {
        "width": width,
        "depth": foreign.count(r"blocks\.(\d+)\."),
        "num_heads": foreign.resolve_num_heads(width, mlp_dim, stated.num_heads),
        "mlp_dim": mlp_dim,
        "patch_size": p,
        "num_channels": channels,
        "mlp": "swiglu" if num_hidden == 2 * mlp_dim else "gelu",
        "num_classes": foreign.shape("head.weight", 2)[0] if "head.weight" in foreign.tensors else 0,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in foreign.tensors else None,
        **infer_tokens(foreign, stated),
    }
    is_hybrid = any(name.startswith(f"{BACKBONE}.") for name in foreign.tensors)
    if is_hybrid:
        # The epsilons stay those of the released code, with which the known hybrids were trained; timm's are a little larger.
        root = f"{BACKBONE}.stem" if f"{BACKBONE}.stem.conv.weight" in foreign.tensors else BACKBONE
        root_dim, channels, *_ = foreign.shape(f"{root}.conv.weight", 4)
        stages = infer_stages(foreign, f"{BACKBONE}.")
        values |= {"num_channels": channels, "stem_stages": stages, "stem_width_factor": root_dim / 64}
    kind = HybridConfig if is_hybrid else ViTConfig
    return kind(**values, **infer_positions(foreign, p, values.get("stem_stages"), stated))


def infer_tokens(foreign: ForeignCheckpoint, stated: TimmConfig) -> dict[str, Any]:
    """Infer the config fields of the prefix tokens and of pooling."""
    has = foreign.tensors.__contains__
    shown = "map" if has("attn_pool.latent") else "class" if has("cls_token") and not has("fc_norm.weight") else "mean"
    pool = stated.pool or shown
    if pool == "map" and (has("cls_token") or has("reg_token")):
        raise ValueError(f"{foreign.source} pools by attention over prefix tokens too, which is not supported.")
    return {
        "pool": pool,
        "norm_after_pool": has("fc_norm.weight"),
        "hidden_head": has("pre_logits.fc.weight"),
        "class_token": True if has("cls_token") and pool != "class" else None,
        "distillation_token": has("dist_token"),
        "num_registers": foreign.shape("reg_token", 3)[1] if has("reg_token") else 0,
    }


def infer_positions(
    foreign: ForeignCheckpoint, patch_size: int, stem_stages: tuple[int, ...] | None, stated: TimmConfig
) -> dict[str, Any]:
    """Infer the config fields of image size and position embeddings; `stem_stages` is None without a ResNet stem."""
    num_readout = sum(name in foreign.tensors for name in ("cls_token", "dist_token"))
    stride, stated_grid = compute_stride(patch_size, stem_stages), None
    if stated.image_size is not None:
        size = stated.image_size if stem_stages is None else resnet_grid(stated.image_size, len(stem_stages))
        stated_grid = size[0] // patch_size, size[1] // patch_size
    if "pos_embed" not in foreign.tensors:
        grid, options = foreign.resolve_unseen_grid(stride, stated_grid), {"position": "none"}
    else:
        class_rows = (num_readout, 0) if num_readout > 0 else (0,)
        grid, num_rows = foreign.resolve_grid(foreign.shape("pos_embed", 3)[1], class_rows, stated_grid)
        options = {"class_position": None if num_rows == num_readout else False}
    is_stated = stated.image_size is not None and grid == stated_grid
    return {**options, "image_size": stated.image_size if is_stated else (grid[0] * stride, grid[1] * stride)}


def infer_resnet(foreign: ForeignCheckpoint, stated: TimmConfig) -> ResNetConfig:
    """Infer the config of a BiT ResNet from its tensors and config.json."""
    root_dim, channels, *_ = foreign.shape("stem.conv.weight", 4)
    return ResNetConfig(
        stages=infer_stages(foreign, ""),
        width_factor=root_dim / 64,
        num_channels=channels,
        num_classes=foreign.shape("head.fc.weight", 4)[0] if "head.fc.weight" in foreign.tensors else 0,
        standardise_eps=PORTED_STANDARDISE_EPS,
        image_size=stated.image_size or (224, 224),
    )


def infer_stages(foreign: ForeignCheckpoint, prefix: str, units: str = "blocks") -> tuple[int, ...]:
    """Count the units of each ResNet stage from names like `PREFIXstages.0.UNITS.2.`."""
    prefix = prefix.replace(".", r"\.")
    num_stages = foreign.count(rf"{prefix}stages\.(\d+)\.")
    return tuple(foreign.count(rf"{prefix}stages\.{stage}\.{units}\.(\d+)\.") for stage in range(num_stages))


def map_vit(config: ViTConfig) -> Iterator[TensorMapping]:
    """Map all tensors of a ViT or hybrid."""
    d, p = config.width, config.patch_size
    if isinstance(config, HybridConfig):
        yield from map_resnet(config.stem, "stem.", f"{BACKBONE}.")
    yield TensorMapping("patches.projection.weight", (PATCHES,), shape=(d, config.patch_channels, p, p))
    yield TensorMapping("patches.projection.bias", ("patch_embed.proj.bias",))
    if config.has_class_token:
        yield TensorMapping("class_token", ("cls_token",), shape=(1, 1, d))
    if config.distillation_token:
        yield TensorMapping("distillation_token", ("dist_token",), shape=(1, 1, d))
    if config.num_registers > 0:
        yield TensorMapping("registers", ("reg_token",), shape=(1, config.num_registers, d))
    if config.position == "learned-1d":
        yield TensorMapping("positions.0.table", ("pos_embed",), shape=(1, config.num_positions, d))
    hidden = "mlp.gate_hidden" if config.mlp == "swiglu" else "mlp.hidden"
    for block in (f"blocks.{index}." for index in range(config.depth)):
        layers = {"norm_attention": "norm1", "attention.qkv": "attn.qkv", "attention.out": "attn.proj", "norm_mlp": "norm2"}
        yield from map_layers({**layers, hidden: "mlp.fc1", "mlp.out": "mlp.fc2"}, block, block)
        if config.layer_scale is not None:
            yield TensorMapping(f"{block}branch_attention.scale", (f"{block}ls1.gamma",))
            yield TensorMapping(f"{block}branch_mlp.scale", (f"{block}ls2.gamma",))
    yield from map_layers({"norm": "fc_norm" if config.norm_after_pool else "norm"})
    if config.pool == "map":
        yield TensorMapping("attention_pool.attention.probe", ("attn_pool.latent",), shape=(1, 1, d))
        layers = {"attention.query": "q", "attention.key_value": "kv", "attention.out": "proj", "norm": "norm"}
        yield from map_layers({**layers, hidden: "mlp.fc1", "mlp.out": "mlp.fc2"}, "attention_pool.", "attn_pool.")
    if config.hidden_head:
        yield from map_layers({"hidden_head.dense": "pre_logits.fc"})
    if config.num_classes > 0:
        yield from map_layers({"head": "head"} | ({"head_distillation": "head_dist"} if config.distillation_token else {}))


def map_resnet(config: ResNetConfig, prefix: str, foreign_prefix: str) -> Iterator[TensorMapping]:
    """Map a BiT ResNet, or the post-activation stem of a hybrid, which has more norms."""
    is_stem = config.style == "post-activation"
    root = f"{foreign_prefix}stem." if config.stages else foreign_prefix  # timm does not wrap a root without stages
    yield TensorMapping(f"{prefix}root.conv.weight", (f"{root}conv.weight",))
    if is_stem:
        yield from map_layers({"root.norm": "norm"}, prefix, root)
    for stage, unit, has_projection in config.units():
        name, foreign = f"{prefix}blocks.{stage}.{unit}", f"{foreign_prefix}stages.{stage}.blocks.{unit}"
        for number in (1, 2, 3):
            yield TensorMapping(f"{name}.conv{number}.weight", (f"{foreign}.conv{number}.weight",))
            yield from map_layers({f"{name}.norm{number}": f"{foreign}.norm{number}"})
        if has_projection:
            yield TensorMapping(f"{name}.projection.weight", (f"{foreign}.downsample.conv.weight",))
            if is_stem:
                yield from map_layers({f"{name}.norm_projection": f"{foreign}.downsample.norm"})
    if not is_stem:
        yield from map_layers({"norm": "norm"}, prefix, foreign_prefix)
    if config.num_classes > 0:
        shape = (config.num_classes, config.feature_dim, 1, 1)
        yield TensorMapping(f"{prefix}head.weight", (f"{foreign_prefix}head.fc.weight",), shape=shape)
        yield TensorMapping(f"{prefix}head.bias", (f"{foreign_prefix}head.fc.bias",))
