"""torchvision's ViT state dicts."""

from collections.abc import Iterable, Iterator
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
    refuse_options,
    rename,
    require_transformer,
    resolve_grid,
    resolve_num_heads,
    resolve_preprocessing,
    resolve_vit,
)
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import Layout, TensorMapping, pair
from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.model import Model

LAYER = "encoder.layers.encoder_layer"


class Torchvision(CheckpointFormat):
    name = "torchvision"
    container = "torch"
    gelu = "erf"

    def matches(self, names: Iterable[str]) -> bool:
        return {"conv_proj.weight", "encoder.pos_embedding"} <= set(names)

    def tidy(self, tensors: Tensors) -> Tensors:
        # The released files are older than the present class, which renames these when it loads them.
        return rename(tensors, [(r"\.mlp\.linear_1\.", ".mlp.0."), (r"\.mlp\.linear_2\.", ".mlp.3.")])

    def describe(self, given: ForeignCheckpoint) -> InferredModel:
        config = resolve_vit(given, self, infer_vit(given))
        usual = build_imagenet_preprocessing(config.image_size, config.num_channels)
        return InferredModel(config, resolve_preprocessing(given, replace(usual, interpolation="bilinear")))

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        config = require_transformer(self, model.config)
        refuse_options(self, config, "mlp", "layer_scale", "num_registers", "distillation_token")
        if config.pool != "class":
            raise self.refuse(f"a model with pool={config.pool!r}")
        return add_class_positions(*positions_to_table(model))

    def layout(self, config: ModelConfig) -> Layout:
        assert isinstance(config, ViTConfig)
        return list(entries(config))


TORCHVISION = Torchvision()


def infer_vit(given: ForeignCheckpoint) -> ViTConfig:
    width, channels, p, _ = given.shape("conv_proj.weight", 4)
    depth = given.count(r"encoder\.layers\.encoder_layer_(\d+)\.")
    mlp_dim, _ = given.shape(f"{LAYER}_0.mlp.0.weight", 2)
    grid, _ = resolve_grid(given, given.shape("encoder.pos_embedding", 3)[1], (1,))
    return ViTConfig(
        width=width,
        depth=depth,
        num_heads=resolve_num_heads(given, width, mlp_dim),
        mlp_dim=mlp_dim,
        patch_size=p,
        num_channels=channels,
        image_size=(grid[0] * p, grid[1] * p),
        num_classes=given.shape("heads.head.weight", 2)[0] if "heads.head.weight" in given.tensors else 0,
        hidden_head="heads.pre_logits.weight" in given.tensors,
    )


def entries(config: ViTConfig) -> Iterator[TensorMapping]:
    d, p = config.width, config.patch_size
    yield TensorMapping("class_token", ("class_token",), shape=(1, 1, d))
    yield TensorMapping("patches.projection.weight", ("conv_proj.weight",), shape=(d, config.num_channels, p, p))
    yield TensorMapping("patches.projection.bias", ("conv_proj.bias",))
    yield TensorMapping(
        "positions.0.table", ("encoder.pos_embedding",), shape=(1, config.num_position_rows + config.num_patches, d)
    )
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"{LAYER}_{index}"
        yield from pair(f"{ours}.norm_attention", f"{theirs}.ln_1")
        yield TensorMapping(f"{ours}.attention.qkv.weight", (f"{theirs}.self_attention.in_proj_weight",))
        yield TensorMapping(f"{ours}.attention.qkv.bias", (f"{theirs}.self_attention.in_proj_bias",))
        yield from pair(f"{ours}.attention.out", f"{theirs}.self_attention.out_proj")
        yield from pair(f"{ours}.norm_mlp", f"{theirs}.ln_2")
        yield from pair(f"{ours}.mlp.hidden", f"{theirs}.mlp.0")
        yield from pair(f"{ours}.mlp.out", f"{theirs}.mlp.3")
    yield from pair("norm", "encoder.ln")
    if config.hidden_head:
        yield from pair("hidden_head.dense", "heads.pre_logits")
    if config.num_classes > 0:
        yield from pair("head", "heads.head")
