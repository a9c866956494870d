"""Configs of evaluation during a run, of inference, and of probes. No torch here."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from vitrine.core.config_checks import require_at_least, require_field_types, require_positive
from vitrine.core.precision import Precision
from vitrine.data.config import BadImages

L2 = 1024.0  # ridge penalty of few-shot evaluation: big_vision's

ProbeKind = Literal["logistic", "neighbours", "means"]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation during a run, on the images of data.held_out, else on the validation split; on the test split at the end."""

    COMMON: ClassVar[tuple[str, ...]] = ("num_times", "patience")
    num_times: int = 10
    """Number of evaluations, evenly spaced; the last is after the final step. 0: never evaluate."""
    batch_size: int = 256
    """Images per batch, on each process."""
    resize: int | None = None
    """Short side in pixels before the centre crop; if unset, as in the checkpoint, else directly to the model's size."""
    patience: int | None = None
    """Stop after this many evaluations without improvement, and keep the best weights. 0: train to the end, keep the best."""
    test: bool = True
    """Evaluate on the test split, once, at the end; turn it off while choosing settings."""
    few_shot: int = 0
    """Also measure few-shot accuracy with this many images per class at each evaluation. 0: do not."""

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
    """How images are read, batched and computed for inference."""

    batch_size: int = 64
    """Images per batch."""
    num_workers: int | None = None
    """Worker processes that read images (default: one for each CPU, up to 32; none for images in memory)."""
    bad_images: BadImages = "error"
    """What to do with an image that cannot be read: stop with an error, or skip it with a warning."""
    precision: Precision = "auto"
    """Precision of products and convolutions (auto: bfloat16 or float16 on NVIDIA GPUs, else float32)."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "batch_size")
        if self.num_workers is not None:
            require_at_least(self, 0, "num_workers")


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Settings of the classifiers that are fitted to frozen features."""

    penalties: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    """L2 penalties of logistic regression, per image; the best on held-out training images is then fitted to all."""
    choice_share: float = 0.2
    """Fraction of the training images held out to choose the penalty."""
    num_neighbours: int = 20
    """Number of nearest neighbours."""
    temperature: float = 0.07
    """A neighbour's vote weighs exp(cosine / temperature), as in DINO (arXiv:2104.14294)."""
    seed: int = 0
    """Random seed of the held-out images."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "num_neighbours")
        require_at_least(self, 0, "seed")
        require_positive(self, "temperature")
        is_tuple = isinstance(self.penalties, tuple) and len(self.penalties) > 0
        if not is_tuple or not all(isinstance(each, int | float) and 0 < each < math.inf for each in self.penalties):
            raise ValueError(f"penalties={self.penalties} must be one or more numbers above 0, e.g. 0.01 0.1.")
        if not 0 < self.choice_share < 1:
            raise ValueError(f"choice_share={self.choice_share} must be above 0 and below 1, e.g. 0.2.")
