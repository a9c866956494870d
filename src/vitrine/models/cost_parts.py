"""Counts of parts of a network, which add up (see cost.py)."""

from dataclasses import dataclass, replace

from vitrine.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Part:
    """Counts of one part of a network, for one image."""

    parameters: int = 0
    macs: int = 0
    saved: int = 0
    """Numbers kept for the backward pass."""
    saved_weights: int = 0
    """The same, but whatever the batch: kernels after standardisation."""
    peak: int = 0
    """Numbers held at the widest moment of inference."""
    peak_weights: int = 0
    """The same, but whatever the batch: the largest kernel while it is standardised."""

    def __add__(self, other: "Part") -> "Part":
        return Part(
            parameters=self.parameters + other.parameters,
            macs=self.macs + other.macs,
            saved=self.saved + other.saved,
            saved_weights=self.saved_weights + other.saved_weights,
            peak=max(self.peak, other.peak),
            peak_weights=max(self.peak_weights, other.peak_weights),
        )

    def __mul__(self, count: int) -> "Part":
        return replace(
            self,
            parameters=count * self.parameters,
            macs=count * self.macs,
            saved=count * self.saved,
            saved_weights=count * self.saved_weights,
        )


def count_linear_head(config: ModelConfig) -> Part:
    return Part(
        parameters=(config.feature_dim + 1) * config.num_classes,
        macs=config.feature_dim * config.num_classes,
    )
