"""Hugging Face's ViT, DeiT and BiT folders: config.json, preprocessor_config.json, model.safetensors.

Reads the names of transformers 4 and 5, writes those of 5. The configuration holds nearly everything there, so it is read
and checked against the tensors.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from vitrine.core.console import warn_user
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.formats.base import (
    CheckpointFormat,
    ForeignCheckpoint,
    InferredModel,
    add_class_positions,
    compute_grid,
    positions_to_table,
    refuse_options,
    rename,
    require_transformer,
    resolve_grid,
    resolve_num_heads,
    resolve_preprocessing,
    resolve_vit,
)
from vitrine.formats.bit import require_bit
from vitrine.formats.huggingface_config import parse_processor, parse_size
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import Layout, TensorMapping, pair
from vitrine.formats.timm import PORTED_STANDARDISE_EPS, infer_stages
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig, as_image_size
from vitrine.models.model import Model

# Names of transformers 4, in the order in which they are replaced.
OLD_NAMES = [
    (r"encoder\.layer\.(\d+)\.", r"layers.\1."),
    (r"\.attention\.attention\.query\.", ".attention.q_proj."),
    (r"\.attention\.attention\.key\.", ".attention.k_proj."),
    (r"\.attention\.attention\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
]
FAMILY = r"^(vit|deit|bit)\."
HEADS = ("classifier.weight", "cls_classifier.weight", "classifier.1.weight")
GELUS = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}
PATCHES = "embeddings.patch_embeddings.projection"
ROOT = "embedder.convolution.weight"
USUAL_BIT = {
    "layer_type": "preactivation",
    "global_padding": None,
    "embedding_dynamic_padding": False,
    "hidden_act": "relu",
    "output_stride": 32,
}


class HuggingFace(CheckpointFormat):
    name = "hf"
    container = "folder"
    gelu = "erf"
    norm_eps = 1e-12

    def matches(self, names: Iterable[str]) -> bool:
        return any(name.endswith((f"{PATCHES}.weight", ROOT)) for name in names)

    def tidy(self, tensors: Tensors) -> Tensors:
        bare = rename(tensors, [(FAMILY, ""), *OLD_NAMES])
        prefix = family_prefix(bare)
        if prefix in ("vit.", "deit.") and "pooler.dense.weight" in bare:
            warn_user("The pooler beside the classifier was left out, as transformers does: the classifier does not read it.")
            bare = {name: stored for name, stored in bare.items() if not name.startswith("pooler.")}
        return {name if "classifier" in name else f"{prefix}{name}": stored for name, stored in bare.items()}

    def describe(self, given: ForeignCheckpoint) -> InferredModel:
        prefix = family_prefix(re.sub(FAMILY, "", name) for name in given.tensors)
        if f"{prefix}{ROOT}" in given.tensors:
            config = infer_bit(given, prefix)
        else:
            gelu, norm_eps = read_choices(given)
            config = resolve_vit(given, self, infer_vit(given, prefix), gelu, norm_eps)
        return InferredModel(config, describe_preprocessing(given, config), read_class_names(given, config))

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        if isinstance(model.config, ResNetConfig):
            return require_bit(self, model.config), dict(model.state_dict())
        config = require_transformer(self, model.config)
        refuse_options(self, config, "mlp", "layer_scale", "num_registers")
        if config.pool != "class":
            raise self.refuse(f"a model with pool={config.pool!r}")
        if config.hidden_head and config.num_classes > 0:
            raise self.refuse("a hidden layer before a head (one without a head it can: add --num-classes 0)")
        return add_class_positions(*positions_to_table(model))

    def layout(self, config: ModelConfig) -> Layout:
        if isinstance(config, ResNetConfig):
            return list(bit_entries(config))
        assert isinstance(config, ViTConfig)
        return list(vit_entries(config))


HUGGING_FACE = HuggingFace()


def family_prefix(bare: Iterable[str]) -> str:
    """A classifier keeps its network under the family's name; the network alone has no prefix."""
    names = set(bare)
    if not names & set(HEADS):
        return ""
    return "bit." if ROOT in names else "deit." if "embeddings.distillation_token" in names else "vit."


