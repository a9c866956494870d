"""Inspect a model: everything that `vitrine inspect` shows, computed from the weights and from some images.

`inspection.report.write_inspection` writes the result as an HTML report.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.core.console import progress_bar
from vitrine.core.precision import Precision
from vitrine.data.batch import Batch
from vitrine.data.source import Source
from vitrine.engines.engine import TorchEngine
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.predictor import ImagePrediction, ImagesLike, ModelLike, Predictor, explain_unreadable
from vitrine.inspection.attention import check_numbers, choose_query, count_layers, has_attention_maps, read_query
from vitrine.inspection.config import InspectConfig, RolloutConfig
from vitrine.inspection.distance import DistanceMeter, Distances
from vitrine.inspection.figures import InspectedImage
from vitrine.inspection.filters import Filters, compute_filters
from vitrine.inspection.patch_features import PatchFeatures, encode_patches, summarise_patches
from vitrine.inspection.positions import Similarities, compute_similarities
from vitrine.inspection.rollout import Rollout
from vitrine.models.model import Model

MAX_DRAWN_SIDE = 480  # pixels of an image in a figure
NUM_LAYERS_DRAWN = 4
NUM_PREDICTED = 3  # classes of each image
# One image at a time: attention maps are large, and no image may wait for the others to be read.
INFERENCE = InferenceConfig(batch_size=1, num_workers=0, bad_images="skip")


@dataclass(frozen=True)
class AttentionChoice:
    """Choice of the attention maps to draw."""

    query: str
    """class, mean, or ROW,COLUMN of a patch."""
    layers: tuple[int, ...]
    heads: tuple[int, ...]


@dataclass(frozen=True)
class Attention:
    """Attention of the drawn images, in their order, and its mean distance over all measured images."""

    choice: AttentionChoice
    rollouts: list[np.ndarray]
    """For each image, (rows, columns): contribution of each patch to the output of the query."""
    maps: list[np.ndarray]
    """For each image, (layers, heads, rows, columns): attention of the query to each patch."""
    distances: Distances


@dataclass(frozen=True)
class Inspection:
    """Everything that was computed of a model."""

    images: list[InspectedImage]
    attention: Attention | None
    """None for a model without attention maps, e.g. a ResNet."""
    similarities: list[Similarities]
    filters: Filters
    features: PatchFeatures
    unreadable: dict[str, str]
    """Image name -> why it could not be read."""
    predictions: list[ImagePrediction] = field(default_factory=list)
    """The most likely classes of each image; empty for a model without a head."""


def inspect(
    model: ModelLike,
    images: ImagesLike,
    config: InspectConfig | None = None,
    rollout: RolloutConfig | None = None,
    *,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
) -> Inspection:
    """Compute attention rollout and maps, attention distance, patch features, position similarities and filters.

    Images that cannot be read are listed in `unreadable`.
    """
    config, rollout = config or InspectConfig(), rollout or RolloutConfig()
    predictor = Predictor(model, device, replace(INFERENCE, precision=precision))
    engine = predictor.engine
    if not isinstance(engine, TorchEngine):
        raise ValueError(f"inspect needs a model with PyTorch weights, not a {type(engine).__name__}.")
    choice = choose_attention(engine.model, config, rollout)
    meter = None if choice is None else DistanceMeter(engine.model.config, count_layers(engine.model))
    source, _ = predictor.open_images(images)
    drawn: list[InspectedImage] = []
    patches: list[tuple[Tensor, Tensor]] = []
    rollouts, maps = list[np.ndarray](), list[np.ndarray]()
    unreadable: dict[str, str] = {}
    predictions: list[ImagePrediction] = []
    num_wanted = max(config.num_drawn, 0 if choice is None else config.num_measured)
    for batch in read_first(predictor, source, num_wanted, unreadable):
        # Contiguous channels: convolutions of the loader's layout would round differently.
        pixels = batch.image.contiguous().to(engine.device)
        is_drawn = len(drawn) < config.num_drawn
        if choice is not None and meter is not None:
            is_measured = meter.num_images < config.num_measured
            collector = AttentionCollector(engine.model, choice, rollout, meter if is_measured else None, is_drawn)
            with predictor.explain_memory():
                engine.stream_attention(pixels, collector.add)
            if is_drawn:
                rollouts.append(collector.read_rollout())
                maps.append(np.stack([collector.maps[layer] for layer in choice.layers]))
        if is_drawn:
            with predictor.explain_memory(), engine.computing():
                features, norms = encode_patches(engine.model, engine.normalise(pixels))
            patches.append((features.float().cpu(), norms.float().cpu()))
            drawn.append(show_input(source, batch, predictor))
            predictions += predict_classes(predictor, pixels, drawn[-1].name)
    if not drawn:
        reason = next(iter(unreadable.values()), "none were given")
        raise ValueError(f"None of the {len(unreadable)} images can be read: {reason}")
    attention = None if choice is None or meter is None else Attention(choice, rollouts, maps, meter.compute())
    return Inspection(
        images=drawn,
        attention=attention,
        similarities=compute_similarities(engine.model),
        filters=compute_filters(engine.model),
        features=summarise_patches(*(torch.cat(each) for each in zip(*patches, strict=True))),
        unreadable=unreadable,
        predictions=predictions,
    )


def predict_classes(predictor: Predictor, pixels: Tensor, name: str) -> list[ImagePrediction]:
    """Return the most likely classes of one image (1, C, H, W), not normalised; nothing if the model has no head."""
    engine = predictor.engine
    if not engine.num_classes:
        return []
    with torch.no_grad():
        probabilities = engine.calibration.to_probabilities(engine.logits(pixels).float())[0]
    best = probabilities.topk(min(NUM_PREDICTED, engine.num_classes))
    classes = tuple(predictor.class_names[index] for index in best.indices.tolist())
    return [ImagePrediction(name, classes, tuple(best.values.tolist()))]


def choose_attention(model: Model[Any], config: InspectConfig, rollout: RolloutConfig) -> AttentionChoice | None:
    """Return what to draw, None for a model without attention maps; raise ValueError for what the model lacks."""
    if not has_attention_maps(model):
        if config != InspectConfig(num_drawn=config.num_drawn) or rollout != RolloutConfig():
            count_layers(model)  # raises: the other settings are for attention
        return None
    num_layers, num_heads = count_layers(model), model.config.num_heads
    check_numbers("layer", config.layers, num_layers)
    check_numbers("head", config.heads, num_heads)
    spaced = sorted({round(layer) for layer in np.linspace(0, num_layers - 1, NUM_LAYERS_DRAWN)})
    layers, heads = config.layers or tuple(spaced), config.heads or tuple(range(num_heads))
    return AttentionChoice(choose_query(model.config, config.query), layers, heads)


class AttentionCollector:
    """Receives the attention maps of one image, layer by layer, and keeps only what is drawn or measured."""

    def __init__(
        self, model: Model[Any], choice: AttentionChoice, rollout: RolloutConfig, meter: DistanceMeter | None, is_drawn: bool
    ) -> None:
        self.config, self.choice, self.rollout = model.config, choice, Rollout(rollout)
        self.meter, self.is_drawn = meter, is_drawn
        self.maps: dict[int, np.ndarray] = {}

    def add(self, layer: int, attention: Tensor) -> None:
        """Take one layer's maps (1, heads, tokens, tokens)."""
        if self.meter is not None:
            self.meter.add(layer, attention)
        if self.is_drawn:
            self.rollout.add(attention)
            if layer in self.choice.layers:
                heads = attention[0, list(self.choice.heads)]
                self.maps[layer] = read_query(heads, self.config, self.choice.query).cpu().numpy()

    def read_rollout(self) -> np.ndarray:
        """Return the contribution of each patch to the output of the query, (rows, columns)."""
        assert self.rollout.joint is not None
        return read_query(self.rollout.joint[0], self.config, self.choice.query).cpu().numpy()


