"""How a model is looked into, as frozen dataclasses. No torch here."""

from dataclasses import dataclass
from typing import Literal

from vitrine.core.config_checks import require_field_types

Fusion = Literal["mean", "max", "min"]


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Attention rollout (arXiv:2005.00928), which figures 6 and 14 of arXiv:2010.11929 show."""

    fusion: Fusion = "mean"
    """What is taken of the heads of a layer."""
    identity: bool = True
    """Count what passes by the attention on the residual path, as much as what it reads."""
    dropped_share: float = 0.0
    """Of what each token reads, this share, the weakest, is left out."""

    def __post_init__(self) -> None:
        require_field_types(self)
        if not 0 <= self.dropped_share < 1:
            raise ValueError(f"dropped_share={self.dropped_share} must be at least 0 and below 1, as 0.9.")


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """What is drawn of a model, and of which images."""

    query: str | None = None
    """Whose attention is drawn: class, mean (of all patches), or ROW,COLUMN of a patch, from 0; None: class, else mean."""
    layers: tuple[int, ...] = ()
    """Whose attention maps are drawn, from 0; none: four of them, from the first to the last."""
    heads: tuple[int, ...] = ()
    """Which of their heads, from 0; none: all."""
    num_drawn: int = 6
    """Images that are drawn; of the others only the distances count."""
    num_measured: int = 128
    """Images that the mean attention distance is taken over, at most."""

    def __post_init__(self) -> None:
        require_field_types(self)
        for name in ("num_drawn", "num_measured"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        for name in ("layers", "heads"):
            numbers = getattr(self, name)
            if len(set(numbers)) != len(numbers):
                raise ValueError(f"{name}={numbers} must name each one once.")
