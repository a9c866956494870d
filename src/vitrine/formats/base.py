"""CheckpointFormat contract, inference of configs, position tables.

What every foreign format answers: is it mine, which model is it, how do its tensors lie, can it hold this model.
The same network in another form: positions as one table, with or without rows for the readout tokens.

Formats differ in where the class token's position is. Added to the token itself it does the same, so a row can be folded
into the token, and a token without one can be given a row of zeros (big_vision does the former with old checkpoints).
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from vitrine.core.config_checks import is_whole
from vitrine.data.preprocessing import Preprocessing
from vitrine.formats.config import FormatName, Overrides
from vitrine.formats.tensor_files import LazyTensor, Tensors
from vitrine.formats.tensor_mapping import Layout
from vitrine.models.config import HybridConfig, ModelConfig, ViTConfig, resnet_grid
from vitrine.models.model import Model
from vitrine.models.positions import AddedPositions
from vitrine.models.registry import VARIANTS

T = TypeVar("T")
Container = Literal["npz", "torch", "folder"]


# big_vision's other variants, which files of its successors have: So400m, g-opt and G-opt.
OTHER_VARIANTS = (
    {"width": 1152, "mlp_dim": 4304, "num_heads": 16},
    {"width": 1536, "mlp_dim": 6144, "num_heads": 16},
    {"width": 1536, "mlp_dim": 8192, "num_heads": 16},
)


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A foreign checkpoint before it is a model: its tensors under the format's present names, and what lies beside them."""

    source: str
    tensors: Tensors
    facts: Overrides = field(default_factory=Overrides)
    config: dict[str, Any] | None = None
    """A foreign config.json."""
    processor: dict[str, Any] | None = None
    """A preprocessor_config.json."""
    assumed: list[str] = field(default_factory=list)
    """What nobody said and was taken as usual, each with the option that overrides it."""

    def shape(self, name: str, num_axes: int) -> tuple[int, ...]:
        if name not in self.tensors:
            raise ValueError(f"{self.source} lacks the tensor {name}, from which the model's size is read.")
        shape = self.tensors[name].shape
        if len(shape) != num_axes or math.prod(shape) == 0:
            raise ValueError(f"{self.source}: {name} has the shape {shape}; needed are {num_axes} axes.")
        return shape

    def read_count(self, said: dict[str, Any], name: str) -> int | None:
        """A number of a foreign configuration, if it says it."""
        value = said.get(name)
        if value is not None and not (is_whole(value) and value >= 1):
            raise ValueError(f"{self.source}: config.json says {name}={value!r}; needed is a whole number of at least 1.")
        return value

    def settle(self, given: T | None, known: T | None, usual: T, text: str, option: str) -> T:
        """The user's word, else what the checkpoint says, else what is usual, which is noted."""
        if given is not None:
            return given
        if known is not None:
            return known
        self.assumed.append(f"{text} ({option})")
        return usual

    def count(self, pattern: str) -> int:
        """One more than the largest number in the group of a pattern; 0 if no name matches."""
        matches = (re.match(pattern, name) for name in self.tensors)
        count = max((int(match[1]) + 1 for match in matches if match), default=0)
        if count > len(self.tensors) + 1:
            raise ValueError(f"{self.source} counts {count:,} blocks in its names and has {len(self.tensors)} tensors.")
        return count


@dataclass(frozen=True)
class InferredModel:
    """What a foreign checkpoint turned out to be."""

    config: ModelConfig
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None = None


