"""Top-k predictions of batches, and the accuracy and loss summed over them.

Every classification metric is computed from `TopK`, a few numbers for each image whatever the number of classes.
Letters: B images of a batch, N in all, K classes, A predicted classes of each image.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.data.batch import Batch, match_labels

TOP = 5

ComputeLogits = Callable[[Tensor], Tensor]
"""Maps raw images (B, C, H, W) to logits (B, K)."""


@dataclass(frozen=True)
class TopK:
    """The most likely classes of each image; tensors of a batch are on the model's device, of a dataset on the CPU."""

    index: Tensor
    """int64 (N): index of each image in its source; always on the CPU."""
    classes: Tensor
    """int64 (N, A), the most likely first."""
    probabilities: Tensor
    """float32 (N, A): softmax probabilities of `classes`."""
    hits: Tensor
    """bool (N, A): whether each class is a label of the image."""
    losses: Tensor
    """float32 (N): softmax cross-entropy; NaN for images with several labels, where it is not defined."""
    has_label: Tensor
    """bool (N): images without a label (ReaL has some) are left out of every metric."""

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: Tensor) -> "TopK":
        """Return the rows selected by a mask bool (N) or by row numbers."""
        return TopK(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True)
class Classification:
    """Accuracy and loss over the images that have a label."""

    num_images: int
    top1: float
    """Fraction of images whose first prediction is a label."""
    top5: float
    """Fraction of images with a label among the first five predictions."""
    loss: float | None
    """Mean softmax cross-entropy; None for images with several labels."""


@torch.no_grad()  # not inference_mode: a sharded model would keep its tensors for the next training step
def predict_batch(compute_logits: ComputeLogits, batch: Batch, top: int = TOP) -> TopK:
    """Return the top-k predictions of a batch that is already on the model's device."""
    logits = compute_logits(batch.filled().image)[: len(batch)].float()  # (B, K)
    best = logits.topk(min(top, logits.shape[1]), dim=1)
    hits = match_labels(best.indices, batch.target)
    probabilities = (best.values - logits.logsumexp(dim=1, keepdim=True)).exp()
    if batch.target.is_floating_point():
        has_label = batch.target.sum(dim=1) > 0
        losses = logits.new_full((len(batch),), float("nan"))
    else:
        has_label = torch.ones_like(batch.target, dtype=torch.bool)
        losses = F.cross_entropy(logits, batch.target, reduction="none")
    return TopK(batch.index, best.indices, probabilities, hits & has_label[:, None], losses, has_label)


def rank_classes(logits: Tensor, targets: Tensor, index: Tensor) -> TopK:
    """Return the top-k predictions of logits (N, K) of images with one label, (N), or several, (N, K)."""
    best = logits.topk(min(TOP, logits.shape[1]), dim=1)
    probabilities = logits.softmax(dim=1).gather(1, best.indices)
    hits = best.indices == targets[:, None] if targets.ndim == 1 else targets.gather(1, best.indices) > 0.5
    losses = (
        F.cross_entropy(logits, targets, reduction="none")
        if targets.ndim == 1
        else logits.new_full((len(logits),), float("nan"))
    )
    has_label = torch.ones(len(logits), dtype=torch.bool) if targets.ndim == 1 else targets.sum(dim=1) > 0
    return TopK(index, best.indices, probabilities.float(), hits, losses.float(), has_label)


def predict_batches(
    compute_logits: ComputeLogits, batches: Iterable[Batch], device: torch.device | str = "cpu", top: int = TOP
) -> TopK:
    """Return the top-k predictions of all images on the CPU; raise ValueError if there are none, or not finite."""
    parts = [predict_batch(compute_logits, batch.to(device), top) for batch in batches]
    if not parts:
        raise ValueError("There are no images to evaluate on: check the data and its split.")
    topk = join_topk(parts)
    num_bad = int((~topk.probabilities.isfinite().all(dim=1)).sum())
    if num_bad > 0:
        advice = "check the model's weights, or compute in a higher precision (float32)"
        raise ValueError(f"The predictions of {num_bad} of {len(topk)} images are not finite: {advice}.")
    return topk


def join_topk(parts: Sequence[TopK]) -> TopK:
    """Join the predictions of batches on the CPU."""
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(TopK)}
    return TopK(**{name: torch.cat(tensors).cpu() for name, tensors in columns.items()})  # the device is read once for each


def count_hits(
    compute_logits: ComputeLogits,
    batches: Iterable[Batch],
    device: torch.device | str,
    keep: Callable[[TopK], None] = lambda topk: None,
) -> Tensor:
    """Return float64 (4): labelled images, top-1 hits, top-5 hits, sum of losses; ranks may add theirs.

    `keep` gets the predictions of each batch, on the model's device.
    """
    counts = []
    for batch in batches:
        topk = predict_batch(compute_logits, batch.to(device))
        keep(topk)
        sums = [topk.has_label.sum(), topk.hits[:, 0].sum(), topk.hits.any(dim=1).sum(), topk.losses.sum()]
        counts.append(torch.stack(sums).float())
    return torch.stack(counts).cpu().double().sum(dim=0) if counts else torch.zeros(4, dtype=torch.float64)


def summarise_counts(counts: Tensor) -> Classification:
    """Turn the sums of `count_hits` into accuracies and a mean loss."""
    num_images, hits1, hits5, loss = counts.tolist()
    if num_images == 0:
        raise ValueError("There are no images with a label to evaluate on: check the data and its split.")
    mean_loss = None if math.isnan(loss) else loss / num_images
    return Classification(int(num_images), top1=hits1 / num_images, top5=hits5 / num_images, loss=mean_loss)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode inside the `with` block, and back into its own mode after it."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
