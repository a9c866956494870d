"""npz files of BiT (big_transfer): pre-activation ResNets with standardised convolutions."""

from collections.abc import Iterable, Iterator
from typing import Any

from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel, Stored, rename
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import TensorMapping
from vitrine.models.config import ResNetConfig
from vitrine.models.model import Model

CONV = "standardized_conv2d/kernel"
ROOT = f"resnet/root_block/{CONV}"
HEAD = "resnet/head/conv2d/kernel"


class Bit(CheckpointFormat):
    """BiT's released npz files."""

    name = "bit"
    container = "npz"

    def matches(self, names: Iterable[str]) -> bool:
        return any(name.startswith("resnet/root_block/standardized_conv2d") for name in names)

    def normalise_names(self, tensors: Tensors) -> Tensors:
        # Some files number all of their convolutions: standardized_conv2d_17.
        return rename(tensors, [(r"standardized_conv2d_\d+/", "standardized_conv2d/")])

    def infer_model(self, foreign: ForeignCheckpoint) -> InferredModel:
        """Infer a BiT ResNet from names and shapes of its tensors."""
        *_, channels, root_dim = foreign.shape(ROOT, 4)
        stages = range(1, foreign.count(r"resnet/block(\d+)/"))
        config = ResNetConfig(
            stages=tuple(foreign.count(rf"resnet/block{stage}/unit(\d+)/") - 1 for stage in stages),
            width_factor=root_dim / 64,
            num_channels=channels,
            num_classes=foreign.shape(HEAD, 4)[3] if HEAD in foreign.tensors else 0,
        )
        default = build_inception_preprocessing(config.image_size, config.num_channels)
        return InferredModel(config, foreign.resolve_preprocessing(default))

    def to_storable(self, model: Model[Any]) -> Stored:
        return self.require_bit(model)

    def tensor_mappings(self, config: ResNetConfig) -> Iterator[TensorMapping]:
        """Map all tensors of a BiT ResNet; blocks and units are counted from 1 in the file."""
        yield TensorMapping("root.conv.weight", (ROOT,), "hwio")
        for stage, unit, has_projection in config.units():
            name, foreign = f"blocks.{stage}.{unit}", f"resnet/block{stage + 1}/unit{unit + 1:02d}"
            for number, letter in ((1, "a"), (2, "b"), (3, "c")):
                yield from map_group_norm(f"{name}.norm{number}", f"{foreign}/{letter}/group_norm")
                yield TensorMapping(f"{name}.conv{number}.weight", (f"{foreign}/{letter}/{CONV}",), "hwio")
            if has_projection:
                yield TensorMapping(f"{name}.projection.weight", (f"{foreign}/a/proj/{CONV}",), "hwio")
        yield from map_group_norm("norm", "resnet/group_norm")
        if config.num_classes > 0:
            yield TensorMapping("head.weight", (HEAD,), "transposed", (1, 1, config.feature_dim, config.num_classes))
            yield TensorMapping("head.bias", ("resnet/head/conv2d/bias",))


BIT = Bit()


def map_group_norm(name: str, foreign: str) -> Iterator[TensorMapping]:
    yield TensorMapping(f"{name}.weight", (f"{foreign}/gamma",))
    yield TensorMapping(f"{name}.bias", (f"{foreign}/beta",))
