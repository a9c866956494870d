"""Contract of a checkpoint format, and the parts that several formats share.

A foreign checkpoint does not hold all of a model's config. `resolve_*` functions fill the gaps: the user's override first, then
what the checkpoint states, then the format's default. `positions_to_table` and its neighbours rewrite a model's position
embeddings in the form that a format can hold, without changing the logits.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from vitrine.core.config_checks import is_whole
from vitrine.data.preprocessing import Preprocessing
from vitrine.formats.config import FormatName, Overrides
from vitrine.formats.tensor_files import LazyTensor, Tensors
from vitrine.formats.tensor_mapping import TensorMapping
from vitrine.models.config import HybridConfig, ModelConfig, ViTConfig, resnet_grid
from vitrine.models.model import Model
from vitrine.models.positions import AddedPositions
from vitrine.models.registry import VARIANTS

T = TypeVar("T")
Container = Literal["npz", "torch", "folder"]

# big_vision's variants beside the paper's: So400m, g-opt and G-opt.
OTHER_VARIANTS = (
    {"width": 1152, "mlp_dim": 4304, "num_heads": 16},
    {"width": 1536, "mlp_dim": 6144, "num_heads": 16},
    {"width": 1536, "mlp_dim": 8192, "num_heads": 16},
)


@dataclass(frozen=True)
class ForeignCheckpoint:
    """Everything known about a foreign checkpoint before its model is built."""

    source: str
    tensors: Tensors
    """Named as the current version of the format names them (`CheckpointFormat.normalise_names`)."""
    overrides: Overrides = field(default_factory=Overrides)
    config: dict[str, Any] | None = None
    """Content of a foreign config.json."""
    processor: dict[str, Any] | None = None
    """Content of a preprocessor_config.json."""
    assumed: dict[str, Any] = field(default_factory=dict)
    """Defaults of the format that were used because neither the user nor the checkpoint states a value."""

    def resolve(self, name: str, stated: T | None, default: T) -> T:
        """Return the user's override, else what the checkpoint states, else the format's default, which is reported once."""
        override = getattr(self.overrides, name)
        if override is not None:
            return override
        if stated is not None:
            return stated
        self.assumed[name] = default
        return default

    def shape(self, name: str, num_axes: int) -> tuple[int, ...]:
        """Return a tensor's shape; raise a ValueError if the tensor is missing or has another number of axes."""
        if name not in self.tensors:
            raise ValueError(f"{self.source} lacks the tensor {name}, which gives the model's size.")
        shape = self.tensors[name].shape
        if len(shape) != num_axes or math.prod(shape) == 0:
            raise ValueError(f"{self.source}: {name} has shape {shape}; expected {num_axes} axes, none of length 0.")
        return shape

    def read_count(self, config: dict[str, Any], name: str) -> int | None:
        """Return a positive integer of a foreign config, None if it is absent."""
        value = config.get(name)
        if value is not None and not (is_whole(value) and value >= 1):
            raise ValueError(f"{self.source}: config.json has {name}={value!r}; expected an integer of at least 1.")
        return value

    def count(self, pattern: str) -> int:
        """Return the largest number matched by the pattern's group, plus one; 0 if no tensor name matches."""
        matches = (re.match(pattern, name) for name in self.tensors)
        count = max((int(match[1]) + 1 for match in matches if match), default=0)
        if count > len(self.tensors) + 1:
            raise ValueError(f"{self.source}: tensor names count {count:,} blocks, but there are {len(self.tensors)} tensors.")
        return count


@dataclass(frozen=True)
class InferredModel:
    """Config, preprocessing and class names of a foreign checkpoint."""

    config: ModelConfig
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None = None


