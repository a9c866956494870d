"""Top-1, top-5 and loss of a model over images with labels.

Letters: B images, K classes.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrine.data.batch import Batch
from vitrine.data.preprocessing import Preprocessing
from vitrine.evaluate.answers import Answers, Predict, answer_batch
from vitrine.models.model import Model


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
    """Over batches that bring every image once, as `Loader.read_once` does; the model stays in the mode that it was in."""
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
    counts = [sum_up(answer_batch(predict, batch.to(device))) for batch in batches]
    return torch.stack(counts).cpu().double().sum(dim=0) if counts else torch.zeros(4, dtype=torch.float64)


def sum_up(answers: Answers) -> Tensor:
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
