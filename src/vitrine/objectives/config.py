"""What a run minimises, as frozen dataclasses. No torch here."""

from dataclasses import dataclass
from typing import Literal

from vitrine.core.config_checks import require_field_types, require_rates

ObjectiveKind = Literal["supervised", "masked-patches"]
LossKind = Literal["softmax", "sigmoid"]
PatchTarget = Literal["mean-colour", "small-colours", "pixels"]


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


@dataclass(frozen=True, kw_only=True)
class MaskedPatchesConfig:
    """Masked patch prediction (appendix B.1.2 of arXiv:2010.11929)."""

    target: PatchTarget = "mean-colour"
    """The 3-bit mean colour of a patch, the 3-bit colours of the patch shrunk to 4 x 4, or all its pixels."""
    corrupted_rate: float = 0.5
    """Share of the patches that are corrupted and predicted; the paper tried BERT's 0.15 as well."""
    masked_rate: float = 0.8
    """Of these: those that become the learned [mask] embedding."""
    replaced_rate: float = 0.1
    """Of these: those that get another patch's embedding. The others stay as they are."""

    def __post_init__(self) -> None:
        require_field_types(self)
        for name in ("corrupted_rate", "masked_rate", "replaced_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be between 0 and 1.")
        if self.masked_rate + self.replaced_rate > 1 + 1e-9:
            raise ValueError(
                f"masked_rate={self.masked_rate} and replaced_rate={self.replaced_rate} are more than all: lower one of them."
            )

    def count(self, num_patches: int) -> tuple[int, int, int]:
        """Patches of each image that are corrupted, and of these the masked and the replaced, to the nearest whole number."""
        num_corrupted = round(self.corrupted_rate * num_patches)
        if not 0 < num_corrupted < num_patches:
            raise ValueError(
                f"corrupted_rate={self.corrupted_rate} of {num_patches} patches corrupts {num_corrupted} of them, and at least "
                "one must be, and one must not: take another rate, or smaller patches."
            )
        num_masked = round(self.masked_rate * num_corrupted)
        return num_corrupted, num_masked, min(round(self.replaced_rate * num_corrupted), num_corrupted - num_masked)
