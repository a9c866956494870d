"""Everything that can be seen of a model, from its weights and from some images: figures, a page, and the numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.core.console import progress_bar
from vitrine.data.image import BadImage, read_image
from vitrine.data.sources.image_files import open_paths
from vitrine.evaluation.topk import evaluating
from vitrine.formats.checkpoint import Checkpoint
from vitrine.inspection.attention import NAME, choose_query, count_layers, read_query, require_numbers, stream_attention
from vitrine.inspection.config import InspectConfig, RolloutConfig
from vitrine.inspection.distance import DistanceMeter, Distances
from vitrine.inspection.figures import (
    Picture,
)
from vitrine.inspection.filters import Filters, compute_filters
from vitrine.inspection.patch_features import PatchFeatures, describe_patches, encode_patches
from vitrine.inspection.positions import Similarities, compute_similarities
from vitrine.inspection.rollout import Rollout
from vitrine.models.model import Model

LARGEST_SIDE = 480  # of an image as it is drawn
NUM_LAYERS_DRAWN = 4


@dataclass
class Inspection:
    """What was found; lists go by image, in the order of `pictures`."""

    query: str | None
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    pictures: list[Picture] = field(default_factory=list)
    rollouts: list[np.ndarray] = field(default_factory=list)
    """Of each image, (rows, columns): the share of each patch in what the query ends as."""
    maps: list[np.ndarray] = field(default_factory=list)
    """Of each image, (layers, heads, rows, columns): what the query reads."""
    distances: Distances | None = None
    similarities: list[Similarities] = field(default_factory=list)
    filters: Filters | None = None
    features: PatchFeatures | None = None
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files that gave no image, and why."""


def inspect_model(
    checkpoint: Checkpoint,
    paths: Sequence[Path],
    config: InspectConfig,
    rollout: RolloutConfig,
    device: torch.device | str = "cpu",
) -> Inspection:
    """Of image files, and of the images in folders, one at a time; a bad file does not stop the rest."""
    model = checkpoint.model.to(device)
    found = plan(model, config)
    found.filters, found.similarities = compute_filters(model), compute_similarities(model)
    meter = None if found.query is None else DistanceMeter(model.config, count_layers(model))
    patches: list[tuple[Tensor, Tensor]] = []
    with evaluating(model):
        for picture in read_pictures(checkpoint, paths, config, found.unreadable):
            images = checkpoint.preprocessing.normalise(to_tensor(picture)).to(device)
            is_drawn = len(found.pictures) < config.num_drawn
            if found.query is not None:
                look_at_attention(model, images, found, meter if is_measured(meter, config) else None, rollout, is_drawn)
            if is_drawn:
                features, norms = encode_patches(model, images)
                patches.append((features.cpu(), norms.cpu()))
                found.pictures.append(picture)
    if not found.pictures:
        first = next(iter(found.unreadable.values()), "there was none")
        raise ValueError(f"No image could be read ({len(found.unreadable)} were tried): {first}")
    found.distances = None if meter is None else meter.finish()
    found.features = describe_patches(*(torch.cat(each) for each in zip(*patches, strict=True)))
    return found


def plan(model: Model[Any], config: InspectConfig) -> Inspection:
    """What of the attention is drawn, if there is any; whoever asks for it where there is none is told."""
    if not any(NAME.fullmatch(name) for name in model.intermediates):
        if config.query is not None or config.layers or config.heads:
            count_layers(model)
        return Inspection(query=None)
    num_layers, num_heads = count_layers(model), model.config.num_heads
    require_numbers("layer", config.layers, num_layers)
    require_numbers("head", config.heads, num_heads)
    spread = sorted({round(place) for place in np.linspace(0, num_layers - 1, NUM_LAYERS_DRAWN)})
    layers, heads = config.layers or tuple(spread), config.heads or tuple(range(num_heads))
    return Inspection(query=choose_query(model.config, config.query), layers=layers, heads=heads)


def is_measured(meter: DistanceMeter | None, config: InspectConfig) -> bool:
    return meter is not None and meter.num_images < config.num_measured


def look_at_attention(
    model: Model[Any], images: Tensor, found: Inspection, meter: DistanceMeter | None, rollout: RolloutConfig, is_drawn: bool
) -> None:
    """One pass over one image, during which each layer's maps are used and forgotten."""
    assert found.query is not None
    query, joint, maps = found.query, Rollout(rollout), {}

    def look(layer: int, attention: Tensor) -> None:
        if meter is not None:
            meter.add(layer, attention)
        if is_drawn:
            joint.add(attention)
            if layer in found.layers:
                maps[layer] = read_query(attention[0, list(found.heads)], model.config, query).cpu().numpy()

    stream_attention(model, images, look)
    if is_drawn:
        assert joint.joint is not None
        found.rollouts.append(read_query(joint.joint[0], model.config, query).cpu().numpy())
        found.maps.append(np.stack([maps[layer] for layer in found.layers]))


def read_pictures(
    checkpoint: Checkpoint, paths: Sequence[Path], config: InspectConfig, unreadable: dict[str, str]
) -> Iterator[Picture]:
    """As many as are drawn or measured; what cannot be read is noted in `unreadable`."""
    preprocessing = checkpoint.preprocessing
    source = open_paths(paths)
    wanted = max(config.num_drawn, config.num_measured if any(map(NAME.fullmatch, checkpoint.model.intermediates)) else 0)
    num_read = 0
    for index in progress_bar(range(len(source)), min(len(source), wanted), "looking at images"):
        name = source.name(index)
        try:
            image = read_image(Path(name), preprocessing.num_channels)
        except BadImage as error:
            unreadable[name] = " ".join(str(error).split())
            continue
        seen = preprocessing.prepare(image).permute(1, 2, 0).numpy()
        left, top, right, bottom = preprocessing.compute_box(image.height, image.width)
        box = (left / image.width, top / image.height, right / image.width, bottom / image.height)
        image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        pixels = np.asarray(image)
        yield Picture(name, pixels if pixels.ndim == 3 else pixels[..., None], box, seen)
        num_read += 1
        if num_read == wanted:
            return


def to_tensor(picture: Picture) -> Tensor:
    """(1, C, H, W), bytes."""
    return torch.from_numpy(picture.seen).permute(2, 0, 1)[None]
