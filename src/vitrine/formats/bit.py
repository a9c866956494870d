"""BiT's npz files (big_transfer): pre-activation ResNets with standardised convolutions."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel, rename, resolve_preprocessing
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import Layout, TensorMapping
from vitrine.models.config import ModelConfig, ResNetConfig
from vitrine.models.model import Model

CONV = "standardized_conv2d/kernel"
ROOT = f"resnet/root_block/{CONV}"


class Bit(CheckpointFormat):
    name = "bit"
    container = "npz"

    def matches(self, names: Iterable[str]) -> bool:
        return any(name.startswith("resnet/root_block/standardized_conv2d") for name in names)

    def tidy(self, tensors: Tensors) -> Tensors:
        # Some files count their convolutions throughout: standardized_conv2d_17.
        return rename(tensors, [(r"standardized_conv2d_\d+/", "standardized_conv2d/")])

    def describe(self, given: ForeignCheckpoint) -> InferredModel:
        *_, channels, root_dim = given.shape(ROOT, 4)
        config = ResNetConfig(
            stages=tuple(
                given.count(rf"resnet/block{stage + 1}/unit0*(\d+)/") - 1
                for stage in range(given.count(r"resnet/block(\d+)/") - 1)
            ),
            width_factor=root_dim / 64,
            num_channels=channels,
            num_classes=given.shape("resnet/head/conv2d/kernel", 4)[3] if "resnet/head/conv2d/kernel" in given.tensors else 0,
        )
        usual = build_inception_preprocessing(config.image_size, config.num_channels)
        return InferredModel(config, resolve_preprocessing(given, usual))

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        return require_bit(self, model.config), dict(model.state_dict())

    def layout(self, config: ModelConfig) -> Layout:
        assert isinstance(config, ResNetConfig)
        return list(entries(config))


BIT = Bit()


def require_bit(form: CheckpointFormat, config: ModelConfig) -> ResNetConfig:
    if not isinstance(config, ResNetConfig):
        raise form.refuse(f"models of the kind {type(config).__name__.removesuffix('Config')}")
    if config.style != "pre-activation":
        raise form.refuse("ResNets of the post-activation style")
    return config


def entries(config: ResNetConfig) -> Iterator[TensorMapping]:
    yield TensorMapping("root.conv.weight", (ROOT,), "hwio")
    for stage, unit, has_projection in config.units():
        ours, theirs = f"blocks.{stage}.{unit}", f"resnet/block{stage + 1}/unit{unit + 1:02d}"
        for number, letter in ((1, "a"), (2, "b"), (3, "c")):
            yield from group_norm(f"{ours}.norm{number}", f"{theirs}/{letter}/group_norm")
            yield TensorMapping(f"{ours}.conv{number}.weight", (f"{theirs}/{letter}/{CONV}",), "hwio")
        if has_projection:
            yield TensorMapping(f"{ours}.projection.weight", (f"{theirs}/a/proj/{CONV}",), "hwio")
    yield from group_norm("norm", "resnet/group_norm")
    if config.num_classes > 0:
        head = (1, 1, config.feature_dim, config.num_classes)
        yield TensorMapping("head.weight", ("resnet/head/conv2d/kernel",), "transposed", head)
        yield TensorMapping("head.bias", ("resnet/head/conv2d/bias",))


def group_norm(ours: str, theirs: str) -> Iterator[TensorMapping]:
    yield TensorMapping(f"{ours}.weight", (f"{theirs}/gamma",))
    yield TensorMapping(f"{ours}.bias", (f"{theirs}/beta",))
