"""Contract of a checkpoint format, and the parts that several formats share.

A foreign checkpoint does not hold all of a model's config. `resolve_*` methods fill the gaps: what the checkpoint states first,
then the user's override, then the format's default. load.py refuses an override that the checkpoint contradicts.
`positions_to_table` and its neighbours rewrite a model's position embeddings in the form that a format can hold, without
changing the logits.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from vitrine.core.config_checks import is_whole
from vitrine.core.console import name_setting
from vitrine.data.preprocessing import Preprocessing
from vitrine.formats.config import FormatName, Overrides
from vitrine.formats.tensor_files import LazyTensor, Tensors
from vitrine.formats.tensor_mapping import TensorMapping
from vitrine.models.config import Gelu, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.model import Model
from vitrine.models.positions import AddedPositions
from vitrine.models.registry import VARIANTS
from vitrine.models.settings import CHECKPOINT_SETTINGS

T = TypeVar("T")
Grid = tuple[int, int]
State = dict[str, Tensor]
Stored = tuple[ModelConfig, State]
"""Config and state of a network as a format holds it."""
TABLE = "positions.0.table"
# Mean and std of the images that OpenAI's CLIP was trained on; its successors use them too.
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

# Number of heads by width and MLP width: big_vision's So400m, g-opt and G-opt, timm's models for tests, then the paper's
# variants. The paper's `b` has the sizes of S with other heads, but occurs only in its figure 4: S replaces it here.
NUM_HEADS = {(1152, 4304): 16, (1536, 6144): 16, (1536, 8192): 16, (64, 192): 2, (96, 192): 3, (96, 288): 3} | {
    (variant["width"], variant["mlp_dim"]): variant["num_heads"] for name, variant in VARIANTS.items() if name != "b"
}
# Settings that were assumed, in words.
ASSUMED = {
    "gelu": "{} GELU",
    "norm_eps": "LayerNorm epsilon {:g}",
    "num_heads": "{} heads",
    "grid": "{0[0]} x {0[1]} patches",
    "pool": "{} pooling",
}


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
        """Return what the checkpoint states, else the user's override, else the format's default, which is reported once."""
        override = getattr(self.overrides, name)
        if stated is not None:
            return stated
        if override is not None:
            return override
        self.assumed[name] = default
        return default

    def resolve_num_heads(self, width: int, mlp_dim: int, stated: int | None = None) -> int:
        """Return the number of heads, which packed projections do not show.

        The default is that of the paper's or big_vision's variant of the same size, else heads of 64 channels.
        """
        default = NUM_HEADS.get((width, mlp_dim), width // 64 if width % 64 == 0 else None)
        num_heads = self.resolve("num_heads", stated, default)
        if num_heads is None:
            raise ValueError(
                f"{self.source} does not state how many heads its width of {width} has: set {name_override('num_heads')}."
            )
        return num_heads

    def resolve_grid(self, num_positions: int, class_rows: tuple[int, ...], stated: Grid | None = None) -> tuple[Grid, int]:
        """Return the patch grid of a position table, and how many of its rows belong to readout tokens.

        `class_rows` are the possible numbers of such rows, the likeliest first. An unknown grid is taken to be a square.
        """
        stated = stated or self.overrides.grid
        for num_rows in class_rows:
            num_patches = num_positions - num_rows
            side = math.isqrt(max(0, num_patches))
            rows, columns = stated or (side, side)
            if rows * columns == num_patches > 0:
                return (rows, columns), num_rows
        grid = "a square grid" if stated is None else f"a grid of {stated[0]} x {stated[1]} patches"
        expected = f"{grid} plus {' or '.join(map(str, class_rows))}"
        raise ValueError(
            f"{self.source} has {num_positions} positions; expected {expected}: set {name_override('grid')} (rows x columns)."
        )

    def resolve_unseen_grid(self, stride: int, stated: Grid | None = None) -> Grid:
        """Return the patch grid of a model that stores no positions; default: that of 224 x 224 pixels."""
        side = max(1, 224 // stride)
        return self.resolve("grid", stated, (side, side))

    def resolve_preprocessing(
        self, default: Preprocessing, parse_stated: Callable[[], Preprocessing] | None = None
    ) -> Preprocessing:
        """Return what the checkpoint states, else the format's default; load.py reports the default and applies the user's."""
        if parse_stated is None:
            self.assumed["preprocess"] = default
            return default
        try:
            return parse_stated()
        except ValueError:
            if self.overrides.preprocess is None:
                raise
            return default  # what cannot be parsed is replaced anyway

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
    tensors: Tensors | None = None
    """The checkpoint's tensors without what the model does not use; None: all of them."""


