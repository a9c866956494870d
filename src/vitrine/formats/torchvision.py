"""State dicts of torchvision's ViTs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.formats.base import (
    CheckpointFormat,
    ForeignCheckpoint,
    InferredModel,
    add_class_positions,
    positions_to_table,
    reject_options,
    rename,
    require_transformer,
    resolve_grid,
    resolve_num_heads,
    resolve_preprocessing,
    resolve_vit,
)
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import TensorMapping, map_layer
from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.model import Model

LAYER = "encoder.layers.encoder_layer"


class Torchvision(CheckpointFormat):
    """State dicts of torchvision.models.vit_*."""

    name = "torchvision"
    container = "torch"
    gelu = "erf"

    def matches(self, names: Iterable[str]) -> bool:
        return {"conv_proj.weight", "encoder.pos_embedding"} <= set(names)

    def normalise_names(self, tensors: Tensors) -> Tensors:
        # The released files are older than the current class, which renames these on loading.
        return rename(tensors, [(r"\.mlp\.linear_1\.", ".mlp.0."), (r"\.mlp\.linear_2\.", ".mlp.3.")])

    def infer_model(self, foreign: ForeignCheckpoint) -> InferredModel:
        config = resolve_vit(foreign, self, infer_vit(foreign))
        default = build_imagenet_preprocessing(config.image_size, config.num_channels)
        return InferredModel(config, resolve_preprocessing(foreign, replace(default, interpolation="bilinear")))

    def to_storable(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        """Return the model with one position table that has a row for the class token."""
        config = require_transformer(self, model.config)
        reject_options(self, config, "mlp", "layer_scale", "num_registers", "distillation_token")
        if config.pool != "class":
            raise self.unsupported(f"a model with pool={config.pool!r}")
        return add_class_positions(*positions_to_table(model))

    def tensor_mappings(self, config: ModelConfig) -> Sequence[TensorMapping]:
        assert isinstance(config, ViTConfig)
        return list(map_vit(config))


TORCHVISION = Torchvision()


def infer_vit(foreign: ForeignCheckpoint) -> ViTConfig:
    """Infer the config of a ViT from the shapes of its tensors."""
    width, channels, p, _ = foreign.shape("conv_proj.weight", 4)
    depth = foreign.count(r"encoder\.layers\.encoder_layer_(\d+)\.")
    mlp_dim, _ = foreign.shape(f"{LAYER}_0.mlp.0.weight", 2)
    grid, _ = resolve_grid(foreign, foreign.shape("encoder.pos_embedding", 3)[1], (1,))
    return ViTConfig(
        width=width,
        depth=depth,
        num_heads=resolve_num_heads(foreign, width, mlp_dim),
        mlp_dim=mlp_dim,
        patch_size=p,
        num_channels=channels,
        image_size=(grid[0] * p, grid[1] * p),
        num_classes=foreign.shape("heads.head.weight", 2)[0] if "heads.head.weight" in foreign.tensors else 0,
        hidden_head="heads.pre_logits.weight" in foreign.tensors,
    )


def map_vit(config: ViTConfig) -> Iterator[TensorMapping]:
    """Map all tensors of a ViT."""
    d, p = config.width, config.patch_size
    yield TensorMapping("class_token", ("class_token",), shape=(1, 1, d))
    yield TensorMapping("patches.projection.weight", ("conv_proj.weight",), shape=(d, config.num_channels, p, p))
    yield TensorMapping("patches.projection.bias", ("conv_proj.bias",))
    yield TensorMapping(
        "positions.0.table", ("encoder.pos_embedding",), shape=(1, config.num_position_rows + config.num_patches, d)
    )
    for index in range(config.depth):
        name, foreign = f"blocks.{index}", f"{LAYER}_{index}"
        yield from map_layer(f"{name}.norm_attention", f"{foreign}.ln_1")
        yield TensorMapping(f"{name}.attention.qkv.weight", (f"{foreign}.self_attention.in_proj_weight",))
        yield TensorMapping(f"{name}.attention.qkv.bias", (f"{foreign}.self_attention.in_proj_bias",))
        yield from map_layer(f"{name}.attention.out", f"{foreign}.self_attention.out_proj")
        yield from map_layer(f"{name}.norm_mlp", f"{foreign}.ln_2")
        yield from map_layer(f"{name}.mlp.hidden", f"{foreign}.mlp.0")
        yield from map_layer(f"{name}.mlp.out", f"{foreign}.mlp.3")
    yield from map_layer("norm", "encoder.ln")
    if config.hidden_head:
        yield from map_layer("hidden_head.dense", "heads.pre_logits")
    if config.num_classes > 0:
        yield from map_layer("head", "heads.head")
