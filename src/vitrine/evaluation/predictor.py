"""Predictor: predictions, features and attention maps of images by one loaded model.

`predict` and `features` are the commands of the same name. A `Predictor` keeps the model loaded between calls.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import compress, groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrine.core.console import name_setting, progress_bar
from vitrine.core.files import atomic_file
from vitrine.core.runtime import choose_device, explain_out_of_memory, require_memory
from vitrine.data.batch import Batch
from vitrine.data.dataset_format import normalise_split
from vitrine.data.image import BadImage, convert_image
from vitrine.data.loader import build_eval_loader
from vitrine.data.open_data import DataLike, DatasetHandle, find_data, open_train_and_test
from vitrine.data.source import Labels, Source
from vitrine.data.sources.image_files import open_paths
from vitrine.data.wrappers import ConcatSource, RelabelledSource
from vitrine.engines.engine import Engine, TorchEngine
from vitrine.evaluation.class_mapping import resolve_class_names
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import FeatureCache, Features, FeatureSplit, extract_features, open_feature_cache
from vitrine.evaluation.topk import TOP, TopK, predict_batches
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.models.cost import compute_cost

MIN_FILES_FOR_WORKERS = 8  # below this, starting worker processes takes longer than reading the files

ModelLike = str | Path | Checkpoint | Engine
"""A path or hub reference, a loaded checkpoint, or an engine."""
ImageLike = str | Path | bytes | Image.Image | np.ndarray
"""A file or folder, the bytes of an image file, a PIL image, or uint8 pixels (H, W) or (H, W, C)."""
ImagesLike = ImageLike | Sequence[ImageLike] | Source


@dataclass(frozen=True)
class ImagePrediction:
    """The most likely classes of one image."""

    image: str
    """The path, or `image N` for an image that is not a file."""
    classes: tuple[str, ...]
    """The most likely first; class numbers if the checkpoint has no class names."""
    probabilities: tuple[float, ...]
    is_unsure: bool = False
    """Whether the first class is less likely than the checkpoint, or the caller, wants an answer to be."""
    is_label: tuple[bool, ...] | None = None
    """Whether each of `classes` is at or above its threshold; None for a model of one class per image."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The classes that are labels, the most likely first; None for a model of one class per image."""
        return None if self.is_label is None else tuple(compress(self.classes, self.is_label))


@dataclass(frozen=True)
class PredictResult:
    """Predictions for the readable images, in order, and the reasons why others could not be read."""

    predictions: list[ImagePrediction]
    unreadable: dict[str, str]
    """Image name -> reason."""


