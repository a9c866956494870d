"""What a classifier says of image files, one by one; a bad file does not stop the rest."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vitrine.core.notices import Notice
from vitrine.data.decode import BadImage
from vitrine.data.relabel import Relabelled
from vitrine.data.source import Source
from vitrine.data.sources.paths import open_paths
from vitrine.evaluate.classes import name_classes
from vitrine.evaluate.config import ReadingConfig
from vitrine.evaluate.measuring import answer_images
from vitrine.formats.checkpoint import Checkpoint

SKIPPING = ReadingConfig(bad_images="skip")


@dataclass(frozen=True)
class Prediction:
    image: str
    classes: tuple[str, ...]
    """The most likely first; their numbers, where the checkpoint has no names."""
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Predictions:
    found: list[Prediction]
    unreadable: dict[str, str]
    """Files that gave no image, and why."""


def predict_files(
    checkpoint: Checkpoint,
    paths: Sequence[Path],
    num_answers: int = 5,
    reading: ReadingConfig = SKIPPING,
    device: torch.device | str = "cpu",
) -> Predictions:
    """Of files, and of the images in folders, in their order."""
    names = name_classes(checkpoint.class_names, checkpoint.model.config.num_classes)
    files = open_paths(paths)
    source = Relabelled(files, files.labels, names)  # no labels, of as many classes as the model has
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipped", Notice)  # with their reasons they are told of at the end
        answers = answer_images(checkpoint, source, reading, device, num_answers, title="predicting")
    found = [
        Prediction(source.name(index), tuple(names[each] for each in classes), tuple(probabilities))
        for index, classes, probabilities in zip(
            answers.index.tolist(), answers.classes.tolist(), answers.probabilities.tolist(), strict=True
        )
    ]
    lost = sorted(set(range(len(source))) - set(answers.index.tolist()))
    return Predictions(found, {source.name(index): explain(source, index) for index in lost})


def explain(source: Source, index: int) -> str:
    """Why an image could not be read: it is tried again, since other processes keep their reasons to themselves."""
    try:
        source.read(index)[0].image()
    except BadImage as error:
        return " ".join(str(error).split())
    return "it could not be read at first, and can be now"