def infer_vit(given: ForeignCheckpoint, prefix: str) -> ViTConfig:
    said = given.config or {}
    kind = said.get("model_type", "vit")
    if kind not in ("vit", "deit"):
        raise ValueError(f"{given.source} is of Hugging Face's model type {kind!r}; read are vit, deit and bit.")
    width, channels, p, _ = given.shape(f"{prefix}{PATCHES}.weight", 4)
    depth = given.count(rf"{prefix}layers\.(\d+)\.")
    mlp_dim, _ = given.shape(f"{prefix}layers.0.mlp.fc1.weight", 2)
    require_agreement(given, {"hidden_size": width, "num_hidden_layers": depth, "intermediate_size": mlp_dim, "patch_size": p})
    has_distillation = f"{prefix}embeddings.distillation_token" in given.tensors
    num_readout = 1 + int(has_distillation)
    image_size = read_image_size(given)
    known_grid = None if image_size is None else compute_grid(image_size, p, None)
    num_positions = given.shape(f"{prefix}embeddings.position_embeddings", 3)[1]
    grid, _ = resolve_grid(given, num_positions, (num_readout,), known_grid)
    if image_size is None or grid != known_grid:
        image_size = (grid[0] * p, grid[1] * p)
    head = next((name for name in HEADS if name in given.tensors), None)
    return ViTConfig(
        width=width,
        depth=depth,
        num_heads=resolve_num_heads(given, width, mlp_dim, given.read_count(given.config or {}, "num_attention_heads")),
        mlp_dim=mlp_dim,
        patch_size=p,
        num_channels=channels,
        image_size=image_size,
        num_classes=0 if head is None else given.shape(head, 2)[0],
        hidden_head=f"{prefix}pooler.dense.weight" in given.tensors,
        distillation_token=has_distillation,
    )


def infer_bit(given: ForeignCheckpoint, prefix: str) -> ResNetConfig:
    for name, value in USUAL_BIT.items():
        said = (given.config or {}).get(name, value)
        if said != value and (said or value):  # no padding is None or empty
            raise ValueError(f"{given.source} has {name}={said!r}; read are BiT's with {name}={value!r}.")
    root_dim, channels, *_ = given.shape(f"{prefix}{ROOT}", 4)
    return ResNetConfig(
        stages=infer_stages(given, f"{prefix}encoder.", units="layers"),
        width_factor=root_dim / 64,
        num_channels=channels,
        num_groups=given.read_count(given.config or {}, "num_groups") or 32,
        num_classes=given.shape("classifier.1.weight", 2)[0] if "classifier.1.weight" in given.tensors else 0,
        standardise_eps=PORTED_STANDARDISE_EPS,
        image_size=read_crop(given) or (224, 224),
    )


def require_agreement(given: ForeignCheckpoint, seen: dict[str, int]) -> None:
    for name, value in seen.items():
        said = (given.config or {}).get(name, value)
        if said != value:
            raise ValueError(f"{given.source}: config.json says {name}={said!r}, and the tensors show {value}.")


def read_choices(given: ForeignCheckpoint) -> tuple[str | None, float | None]:
    """The kind of GELU and LayerNorm's epsilon, as far as config.json says them."""
    if given.config is None:
        return None, None
    activation = given.config.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in GELUS:
        raise ValueError(f"{given.source} has hidden_act={activation!r}; read are {', '.join(GELUS)}.")
    if given.config.get("pooler_act", "tanh") != "tanh" and any("pooler.dense" in name for name in given.tensors):
        raise ValueError(f"{given.source} has pooler_act={given.config['pooler_act']!r}; read is 'tanh'.")
    norm_eps = given.config.get("layer_norm_eps", HUGGING_FACE.norm_eps)
    if not isinstance(norm_eps, float) or not 0 < norm_eps < 1:
        raise ValueError(f"{given.source} has layer_norm_eps={norm_eps!r}; needed is a small number, as 1e-12.")
    return GELUS[activation], norm_eps


def read_image_size(given: ForeignCheckpoint) -> tuple[int, int] | None:
    """One number or two. Where config.json leaves it out, the library's own default of 224 holds."""
    if given.config is None:
        return None
    match given.config.get("image_size", 224):
        case [int() as height, int() as width]:
            return height, width
        case int() as side:
            return as_image_size(side)
        case other:
            raise ValueError(f"{given.source}: config.json says image_size={other!r}; needed is a number or two.")