class CheckpointFormat:
    """One format: the questions that each answers in a file of its own."""

    name: FormatName
    container: Container
    gelu: Literal["tanh", "erf"] = "tanh"
    """What its programs compute with when a file says nothing; the same for epsilon. The paper's, unless it has others."""
    norm_eps: float = 1e-6

    def matches(self, names: Iterable[str]) -> bool:
        raise NotImplementedError

    def tidy(self, tensors: Tensors) -> Tensors:
        """Older ways to name and stack the same tensors, brought to the present one."""
        return tensors

    def describe(self, given: ForeignCheckpoint) -> InferredModel:
        """The model that these tensors belong to."""
        raise NotImplementedError

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        """The same network in the form which this format can hold; a ValueError if there is none."""
        raise NotImplementedError

    def layout(self, config: ModelConfig) -> Layout:
        raise NotImplementedError

    def refuse(self, what: str) -> ValueError:
        return ValueError(
            f"The format {self.name} cannot hold {what}: take --format vitrine, which holds every model, or another that can."
        )


def resolve_vit(
    given: ForeignCheckpoint, form: CheckpointFormat, config: ViTConfig, gelu: Any = None, norm_eps: float | None = None
) -> ViTConfig:
    """The parts of a ViT's configuration that no tensor shows."""
    facts = given.facts
    changes: dict[str, Any] = {}
    if config.mlp == "gelu":
        changes["gelu"] = given.settle(facts.gelu, gelu, form.gelu, f"{form.gelu} GELU", "--gelu")
    changes["norm_eps"] = given.settle(
        facts.norm_eps, norm_eps, form.norm_eps, f"LayerNorm epsilon {form.norm_eps:g}", "--norm-eps"
    )
    return replace(config, **changes)


