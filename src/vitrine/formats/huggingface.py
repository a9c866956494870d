"""Hugging Face's ViT, DeiT and BiT folders: config.json, preprocessor_config.json, model.safetensors.

Names of transformers 4 and 5 are read, those of 5 are written. config.json states nearly everything, so it is read and checked
against the tensors.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from vitrine.core.console import name_setting, warn_user
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel, Stored, positions_to_table, rename
from vitrine.formats.huggingface_config import parse_size, preprocessing_from_huggingface
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import TensorMapping, map_layers
from vitrine.formats.timm import PORTED_STANDARDISE_EPS, infer_stages
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig, as_image_size
from vitrine.models.model import Model

# From the names of transformers 4 to those of 5, applied in this order.
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
GELUS = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh", "quick_gelu": "quick"}
PATCHES = "embeddings.patch_embeddings.projection"
ROOT = "embedder.convolution.weight"
# Values of BiT's config.json that are supported; they are also the library's defaults.
BIT_VALUES = {
    "layer_type": "preactivation",
    "global_padding": None,
    "embedding_dynamic_padding": False,
    "hidden_act": "relu",
    "output_stride": 32,
}


class HuggingFace(CheckpointFormat):
    """Folders of the transformers library."""

    name = "hf"
    container = "folder"
    gelu = "erf"
    norm_eps = 1e-12

    def matches(self, names: Iterable[str]) -> bool:
        return any(name.endswith((f"{PATCHES}.weight", ROOT)) for name in names)

    def normalise_names(self, tensors: Tensors) -> Tensors:
        """Rename to transformers 5, under the prefix of a classifier if there is one; drop an unused pooler."""
        bare = rename(tensors, [(FAMILY, ""), *OLD_NAMES])
        prefix = family_prefix(bare)
        if prefix in ("vit.", "deit.") and "pooler.dense.weight" in bare:
            warn_user("The pooler was dropped, because the classifier does not read it (transformers does the same).")
            bare = {name: tensor for name, tensor in bare.items() if not name.startswith("pooler.")}
        return {name if "classifier" in name else f"{prefix}{name}": tensor for name, tensor in bare.items()}

    def infer_model(self, foreign: ForeignCheckpoint) -> InferredModel:
        """Infer a ViT, DeiT or BiT from its tensors and JSON files."""
        prefix = family_prefix(re.sub(FAMILY, "", name) for name in foreign.tensors)
        if f"{prefix}{ROOT}" in foreign.tensors:
            config = infer_bit(foreign, prefix)
        else:
            gelu, norm_eps = read_gelu_and_eps(foreign)
            config = self.resolve_vit(foreign, infer_vit(foreign, prefix), gelu, norm_eps)
        return InferredModel(config, infer_preprocessing(foreign, config), read_class_names(foreign, config))

    def to_storable(self, model: Model[Any]) -> Stored:
        """Return the model with one position table that has a row for the class token."""
        if isinstance(model.config, ResNetConfig):
            return self.require_bit(model)
        config = self.require_transformer(model.config, "mlp", "layer_scale", "num_registers")
        if config.pool != "class":
            raise self.unsupported(f"a model with pool={config.pool!r}")
        if config.hidden_head and config.num_classes > 0:
            raise self.unsupported(f"a hidden layer before the head (it can without: {name_setting('num_classes', 0)})")
        return positions_to_table(model, "add")

    def tensor_mappings(self, config: ViTConfig | ResNetConfig) -> Iterator[TensorMapping]:
        return map_bit(config) if isinstance(config, ResNetConfig) else map_vit(config)


HUGGING_FACE = HuggingFace()


def family_prefix(bare_names: Iterable[str]) -> str:
    """Return the prefix of a network's tensors: the family's name in a classifier, nothing in a bare network."""
    names = set(bare_names)
    if not names & set(HEADS):
        return ""
    return "bit." if ROOT in names else "deit." if "embeddings.distillation_token" in names else "vit."


def infer_vit(foreign: ForeignCheckpoint, prefix: str) -> ViTConfig:
    """Infer the config of a ViT or DeiT from its tensors and config.json."""
    model_type = (foreign.config or {}).get("model_type", "vit")
    if model_type not in ("vit", "deit"):
        raise ValueError(f"{foreign.source} has model_type {model_type!r}; supported are vit, deit and bit.")
    width, channels, p, _ = foreign.shape(f"{prefix}{PATCHES}.weight", 4)
    depth = foreign.count(rf"{prefix}layers\.(\d+)\.")
    mlp_dim, _ = foreign.shape(f"{prefix}layers.0.mlp.fc1.weight", 2)
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "intermediate_size": mlp_dim, "patch_size": p}
    for name, value in sizes.items():
        stated = (foreign.config or {}).get(name, value)
        if stated != value:
            raise ValueError(f"{foreign.source}: config.json has {name}={stated!r}, but the tensors have {value}.")
    has_distillation = f"{prefix}embeddings.distillation_token" in foreign.tensors
    image_size = read_image_size(foreign)
    stated_grid = None if image_size is None else (image_size[0] // p, image_size[1] // p)
    num_positions = foreign.shape(f"{prefix}embeddings.position_embeddings", 3)[1]
    grid, _ = foreign.resolve_grid(num_positions, (1 + int(has_distillation),), stated_grid)
    if image_size is None or grid != stated_grid:
        image_size = (grid[0] * p, grid[1] * p)
    head = next((name for name in HEADS if name in foreign.tensors), None)
    pooler = f"{prefix}pooler.dense.weight"
    hidden_head_dim = foreign.shape(pooler, 2)[0] if pooler in foreign.tensors else None
    return ViTConfig(
        width=width,
        depth=depth,
        num_heads=foreign.resolve_num_heads(width, mlp_dim, foreign.read_count(foreign.config or {}, "num_attention_heads")),
        mlp_dim=mlp_dim,
        patch_size=p,
        num_channels=channels,
        image_size=image_size,
        num_classes=0 if head is None else foreign.shape(head, 2)[0],
        hidden_head=hidden_head_dim is not None,
        hidden_head_dim=None if hidden_head_dim == width else hidden_head_dim,
        qkv_bias=f"{prefix}layers.0.attention.q_proj.bias" in foreign.tensors,
        distillation_token=has_distillation,
    )


def infer_bit(foreign: ForeignCheckpoint, prefix: str) -> ResNetConfig:
    """Infer the config of a BiT ResNet from its tensors and config.json."""
    for name, value in BIT_VALUES.items():
        stated = (foreign.config or {}).get(name, value)
        if stated != value and (stated or value):  # no padding is None or empty
            raise ValueError(f"{foreign.source}: config.json has {name}={stated!r}; supported is {value!r}.")
    root_dim, channels, *_ = foreign.shape(f"{prefix}{ROOT}", 4)
    processor = foreign.processor or {}  # states the image size, unlike config.json
    return ResNetConfig(
        stages=infer_stages(foreign, f"{prefix}encoder.", units="layers"),
        width_factor=root_dim / 64,
        num_channels=channels,
        num_groups=foreign.read_count(foreign.config or {}, "num_groups") or 32,
        num_classes=foreign.shape("classifier.1.weight", 2)[0] if "classifier.1.weight" in foreign.tensors else 0,
        standardise_eps=PORTED_STANDARDISE_EPS,
        image_size=as_image_size(parse_size(processor.get("crop_size") or processor.get("size")) or 224),
    )


def read_gelu_and_eps(foreign: ForeignCheckpoint) -> tuple[str | None, float | None]:
    """Return kind of GELU and LayerNorm epsilon from config.json; None without one."""
    if foreign.config is None:
        return None, None
    activation = foreign.config.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in GELUS:
        raise ValueError(f"{foreign.source} has hidden_act={activation!r}; supported are {', '.join(GELUS)}.")
    if foreign.config.get("pooler_act", "tanh") != "tanh" and any("pooler.dense" in name for name in foreign.tensors):
        raise ValueError(f"{foreign.source} has pooler_act={foreign.config['pooler_act']!r}; supported is 'tanh'.")
    norm_eps = foreign.config.get("layer_norm_eps", HUGGING_FACE.norm_eps)
    if not isinstance(norm_eps, float) or not 0 < norm_eps < 1:
        raise ValueError(f"{foreign.source} has layer_norm_eps={norm_eps!r}; expected a small number, e.g. 1e-12.")
    return GELUS[activation], norm_eps


def read_image_size(foreign: ForeignCheckpoint) -> tuple[int, int] | None:
    """Return image_size of config.json (one number or two; the library's default is 224), None without config.json."""
    if foreign.config is None:
        return None
    match foreign.config.get("image_size", 224):
        case [int() as height, int() as width]:
            return height, width
        case int() as side:
            return as_image_size(side)
        case other:
            raise ValueError(f"{foreign.source}: config.json has image_size={other!r}; expected one integer or two.")


def read_class_names(foreign: ForeignCheckpoint, config: ModelConfig) -> tuple[str, ...] | None:
    """Return class names from `id2label`, None if they are the library's placeholders."""
    labels = (foreign.config or {}).get("id2label")
    if not isinstance(labels, dict) or config.num_classes == 0:
        return None
    names = [labels.get(str(index)) for index in range(config.num_classes)]
    if not all(isinstance(name, str) for name in names) or names == [f"LABEL_{index}" for index in range(config.num_classes)]:
        return None
    return tuple(str(name) for name in names)


def infer_preprocessing(foreign: ForeignCheckpoint, config: ModelConfig) -> Preprocessing:
    """Return the preprocessing of preprocessor_config.json, else the library's default for the model."""
    is_deit = isinstance(config, ViTConfig) and config.distillation_token
    build = build_imagenet_preprocessing if is_deit else build_inception_preprocessing
    parse = None if foreign.processor is None else partial(preprocessing_from_huggingface, foreign.processor, config)
    return foreign.resolve_preprocessing(build(config.image_size, config.num_channels), parse)


def map_vit(config: ViTConfig) -> Iterator[TensorMapping]:
    """Map all tensors of a ViT or distilled DeiT."""
    d, p = config.width, config.patch_size
    prefix = "" if config.num_classes == 0 else "deit." if config.distillation_token else "vit."
    embeddings = f"{prefix}embeddings"
    yield TensorMapping("class_token", (f"{embeddings}.cls_token",), shape=(1, 1, d))
    if config.distillation_token:
        yield TensorMapping("distillation_token", (f"{embeddings}.distillation_token",), shape=(1, 1, d))
    yield TensorMapping("positions.0.table", (f"{embeddings}.position_embeddings",), shape=(1, config.num_positions, d))
    yield TensorMapping("patches.projection.weight", (f"{prefix}{PATCHES}.weight",), shape=(d, config.num_channels, p, p))
    yield TensorMapping("patches.projection.bias", (f"{prefix}{PATCHES}.bias",))
    for index in range(config.depth):
        name, foreign = f"blocks.{index}.", f"{prefix}layers.{index}."
        yield from map_layers({"norm_attention": "layernorm_before"}, name, foreign)
        for parameter in ("weight", "bias") if config.qkv_bias else ("weight",):
            parts = tuple(f"{foreign}attention.{letter}_proj.{parameter}" for letter in "qkv")
            yield TensorMapping(f"{name}attention.qkv.{parameter}", parts)
        layers = {"attention.out": "attention.o_proj", "norm_mlp": "layernorm_after"}
        yield from map_layers({**layers, "mlp.hidden": "mlp.fc1", "mlp.out": "mlp.fc2"}, name, foreign)
    yield from map_layers({"norm": f"{prefix}layernorm"})
    if config.hidden_head:
        yield from map_layers({"hidden_head.dense": f"{prefix}pooler.dense"})
    if config.num_classes > 0 and config.distillation_token:
        yield from map_layers({"head": "cls_classifier", "head_distillation": "distillation_classifier"})
    elif config.num_classes > 0:
        yield from map_layers({"head": "classifier"})


def map_bit(config: ResNetConfig) -> Iterator[TensorMapping]:
    """Map all tensors of a BiT ResNet."""
    prefix = "" if config.num_classes == 0 else "bit."
    yield TensorMapping("root.conv.weight", (f"{prefix}{ROOT}",))
    for stage, unit, has_projection in config.units():
        name, foreign = f"blocks.{stage}.{unit}", f"{prefix}encoder.stages.{stage}.layers.{unit}"
        for number in (1, 2, 3):
            yield from map_layers({f"{name}.norm{number}": f"{foreign}.norm{number}"})
            yield TensorMapping(f"{name}.conv{number}.weight", (f"{foreign}.conv{number}.weight",))
        if has_projection:
            yield TensorMapping(f"{name}.projection.weight", (f"{foreign}.downsample.conv.weight",))
    yield from map_layers({"norm": f"{prefix}norm"})
    if config.num_classes > 0:
        yield from map_layers({"head": "classifier.1"})
