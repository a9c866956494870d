"""BiT's npz files (big_transfer): pre-activation ResNets with standardised convolutions."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.format import Described, Format, Given, rename, settle_preprocessing
from vitrine.formats.layout import Entry, Layout
from vitrine.formats.tensors import Tensors
from vitrine.models.config import ModelConfig, ResNetConfig
from vitrine.models.model import Model

CONV = "standardized_conv2d/kernel"
ROOT = f"resnet/root_block/{CONV}"


class Bit(Format):
    name = "bit"
    container = "npz"

    def recognises(self, names: Iterable[str]) -> bool:
        return any(name.startswith("resnet/root_block/standardized_conv2d") for name in names)

    def tidy(self, tensors: Tensors) -> Tensors:
        # Some files count their convolutions throughout: standardized_conv2d_17.
        return rename(tensors, [(r"standardized_conv2d_\d+/", "standardized_conv2d/")])

    def describe(self, given: Given) -> Described:
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
        return Described(config, settle_preprocessing(given, usual))

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        return require_bit(self, model.config), dict(model.state_dict())

    def layout(self, config: ModelConfig) -> Layout:
        assert isinstance(config, ResNetConfig)
        return list(entries(config))


BIT = Bit()


def require_bit(form: Format, config: ModelConfig) -> ResNetConfig:
    if not isinstance(config, ResNetConfig):
        raise form.refuse(f"models of the kind {type(config).__name__.removesuffix('Config')}")
    if config.style != "pre-activation":
        raise form.refuse("ResNets of the post-activation style")
    return config


def entries(config: ResNetConfig) -> Iterator[Entry]:
    yield Entry("root.conv.weight", (ROOT,), "hwio")
    for stage, unit, has_projection in config.units():
        ours, theirs = f"blocks.{stage}.{unit}", f"resnet/block{stage + 1}/unit{unit + 1:02d}"
        for number, letter in ((1, "a"), (2, "b"), (3, "c")):
            yield from group_norm(f"{ours}.norm{number}", f"{theirs}/{letter}/group_norm")
            yield Entry(f"{ours}.conv{number}.weight", (f"{theirs}/{letter}/{CONV}",), "hwio")
        if has_projection:
            yield Entry(f"{ours}.projection.weight", (f"{theirs}/a/proj/{CONV}",), "hwio")
    yield from group_norm("norm", "resnet/group_norm")
    if config.num_classes > 0:
        head = (1, 1, config.feature_dim, config.num_classes)
        yield Entry("head.weight", ("resnet/head/conv2d/kernel",), "transposed", head)
        yield Entry("head.bias", ("resnet/head/conv2d/bias",))


def group_norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield Entry(f"{ours}.weight", (f"{theirs}/gamma",))
    yield Entry(f"{ours}.bias", (f"{theirs}/beta",))