def resolve_num_heads(given: ForeignCheckpoint, width: int, mlp_dim: int, known: int | None = None) -> int:
    """Packed projections do not show the heads: the variant of that size has them, and else they are 64 wide."""
    said = known if given.facts.num_heads is None else given.facts.num_heads
    if said is not None:
        return said
    sizes = {"width": width, "mlp_dim": mlp_dim}
    # `b` has the sizes of S and its own number of heads, but only the paper's figure 4 knows it: S comes first.
    variants = (*VARIANTS.values(), *OTHER_VARIANTS)
    named = [variant["num_heads"] for variant in variants if sizes.items() <= variant.items()]
    usual = named[0] if named else (width // 64 if width % 64 == 0 else None)
    if usual is None:
        raise ValueError(f"{given.source} does not tell how many heads share its width of {width}: pass it as --num-heads.")
    return given.settle(None, None, usual, f"{usual} heads", "--num-heads")


def resolve_grid(
    given: ForeignCheckpoint, num_positions: int, rows: tuple[int, ...], known: tuple[int, int] | None = None
) -> tuple[tuple[int, int], int]:
    """The grid behind a table of positions, and how many rows of it belong to readout tokens.

    `rows` are the possible numbers of those, the likeliest first. A grid is only guessed where nobody knows it, and only as
    a square.
    """
    known = given.facts.grid or known
    for num_rows in rows:
        num_patches = num_positions - num_rows
        if known is not None and known[0] * known[1] == num_patches:
            return known, num_rows
        side = math.isqrt(max(0, num_patches))
        if known is None and num_patches > 0 and side * side == num_patches:
            return (side, side), num_rows
    if known is not None:
        raise ValueError(
            f"{given.source} has {num_positions} positions, which do not fill a grid of {known[0]} x {known[1]} patches "
            f"with {' or '.join(map(str, rows))} more: pass the right grid as --grid ROWSxCOLUMNS."
        )
    raise ValueError(
        f"{given.source} has {num_positions} positions, which are no square grid with {' or '.join(map(str, rows))} more: "
        "pass the grid that they belong to as --grid ROWSxCOLUMNS."
    )


def compute_stride(patch_size: int, stem_stages: tuple[int, ...] | None) -> int:
    """Pixels from one patch to the next; None is no stem."""
    return patch_size if stem_stages is None else patch_size * 2 ** (2 + max(0, len(stem_stages) - 1))


def compute_grid(image_size: tuple[int, int], patch_size: int, stem_stages: tuple[int, ...] | None) -> tuple[int, int]:
    rows, columns = image_size if stem_stages is None else resnet_grid(image_size, len(stem_stages))
    return rows // patch_size, columns // patch_size


def resolve_unseen_grid(given: ForeignCheckpoint, stride: int, known: tuple[int, int] | None = None) -> tuple[int, int]:
    """The grid of a model that stores no positions: 224 pixels unless someone knows better."""
    side = max(1, 224 // stride)
    return given.settle(given.facts.grid, known, (side, side), f"images of {side} x {side} patches", "--grid")


def resolve_preprocessing(given: ForeignCheckpoint, usual: Preprocessing) -> Preprocessing:
    """What is usual, noted; the user's word replaces it later (load.py)."""
    if given.facts.preprocess is None:
        height, width = usual.crop
        size = f"{height} x {width} pixels"
        way = (
            f"short side {usual.resize} and a centre crop of {size}" if isinstance(usual.resize, int) else f"straight to {size}"
        )
        values = "values in [-1, 1]" if {*usual.mean, *usual.std} == {0.5} else "ImageNet's mean and std"
        given.assumed.append(f"{way}, {usual.interpolation}, {values} (--preprocess)")
    return usual


def require_transformer(form: CheckpointFormat, config: ModelConfig, *, hybrid: bool = False) -> ViTConfig:
    """A ViT of the usual kind, with positions that a table at the stem can hold."""
    if type(config) is not ViTConfig and not (hybrid and type(config) is HybridConfig):
        raise form.refuse(f"models of the kind {type(config).__name__.removesuffix('Config')}")
    assert isinstance(config, ViTConfig)
    if config.position == "relative" or config.position_insertion != "stem":
        raise form.refuse(f"positions of the kind {config.position}, inserted {config.position_insertion}")
    return config


def refuse_options(form: CheckpointFormat, config: ViTConfig, *names: str) -> None:
    """Options that a format has no place for."""
    usual = {"mlp": "gelu", "layer_scale": None, "num_registers": 0}
    for name in names:
        value = getattr(config, name)
        if value != usual.get(name, False):
            raise form.refuse(f"a model with {name}={value!r}")


def rename(tensors: Tensors, patterns: Iterable[tuple[str, str]]) -> dict[str, LazyTensor]:
    """Every pattern applied to every name, in order."""
    renamed: dict[str, LazyTensor] = {}
    for name, stored in tensors.items():
        new = name
        for pattern, replacement in patterns:
            new = re.sub(pattern, replacement, new)
        if new in renamed:
            raise ValueError(f"{name} and another tensor both stand for {new}: the file mixes two ways of naming.")
        renamed[new] = stored
    return renamed


TABLE = "positions.0.table"
State = dict[str, Tensor]


def positions_to_table(model: Model[Any]) -> tuple[ViTConfig, State]:
    """Positions of any kind that is added at the stem, or none, as one learned table."""
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
    # sin-cos and no positions give the readout tokens no row; learned-1d would by itself.
    return replace(config, position="learned-1d", class_position=config.num_position_rows > 0), state


def add_class_positions(config: ViTConfig, state: State) -> tuple[ViTConfig, State]:
    """A row for each readout token, zeros where there was none."""
    missing = config.num_readout_tokens - config.num_position_rows
    if missing == 0:
        return config, state
    table = state[TABLE]
    padded = torch.cat([table.new_zeros(missing, config.width), table])
    return replace(config, class_position=None), {**state, TABLE: padded}


def fold_class_positions(config: ViTConfig, state: State) -> tuple[ViTConfig, State]:
    """Positions of readout tokens added to the tokens themselves."""
    num_rows = config.num_position_rows
    if num_rows == 0:
        return config, state
    rows, patches = state[TABLE][:num_rows], state[TABLE][num_rows:]
    state = {**state, TABLE: patches, "class_token": state["class_token"] + rows[:1]}
    if num_rows > 1:
        state["distillation_token"] = state["distillation_token"] + rows[1:]
    return replace(config, class_position=False), state
