"""npz files of the paper's authors: the names of 2020, those of Linen, and big_vision's, present and past.

All store matrices as (in, out), attention with an axis for the heads, convolutions as (height, width, in, out). They differ in
how modules are numbered within a block and in where positions are. Blocks stacked along a leading axis of depth (scanned
models) are read too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from vitrine.core.console import warn_user
from vitrine.data.preprocessing import Preprocessing, build_inception_preprocessing
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel, Stored, positions_to_table, rename
from vitrine.formats.config import FormatName
from vitrine.formats.tensor_files import LazyTensor, Tensors
from vitrine.formats.tensor_mapping import TensorMapping
from vitrine.models.config import HybridConfig, ModelConfig, Pool, ResNetConfig, ViTConfig
from vitrine.models.model import Model
from vitrine.models.patches import compute_stride

POSITIONS = "Transformer/posembed_input/pos_embedding"
STACK = "Transformer/encoderblock/"
MAX_DEPTH = 1000
# Names of big_vision before 2022: positions within the encoder, a MAP head whose parts lie at the top level.
OLD_NAMES = [
    (r"^Transformer/pos_embedding$", "pos_embedding"),
    (r"^(probe$|MlpBlock_0/|MultiHeadDotProductAttention_0/|LayerNorm_0/)", r"MAPHead_0/\1"),
]


class GoogleFormat(CheckpointFormat):
    """google-2020 and google-linen: positions inside the encoder, the class token's row first."""

    container = "npz"

    def __init__(self, name: FormatName, block: tuple[str, str, str, str], positions: str = POSITIONS) -> None:
        self.name = name
        self.block = block
        """Foreign names of the first norm, the attention, the second norm and the MLP."""
        self.positions = positions

    def matches(self, names: Iterable[str]) -> bool:
        """Return whether the names of blocks and positions are those of this format."""
        names = set(names)
        attention = f"{self.block[1]}/query/kernel"
        has_blocks = f"{STACK}{attention}" in names or f"Transformer/encoderblock_0/{attention}" in names
        return has_blocks and self._matches_positions(names)

    def _matches_positions(self, names: set[str]) -> bool:
        return self.positions in names

    def normalise_names(self, tensors: Tensors) -> Tensors:
        """Rename what older versions named otherwise; split stacked blocks."""
        unstacked: dict[str, LazyTensor] = {}
        for name, tensor in rename(tensors, OLD_NAMES).items():
            unstacked.update(unstack(name, tensor) if name.startswith(STACK) and tensor.shape else {name: tensor})
        return unstacked

    def infer_model(self, foreign: ForeignCheckpoint) -> InferredModel:
        config = self.resolve_vit(foreign, infer_vit(foreign, self))
        preprocessing = foreign.resolve_preprocessing(self._default_preprocessing(config))
        return InferredModel(config, preprocessing, tensors=self._drop_class_row(foreign, config))

    def _drop_class_row(self, foreign: ForeignCheckpoint, config: ViTConfig) -> Tensors:
        """Return the tensors without the position of a class token that the model does not have, as big_vision does."""
        table = foreign.tensors.get(self.positions)
        if table is None or table.shape[1] == config.num_positions:
            return foreign.tensors
        warn_user(f"{foreign.source} has a position for a class token but no class token: the position was left out.")
        shape = (1, config.num_positions, config.width)
        patches = LazyTensor(shape, table.dtype, lambda: table.read()[:, 1:].clone())
        return {**foreign.tensors, self.positions: patches}

    def _default_preprocessing(self, config: ModelConfig) -> Preprocessing:
        return build_inception_preprocessing(config.image_size, config.num_channels)

    def to_storable(self, model: Model[Any]) -> Stored:
        """Return the model with one position table that has a row for the class token."""
        config = self._require_storable(model.config, hybrid=True)
        if config.pool in ("map", "first"):
            raise self.unsupported(f"a model with pool={config.pool!r} (the format big-vision can)")
        return positions_to_table(model, "add")

    def _require_storable(self, config: ModelConfig, *, hybrid: bool) -> ViTConfig:
        """Return the config if this format has a place for all of the model; raise `unsupported` otherwise."""
        rejected = ("mlp", "layer_scale", "num_registers", "distillation_token", "norm_after_pool", "qkv_bias")
        storable = self.require_transformer(config, *rejected, hybrid=hybrid)
        if storable.has_class_token != (storable.pool == "class"):
            raise self.unsupported(f"a class token with pool={storable.pool!r}")
        return storable

    def tensor_mappings(self, config: ViTConfig) -> Iterator[TensorMapping]:
        """Map all tensors of a ViT or hybrid."""
        d, p = config.width, config.patch_size
        if isinstance(config, HybridConfig):
            yield from map_post_activation(config.stem, "stem.")
        yield TensorMapping("patches.projection.weight", ("embedding/kernel",), "hwio", (p, p, config.patch_channels, d))
        yield TensorMapping("patches.projection.bias", ("embedding/bias",))
        if config.has_class_token:
            yield TensorMapping("class_token", ("cls",), shape=(1, 1, d))
        if config.position == "learned-1d":
            yield TensorMapping("positions.0.table", (self.positions,), shape=(1, config.num_positions, d))
        for index in range(config.depth):
            yield from self._map_block(index, config)
        yield from map_norm("norm", "Transformer/encoder_norm")
        if config.pool == "map":
            yield from map_attention_pool(config)
        if config.hidden_head:
            yield from map_dense("hidden_head.dense", "pre_logits")
        if config.num_classes > 0:
            yield from map_dense("head", "head")

    def _map_block(self, index: int, config: ViTConfig) -> Iterator[TensorMapping]:
        """Map the tensors of one encoder block."""
        name, foreign = f"blocks.{index}", f"Transformer/encoderblock_{index}"
        norm_attention, attention, norm_mlp, mlp = (f"{foreign}/{part}" for part in self.block)
        yield from map_norm(f"{name}.norm_attention", norm_attention)
        yield from map_heads(f"{name}.attention.qkv", attention, ("query", "key", "value"), config)
        yield from map_out(f"{name}.attention.out", attention, config)
        yield from map_norm(f"{name}.norm_mlp", norm_mlp)
        yield from map_dense(f"{name}.mlp.hidden", f"{mlp}/Dense_0")
        yield from map_dense(f"{name}.mlp.out", f"{mlp}/Dense_1")


