"""What is measured of a run, and of frozen features, as frozen dataclasses. No torch here."""

import math
from dataclasses import dataclass
from typing import Literal

from vitrine.core.config_checks import require_at_least, require_field_types, require_positive
from vitrine.data.config import BadImages

L2 = 1024.0  # strength of the penalty in few-shot evaluation: big_vision's

ProbeKind = Literal["logistic", "neighbours", "means"]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """In the course of a run: on what data.held_out keeps out of training, else on the validation images, if there are any.

    At its end, once: on the test images, if there are any.
    """

    num_times: int = 10
    """In the course of the run, evenly spread; the last is at its end. 0: never."""
    batch_size: int = 256
    """Of all processes together."""
    resize: int | None = None
    """Short side before the centre crop; None: as the checkpoint has it, or straight to the size of the model."""
    patience: int | None = None
    """Stop after so many evaluations without a better one, and take the best; 0: run to the end, and take the best."""
    test: bool = True
    """Whether the test images are looked at, once, at the end; not while settings are chosen."""
    few_shot: int = 0
    """Shots of the few-shot accuracy that is measured at each evaluation too; 0: not."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "num_times", "few_shot")
        require_at_least(self, 1, "batch_size")
        if self.resize is not None and self.resize < 1:
            raise ValueError(f"evaluation.resize={self.resize} must be at least 1.")
        if self.patience is not None and self.patience < 0:
            raise ValueError(f"evaluation.patience={self.patience} must be at least 0.")
        if self.num_times == 0 and (self.patience is not None or self.few_shot > 0):
            raise ValueError("evaluation.patience and evaluation.few_shot need evaluations: raise evaluation.num_times.")


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """How the images are read that a checkpoint is measured on."""

    batch_size: int = 64
    num_workers: int | None = None
    """Processes that read images; None: none for images in memory, else one for each processor, up to 8."""
    bad_images: BadImages = "error"
    """What to do with an image that cannot be read: stop and name it, or go on without it and count it."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "batch_size")
        if self.num_workers is not None:
            require_at_least(self, 0, "num_workers")


AS_USUAL = InferenceConfig()


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Of the classifiers that are fitted to frozen features."""

    penalties: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    """Of logistic regression, for each image; one is chosen on held-out images and then fitted to all."""
    choice_share: float = 0.2
    """Share of the training images to choose it on."""
    num_neighbours: int = 20
    temperature: float = 0.07
    """A neighbour's vote weighs exp(cosine / temperature), as in DINO (arXiv:2104.14294)."""
    seed: int = 0
    """Draws that share."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "num_neighbours")
        require_at_least(self, 0, "seed")
        require_positive(self, "temperature")
        is_tuple = isinstance(self.penalties, tuple) and len(self.penalties) > 0
        if not is_tuple or not all(isinstance(each, int | float) and 0 < each < math.inf for each in self.penalties):
            raise ValueError(f"penalties={self.penalties} must be one or more numbers above 0, as 0.01 0.1.")
        if not 0 < self.choice_share < 1:
            raise ValueError(f"choice_share={self.choice_share} must be above 0 and below 1, as 0.2.")
