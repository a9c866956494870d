"""Top-k predictions of batches; sums of hits and losses.

What a model answers to each image: its first classes with their probabilities, and whether they are right.

All figures of classification come from these, a few numbers for each image whatever the number of classes.
Letters: B images of a batch, N in all, K classes, A answers to each image.
Top-1, top-5 and loss of a model over images with labels.

Letters: B images, K classes.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.data.batch import Batch, match_labels
from vitrine.data.preprocessing import Preprocessing
from vitrine.models.model import Model

NUM_ANSWERS = 5

Predict = Callable[[Tensor], Tensor]
"""From raw pixels (B, C, H, W) to logits (B, K)."""


@dataclass(frozen=True)
class TopK:
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

    def take(self, rows: Tensor) -> "TopK":
        """Some of them: a mask bool (N), or numbers of rows."""
        return TopK(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@torch.no_grad()  # not inference_mode, whose tensors a sharded model would keep for its next training step
def predict_batch(predict: Predict, batch: Batch, num_answers: int = NUM_ANSWERS) -> TopK:
    """Of a batch that is where the model is."""
    logits = predict(batch.image).float()  # (B, K)
    best = logits.topk(min(num_answers, logits.shape[1]), dim=1)
    hits = match_labels(best.indices, batch.target)
    probabilities = (best.values - logits.logsumexp(dim=1, keepdim=True)).exp()
    if batch.target.is_floating_point():
        counts = batch.target.sum(dim=1) > 0
        losses = logits.new_full((len(batch),), float("nan"))
    else:
        counts = torch.ones_like(batch.target, dtype=torch.bool)
        losses = F.cross_entropy(logits, batch.target, reduction="none")
    return TopK(batch.index, best.indices, probabilities, hits & counts[:, None], losses, counts)


def predict_batches(
    predict: Predict, batches: Iterable[Batch], device: torch.device | str = "cpu", num_answers: int = NUM_ANSWERS
) -> TopK:
    """Over batches that bring every image once, as `Loader.read_epoch` does."""
    parts = [predict_batch(predict, batch.to(device), num_answers) for batch in batches]
    if not parts:
        raise ValueError("There is no image to evaluate on: check the data and its split.")
    columns = {field.name: [getattr(part, field.name).cpu() for part in parts] for field in fields(TopK)}
    answers = TopK(**{name: torch.cat(tensors) for name, tensors in columns.items()})
    num_bad = int((~answers.probabilities.isfinite().all(dim=1)).sum())
    if num_bad > 0:
        raise ValueError(
            f"The answers to {num_bad} of {len(answers)} images are infinite or not a number, and finite ones were needed: "
            "check the model's weights."
        )
    return answers


@dataclass(frozen=True)
class Classification:
    """Of images that have a label; those of sets with none (ReaL) do not count."""

    num_images: int
    top1: float
    """Share in 0..1 whose first answer is the label, or one of several."""
    top5: float
    """Share with such an answer among the first five."""
    loss: float | None
    """Mean softmax cross-entropy; None where images have several labels, of which it says nothing."""


def evaluate_classification(
    model: Model, preprocessing: Preprocessing, batches: Iterable[Batch], device: torch.device | str = "cpu"
) -> Classification:
    """Over batches that bring every image once, as `Loader.read_epoch` does; the model stays in the mode that it was in."""
    with evaluating(model):
        counts = count_hits(lambda images: model(preprocessing.normalise(images)), batches, device)
    return summarise_counts(counts)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module without what only training does; behind, it is in the mode that it was in."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def count_hits(predict: Predict, batches: Iterable[Batch], device: torch.device | str) -> Tensor:
    """Images that count, hits of the first answer, hits of the first five, and the sum of losses (4).

    Those of several processes may be added.
    """
    counts = [sum_up(predict_batch(predict, batch.to(device))) for batch in batches]
    return torch.stack(counts).cpu().double().sum(dim=0) if counts else torch.zeros(4, dtype=torch.float64)


def sum_up(answers: TopK) -> Tensor:
    hits = answers.hits
    return torch.stack([answers.counts.sum(), hits[:, 0].sum(), hits.any(dim=1).sum(), answers.losses.sum()]).float()


def summarise_counts(counts: Tensor) -> Classification:
    num_images, hits1, hits5, loss = counts.tolist()
    if num_images == 0:
        raise ValueError("There is no image with a label to evaluate on: check the data and its split.")
    return Classification(
        num_images=int(num_images),
        top1=hits1 / num_images,
        top5=hits5 / num_images,
        loss=None if loss != loss else loss / num_images,
    )
