"""timm's state dicts: ViT, DeiT (distilled too), DeiT-III, DINOv2, image towers of CLIP and SigLIP, hybrids, BiT.

The files released by DeiT's and DINOv2's authors are read too: timm took over their names with few changes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing
from vitrine.formats.base import (
    CLIP_MEAN,
    CLIP_STD,
    CheckpointFormat,
    ForeignCheckpoint,
    InferredModel,
    Stored,
    positions_to_table,
    rename,
)
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import TensorMapping, map_layers
from vitrine.formats.timm_config import TimmConfig, parse_preprocessing, read_timm_config
from vitrine.models.config import Gelu, HybridConfig, ModelConfig, ResNetConfig, ViTConfig, resnet_grid
from vitrine.models.model import Model
from vitrine.models.patches import compute_stride

PATCHES = "patch_embed.proj.weight"
# Width and patch size of timm's SigLIP models with the tanh GELU; the others have erf.
TANH_SIZES = {(768, 32), (1152, 16), (1536, 16)}
BACKBONE = "patch_embed.backbone"
# timm and Hugging Face use this epsilon in BiT's standardised convolutions, instead of the released 1e-10.
PORTED_STANDARDISE_EPS = 1e-8

DINOV2_NAMES = [(r"^register_tokens$", "reg_token"), (r"\.mlp\.w12\.", ".mlp.fc1."), (r"\.mlp\.w3\.", ".mlp.fc2.")]


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
            config = infer_vit(foreign, stated)
            config = self.resolve_vit(foreign, config, stated.gelu, stated.norm_eps, choose_defaults(config))
        else:
            config = infer_resnet(foreign, stated)
        default = build_default_preprocessing(config)
        parse = None if stated.preprocessing is None else partial(parse_preprocessing, stated.preprocessing, config)
        return InferredModel(config, foreign.resolve_preprocessing(default, parse))

    def to_storable(self, model: Model[Any]) -> Stored:
        """Return the model with one position table; class positions are folded into the tokens if there are registers."""
        if isinstance(model.config, ResNetConfig):
            if not model.config.stages:
                raise self.unsupported("a ResNet without stages")
            return self.require_bit(model)
        config = self.require_transformer(model.config, "hidden_head", hybrid=True, pre_norm=True)
        if config.pre_norm == config.patch_bias:
            raise self.unsupported(f"pre_norm={config.pre_norm} with patch_bias={config.patch_bias}")
        if config.pool == "first":
            raise self.unsupported("a model with pool='first'")
        if config.pool == "map" and config.num_prefix_tokens > 0:
            raise self.unsupported("pool='map' with prefix tokens, which some of timm's models would pool too")
        if config.pool == "mean" and config.has_class_token and not config.norm_after_pool:
            raise self.unsupported("a class token with pool='mean' and a norm before the pool")
        # timm stores positions for all prefix tokens or for none.
        has_all = config.num_registers == 0 or config.register_position
        return positions_to_table(model, "keep" if has_all else "fold")

    def tensor_mappings(self, config: ViTConfig | ResNetConfig) -> Iterator[TensorMapping]:
        return map_resnet(config, "", "") if isinstance(config, ResNetConfig) else map_vit(config)


TIMM = Timm()


def choose_defaults(config: ViTConfig) -> tuple[Gelu, float]:
    """Return GELU and epsilon of timm's models of this shape: CLIP's epsilon, and the GELU of some of its SigLIP models."""
    is_siglip = not config.has_class_token and not config.norm_after_pool and config.num_registers == 0
    is_tanh = (config.width, config.patch_size) in TANH_SIZES or (config.width, *config.image_size) == (1024, 512, 512)
    return "tanh" if is_siglip and is_tanh else "erf", 1e-5 if config.pre_norm else 1e-6


def build_default_preprocessing(config: ModelConfig) -> Preprocessing:
    """Return the preprocessing of most of timm's models: ImageNet's, with CLIP's mean and deviation for CLIP."""
    default = build_imagenet_preprocessing(config.image_size, config.num_channels)
    is_clip = isinstance(config, ViTConfig) and config.pre_norm and config.num_channels == 3
    return replace(default, mean=CLIP_MEAN, std=CLIP_STD) if is_clip else default


def infer_vit(foreign: ForeignCheckpoint, stated: TimmConfig) -> ViTConfig:
    """Infer the config of a ViT or hybrid from its tensors and config.json."""
    reject_other_blocks(foreign, stated)
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
        "pre_norm": "norm_pre.weight" in foreign.tensors,
        "patch_bias": "patch_embed.proj.bias" in foreign.tensors,
        "qkv_bias": "blocks.0.attn.qkv.bias" in foreign.tensors,
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


def reject_other_blocks(foreign: ForeignCheckpoint, stated: TimmConfig) -> None:
    """Raise a ValueError for networks of timm that have a ViT's patch embedding but other blocks."""
    has = foreign.tensors.__contains__
    if has("blocks.0.norm1.weight") and not has("blocks.0.norm1.bias"):
        raise ValueError(f"{foreign.source} has norms without bias (RMSNorm), which are not supported.")
    others = ("blocks.0.attn.qkv.bias", "cls_token", "reg_token", "blocks.0.ls1.gamma")
    if has("fc_norm.weight") and not any(map(has, others)) and not stated.architecture:
        found = f"{foreign.source} may be timm's vit_base_patch16_rpn_224, whose norms after the layers are not supported"
        raise ValueError(f"{found}: if it is not, put timm's config.json beside the weights, named model.safetensors.")


def infer_tokens(foreign: ForeignCheckpoint, stated: TimmConfig) -> dict[str, Any]:
    """Infer the config fields of the prefix tokens and of pooling."""
    has = foreign.tensors.__contains__
    shown = "map" if has("attn_pool.latent") else "class" if has("cls_token") and not has("fc_norm.weight") else "mean"
    pool = stated.pool or shown
    if pool == "map" and (has("cls_token") or has("reg_token")) and not stated.architecture:
        found = f"{foreign.source} does not state whether its attention pooling reads class token and registers too"
        raise ValueError(f"{found}: put timm's config.json beside the weights, named model.safetensors.")
    hidden_head_dim = foreign.shape("pre_logits.fc.weight", 2)[0] if has("pre_logits.fc.weight") else None
    return {
        "pool": pool,
        "norm_after_pool": has("fc_norm.weight"),
        "hidden_head": hidden_head_dim is not None,
        "hidden_head_dim": None if hidden_head_dim == foreign.shape(PATCHES, 4)[0] else hidden_head_dim,
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
        num_registers = foreign.shape("reg_token", 3)[1] if "reg_token" in foreign.tensors else 0
        counts = dict.fromkeys((num_readout, 0, num_readout + num_registers))
        grid, num_rows = foreign.resolve_grid(foreign.shape("pos_embed", 3)[1], tuple(counts), stated_grid)
        has_register_rows = num_rows > num_readout
        options = {"class_position": None if num_rows >= num_readout else False, "register_position": has_register_rows}
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
    if config.patch_bias:
        yield TensorMapping("patches.projection.bias", ("patch_embed.proj.bias",))
    if config.pre_norm:
        yield from map_layers({"pre_norm": "norm_pre"})
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
        layers = {"norm_attention": "norm1", "attention.out": "attn.proj", "norm_mlp": "norm2"}
        yield from map_layers({**layers, hidden: "mlp.fc1", "mlp.out": "mlp.fc2"}, block, block)
        for parameter in ("weight", "bias") if config.qkv_bias else ("weight",):
            yield TensorMapping(f"{block}attention.qkv.{parameter}", (f"{block}attn.qkv.{parameter}",))
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
