"""npz files of ResNets: BiT's (big_transfer), and those of big_vision's two versions.

big_transfer and big_vision's `bit_paper.py` name the same network differently, apart from the padding of its first pool, so the
names decide it. big_vision's `bit.py` is the post-activation ResNet that is also the stem of the paper's hybrids.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel, Stored, rename
from vitrine.formats.google import count_units, map_dense, map_post_activation
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import TensorMapping
from vitrine.models.config import ResNetConfig
from vitrine.models.model import Model

CONV = "standardized_conv2d/kernel"
PATCHES = "embedding/kernel"  # of a hybrid, whose stem has the names of bit.py


class Layout(NamedTuple):
    """One of the three sets of names: its first convolution, what precedes the blocks, its head, and the network's fields."""

    root: str
    prefix: str
    head: str
    fields: dict[str, Any]


BIG_TRANSFER = Layout(f"resnet/root_block/{CONV}", "resnet/", "resnet/head/conv2d/kernel", {})
BIT_PAPER = Layout("root_block/conv_root/kernel", "", "head/kernel", {"pool_padding": "none"})
POST_ACTIVATION = Layout("conv_root/kernel", "", "head/kernel", {"style": "post-activation"})
LAYOUTS = (BIG_TRANSFER, BIT_PAPER, POST_ACTIVATION)


class Bit(CheckpointFormat):
    """npz files of ResNets."""

    name = "bit"
    container = "npz"

    def matches(self, names: Iterable[str]) -> bool:
        names = set(names)
        is_counted = any(name.startswith("resnet/root_block/standardized_conv2d") for name in names)
        return is_counted or (PATCHES not in names and any(layout.root in names for layout in LAYOUTS))

    def normalise_names(self, tensors: Tensors) -> Tensors:
        # Some files number all of their convolutions: standardized_conv2d_17.
        return rename(tensors, [(r"standardized_conv2d_\d+/", "standardized_conv2d/")])

    def infer_model(self, foreign: ForeignCheckpoint) -> InferredModel:
        """Infer a ResNet from names and shapes of its tensors."""
        layout = next((layout for layout in LAYOUTS if layout.root in foreign.tensors), BIG_TRANSFER)
        *_, channels, root_dim = foreign.shape(layout.root, 4)
        num_axes = 4 if layout is BIG_TRANSFER else 2
        config = ResNetConfig(
            stages=count_units(foreign, layout.prefix),
            width_factor=root_dim / 64,
            num_channels=channels,
            num_classes=foreign.shape(layout.head, num_axes)[-1] if layout.head in foreign.tensors else 0,
            **layout.fields,
        )
        default = build_inception_preprocessing(config.image_size, config.num_channels)
        if layout is not BIG_TRANSFER:
            default = replace(default, resize=round(256 / 224 * min(config.image_size)))
        return InferredModel(config, foreign.resolve_preprocessing(default))

    def to_storable(self, model: Model[Any]) -> Stored:
        """Return config and state of any ResNet; raise `unsupported` for other models."""
        if isinstance(model.config, ResNetConfig):
            return model.config, dict(model.state_dict())
        return self.require_bit(model)

    def tensor_mappings(self, config: ResNetConfig) -> Iterator[TensorMapping]:
        """Map all tensors of a ResNet, in the layout of its style and padding."""
        if config.style == "post-activation":
            yield from map_post_activation(config, "")
        elif config.pool_padding == "none":
            yield from map_bit_paper(config)
        else:
            yield from map_big_transfer(config)
        if config.num_classes > 0 and (config.style == "post-activation" or config.pool_padding == "none"):
            yield from map_dense("head", "head")


BIT = Bit()


def map_big_transfer(config: ResNetConfig) -> Iterator[TensorMapping]:
    """Map a BiT ResNet to its released names; blocks and units are counted from 1 in the file."""
    yield TensorMapping("root.conv.weight", (BIG_TRANSFER.root,), "hwio")
    for stage, unit, has_projection in config.units():
        name, foreign = f"blocks.{stage}.{unit}", f"resnet/block{stage + 1}/unit{unit + 1:02d}"
        for number, letter in ((1, "a"), (2, "b"), (3, "c")):
            yield from map_group_norm(f"{name}.norm{number}", f"{foreign}/{letter}/group_norm")
            yield TensorMapping(f"{name}.conv{number}.weight", (f"{foreign}/{letter}/{CONV}",), "hwio")
        if has_projection:
            yield TensorMapping(f"{name}.projection.weight", (f"{foreign}/a/proj/{CONV}",), "hwio")
    yield from map_group_norm("norm", "resnet/group_norm")
    if config.num_classes > 0:
        shape = (1, 1, config.feature_dim, config.num_classes)
        yield TensorMapping("head.weight", (BIG_TRANSFER.head,), "transposed", shape)
        yield TensorMapping("head.bias", ("resnet/head/conv2d/bias",))


def map_bit_paper(config: ResNetConfig) -> Iterator[TensorMapping]:
    """Map a BiT ResNet without its head to the names of big_vision's `bit_paper.py`."""
    yield TensorMapping("root.conv.weight", (BIT_PAPER.root,), "hwio")
    for stage, unit, has_projection in config.units():
        name, foreign = f"blocks.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1:02d}"
        in_dim, mid_dim, _ = [*config.unit_shapes(stage)][unit]
        for number, num_channels in ((1, in_dim), (2, mid_dim), (3, mid_dim)):
            yield from map_wide_norm(f"{name}.norm{number}", f"{foreign}/gn{number}", num_channels)
            yield TensorMapping(f"{name}.conv{number}.weight", (f"{foreign}/conv{number}/kernel",), "hwio")
        if has_projection:
            yield TensorMapping(f"{name}.projection.weight", (f"{foreign}/conv_proj/kernel",), "hwio")
    yield from map_wide_norm("norm", "norm-pre-head", config.feature_dim)


def map_wide_norm(name: str, foreign: str, num_channels: int) -> Iterator[TensorMapping]:
    """Map a norm whose scale and bias have four axes in the file."""
    for own, theirs in (("weight", "scale"), ("bias", "bias")):
        yield TensorMapping(f"{name}.{own}", (f"{foreign}/{theirs}",), shape=(1, 1, 1, num_channels))


def map_group_norm(name: str, foreign: str) -> Iterator[TensorMapping]:
    yield TensorMapping(f"{name}.weight", (f"{foreign}/gamma",))
    yield TensorMapping(f"{name}.bias", (f"{foreign}/beta",))
