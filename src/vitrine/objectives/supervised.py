"""Learning from labels: pre-training and fine-tuning differ in their recipe, not in their code.

Letters: B images, K classes.
"""

from torch import Tensor
from torch.nn import functional as F

from vitrine.data.augment.mixup import mixup_batch, one_hot_targets
from vitrine.data.batch import Batch, match_labels
from vitrine.data.config import MixupConfig
from vitrine.data.preprocessing import Preprocessing
from vitrine.models.model import Model
from vitrine.objectives.config import SupervisedConfig
from vitrine.objectives.objective import LossOutput, Objective


class Supervised(Objective):
    """Cross-entropy of the model's logits, over batches of raw pixels, which are mixed and normalised here."""

    def __init__(
        self,
        model: Model,
        preprocessing: Preprocessing,
        config: SupervisedConfig,
        mixing: MixupConfig | None = None,
        seed: int = 0,
    ) -> None:
        """`mixing` is done in training only, with shares that are a function of the seed and the step."""
        super().__init__(model, preprocessing)
        self.config = config
        self.mixing = mixing
        self.seed = seed

    def forward(self, batch: Batch) -> LossOutput:
        images, targets = batch.image, batch.target
        if self.training and self.mixing is not None:
            num_classes = self.encoder.config.num_classes
            images, targets = mixup_batch(images, targets, self.mixing, num_classes, seed=self.seed, step=batch.step)
        logits = self.classify(images)  # (B, K)
        loss = compute_losses(logits, targets, self.config).mean()
        return LossOutput(loss, {"accuracy": compute_hits(logits, batch.target).float().mean().detach()})


def compute_losses(logits: Tensor, targets: Tensor, config: SupervisedConfig) -> Tensor:
    """Of each image (B); targets are classes int64 (B), or floats (B, K)."""
    logits = logits.float()  # half precision loses the small differences that the loss is about
    if config.loss == "softmax":
        return F.cross_entropy(logits, targets, label_smoothing=config.label_smoothing, reduction="none")
    rows = one_hot_targets(targets, logits.shape[1])
    # The sum over classes, as in big_vision; torch's mean would depend on how many there are.
    return F.binary_cross_entropy_with_logits(logits, rows.to(logits.dtype), reduction="none").sum(dim=1)


def compute_hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the first answer is the label, or one of several (B)."""
    return match_labels(logits.argmax(dim=1, keepdim=True), labels)[:, 0]