def read_class_names(given: ForeignCheckpoint, config: ModelConfig) -> tuple[str, ...] | None:
    """`id2label`, unless its names are the ones that the library makes up."""
    labels = (given.config or {}).get("id2label")
    if not isinstance(labels, dict) or config.num_classes == 0:
        return None
    names = [labels.get(str(index)) for index in range(config.num_classes)]
    if not all(isinstance(name, str) for name in names) or names == [f"LABEL_{index}" for index in range(config.num_classes)]:
        return None
    return tuple(str(name) for name in names)


def describe_preprocessing(given: ForeignCheckpoint, config: ModelConfig) -> Preprocessing:
    if given.processor is not None and given.facts.preprocess is None:
        return parse_processor(given.processor, config)
    is_deit = isinstance(config, ViTConfig) and config.distillation_token
    build = build_imagenet_preprocessing if is_deit else build_inception_preprocessing
    return resolve_preprocessing(given, build(config.image_size, config.num_channels))


def read_crop(given: ForeignCheckpoint) -> tuple[int, int] | None:
    """The size of BiT's images, which its own configuration does not hold."""
    said = given.processor or {}
    size = parse_size(said.get("crop_size") or said.get("size"))
    return as_image_size(size) if size is not None else None


def vit_entries(config: ViTConfig) -> Iterator[TensorMapping]:
    d, p = config.width, config.patch_size
    prefix = "" if config.num_classes == 0 else "deit." if config.distillation_token else "vit."
    embeddings = f"{prefix}embeddings"
    yield TensorMapping("class_token", (f"{embeddings}.cls_token",), shape=(1, 1, d))
    if config.distillation_token:
        yield TensorMapping("distillation_token", (f"{embeddings}.distillation_token",), shape=(1, 1, d))
    num_positions = config.num_position_rows + config.num_patches
    yield TensorMapping("positions.0.table", (f"{embeddings}.position_embeddings",), shape=(1, num_positions, d))
    yield TensorMapping("patches.projection.weight", (f"{prefix}{PATCHES}.weight",), shape=(d, config.num_channels, p, p))
    yield TensorMapping("patches.projection.bias", (f"{prefix}{PATCHES}.bias",))
    for index in range(config.depth):
        yield from block_entries(f"blocks.{index}", f"{prefix}layers.{index}")
    yield from pair("norm", f"{prefix}layernorm")
    if config.hidden_head:
        yield from pair("hidden_head.dense", f"{prefix}pooler.dense")
    if config.num_classes > 0:
        yield from pair("head", "cls_classifier" if config.distillation_token else "classifier")
        if config.distillation_token:
            yield from pair("head_distillation", "distillation_classifier")


def block_entries(ours: str, theirs: str) -> Iterator[TensorMapping]:
    yield from pair(f"{ours}.norm_attention", f"{theirs}.layernorm_before")
    for last in ("weight", "bias"):
        yield TensorMapping(f"{ours}.attention.qkv.{last}", tuple(f"{theirs}.attention.{name}_proj.{last}" for name in "qkv"))
    yield from pair(f"{ours}.attention.out", f"{theirs}.attention.o_proj")
    yield from pair(f"{ours}.norm_mlp", f"{theirs}.layernorm_after")
    yield from pair(f"{ours}.mlp.hidden", f"{theirs}.mlp.fc1")
    yield from pair(f"{ours}.mlp.out", f"{theirs}.mlp.fc2")


def bit_entries(config: ResNetConfig) -> Iterator[TensorMapping]:
    prefix = "" if config.num_classes == 0 else "bit."
    yield TensorMapping("root.conv.weight", (f"{prefix}{ROOT}",))
    for stage, unit, has_projection in config.units():
        ours, theirs = f"blocks.{stage}.{unit}", f"{prefix}encoder.stages.{stage}.layers.{unit}"
        for number in (1, 2, 3):
            yield from pair(f"{ours}.norm{number}", f"{theirs}.norm{number}")
            yield TensorMapping(f"{ours}.conv{number}.weight", (f"{theirs}.conv{number}.weight",))
        if has_projection:
            yield TensorMapping(f"{ours}.projection.weight", (f"{theirs}.downsample.conv.weight",))
    yield from pair("norm", f"{prefix}norm")
    if config.num_classes > 0:
        yield from pair("head", "classifier.1")
