"""The npz files of the paper's authors: names of 2020, names since Linen, and big_vision's.

All keep matrices as (in, out), attention with an axis for the heads, convolutions as (height, width, in, out). They differ
in how modules are counted within a block, and in where positions are. The readers also take the prefixes of training
checkpoints and blocks stacked along a leading axis of depth, as scanned models are stored.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor

from vitrine.data.preprocessing import Preprocessing, build_inception_preprocessing
from vitrine.formats.base import (
    CheckpointFormat,
    ForeignCheckpoint,
    InferredModel,
    add_class_positions,
    compute_stride,
    fold_class_positions,
    positions_to_table,
    refuse_options,
    require_transformer,
    resolve_grid,
    resolve_preprocessing,
    resolve_unseen_grid,
    resolve_vit,
)
from vitrine.formats.config import FormatName
from vitrine.formats.tensor_files import LazyTensor, Tensors
from vitrine.formats.tensor_mapping import Layout, TensorMapping
from vitrine.models.config import HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.model import Model

POSITIONS = "Transformer/posembed_input/pos_embedding"
STACK = "Transformer/encoderblock/"
MAX_DEPTH = 1000


class GoogleFormat(CheckpointFormat):
    """The first two: positions under the encoder, a row for the class token first."""

    container = "npz"

    def __init__(self, name: FormatName, block: tuple[str, str, str, str], positions: str = POSITIONS) -> None:
        self.name = name
        self.block = block
        """Names of the first norm, the attention, the second norm and the MLP."""
        self.positions = positions

    def matches(self, names: Iterable[str]) -> bool:
        names = set(names)
        attention = f"{self.block[1]}/query/kernel"
        has_blocks = f"{STACK}{attention}" in names or f"Transformer/encoderblock_0/{attention}" in names
        return has_blocks and self._has_its_positions(names)

    def _has_its_positions(self, names: set[str]) -> bool:
        return self.positions in names

    def tidy(self, tensors: Tensors) -> Tensors:
        tidied: dict[str, LazyTensor] = {}
        for name, stored in tensors.items():
            if name.startswith(STACK) and stored.shape:
                tidied.update(unstack(name.removeprefix(STACK), stored))
            else:
                tidied[name] = stored
        return tidied

    def describe(self, given: ForeignCheckpoint) -> InferredModel:
        config = resolve_vit(given, self, infer_vit(given, self))
        return InferredModel(config, resolve_preprocessing(given, self._build_usual_preprocessing(config)))

    def _build_usual_preprocessing(self, config: ModelConfig) -> Preprocessing:
        return build_inception_preprocessing(config.image_size, config.num_channels)

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        config = self._require_held(model.config, hybrid=True)
        if config.pool == "map":
            raise self.refuse("a model with pool='map' (big-vision can)")
        return add_class_positions(*positions_to_table(model))

    def _require_held(self, config: ModelConfig, *, hybrid: bool) -> ViTConfig:
        config = require_transformer(self, config, hybrid=hybrid)
        refuse_options(self, config, "mlp", "layer_scale", "num_registers", "distillation_token", "norm_after_pool")
        if config.has_class_token != (config.pool == "class"):
            raise self.refuse(f"a class token with pool={config.pool!r}")
        return config

    def layout(self, config: ModelConfig) -> Layout:
        assert isinstance(config, ViTConfig)
        return list(self._entries(config))

    def _entries(self, config: ViTConfig) -> Iterator[TensorMapping]:
        d, p = config.width, config.patch_size
        if isinstance(config, HybridConfig):
            yield from stem_entries(config.stem)
        yield TensorMapping("patches.projection.weight", ("embedding/kernel",), "hwio", (p, p, config.patch_channels, d))
        yield TensorMapping("patches.projection.bias", ("embedding/bias",))
        if config.has_class_token:
            yield TensorMapping("class_token", ("cls",), shape=(1, 1, d))
        if config.position == "learned-1d":
            yield TensorMapping(
                "positions.0.table", (self.positions,), shape=(1, config.num_position_rows + config.num_patches, d)
            )
        for index in range(config.depth):
            yield from self._block_entries(index, config)
        yield from norm("norm", "Transformer/encoder_norm")
        if config.pool == "map":
            yield from map_head_entries(config)
        if config.hidden_head:
            yield from dense("hidden_head.dense", "pre_logits")
        if config.num_classes > 0:
            yield from dense("head", "head")

    def _block_entries(self, index: int, config: ViTConfig) -> Iterator[TensorMapping]:
        ours, theirs = f"blocks.{index}", f"Transformer/encoderblock_{index}"
        norm_attention, attention, norm_mlp, mlp = (f"{theirs}/{name}" for name in self.block)
        yield from norm(f"{ours}.norm_attention", norm_attention)
        yield from heads(f"{ours}.attention.qkv", attention, ("query", "key", "value"), config)
        yield from out(f"{ours}.attention.out", attention, config)
        yield from norm(f"{ours}.norm_mlp", norm_mlp)
        yield from dense(f"{ours}.mlp.hidden", f"{mlp}/Dense_0")
        yield from dense(f"{ours}.mlp.out", f"{mlp}/Dense_1")


class BigVision(GoogleFormat):
    """Positions at the top level and for patches alone; none at all where they are sines and cosines."""

    def _has_its_positions(self, names: set[str]) -> bool:
        return POSITIONS not in names

    def _build_usual_preprocessing(self, config: ModelConfig) -> Preprocessing:
        straight = super()._build_usual_preprocessing(config)
        return replace(straight, resize=round(256 / 224 * min(config.image_size)))

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        config = self._require_held(model.config, hybrid=False)
        if config.position == "sincos-2d":
            return config, dict(model.state_dict())
        return fold_class_positions(*positions_to_table(model))


GOOGLE_2020 = GoogleFormat("google-2020", ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"))
LINEN_BLOCK = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
GOOGLE_LINEN = GoogleFormat("google-linen", LINEN_BLOCK)
BIG_VISION = BigVision("big-vision", LINEN_BLOCK, "pos_embedding")


def infer_vit(given: ForeignCheckpoint, form: GoogleFormat) -> ViTConfig:
    p, _, channels, width = given.shape("embedding/kernel", 4)
    first = "Transformer/encoderblock_0"
    _, num_heads, _ = given.shape(f"{first}/{form.block[1]}/query/kernel", 3)
    if given.facts.num_heads not in (None, num_heads):
        raise ValueError(f"num_heads={given.facts.num_heads} contradicts {given.source}, whose kernels have {num_heads}.")
    _, mlp_dim = given.shape(f"{first}/{form.block[3]}/Dense_0/kernel", 2)
    has_class_token = "cls" in given.tensors
    shared: dict[str, Any] = {
        "width": width,
        "depth": given.count(r"Transformer/encoderblock_(\d+)/"),
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
        "patch_size": p,
        "num_classes": given.shape("head/kernel", 2)[1] if "head/kernel" in given.tensors else 0,
        "hidden_head": "pre_logits/kernel" in given.tensors,
        "pool": "class" if has_class_token else "map" if "MAPHead_0/probe" in given.tensors else "mean",
    }
    if form.positions in given.tensors:
        rows = (0,) if isinstance(form, BigVision) else (int(has_class_token),)
        grid, num_rows = resolve_grid(given, given.shape(form.positions, 3)[1], rows)
        shared["class_position"] = None if num_rows == int(has_class_token) else False
    else:
        # Nothing of sin-cos positions is stored, not even how many there are.
        shared["position"] = "sincos-2d"
        grid = resolve_unseen_grid(given, p)
    if "conv_root/kernel" not in given.tensors:
        return ViTConfig(**shared, num_channels=channels, image_size=(grid[0] * p, grid[1] * p))
    stem = infer_stem(given)
    stride = compute_stride(p, stem["stem_stages"])
    return HybridConfig(**shared, **stem, image_size=(grid[0] * stride, grid[1] * stride))


def infer_stem(given: ForeignCheckpoint) -> dict[str, Any]:
    *_, channels, root_dim = given.shape("conv_root/kernel", 4)
    stages = [given.count(rf"block{stage + 1}/unit(\d+)/") - 1 for stage in range(given.count(r"block(\d+)/unit") - 1)]
    return {"stem_stages": tuple(stages), "stem_width_factor": root_dim / 64, "num_channels": channels}


def unstack(name: str, stored: LazyTensor) -> Iterator[tuple[str, LazyTensor]]:
    """The slices of a tensor with a leading axis of depth, read once for all."""
    if stored.shape[0] > MAX_DEPTH:
        raise ValueError(f"{name} is a stack of {stored.shape[0]:,} blocks; the deepest models have a few dozen.")
    read = cache(stored.read)
    for index in range(stored.shape[0]):
        slice_of = LazyTensor(stored.shape[1:], stored.dtype, lambda index=index: read()[index].clone())
        yield f"Transformer/encoderblock_{index}/{name}", slice_of


def dense(ours: str, theirs: str) -> Iterator[TensorMapping]:
    yield TensorMapping(f"{ours}.weight", (f"{theirs}/kernel",), "transposed")
    yield TensorMapping(f"{ours}.bias", (f"{theirs}/bias",))


def norm(ours: str, theirs: str) -> Iterator[TensorMapping]:
    yield TensorMapping(f"{ours}.weight", (f"{theirs}/scale",))
    yield TensorMapping(f"{ours}.bias", (f"{theirs}/bias",))


def heads(ours: str, theirs: str, names: tuple[str, ...], config: ViTConfig) -> Iterator[TensorMapping]:
    """Projections into the heads: (D, H, K) each there, packed one below the other here."""
    per_head = (config.num_heads, config.width // config.num_heads)
    yield TensorMapping(f"{ours}.weight", tuple(f"{theirs}/{n}/kernel" for n in names), "transposed", (config.width, *per_head))
    yield TensorMapping(f"{ours}.bias", tuple(f"{theirs}/{n}/bias" for n in names), shape=per_head)


def out(ours: str, theirs: str, config: ViTConfig) -> Iterator[TensorMapping]:
    """From the heads back: (H, K, D)."""
    shape = (config.num_heads, config.width // config.num_heads, config.width)
    yield TensorMapping(f"{ours}.weight", (f"{theirs}/out/kernel",), "transposed", shape)
    yield TensorMapping(f"{ours}.bias", (f"{theirs}/out/bias",))


def map_head_entries(config: ViTConfig) -> Iterator[TensorMapping]:
    ours, theirs = "attention_pool", "MAPHead_0"
    attention = f"{theirs}/MultiHeadDotProductAttention_0"
    yield TensorMapping(f"{ours}.attention.probe", (f"{theirs}/probe",), shape=(1, 1, config.width))
    yield from heads(f"{ours}.attention.query", attention, ("query",), config)
    yield from heads(f"{ours}.attention.key_value", attention, ("key", "value"), config)
    yield from out(f"{ours}.attention.out", attention, config)
    yield from norm(f"{ours}.norm", f"{theirs}/LayerNorm_0")
    yield from dense(f"{ours}.mlp.hidden", f"{theirs}/MlpBlock_0/Dense_0")
    yield from dense(f"{ours}.mlp.out", f"{theirs}/MlpBlock_0/Dense_1")


def stem_entries(stem: ResNetConfig) -> Iterator[TensorMapping]:
    """The ResNet of a hybrid; blocks and units are counted from 1."""
    yield TensorMapping("stem.root.conv.weight", ("conv_root/kernel",), "hwio")
    yield from norm("stem.root.norm", "gn_root")
    for stage, unit, has_projection in stem.units():
        ours, theirs = f"stem.blocks.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
        for number in (1, 2, 3):
            yield TensorMapping(f"{ours}.conv{number}.weight", (f"{theirs}/conv{number}/kernel",), "hwio")
            yield from norm(f"{ours}.norm{number}", f"{theirs}/gn{number}")
        if has_projection:
            yield TensorMapping(f"{ours}.projection.weight", (f"{theirs}/conv_proj/kernel",), "hwio")
            yield from norm(f"{ours}.norm_projection", f"{theirs}/gn_proj")