class CheckpointFormat:
    """Base class of a checkpoint format: detect it, infer the model, map tensors both ways."""

    name: FormatName
    container: Container
    gelu: Literal["tanh", "erf"] = "tanh"
    """GELU of the programs that use this format, for files that do not state it; `norm_eps` likewise. Default: the paper's."""
    norm_eps: float = 1e-6

    def matches(self, names: Iterable[str]) -> bool:
        """Return whether tensors of these names are in this format."""
        raise NotImplementedError

    def normalise_names(self, tensors: Tensors) -> Tensors:
        """Rename and split the tensors of older versions of the format as the current version does."""
        return tensors

    def infer_model(self, foreign: ForeignCheckpoint) -> InferredModel:
        """Return the model that the tensors belong to."""
        raise NotImplementedError

    def to_storable(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        """Return config and state of an equal network that this format can hold; raise `unsupported` if there is none."""
        raise NotImplementedError

    def tensor_mappings(self, config: ModelConfig) -> Sequence[TensorMapping]:
        """Return where each tensor of a model lies in this format."""
        raise NotImplementedError

    def unsupported(self, feature: str) -> ValueError:
        """Build the error for a model that this format cannot hold."""
        return ValueError(
            f"The format {self.name} cannot hold {feature}: use --format vitrine, which holds every model, or another format."
        )


# What tensors do not show: override, else stated, else default.


def resolve_vit(
    foreign: ForeignCheckpoint, fmt: CheckpointFormat, config: ViTConfig, gelu: Any = None, norm_eps: float | None = None
) -> ViTConfig:
    """Set GELU and LayerNorm epsilon of a ViT's config; the arguments are what the checkpoint states."""
    if config.mlp == "gelu":
        config = replace(config, gelu=foreign.resolve("gelu", gelu, fmt.gelu))
    return replace(config, norm_eps=foreign.resolve("norm_eps", norm_eps, fmt.norm_eps))


def resolve_num_heads(foreign: ForeignCheckpoint, width: int, mlp_dim: int, stated: int | None = None) -> int:
    """Return the number of heads, which packed projections do not show.

    The default is that of the paper's or big_vision's variant of the same size, else heads of 64 channels.
    """
    sizes = {"width": width, "mlp_dim": mlp_dim}
    # `b` has the sizes of S with other heads, but occurs only in the paper's figure 4: S comes first.
    variants = (*VARIANTS.values(), *OTHER_VARIANTS)
    same_size = [variant["num_heads"] for variant in variants if sizes.items() <= variant.items()]
    default = same_size[0] if same_size else (width // 64 if width % 64 == 0 else None)
    num_heads = foreign.resolve("num_heads", stated, default)
    if num_heads is None:
        raise ValueError(f"{foreign.source} does not state how many heads its width of {width} has: pass --num-heads.")
    return num_heads


def resolve_grid(
    foreign: ForeignCheckpoint, num_positions: int, class_rows: tuple[int, ...], stated: tuple[int, int] | None = None
) -> tuple[tuple[int, int], int]:
    """Return the patch grid of a position table, and how many of its rows belong to readout tokens.

    `class_rows` are the possible numbers of such rows, the likeliest first. An unknown grid is taken to be a square.
    """
    stated = foreign.overrides.grid or stated
    for num_rows in class_rows:
        num_patches = num_positions - num_rows
        if stated is not None and stated[0] * stated[1] == num_patches:
            return stated, num_rows
        side = math.isqrt(max(0, num_patches))
        if stated is None and num_patches > 0 and side * side == num_patches:
            return (side, side), num_rows
    grid = "a square grid" if stated is None else f"a grid of {stated[0]} x {stated[1]} patches"
    raise ValueError(
        f"{foreign.source} has {num_positions} positions; expected {grid} plus {' or '.join(map(str, class_rows))}: "
        "pass the right grid as --grid ROWSxCOLUMNS."
    )


def resolve_unseen_grid(foreign: ForeignCheckpoint, stride: int, stated: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the patch grid of a model that stores no positions; default: that of 224 x 224 pixels."""
    side = max(1, 224 // stride)
    return foreign.resolve("grid", stated, (side, side))


def resolve_preprocessing(foreign: ForeignCheckpoint, default: Preprocessing) -> Preprocessing:
    """Return the format's default preprocessing, reported unless the user gave one (which load.py applies later)."""
    if foreign.overrides.preprocess is None:
        foreign.assumed["preprocess"] = default
    return default


def describe_assumption(name: str, value: Any) -> str:
    """Return a default that was assumed in words, with the option that overrides it."""
    option = f"(--{name.replace('_', '-')})"
    match name, value:
        case "gelu", kind:
            return f"{kind} GELU {option}"
        case "norm_eps", eps:
            return f"LayerNorm epsilon {eps:g} {option}"
        case "num_heads", count:
            return f"{count} heads {option}"
        case "grid", (rows, columns):
            return f"images of {rows} x {columns} patches {option}"
    assert isinstance(value, Preprocessing)
    size = f"{value.crop[0]} x {value.crop[1]} pixels"
    short_side = value.resize if isinstance(value.resize, int) else None
    resize = f"resize to {size}" if short_side is None else f"resize the short side to {short_side}, centre crop of {size}"
    scale = "values in [-1, 1]" if {*value.mean, *value.std} == {0.5} else "ImageNet's mean and std"
    return f"{resize}, {value.interpolation}, {scale} {option}"


def compute_grid(image_size: tuple[int, int], patch_size: int, stem_stages: tuple[int, ...] | None) -> tuple[int, int]:
    """Return rows and columns of patches of an image; `stem_stages` is None for a model without a ResNet stem."""
    rows, columns = image_size if stem_stages is None else resnet_grid(image_size, len(stem_stages))
    return rows // patch_size, columns // patch_size


# What a format can hold.


def require_transformer(fmt: CheckpointFormat, config: ModelConfig, *, hybrid: bool = False) -> ViTConfig:
    """Return the config if it is a ViT (or hybrid) with positions at the stem and a plain head; else raise `unsupported`."""
    if type(config) is not ViTConfig and not (hybrid and type(config) is HybridConfig):
        raise fmt.unsupported(f"models of the kind {type(config).__name__.removesuffix('Config')}")
    assert isinstance(config, ViTConfig)
    if config.position == "relative" or config.position_insertion != "stem":
        raise fmt.unsupported(f"positions of the kind {config.position}, inserted {config.position_insertion}")
    if config.readout_layers:
        raise fmt.unsupported(f"a head that reads several layers (readout_layers={config.readout_layers})")
    return config


def reject_options(fmt: CheckpointFormat, config: ViTConfig, *names: str) -> None:
    """Raise `unsupported` if one of the named config fields differs from its default."""
    defaults = {"mlp": "gelu", "layer_scale": None, "num_registers": 0}
    for name in names:
        value = getattr(config, name)
        if value != defaults.get(name, False):
            raise fmt.unsupported(f"a model with {name}={value!r}")


def rename(tensors: Tensors, patterns: Iterable[tuple[str, str]]) -> dict[str, LazyTensor]:
    """Apply every (pattern, replacement) to every tensor name, in order."""
    renamed: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        new = name
        for pattern, replacement in patterns:
            new = re.sub(pattern, replacement, new)
        if new in renamed:
            raise ValueError(f"{name} and another tensor are both {new} in the current naming: the file mixes two namings.")
        renamed[new] = tensor
    return renamed


# Position embeddings in the form of a format. Formats differ in where the class token's position is. Added to the token itself
# it does the same, so a row can be folded into the token, and a token without one can be given a row of zeros (big_vision
# folds the rows of old checkpoints likewise).

TABLE = "positions.0.table"
State = dict[str, Tensor]


def positions_to_table(model: Model[Any]) -> tuple[ViTConfig, State]:
    """Return config and state of a model with its stem positions, or none, as one learned table."""
    config, state = model.config, dict(model.state_dict())
    assert isinstance(config, ViTConfig)
    if config.position == "learned-1d":
        return config, state
    like = state["patches.projection.weight"]
    state = {name: tensor for name, tensor in state.items() if not name.startswith("positions.")}
    if config.position == "none":
        table = like.new_zeros(config.num_position_rows + config.num_patches, config.width)
    else:
        positions = model.get_submodule("positions.0")
        assert isinstance(positions, AddedPositions)
        table = positions.compute_table(like).detach()
    state[TABLE] = table
    # Readout tokens have no row in sin-cos and absent positions; learned-1d would give them one by default.
    return replace(config, position="learned-1d", class_position=config.num_position_rows > 0), state


def add_class_positions(config: ViTConfig, state: State) -> tuple[ViTConfig, State]:
    """Give each readout token a position row, of zeros if it had none."""
    missing = config.num_readout_tokens - config.num_position_rows
    if missing == 0:
        return config, state
    table = state[TABLE]
    padded = torch.cat([table.new_zeros(missing, config.width), table])
    return replace(config, class_position=None), {**state, TABLE: padded}


def fold_class_positions(config: ViTConfig, state: State) -> tuple[ViTConfig, State]:
    """Add the position rows of readout tokens to the tokens themselves, and drop the rows."""
    num_rows = config.num_position_rows
    if num_rows == 0:
        return config, state
    rows, patches = state[TABLE][:num_rows], state[TABLE][num_rows:]
    state = {**state, TABLE: patches, "class_token": state["class_token"] + rows[:1]}
    if num_rows > 1:
        state["distillation_token"] = state["distillation_token"] + rows[1:]
    return replace(config, class_position=False), state
