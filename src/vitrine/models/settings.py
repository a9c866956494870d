"""The network of a run, as a recipe and the command line describe it. No torch here."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from vitrine.core.config_checks import require_field_types
from vitrine.models.config import Gelu, ModelConfig, Pool, Position, PositionInsertion, Readout
from vitrine.models.registry import resolve_config

# Config fields of the head, which is new in fine-tuning.
READOUT_FIELDS = ("readout_layers", "readout")
# Settings that may change a checkpoint's network too; the rest is fixed by its weights.
CHECKPOINT_SETTINGS = (
    *("preprocess", "head_bias", "image_size", "gelu", "norm_eps", "dropout_rate", "stochastic_depth_rate", *READOUT_FIELDS),
)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """A model name or a checkpoint to start from, and changes to it; None leaves a field as it is there."""

    COMMON: ClassVar[tuple[str, ...]] = ("name", "checkpoint", "image_size")
    name: str | None = None
    """Model with fresh weights, e.g. ViT-B/16; `vitrine models` lists the names."""
    checkpoint: str | None = None
    """Weights to start from: a folder or file in any known format, or hf://org/name. Its head is replaced."""
    preprocess: Literal["imagenet", "inception"] | None = None
    """Normalise by ImageNet's mean and standard deviation, or to -1..1 (default for fresh weights, as in the paper)."""
    image_size: int | None = None
    """Side of the images in pixels; positions of a checkpoint are interpolated to it."""
    num_channels: int | None = None
    """1 for grey images, 3 for colour."""
    patch_size: int | None = None
    width: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    mlp_dim: int | None = None
    gelu: Gelu | None = None
    """GELU variant; erf is three times as fast on CPUs. For a checkpoint: only if its file does not state it."""
    norm_eps: float | None = None
    """Epsilon of the LayerNorms. For a checkpoint: only if its file does not state it."""
    pool: Pool | None = None
    """Features for the head: class token, mean of the patches, attention pooling (map), or the first patch."""
    readout_layers: tuple[int, ...] | None = None
    """Blocks, counted from 0 and ending with the last, whose outputs are concatenated for the head."""
    readout: Readout | None = None
    """Features of each of readout_layers: class token, mean of the patches, or both (default: as pool)."""
    hidden_head: bool | None = None
    """Pre-training head of the paper, with a hidden layer."""
    head_bias: float | None = None
    """Initial bias of the head, e.g. -10 for the sigmoid loss."""
    num_registers: int | None = None
    """Number of register tokens."""
    position: Position | None = None
    """Kind of position embedding."""
    position_insertion: PositionInsertion | None = None
    """Add positions at the stem, or in every layer with its own table or one shared table (table 8)."""
    layer_scale: float | None = None
    """Initial LayerScale factor."""
    dropout_rate: float | None = None
    stochastic_depth_rate: float | None = None
    stages: tuple[int, ...] | None = None
    """ResNet: units in each stage."""
    width_factor: float | None = None
    """ResNet: width factor."""
    num_groups: int | None = None
    """ResNet: groups of each norm."""
    stem_stages: tuple[int, ...] | None = None
    """Hybrid: units in each stage of the stem."""
    stem_width_factor: float | None = None
    """Hybrid: width factor of the stem."""
    stem_num_groups: int | None = None
    """Hybrid: groups of each norm of the stem."""

    def __post_init__(self) -> None:
        require_field_types(self)
        if (self.name is None) == (self.checkpoint is None):
            raise ValueError(f"model.name={self.name!r}, model.checkpoint={self.checkpoint!r}: give exactly one of the two.")
        if self.checkpoint == "":
            raise ValueError("model.checkpoint='' is empty: give a folder, a file, or hf://org/name.")
        if self.checkpoint is not None:
            fixed = [name for name in self.changes if name not in CHECKPOINT_SETTINGS]
            if fixed:
                change = f"model.{fixed[0]}={self.changes[fixed[0]]}"
                raise ValueError(f"{change} cannot change model.checkpoint's weights: leave it out, or give model.name.")
        else:
            self.resolve(num_classes=2)

    @property
    def changes(self) -> dict[str, Any]:
        """Fields that are set, apart from name and checkpoint."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None and name not in ("name", "checkpoint")}

    def check_name(self, old_name: str | None) -> None:
        """Raise ValueError if another name than before changes nothing, because other fields set all that it stands for."""
        if self.name is None or old_name is None or self.name == old_name:
            return
        try:
            other = resolve_config(old_name, num_classes=2, **self.network_changes)
        except ValueError:  # the old name is of another family
            return
        if other == self.resolve(num_classes=2):
            given = ", ".join(self.network_changes)
            raise ValueError(f"model.name={self.name!r} has no effect: what it stands for is set by {given}; change these.")

    @property
    def network_changes(self) -> dict[str, Any]:
        """Fields that are set and change the network's config."""
        return {name: value for name, value in self.changes.items() if name != "preprocess"}

    @property
    def readout_changes(self) -> dict[str, Any]:
        """Fields that say what a checkpoint's new head reads, for `Model.reset_head`; new layers replace both."""
        if self.readout_layers is not None:
            return {name: getattr(self, name) for name in READOUT_FIELDS}
        return {} if self.readout is None else {"readout": self.readout}

    def resolve(self, num_classes: int) -> ModelConfig:
        """Return the config of a model with fresh weights."""
        if self.name is None:
            raise ValueError(f"{self.checkpoint} is a checkpoint, which has its own config: load it.")
        return resolve_config(self.name, num_classes=num_classes, **self.network_changes)
