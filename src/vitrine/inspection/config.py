"""Configs of `vitrine inspect`. No torch here."""

from dataclasses import dataclass
from typing import Literal

from vitrine.core.config_checks import require_field_types

Fusion = Literal["mean", "max", "min"]


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Attention rollout (arXiv:2005.00928), shown in figures 6 and 14 of arXiv:2010.11929."""

    fusion: Fusion = "mean"
    """How the heads of a layer are combined."""
    identity: bool = True
    """Add the residual path, with the same weight as the attention."""
    dropped_share: float = 0.0
    """Fraction of each token's attention, the weakest, that is set to zero."""

    def __post_init__(self) -> None:
        require_field_types(self)
        if not 0 <= self.dropped_share < 1:
            raise ValueError(f"dropped_share={self.dropped_share} must be at least 0 and below 1, e.g. 0.9.")


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """What is drawn, and over how many images it is measured."""

    query: str | None = None
    """Token whose attention is drawn: class, mean, or ROW,COLUMN of a patch, from 0 (default: class, else mean)."""
    layers: tuple[int, ...] = ()
    """Layers whose attention maps are drawn, from 0 (default: four, from the first to the last)."""
    heads: tuple[int, ...] = ()
    """Heads whose attention maps are drawn, from 0 (default: all)."""
    num_drawn: int = 6
    """Number of images that are drawn; further images count only for the attention distance."""
    num_measured: int = 128
    """Largest number of images for the mean attention distance."""

    def __post_init__(self) -> None:
        require_field_types(self)
        for name in ("num_drawn", "num_measured"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        for name in ("layers", "heads"):
            numbers = getattr(self, name)
            if len(set(numbers)) != len(numbers):
                raise ValueError(f"{name}={numbers} must be different numbers.")
