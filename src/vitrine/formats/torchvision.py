"""State dicts of torchvision's ViTs."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel, Stored, positions_to_table, rename
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import TensorMapping, map_layers
from vitrine.models.config import ViTConfig
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
        """Infer a ViT from the shapes of its tensors."""
        width, channels, p, _ = foreign.shape("conv_proj.weight", 4)
        mlp_dim, _ = foreign.shape(f"{LAYER}_0.mlp.0.weight", 2)
        grid, _ = foreign.resolve_grid(foreign.shape("encoder.pos_embedding", 3)[1], (1,))
        hidden = "heads.pre_logits.weight"
        hidden_head_dim = foreign.shape(hidden, 2)[0] if hidden in foreign.tensors else None
        config = ViTConfig(
            width=width,
            depth=foreign.count(r"encoder\.layers\.encoder_layer_(\d+)\."),
            num_heads=foreign.resolve_num_heads(width, mlp_dim),
            mlp_dim=mlp_dim,
            patch_size=p,
            num_channels=channels,
            image_size=(grid[0] * p, grid[1] * p),
            num_classes=foreign.shape("heads.head.weight", 2)[0] if "heads.head.weight" in foreign.tensors else 0,
            hidden_head=hidden_head_dim is not None,
            hidden_head_dim=None if hidden_head_dim == width else hidden_head_dim,
        )
        config = self.resolve_vit(foreign, config)
        default = replace(build_imagenet_preprocessing(config.image_size, channels), interpolation="bilinear")
        return InferredModel(config, foreign.resolve_preprocessing(default))

    def to_storable(self, model: Model[Any]) -> Stored:
        """Return the model with one position table that has a row for the class token."""
        rejected = ("mlp", "layer_scale", "num_registers", "distillation_token", "qkv_bias")
        config = self.require_transformer(model.config, *rejected)
        if config.pool != "class":
            raise self.unsupported(f"a model with pool={config.pool!r}")
        return positions_to_table(model, "add")

    def tensor_mappings(self, config: ViTConfig) -> Iterator[TensorMapping]:
        """Map all tensors of a ViT."""
        d, p = config.width, config.patch_size
        yield TensorMapping("class_token", ("class_token",), shape=(1, 1, d))
        yield TensorMapping("patches.projection.weight", ("conv_proj.weight",), shape=(d, config.num_channels, p, p))
        yield TensorMapping("patches.projection.bias", ("conv_proj.bias",))
        yield TensorMapping("positions.0.table", ("encoder.pos_embedding",), shape=(1, config.num_positions, d))
        for index in range(config.depth):
            name, foreign = f"blocks.{index}.", f"{LAYER}_{index}."
            yield from map_layers({"norm_attention": "ln_1"}, name, foreign)
            yield TensorMapping(f"{name}attention.qkv.weight", (f"{foreign}self_attention.in_proj_weight",))
            yield TensorMapping(f"{name}attention.qkv.bias", (f"{foreign}self_attention.in_proj_bias",))
            layers = {"attention.out": "self_attention.out_proj", "norm_mlp": "ln_2", "mlp.hidden": "mlp.0", "mlp.out": "mlp.3"}
            yield from map_layers(layers, name, foreign)
        yield from map_layers({"norm": "encoder.ln"})
        if config.hidden_head:
            yield from map_layers({"hidden_head.dense": "heads.pre_logits"})
        if config.num_classes > 0:
            yield from map_layers({"head": "heads.head"})


TORCHVISION = Torchvision()
