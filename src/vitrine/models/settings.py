"""Which network a run trains, as a recipe and the command line say it. No torch here."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from vitrine.core.config_checks import require_field_types
from vitrine.models.config import ModelConfig, Pool, Position, PositionInsertion
from vitrine.models.registry import resolve_config

# What may be said of a checkpoint's network too: the rest of it is as it was trained.
OF_CHECKPOINTS = ("preprocess", "head_bias", "image_size", "gelu", "norm_eps", "dropout_rate", "stochastic_depth_rate")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """A name, or a checkpoint to start from, and what is to be other than they have it; None: as they have it."""

    name: str | None = None
    """Of a network with fresh weights, as ViT-B/16; `vitrine models` lists them."""
    checkpoint: str | None = None
    """Weights to start from: a folder or file in any known format, or hf://org/name. Its head is replaced."""
    preprocess: Literal["imagenet", "inception"] | None = None
    """Mean and deviation of ImageNet, or values in -1..1, as the paper's code has them for fresh weights."""
    image_size: int | None = None
    """Pixels of the side; positions of a checkpoint are resized to it."""
    num_channels: int | None = None
    """1 for grey images, 3 for colour."""
    patch_size: int | None = None
    width: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    mlp_dim: int | None = None
    gelu: Literal["tanh", "erf"] | None = None
    """erf is three times as quick on processors; of a checkpoint, what its file does not say."""
    norm_eps: float | None = None
    """Of the LayerNorms; of a checkpoint, what its file does not say."""
    pool: Pool | None = None
    hidden_head: bool | None = None
    """The pre-training head of the paper, with a hidden layer."""
    head_bias: float | None = None
    """At the beginning; -10 goes with the sigmoid loss."""
    num_registers: int | None = None
    position: Position | None = None
    position_insertion: PositionInsertion | None = None
    """Where they are added: at the stem, or in every layer, as tables of their own or one that all share (table 8)."""
    layer_scale: float | None = None
    dropout_rate: float | None = None
    stochastic_depth_rate: float | None = None
    stages: tuple[int, ...] | None = None
    """Units in each stage of a ResNet."""
    width_factor: float | None = None
    """Of a ResNet."""
    num_groups: int | None = None
    """Of a ResNet's norms."""
    stem_stages: tuple[int, ...] | None = None
    """Units in each stage of a hybrid's stem."""
    stem_width_factor: float | None = None
    stem_num_groups: int | None = None

    def __post_init__(self) -> None:
        require_field_types(self)
        if (self.name is None) == (self.checkpoint is None):
            raise ValueError(
                f"model.name={self.name!r} and model.checkpoint={self.checkpoint!r}: give one of them, a network with fresh "
                "weights or weights to start from."
            )
        if self.checkpoint == "":
            raise ValueError("model.checkpoint='' is no name: give a folder, a file, or hf://org/name.")
        if self.checkpoint is not None:
            vain = [name for name in self.changes if name not in OF_CHECKPOINTS]
            if vain:
                raise ValueError(
                    f"model.{vain[0]}={self.changes[vain[0]]} cannot be had from model.checkpoint, whose network is as it "
                    "was trained: leave it out, or give model.name for fresh weights."
                )
        else:
            self.resolve(num_classes=2)

    @property
    def changes(self) -> dict[str, Any]:
        """What is to be other than the name or the checkpoint has it."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in said.items() if value is not None and name not in ("name", "checkpoint")}

    def resolve(self, num_classes: int) -> ModelConfig:
        """The configuration of a network with fresh weights."""
        if self.name is None:
            raise ValueError(f"{self.checkpoint} is a checkpoint, which has its own configuration: load it.")
        changes = {name: value for name, value in self.changes.items() if name != "preprocess"}
        return resolve_config(self.name, num_classes=num_classes, **changes)