class CheckpointFormat:
    """Base class of a checkpoint format: detect it, infer the model, map tensors both ways."""

    name: FormatName
    container: Literal["npz", "torch", "folder"]
    gelu: Gelu = "tanh"
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

    def to_storable(self, model: Model[Any]) -> Stored:
        """Return config and state of an equal network that this format can hold; raise `unsupported` if there is none."""
        raise NotImplementedError

    def tensor_mappings(self, config: Any) -> Iterator[TensorMapping]:
        """Yield where each tensor lies in this format, for the config of a model that it can hold."""
        raise NotImplementedError

    def unsupported(self, feature: str) -> ValueError:
        """Build the error for a model that this format cannot hold."""
        return ValueError(
            f"The format {self.name} cannot hold {feature}: use another, e.g. {name_setting('format', 'vitrine')}."
        )

    def resolve_vit(
        self,
        foreign: ForeignCheckpoint,
        config: ViTConfig,
        gelu: Any = None,
        norm_eps: float | None = None,
        defaults: tuple[Gelu, float] | None = None,
    ) -> ViTConfig:
        """Set GELU and LayerNorm epsilon of a ViT's config to what the checkpoint states, or by default to the format's."""
        default_gelu, default_eps = defaults or (self.gelu, self.norm_eps)
        if config.mlp == "gelu":
            config = replace(config, gelu=foreign.resolve("gelu", gelu, default_gelu))
        return replace(config, norm_eps=foreign.resolve("norm_eps", norm_eps, default_eps))

    def require_transformer(
        self, config: ModelConfig, *rejected: str, hybrid: bool = False, pre_norm: bool = False
    ) -> ViTConfig:
        """Return the config of a ViT (or hybrid) with positions at the stem and a plain head; raise `unsupported` for others.

        `rejected` are fields that must have their defaults. Few formats can hold a hybrid or a norm before the blocks.
        """
        if type(config) is not ViTConfig and not (hybrid and type(config) is HybridConfig):
            raise self.unsupported(f"models of the kind {type(config).__name__.removesuffix('Config')}")
        assert isinstance(config, ViTConfig)
        if config.position == "relative" or config.position_insertion != "stem":
            raise self.unsupported(f"positions of the kind {config.position}, inserted {config.position_insertion}")
        if config.readout_layers:
            raise self.unsupported(f"a head that reads several layers (readout_layers={config.readout_layers})")
        for name in (*rejected, *(() if pre_norm else ("pre_norm", "patch_bias"))):
            if getattr(config, name) != getattr(ViTConfig, name):
                raise self.unsupported(f"a model with {name}={getattr(config, name)!r}")
        return config

    def require_bit(self, model: Model[Any]) -> Stored:
        """Return config and state of a BiT ResNet; raise `unsupported` for other models."""
        config = model.config
        if not isinstance(config, ResNetConfig):
            raise self.unsupported(f"models of the kind {type(config).__name__.removesuffix('Config')}")
        if config.style != "pre-activation":
            raise self.unsupported("ResNets of the post-activation style")
        if config.pool_padding != "zeros":
            raise self.unsupported("a ResNet whose first pool is not padded with zeros, as in big_vision")
        return config, dict(model.state_dict())


def name_override(name: str) -> str:
    """Return how the user overrides a setting of a checkpoint. Of a recipe, some fields are for fresh weights only."""
    setting = name_setting(name)
    is_for_fresh_weights = setting.startswith("--model.") and name not in CHECKPOINT_SETTINGS
    return f"--{name.replace('_', '-')} of `vitrine convert`" if is_for_fresh_weights else setting


def describe_assumption(name: str, value: Any) -> str:
    """Return a default that was assumed in words, with the option that overrides it."""
    option = f"({name_override(name)})"
    if name in ASSUMED:
        return f"{ASSUMED[name].format(value)} {option}"
    assert isinstance(value, Preprocessing)
    size = f"{value.crop[0]} x {value.crop[1]} pixels"
    short_side = f"the short side to {value.resize}, centre crop of " if isinstance(value.resize, int) else "to "
    owner = "CLIP" if value.mean == CLIP_MEAN else "ImageNet"
    scale = "values in [-1, 1]" if {*value.mean, *value.std} == {0.5} else f"{owner}'s mean and std"
    return f"resize {short_side}{size}, {value.interpolation}, {scale} {option}"


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


def positions_to_table(model: Model[Any], class_positions: Literal["keep", "add", "fold"] = "keep") -> Stored:
    """Return config and state of a model with its stem positions, or none, as one learned table.

    `class_positions` says what becomes of the rows of readout tokens: see `add_class_positions`, `fold_class_positions`.
    """
    config, state = model.config, dict(model.state_dict())
    assert isinstance(config, ViTConfig)
    if config.position != "learned-1d":
        like = state["patches.projection.weight"]
        state = {name: tensor for name, tensor in state.items() if not name.startswith("positions.")}
        positions = None if config.position == "none" else model.get_submodule("positions.0")
        assert isinstance(positions, AddedPositions | None)
        zeros = like.new_zeros(config.num_positions, config.width)
        state[TABLE] = zeros if positions is None else positions.compute_table(like).detach()
        # Readout tokens have no row in sin-cos and absent positions; learned-1d would give them one by default.
        has_rows = config.num_position_rows >= config.num_readout_tokens > 0
        config = replace(config, position="learned-1d", class_position=has_rows)
    change = {"add": add_class_positions, "fold": fold_class_positions}.get(class_positions)
    return (config, state) if change is None else change(config, state)


def add_class_positions(config: ViTConfig, state: State) -> Stored:
    """Give each readout token a position row, of zeros if it had none."""
    missing = config.num_readout_tokens - config.num_position_rows
    if missing == 0:
        return config, state
    padded = torch.cat([state[TABLE].new_zeros(missing, config.width), state[TABLE]])
    return replace(config, class_position=None), {**state, TABLE: padded}


def fold_class_positions(config: ViTConfig, state: State) -> Stored:
    """Add the position rows of readout tokens and registers to the tokens themselves, and drop the rows."""
    num_rows = config.num_position_rows
    if num_rows == 0:
        return config, state
    rows, patches = state[TABLE][:num_rows], state[TABLE][num_rows:]
    folded = {**state, TABLE: patches}
    for name in ("class_token", "distillation_token", "registers"):
        if name in state and len(rows) > 0:
            folded[name], rows = state[name] + rows[: len(state[name])], rows[len(state[name]) :]
    return replace(config, class_position=False, register_position=False), folded
