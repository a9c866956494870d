"""Settings of the training objectives, and the table OBJECTIVES of what each one needs. No torch here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from vitrine.core.config_checks import require_field_types, require_rates

ObjectiveKind = Literal["supervised", "masked-patches"]
LossKind = Literal["softmax", "sigmoid"]
PatchTarget = Literal["mean-colour", "small-colours", "pixels"]


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig:
    """Supervised learning: the loss of the logits against the labels."""

    loss: LossKind = "softmax"
    """Sigmoid suits several labels per image, as on ImageNet-21k and JFT, together with model.head_bias=-10."""
    label_smoothing: float = 0.0
    """Fraction of the target spread evenly over all classes; softmax only."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_rates(self, "label_smoothing")
        if self.loss == "sigmoid" and self.label_smoothing > 0:
            raise ValueError(f"label_smoothing={self.label_smoothing} needs loss='softmax': leave it out with sigmoid.")


@dataclass(frozen=True, kw_only=True)
class MaskedPatchesConfig:
    """Masked patch prediction (appendix B.1.2 of arXiv:2010.11929)."""

    target: PatchTarget = "mean-colour"
    """What to predict: a patch's 3-bit mean colour, 3-bit colours of the patch shrunk to 4 x 4, or all its pixels."""
    corrupted_rate: float = 0.5
    """Fraction of the patches that are corrupted and predicted; the paper also tried BERT's 0.15."""
    masked_rate: float = 0.8
    """Fraction of the corrupted patches that become the learned [mask] embedding."""
    replaced_rate: float = 0.1
    """Fraction of the corrupted patches that get another patch's embedding. The rest stay unchanged."""

    def __post_init__(self) -> None:
        require_field_types(self)
        for name in ("corrupted_rate", "masked_rate", "replaced_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be between 0 and 1.")
        if self.masked_rate + self.replaced_rate > 1 + 1e-9:
            raise ValueError(f"masked_rate={self.masked_rate} plus replaced_rate={self.replaced_rate} exceeds 1: lower one.")

    def count(self, num_patches: int) -> tuple[int, int, int]:
        """Return how many patches of an image are corrupted, and how many of these are masked and replaced."""
        num_corrupted = round(self.corrupted_rate * num_patches)
        if not 0 < num_corrupted < num_patches:
            counts = f"corrupted_rate={self.corrupted_rate} corrupts {num_corrupted} of {num_patches} patches"
            raise ValueError(f"{counts}; at least one must be corrupted and one left: change it, or use smaller patches.")
        num_masked = round(self.masked_rate * num_corrupted)
        return num_corrupted, num_masked, min(round(self.replaced_rate * num_corrupted), num_corrupted - num_masked)


def check_supervised(recipe: Any) -> None:
    """Raise ValueError if settings of a recipe with objective='supervised' contradict each other."""
    if recipe.head_init in ("ridge", "discriminant") and recipe.supervised.loss == "sigmoid":
        raise ValueError(f"head_init={recipe.head_init!r} suits supervised.loss='softmax': use 'zero' with sigmoid.")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """What an objective needs, known without importing its code."""

    implementation: str
    """Where its class is: module:class."""
    config_field: str
    """The recipe's field with its settings."""
    other_fields: tuple[str, ...] = ()
    """Further fields of the recipe that it uses, and other objectives may not."""
    needs_labels: bool
    """Whether it trains a head on the classes of the data."""
    num_views: int = 1
    """Random views of each image in a batch: `Batch.image`, and the others in `Batch.views`."""
    evaluators: tuple[str, ...]
    """Names in EVALUATORS that can measure it during a run; the best weights are chosen by the first one that runs."""
    check: Callable[[Any], None] | None = None
    """Checks its recipe, beyond the checks of each config by itself."""

    @property
    def recipe_fields(self) -> tuple[str, ...]:
        return (self.config_field, *self.other_fields)


OBJECTIVES: dict[ObjectiveKind, ObjectiveSpec] = {
    "supervised": ObjectiveSpec(
        implementation="vitrine.objectives.supervised:Supervised",
        config_field="supervised",
        other_fields=("mixing", "head_init"),
        needs_labels=True,
        evaluators=("top1", "few_shot"),
        check=check_supervised,
    ),
    "masked-patches": ObjectiveSpec(
        implementation="vitrine.objectives.masked_patches:MaskedPatches",
        config_field="masked_patches",
        needs_labels=False,
        evaluators=("few_shot", "objective"),
    ),
}


def check_objective(recipe: Any) -> None:
    """Raise ValueError if the own check of a recipe's objective fails."""
    check = OBJECTIVES[recipe.objective].check
    if check is not None:
        check(recipe)
