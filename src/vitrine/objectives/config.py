"""What a run minimises, as a frozen dataclass. No torch here."""

from dataclasses import dataclass
from typing import Literal

from vitrine.core.checks import require_field_types, require_rates

LossKind = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig:
    """Learning from labels."""

    loss: LossKind = "softmax"
    """Sigmoid for several labels per image, as on ImageNet-21k and JFT; a head bias of -10 goes with it."""
    label_smoothing: float = 0.0
    """Share of the target that all classes have equally; of softmax."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_rates(self, "label_smoothing")
        if self.loss == "sigmoid" and self.label_smoothing > 0:
            raise ValueError(f"label_smoothing={self.label_smoothing} belongs to loss='softmax': leave it out with sigmoid.")
