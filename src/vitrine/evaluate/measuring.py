"""A checkpoint over the images of a source: what it answers, and its features."""

from collections.abc import Iterator

import torch

from vitrine.core.console import track
from vitrine.data.batch import Batch
from vitrine.data.loader import build_plain_loader
from vitrine.data.source import Source
from vitrine.evaluate.answers import Answers, collect_answers
from vitrine.evaluate.config import AS_USUAL, ReadingConfig
from vitrine.evaluate.feature_cache import FeatureCache
from vitrine.evaluate.features import Features, build_featuriser, extract_features
from vitrine.formats.checkpoint import Checkpoint


def answer_images(
    checkpoint: Checkpoint,
    source: Source,
    reading: ReadingConfig = AS_USUAL,
    device: torch.device | str = "cpu",
    num_answers: int = 5,
    title: str = "evaluating",
) -> Answers:
    """To every image, whose labels are in the model's numbers."""
    model = checkpoint.model.to(device).eval()
    batches = read_images(checkpoint, source, reading, title)
    return collect_answers(lambda images: model(checkpoint.preprocessing.normalise(images)), batches, device, num_answers)


def featurise_images(
    checkpoint: Checkpoint,
    source: Source,
    reading: ReadingConfig = AS_USUAL,
    device: torch.device | str = "cpu",
    cache: FeatureCache | None = None,
    title: str = "features",
) -> Features:
    """Of every image: from the cache, if they are there, else computed and put there."""

    def compute() -> Features:
        model = checkpoint.model.to(device).eval()
        batches = read_images(checkpoint, source, reading, title)
        return extract_features(build_featuriser(model, checkpoint.preprocessing), batches, device)

    return compute() if cache is None else cache.find(checkpoint, source, reading.bad_images, compute)


def read_images(checkpoint: Checkpoint, source: Source, reading: ReadingConfig, title: str) -> Iterator[Batch]:
    """With a progress bar."""
    loader = build_plain_loader(
        source,
        checkpoint.preprocessing,
        batch_size=reading.batch_size,
        num_workers=reading.num_workers,
        bad_images=reading.bad_images,
    )
    return track(loader.read_once(), loader.steps_per_epoch, title)