def read_first(predictor: Predictor, source: Source, num_images: int, unreadable: dict[str, str]) -> Iterator[Batch]:
    """Yield the first readable images, one per batch; the reasons why others could not be read go into `unreadable`."""
    num_read = 0
    batches = predictor.read_images(source, warn_skipped=False)
    for index, batch in enumerate(progress_bar(batches, min(len(source), num_images), "inspecting images")):
        if len(batch) == 0:
            unreadable[source.name(index)] = explain_unreadable(source, index)
            continue
        yield batch
        num_read += 1
        if num_read == num_images:
            return


def show_input(source: Source, batch: Batch, predictor: Predictor) -> InspectedImage:
    """Return the image of a batch for figures: at its own aspect ratio, and as the model sees it."""
    index, preprocessing = int(batch.index[0]), predictor.engine.preprocessing
    image = source.read(index)[0].to_pil(preprocessing.num_channels)
    left, top, right, bottom = preprocessing.compute_box(image.height, image.width)
    box = (left / image.width, top / image.height, right / image.width, bottom / image.height)
    image.thumbnail((MAX_DRAWN_SIDE, MAX_DRAWN_SIDE))
    pixels = np.asarray(image)
    model_input = batch.image[0].permute(1, 2, 0).numpy()
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    return InspectedImage(source.name(index), pixels, box, model_input, source.image_path(index))
