"""Predictor: predictions and features of images.

A checkpoint over the images of a source: what it answers, and its features.
What a classifier says of image files, one by one; a bad file does not stop the rest.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vitrine.core.console import VitrineWarning, progress_bar
from vitrine.data.batch import Batch
from vitrine.data.image import BadImage
from vitrine.data.loader import build_eval_loader
from vitrine.data.source import Source
from vitrine.data.sources.image_files import open_paths
from vitrine.data.wrappers import RelabelledSource
from vitrine.evaluation.class_mapping import name_classes
from vitrine.evaluation.config import AS_USUAL, InferenceConfig
from vitrine.evaluation.features import FeatureCache, Features, build_featuriser, extract_features
from vitrine.evaluation.topk import TopK, predict_batches
from vitrine.formats.checkpoint import Checkpoint


def answer_images(
    checkpoint: Checkpoint,
    source: Source,
    reading: InferenceConfig = AS_USUAL,
    device: torch.device | str = "cpu",
    num_answers: int = 5,
    title: str = "evaluating",
) -> TopK:
    """To every image, whose labels are in the model's numbers."""
    model = checkpoint.model.to(device).eval()
    batches = read_images(checkpoint, source, reading, title)
    return predict_batches(lambda images: model(checkpoint.preprocessing.normalise(images)), batches, device, num_answers)


def featurise_images(
    checkpoint: Checkpoint,
    source: Source,
    reading: InferenceConfig = AS_USUAL,
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


def read_images(checkpoint: Checkpoint, source: Source, reading: InferenceConfig, title: str) -> Iterator[Batch]:
    """With a progress bar."""
    loader = build_eval_loader(
        source,
        checkpoint.preprocessing,
        batch_size=reading.batch_size,
        num_workers=reading.num_workers,
        bad_images=reading.bad_images,
    )
    return progress_bar(loader.read_epoch(), loader.steps_per_epoch, title)


SKIPPING = InferenceConfig(bad_images="skip")


@dataclass(frozen=True)
class ImagePrediction:
    image: str
    classes: tuple[str, ...]
    """The most likely first; their numbers, where the checkpoint has no names."""
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class PredictResult:
    found: list[ImagePrediction]
    unreadable: dict[str, str]
    """Files that gave no image, and why."""


def predict_files(
    checkpoint: Checkpoint,
    paths: Sequence[Path],
    num_answers: int = 5,
    reading: InferenceConfig = SKIPPING,
    device: torch.device | str = "cpu",
) -> PredictResult:
    """Of files, and of the images in folders, in their order."""
    names = name_classes(checkpoint.class_names, checkpoint.model.config.num_classes)
    files = open_paths(paths)
    source = RelabelledSource(files, files.labels, names)  # no labels, of as many classes as the model has
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipped", VitrineWarning)  # with their reasons they are told of at the end
        answers = answer_images(checkpoint, source, reading, device, num_answers, title="predicting")
    found = [
        ImagePrediction(source.name(index), tuple(names[each] for each in classes), tuple(probabilities))
        for index, classes, probabilities in zip(
            answers.index.tolist(), answers.classes.tolist(), answers.probabilities.tolist(), strict=True
        )
    ]
    lost = sorted(set(range(len(source))) - set(answers.index.tolist()))
    return PredictResult(found, {source.name(index): explain(source, index) for index in lost})


def explain(source: Source, index: int) -> str:
    """Why an image could not be read: it is tried again, since other processes keep their reasons to themselves."""
    try:
        source.read(index)[0].to_pil()
    except BadImage as error:
        return " ".join(str(error).split())
    return "it could not be read at first, and can be now"