class BigVision(GoogleFormat):
    """big-vision: positions at the top level, without a row for the class token; sin-cos positions are not stored."""

    def _matches_positions(self, names: set[str]) -> bool:
        return POSITIONS not in names

    def _default_preprocessing(self, config: ModelConfig) -> Preprocessing:
        """Return the preprocessing of big_vision's classifiers, or of its SigLIP towers, which do not crop."""
        straight = super()._default_preprocessing(config)
        if isinstance(config, ViTConfig) and config.pool == "map" and config.num_classes == 0:
            return straight
        return replace(straight, resize=round(256 / 224 * min(config.image_size)))

    def to_storable(self, model: Model[Any]) -> Stored:
        """Return the model with the class position folded into the token; sin-cos positions are not stored."""
        config = self._require_storable(model.config, hybrid=False)
        if config.position == "sincos-2d":
            return config, dict(model.state_dict())
        return positions_to_table(model, "fold")


GOOGLE_2020 = GoogleFormat("google-2020", ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"))
LINEN_BLOCK = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
GOOGLE_LINEN = GoogleFormat("google-linen", LINEN_BLOCK)
BIG_VISION = BigVision("big-vision", LINEN_BLOCK, "pos_embedding")


def infer_vit(foreign: ForeignCheckpoint, fmt: GoogleFormat) -> ViTConfig:
    """Infer the config of a ViT or hybrid from names and shapes of its tensors."""
    p, _, channels, width = foreign.shape("embedding/kernel", 4)
    first = "Transformer/encoderblock_0"
    _, num_heads, _ = foreign.shape(f"{first}/{fmt.block[1]}/query/kernel", 3)
    _, mlp_dim = foreign.shape(f"{first}/{fmt.block[3]}/Dense_0/kernel", 2)
    has_class_token = "cls" in foreign.tensors
    shared: dict[str, Any] = {
        "width": width,
        "depth": foreign.count(r"Transformer/encoderblock_(\d+)/"),
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
        "patch_size": p,
        "num_classes": foreign.shape("head/kernel", 2)[1] if "head/kernel" in foreign.tensors else 0,
        "pool": infer_pool(foreign, fmt),
    }
    if "pre_logits/kernel" in foreign.tensors:
        hidden_head_dim = foreign.shape("pre_logits/kernel", 2)[1]
        shared |= {"hidden_head": True, "hidden_head_dim": None if hidden_head_dim == width else hidden_head_dim}
    if fmt.positions in foreign.tensors:
        # There may be a row for the class token; one without a class token is dropped later.
        usual = 0 if isinstance(fmt, BigVision) else int(has_class_token)
        grid, num_rows = foreign.resolve_grid(foreign.shape(fmt.positions, 3)[1], (usual, 1 - usual))
        shared["class_position"] = False if has_class_token and num_rows == 0 else None
    else:
        # Sin-cos positions are not stored, not even their number.
        shared["position"] = "sincos-2d"
        grid = foreign.resolve_unseen_grid(p)
    if "conv_root/kernel" not in foreign.tensors:
        return ViTConfig(**shared, num_channels=channels, image_size=(grid[0] * p, grid[1] * p))
    *_, channels, root_dim = foreign.shape("conv_root/kernel", 4)
    stages = count_units(foreign)
    shared |= {"num_channels": channels, "stem_stages": stages, "stem_width_factor": root_dim / 64}
    stride = compute_stride(p, stages)
    return HybridConfig(**shared, image_size=(grid[0] * stride, grid[1] * stride))


def infer_pool(foreign: ForeignCheckpoint, fmt: GoogleFormat) -> Pool:
    """Return how the tokens are pooled; big_vision's pools "gap" and "0", mean and first patch, have the same tensors."""
    if "cls" in foreign.tensors:
        return "class"
    if "MAPHead_0/probe" in foreign.tensors:
        return "map"
    return foreign.resolve("pool", None, "mean") if isinstance(fmt, BigVision) else "mean"


def unstack(name: str, stacked: LazyTensor) -> Iterator[tuple[str, LazyTensor]]:
    """Split a tensor with a leading axis of depth into one per block; the file is read once for all."""
    depth = stacked.shape[0]
    if depth > MAX_DEPTH:
        raise ValueError(f"{name} is a stack of {depth:,} blocks; at most {MAX_DEPTH:,} are expected.")
    read = cache(stacked.read)
    for index in range(depth):
        block = LazyTensor(stacked.shape[1:], stacked.dtype, lambda index=index: read()[index].clone())
        yield f"Transformer/encoderblock_{index}/{name.removeprefix(STACK)}", block


def count_units(foreign: ForeignCheckpoint, prefix: str = "") -> tuple[int, ...]:
    """Count the units of each ResNet stage from names like `PREFIXblock1/unit2/`."""
    num_stages = foreign.count(rf"{prefix}block(\d+)/unit") - 1
    return tuple(foreign.count(rf"{prefix}block{stage + 1}/unit(\d+)/") - 1 for stage in range(num_stages))


def map_dense(name: str, foreign: str) -> Iterator[TensorMapping]:
    yield TensorMapping(f"{name}.weight", (f"{foreign}/kernel",), "transposed")
    yield TensorMapping(f"{name}.bias", (f"{foreign}/bias",))


def map_norm(name: str, foreign: str) -> Iterator[TensorMapping]:
    yield TensorMapping(f"{name}.weight", (f"{foreign}/scale",))
    yield TensorMapping(f"{name}.bias", (f"{foreign}/bias",))


def map_heads(name: str, foreign: str, names: tuple[str, ...], config: ViTConfig) -> Iterator[TensorMapping]:
    """Map projections into the heads: each is (D, H, K) in the file; ours are packed along the first axis."""
    per_head = (config.num_heads, config.width // config.num_heads)
    kernels = tuple(f"{foreign}/{n}/kernel" for n in names)
    yield TensorMapping(f"{name}.weight", kernels, "transposed", (config.width, *per_head))
    yield TensorMapping(f"{name}.bias", tuple(f"{foreign}/{n}/bias" for n in names), shape=per_head)


def map_out(name: str, foreign: str, config: ViTConfig) -> Iterator[TensorMapping]:
    """Map the projection back from the heads, (H, K, D) in the file."""
    shape = (config.num_heads, config.width // config.num_heads, config.width)
    yield TensorMapping(f"{name}.weight", (f"{foreign}/out/kernel",), "transposed", shape)
    yield TensorMapping(f"{name}.bias", (f"{foreign}/out/bias",))


def map_attention_pool(config: ViTConfig) -> Iterator[TensorMapping]:
    """Map the multihead attention pooling (MAP) head."""
    name, foreign = "attention_pool", "MAPHead_0"
    attention = f"{foreign}/MultiHeadDotProductAttention_0"
    yield TensorMapping(f"{name}.attention.probe", (f"{foreign}/probe",), shape=(1, 1, config.width))
    yield from map_heads(f"{name}.attention.query", attention, ("query",), config)
    yield from map_heads(f"{name}.attention.key_value", attention, ("key", "value"), config)
    yield from map_out(f"{name}.attention.out", attention, config)
    yield from map_norm(f"{name}.norm", f"{foreign}/LayerNorm_0")
    yield from map_dense(f"{name}.mlp.hidden", f"{foreign}/MlpBlock_0/Dense_0")
    yield from map_dense(f"{name}.mlp.out", f"{foreign}/MlpBlock_0/Dense_1")


def map_post_activation(config: ResNetConfig, prefix: str) -> Iterator[TensorMapping]:
    """Map a post-activation ResNet, e.g. the stem of a hybrid; blocks and units are counted from 1 in the file."""
    yield TensorMapping(f"{prefix}root.conv.weight", ("conv_root/kernel",), "hwio")
    yield from map_norm(f"{prefix}root.norm", "gn_root")
    for stage, unit, has_projection in config.units():
        name, foreign = f"{prefix}blocks.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
        for number in (1, 2, 3):
            yield TensorMapping(f"{name}.conv{number}.weight", (f"{foreign}/conv{number}/kernel",), "hwio")
            yield from map_norm(f"{name}.norm{number}", f"{foreign}/gn{number}")
        if has_projection:
            yield TensorMapping(f"{name}.projection.weight", (f"{foreign}/conv_proj/kernel",), "hwio")
            yield from map_norm(f"{name}.norm_projection", f"{foreign}/gn_proj")
