"""Supervised learning, for pre-training and fine-tuning: softmax or sigmoid loss of the logits against the labels.

Letters: B images, K classes.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from torch import Tensor
from torch.nn import functional as F

from vitrine.data.augment.mixup import draw_mixing, mixup_batch, one_hot_targets
from vitrine.data.batch import Batch, Draw, match_labels
from vitrine.data.config import MixupConfig
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import Source
from vitrine.models.model import Model
from vitrine.objectives.config import SupervisedConfig
from vitrine.objectives.objective import LossOutput, Objective, at_least_float32


class Supervised(Objective):
    """Cross-entropy of the model's logits. Raw images are mixed (mixup, CutMix) and normalised here, on the device."""

    def __init__(
        self,
        model: Model[Any],
        preprocessing: Preprocessing,
        config: SupervisedConfig,
        mixing: MixupConfig | None = None,
        seed: int = 0,
    ) -> None:
        """`mixing` applies in training only; its random numbers are a function of `seed` and the step."""
        super().__init__(model, preprocessing)
        self.config = config
        self.mixing = mixing if mixing is not None and mixing.is_on else None
        self.seed = seed
        self.has_cross_entropy_loss = config.loss == "softmax"

    @classmethod
    def build(cls, model: Model[Any], preprocessing: Preprocessing, settings: Mapping[str, Any], seed: int) -> Self:
        return cls(model, preprocessing, settings["supervised"], settings["mixing"], seed)

    @classmethod
    def check_data(cls, train: Source, config: SupervisedConfig, name: str) -> None:
        """Raise ValueError unless the images have labels that suit the loss."""
        classes = train.class_names
        if len(classes) < 1:
            raise ValueError(f"{name} has no labels, which objective='supervised' needs: put the images into class folders.")
        if len(classes) < 2 and config.loss == "softmax":
            raise ValueError(f"{name} has only one class ({classes[0]}); supervised.loss='softmax' needs at least two.")
        if train.labels.has_several and config.loss == "softmax":
            raise ValueError(f"{name} has several labels per image; supervised.loss='softmax' takes one: use 'sigmoid'.")

    def build_draw(self) -> Draw | None:
        """Return what draws mixup and CutMix; None without them."""
        if self.mixing is None:
            return None
        return partial(draw_mixing, self.mixing, self.encoder.config.image_size, self.seed)

    def forward(self, batch: Batch) -> LossOutput:
        """Return the mean loss of a batch; accuracy counts the labels before mixing."""
        images, targets = batch.image, batch.target
        if self.training and self.mixing is not None:
            draws, num_classes = self.require_draws(batch), self.encoder.config.num_classes
            images, targets = mixup_batch(images, targets, self.mixing, draws, num_classes)
        logits = self.logits(images)  # (B, K)
        loss = compute_losses(logits, targets, self.config).mean()
        return LossOutput(loss, {"accuracy": compute_hits(logits, batch.target).float().mean().detach()})


def compute_losses(logits: Tensor, targets: Tensor, config: SupervisedConfig) -> Tensor:
    """Return the loss of each image (B); targets are classes int64 (B), or floats (B, K)."""
    logits = at_least_float32(logits)
    if config.loss == "softmax":
        return F.cross_entropy(logits, targets, label_smoothing=config.label_smoothing, reduction="none")
    rows = one_hot_targets(targets, logits.shape[1])
    # The sum over classes, as in big_vision; torch's mean would depend on their number.
    return F.binary_cross_entropy_with_logits(logits, rows.to(logits.dtype), reduction="none").sum(dim=1)


def compute_hits(logits: Tensor, targets: Tensor) -> Tensor:
    """Return whether the top-1 class of each image is its label, or one of its labels (B)."""
    return match_labels(logits.argmax(dim=1, keepdim=True), targets)[:, 0]
