"""What a model answers to each image: its first classes with their probabilities, and whether they are right.

All figures of classification come from these, a few numbers for each image whatever the number of classes.
Letters: B images of a batch, N in all, K classes, A answers to each image.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.batch import Batch, match_labels

NUM_ANSWERS = 5

Predict = Callable[[Tensor], Tensor]
"""From raw pixels (B, C, H, W) to logits (B, K)."""


@dataclass(frozen=True)
class Answers:
    """On the device of the model for a batch, on the processor for all."""

    index: Tensor
    """int64 (N): the number of each image in its source; always on the processor."""
    classes: Tensor
    """int64 (N, A), the most likely first."""
    probabilities: Tensor
    """float32 (N, A): the softmax of the logits at these."""
    hits: Tensor
    """bool (N, A): whether each is the label, or one of several."""
    losses: Tensor
    """float32 (N): softmax cross-entropy; not a number where images have several labels, of which it says nothing."""
    counts: Tensor
    """bool (N): whether the image has a label at all; those without (ReaL has some) are left out of every figure."""

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: Tensor) -> "Answers":
        """Some of them: a mask bool (N), or numbers of rows."""
        return Answers(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@torch.no_grad()  # not inference_mode, whose tensors a sharded model would keep for its next training step
def answer_batch(predict: Predict, batch: Batch, num_answers: int = NUM_ANSWERS) -> Answers:
    """Of a batch that is where the model is."""
    logits = predict(batch.image).float()  # (B, K)
    best = logits.topk(min(num_answers, logits.shape[1]), dim=1)
    hits = match_labels(best.indices, batch.label)
    probabilities = (best.values - logits.logsumexp(dim=1, keepdim=True)).exp()
    if batch.label.is_floating_point():
        counts = batch.label.sum(dim=1) > 0
        losses = logits.new_full((len(batch),), float("nan"))
    else:
        counts = torch.ones_like(batch.label, dtype=torch.bool)
        losses = F.cross_entropy(logits, batch.label, reduction="none")
    return Answers(batch.index, best.indices, probabilities, hits & counts[:, None], losses, counts)


def collect_answers(
    predict: Predict, batches: Iterable[Batch], device: torch.device | str = "cpu", num_answers: int = NUM_ANSWERS
) -> Answers:
    """Over batches that bring every image once, as `Loader.read_once` does."""
    parts = [answer_batch(predict, batch.to(device), num_answers) for batch in batches]
    if not parts:
        raise ValueError("There is no image to evaluate on: check the data and its split.")
    columns = {field.name: [getattr(part, field.name).cpu() for part in parts] for field in fields(Answers)}
    answers = Answers(**{name: torch.cat(tensors) for name, tensors in columns.items()})
    num_bad = int((~answers.probabilities.isfinite().all(dim=1)).sum())
    if num_bad > 0:
        raise ValueError(
            f"The answers to {num_bad} of {len(answers)} images are infinite or not a number, and finite ones were needed: "
            "check the model's weights."
        )
    return answers