@dataclass(frozen=True)
class DatasetFeatures:
    """Features of all images of a dataset, as NumPy arrays."""

    features: np.ndarray
    """float32 (N, D)."""
    labels: np.ndarray
    """int64 (N), or float32 (N, K) for images with several labels."""
    names: np.ndarray
    """Image names (N)."""
    splits: np.ndarray | None
    """Split of each image (N); None if the data has no splits."""
    class_names: np.ndarray
    """Class names (K)."""
    num_skipped: int = 0
    """Number of images that could not be read and are left out."""

    def save(self, path: Path) -> None:
        """Write the arrays to an .npz file."""
        arrays: dict[str, Any] = {name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        with atomic_file(path) as partial, partial.open("wb") as file:
            np.savez(file, **arrays)


class Predictor:
    """A model on a device, loaded once, that predicts classes and features of images; threads may share it."""

    def __init__(
        self,
        model: ModelLike,
        device: torch.device | str | None = None,
        inference: InferenceConfig | None = None,
        *,
        show_progress: bool = False,
    ) -> None:
        """Load the model if it is a path. The default device is a GPU if available; an engine has its own, and a precision."""
        inference = inference or InferenceConfig()
        if isinstance(model, str | Path):
            model = load_checkpoint(model)
        if isinstance(model, Checkpoint):
            device = device if isinstance(device, torch.device) else choose_device(device)
            with explain_out_of_memory("The model", device, "use a smaller one, or another device"):
                model = TorchEngine(model, device, inference.precision)
        if isinstance(model, torch.nn.Module):
            raise ValueError("A network alone has no preprocessing: give Checkpoint(model, preprocessing, class_names).")
        if isinstance(model, TorchEngine) and inference.precision not in ("auto", str(model.dtype).removeprefix("torch.")):
            raise ValueError(f"precision={inference.precision!r} has no effect on an engine, which computes in {model.dtype}.")
        self.engine: Engine = model
        self.inference = inference
        self.show_progress = show_progress

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the model's classes, or their numbers; raises ValueError if the model has no head."""
        return resolve_class_names(self.engine.class_names, self.engine.num_classes)

    def predict(self, images: ImagesLike, top: int = TOP, reject_below: float | None = None) -> PredictResult:
        """Return the `top` most likely classes of each image; images that cannot be read are listed with the reason.

        Takes image files and folders, bytes of image files, PIL images, uint8 arrays (H, W, C), or a source. Answers less
        likely than `reject_below` are unsure (default: the checkpoint's own limit; 0: none are). All labels of a model for
        several labels per image are listed, also beyond `top`.
        """
        result = PredictResult([], {})
        for part in self.predict_stream(images, top, reject_below):
            result.predictions.extend(part.predictions)
            result.unreadable.update(part.unreadable)
        return result

    def predict_stream(self, images: ImagesLike, top: int = TOP, reject_below: float | None = None) -> Iterator[PredictResult]:
        """Yield what `predict` returns batch by batch, so that predictions of any number of images need no memory."""
        class_names, limit = self.class_names, self.resolve_rejection(reject_below)
        source, inference = self.open_images(images)
        unlabelled = RelabelledSource(source, Labels.none_each(len(source)), class_names)
        settings = replace(inference, bad_images="skip")
        for batch in self.read_images(unlabelled, settings, "predicting", warn_skipped=False):
            first = batch.step * settings.batch_size
            skipped = set(range(first, min(first + settings.batch_size, len(source)))) - set(batch.index.tolist())
            unreadable = {source.name(index): explain_unreadable(source, index) for index in sorted(skipped)}
            yield PredictResult(self.predict_batch(batch, source, class_names, top, limit) if len(batch) else [], unreadable)

    def resolve_rejection(self, reject_below: float | None = None) -> float:
        """Return the probability below which answers are unsure: the given one, else the checkpoint's; 0 if there is none."""
        calibration = self.engine.calibration
        if reject_below is None:
            return calibration.reject_below or 0.0
        given = name_setting("reject_below", reject_below)
        if calibration.has_several_labels:
            raise ValueError(
                f"{given} is for one class per image, and this model has a threshold for each label: leave it out."
            )
        if not 0 <= reject_below <= 1:
            raise ValueError(f"{given} must be a probability, from 0 to 1.")
        return reject_below

    def predict_batch(
        self, batch: Batch, source: Source, class_names: tuple[str, ...], top: int, limit: float
    ) -> list[ImagePrediction]:
        """Return the predictions of one batch with the names of its images and classes."""
        if self.engine.calibration.has_several_labels:
            return self.predict_labels(batch, source, class_names, top)
        with self.explain_memory():
            topk = predict_batches(self.engine.logits, [batch], self.engine.device, top)
        rows = zip(topk.index.tolist(), topk.classes.tolist(), topk.probabilities.tolist(), strict=True)
        return [
            ImagePrediction(
                source.name(index),
                tuple(class_names[each] for each in classes),
                tuple(probabilities),
                is_unsure=probabilities[0] < limit,
            )
            for index, classes, probabilities in rows
        ]

    def predict_labels(self, batch: Batch, source: Source, class_names: tuple[str, ...], top: int) -> list[ImagePrediction]:
        """Return the predictions of one batch by a model for several labels: its `top` classes and all labels."""
        calibration = self.engine.calibration
        with self.explain_memory():
            logits = extract_features(self.engine.logits, [batch], self.engine.device)
        probabilities = calibration.to_probabilities(logits.values)
        best = probabilities.sort(dim=1, descending=True, stable=True)
        is_label = calibration.find_labels(probabilities).gather(1, best.indices)  # (B, K), like best.values
        is_listed = is_label | (torch.arange(len(class_names)) < top)
        predictions = []
        for row, index in enumerate(logits.index.tolist()):
            classes, values, are_labels = (each[row, is_listed[row]].tolist() for each in (best.indices, best.values, is_label))
            names = tuple(class_names[each] for each in classes)
            predictions.append(ImagePrediction(source.name(index), names, tuple(values), is_label=tuple(are_labels)))
        return predictions

    def predict_source(
        self,
        source: Source,
        top: int = TOP,
        inference: InferenceConfig | None = None,
        title: str = "evaluating",
        *,
        warn_skipped: bool = True,
    ) -> TopK:
        """Return top-k predictions of every image of a source whose labels are the model's class numbers, or missing."""
        if not source.class_names:
            source = RelabelledSource(source, source.labels, self.class_names)
        batches = self.read_images(source, inference, title, warn_skipped=warn_skipped)
        with self.explain_memory():
            return predict_batches(self.engine.logits, batches, self.engine.device, top)

    def predict_logits(self, source: Source, title: str = "evaluating") -> Features:
        """Return the logits of every image of a source as `values` (N, K), with targets as `labels`.

        They are in memory at once: for models for several labels per image, whose metrics need the rank of every image.
        """
        with self.explain_memory():
            return extract_features(self.engine.logits, self.read_images(source, title=title), self.engine.device)

    def features(self, images: ImagesLike, cache: FeatureCache | None = None, title: str = "features") -> Features:
        """Return the features that the head reads, from the cache if they are there."""
        source, inference = self.open_images(images)

        def compute() -> Features:
            with self.explain_memory():
                return extract_features(self.engine.features, self.read_images(source, inference, title), self.engine.device)

        if cache is None:
            return compute()
        return cache.find(self.engine.fingerprint(), source, inference.bad_images, compute)

    def attention(self, images: ImagesLike, layer: int) -> Tensor:
        """Return one layer's attention maps, float32 (N, heads, tokens, tokens), from query to key, all in memory."""
        source, inference = self.open_images(images)
        maps: list[Tensor] = []

        def keep(number: int, attention: Tensor) -> None:
            if number == layer:
                maps.append(attention.cpu())

        with self.explain_memory():
            for batch in self.read_images(source, inference):
                self.engine.stream_attention(batch.image.to(self.engine.device), keep)
        if not maps:
            raise ValueError(f"The model has no attention maps of a layer {layer}: layers count from 0.")
        return torch.cat(maps)

    def read_images(
        self, source: Source, inference: InferenceConfig | None = None, title: str | None = None, *, warn_skipped: bool = True
    ) -> Iterator[Batch]:
        """Yield every image of a source once, in order, as preprocessed raw batches; `title` names the progress bar."""
        inference = inference or self.inference
        self.check_memory(min(inference.batch_size, len(source)))
        loader = build_eval_loader(
            source,
            self.engine.preprocessing,
            batch_size=inference.batch_size,
            num_workers=inference.num_workers,
            bad_images=inference.bad_images,
            pin_memory=self.engine.device.type == "cuda",
        )
        loader.is_quiet = not warn_skipped
        batches = loader.read_epoch()
        return progress_bar(batches, loader.steps_per_epoch, title) if title and self.show_progress else batches

    def check_memory(self, num_images: int) -> None:
        """Raise ValueError if a batch cannot fit into memory, by the model's closed-form cost."""
        if isinstance(self.engine, TorchEngine):
            config = self.engine.model.config
            num_bytes = num_images * compute_cost(config).inference_activation_bytes
            batch = f"A batch of {num_images:,} images of {config.image_size[0]} x {config.image_size[1]} pixels"
            require_memory(num_bytes, self.engine.device, batch, "use a smaller batch size or image size")

    def explain_memory(self) -> AbstractContextManager[None]:
        """Return a context that turns a lack of memory into an error with advice."""
        batch_size, height_width = self.inference.batch_size, self.engine.preprocessing.crop
        smaller = "a smaller image size" if batch_size == 1 else f"a smaller {name_setting('batch_size')} than {batch_size}"
        batch = f"A batch of {batch_size} images of {height_width[0]} x {height_width[1]} pixels"
        return explain_out_of_memory(batch, self.engine.device, f"use {smaller}")

    def open_images(self, images: ImagesLike) -> tuple[Source, InferenceConfig]:
        """Return images as a source, and the settings to read it with: no worker processes for a few files or objects."""
        if isinstance(images, Source):
            return images, self.inference
        if isinstance(images, str | Path | bytes | Image.Image) or (isinstance(images, np.ndarray) and images.ndim < 4):
            images = [images]
        if len(images) == 0:
            raise ValueError("There are no images: give image files, folders, bytes, PIL images or arrays.")
        parts, first, num_channels = list[Source](), 0, self.engine.preprocessing.num_channels
        for is_path, group in groupby(images, lambda image: isinstance(image, str | Path)):
            members: list[Any] = list(group)
            parts.append(open_paths([*map(Path, members)]) if is_path else ImageListSource(members, num_channels, first))
            first += len(members)
        source = parts[0] if len(parts) == 1 else ConcatSource(parts)
        has_objects = any(isinstance(part, ImageListSource) for part in parts)
        has_folders = any(isinstance(image, str | Path) and Path(image).is_dir() for image in images)
        is_small = len(images) < MIN_FILES_FOR_WORKERS and not has_folders
        if self.inference.num_workers is None and (has_objects or is_small):
            return source, replace(self.inference, num_workers=0)
        return source, self.inference


class ImageListSource(Source):
    """Images that are Python objects: bytes of image files, PIL images, or uint8 arrays; without labels."""

    def __init__(self, images: Sequence[bytes | Image.Image | np.ndarray], num_channels: int, first: int = 0) -> None:
        """Names count from `first`: image 0, image 1, ..."""
        self.images, self.num_channels, self.first = images, num_channels, first
        self.labels, self.class_names = Labels.none_each(len(images)), ()

    def fetch(self, index: int) -> bytes | np.ndarray:
        """Return an image for `Source.read`; PIL images are converted to the model's channels."""
        image = self.images[index]
        if isinstance(image, Image.Image):
            return np.asarray(convert_image(image, self.num_channels, self.name(index)))
        if isinstance(image, bytes | np.ndarray):
            return image
        raise TypeError(f"{self.name(index)} is a {type(image).__name__}; expected a path, bytes, a PIL image or an array.")

    def name(self, index: int) -> str:
        return f"image {self.first + index}"

    def files(self) -> list[Path]:
        return []


def predict(
    model: ModelLike,
    images: ImagesLike,
    top: int = TOP,
    *,
    device: torch.device | str | None = None,
    inference: InferenceConfig | None = None,
    reject_below: float | None = None,
) -> PredictResult:
    """Return the most likely classes of images; for several calls use a `Predictor`, which loads the model once."""
    return Predictor(model, device, inference, show_progress=True).predict(images, top, reject_below)


def features(
    model: ModelLike,
    data: DataLike,
    split: str | None = None,
    *,
    device: torch.device | str | None = None,
    inference: InferenceConfig | None = None,
    use_cache: bool = True,
) -> DatasetFeatures:
    """Return the features that a model's head reads for every image of a dataset, or of one split."""
    dataset = find_data(data)
    sources = open_splits(dataset, split)
    predictor = Predictor(model, device, inference, show_progress=True)
    cache = open_feature_cache() if use_cache else None
    parts = {name: predictor.features(source, cache, f"features {name}".strip()) for name, source in sources.items()}
    names = [[sources[split].name(index) for index in part.index.tolist()] for split, part in parts.items()]
    return DatasetFeatures(
        features=np.concatenate([part.values.numpy() for part in parts.values()]),
        labels=np.concatenate([part.labels.numpy() for part in parts.values()]),
        names=np.concatenate([np.array(each) for each in names]),
        splits=np.concatenate([np.full(len(part), name) for name, part in parts.items()]) if dataset.splits else None,
        class_names=np.array(next(iter(sources.values())).class_names, dtype=str),
        num_skipped=sum(len(sources[split]) - len(part) for split, part in parts.items()),
    )


def extract_split(
    predictor: Predictor,
    data: DataLike,
    held_out: float | None = None,
    subset: str = "all",
    seed: int = 0,
    use_cache: bool = True,
) -> FeatureSplit:
    """Return training and test features of labelled data; without splits, `held_out` (0.2) of each class is for testing."""
    dataset = find_data(data)
    sources = open_train_and_test(dataset, held_out, seed, subset)
    require_single_labels(sources[0], dataset.name)
    cache = open_feature_cache() if use_cache else None
    train, test = (predictor.features(source, cache) for source in sources)
    return FeatureSplit(train, test, len(sources[0].class_names))


def require_single_labels(source: Source, data: str) -> None:
    """Raise ValueError unless images have one label each, of two or more classes: before features are computed."""
    if not source.class_names:
        raise ValueError(f"{data} has no labels to learn from: use labelled data, e.g. images in class folders.")
    if len(source.class_names) == 1:
        raise ValueError(f"{data} has only one class ({source.class_names[0]}); at least two are needed.")
    if source.labels.has_several:
        raise ValueError(f"{data} has several labels for each image; expected one: use other data or another split.")


def open_splits(dataset: DatasetHandle, split: str | None) -> dict[str, Source]:
    """Return {split: source} of the named split, or of all; data without splits has the key ""."""
    if not dataset.splits:
        return {"": dataset.open(split)}
    named = None if split is None else split if split in dataset.splits else normalise_split(split) or split
    sources = {name: dataset.open(name) for name in (dataset.splits if named is None else (named,))}
    if len({source.labels.has_several for source in sources.values()}) > 1:
        raise ValueError(f"{dataset.name} has one label per image in some splits and several in others: choose one split.")
    return sources


def explain_unreadable(source: Source, index: int) -> str:
    """Return why an image cannot be read, by reading it again: worker processes do not send their reasons."""
    try:
        source.read(index)[0].to_pil()
    except BadImage as error:
        return " ".join(str(error).split())
    return f"{source.name(index)} could not be read at first, and can be read now"
