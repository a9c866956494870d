"""Everything that can be seen of a model, from its weights and from some images: figures, a page, and the numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.core.console import track
from vitrine.core.files import make_folder, whole_file, write_json
from vitrine.core.page import Figure, Section, write_page
from vitrine.data.batch import Batch
from vitrine.data.decode import BadImage, read_image
from vitrine.data.sources.paths import open_paths
from vitrine.evaluate.classification import evaluating
from vitrine.formats.checkpoint import Checkpoint
from vitrine.inspection.attention import NAME, choose_query, count_layers, observe_attention, read_query, require_numbers
from vitrine.inspection.config import InspectConfig, RolloutConfig
from vitrine.inspection.distance import DistanceMeter, Distances
from vitrine.inspection.features import PatchFeatures, describe_patches, encode_patches
from vitrine.inspection.filters import Filters, compute_filters
from vitrine.inspection.masked_patches import draw_masked_patches, picture_masked_patches
from vitrine.inspection.pictures import (
    Picture,
    draw_attention,
    draw_distances,
    draw_features,
    draw_filters,
    draw_rollouts,
    draw_similarities,
)
from vitrine.inspection.positions import Similarities, compute_similarities
from vitrine.inspection.rollout import Rollout
from vitrine.models.model import Model
from vitrine.objectives.masked_patches import MaskedPatches

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

    observe_attention(model, images, look)
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
    for index in track(range(len(source)), min(len(source), wanted), "looking at images"):
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


def write_inspection(found: Inspection, out: Path, title: str, masked: MaskedPatches | None = None) -> Path:
    """Figures, numbers and arrays into the folder `out`, and the page that shows them, whose path is returned."""
    make_folder(out)
    sections = [*draw_images(found, out), *draw_weights(found, out)]
    if masked is not None:
        sections.append(draw_masked(masked, found.pictures, out))
    write_json(out / "numbers.json", list_numbers(found))
    with whole_file(out / "arrays.npz") as partial, partial.open("wb") as file:
        np.savez(file, **list_arrays(found))  # pyright: ignore[reportArgumentType]  (an array is taken for its flag)
    page = out / "index.html"
    images = f"{len(found.pictures)} images drawn"
    measured = "" if found.distances is None else f", {found.distances.num_images} measured"
    write_page(page, f"Inside {title}", images + measured + ".", sections)
    return page


def draw_images(found: Inspection, out: Path) -> list[Section]:
    sections = []
    if found.query is not None:
        whose = {"class": "the class token", "mean": "all patches on average"}.get(found.query, f"the patch at {found.query}")
        draw_rollouts(found.pictures, found.rollouts, out / "rollout.png")
        caption = (
            f"Bright is what {whose} ended as: the attention of all layers multiplied, with the residual path counted in, "
            "unless it was left out; on the right the same by itself. What is cut off, so that the model does not see it, is "
            "dark in the middle and white on the right."
        )
        sections.append(Section("Attention rollout", caption, [Figure(out / "rollout.png")]))
        figures = []
        for number, (picture, maps) in enumerate(zip(found.pictures, found.maps, strict=True)):
            path = out / f"attention-{number}.png"
            draw_attention(picture, maps, found.layers, found.heads, path, found.query)
            figures.append(Figure(path))
        caption = f"What {whose} reads from each patch, head by head. Each map goes from nothing to its own largest value."
        sections.append(Section("Attention maps", caption, figures))
    if found.distances is not None:
        draw_distances(found.distances, out / "distances.png")
        caption = (
            "How far apart, in pixels, the patches are that a head connects; a dot for each head. Heads low in the figure look "
            "nearby, as convolutions do; heads high up look over the whole image. On the left only patches count; on the "
            "right attention to the class token and to registers counts as no distance, as in most published figures."
        )
        sections.append(Section("Mean attention distance", caption, [Figure(out / "distances.png")]))
    assert found.features is not None
    draw_features(found.pictures, found.features, out / "features.png")
    caption = (
        "Patches of the same colour have alike features: red, green and blue are the three directions in which the features of "
        "these images differ most. On the right, how long each patch's features are before the last norm; patches framed in "
        "cyan are more than twice as long as most. Such outliers hold what belongs to the whole image, and a model "
        "that was trained with registers has none."
    )
    sections.append(Section("Patch features", caption, [Figure(out / "features.png")]))
    return sections


def draw_weights(found: Inspection, out: Path) -> list[Section]:
    sections = []
    figures = []
    for number, similarities in enumerate(found.similarities):
        draw_similarities(similarities, out / f"positions-{number}.png")
        figures.append(Figure(out / f"positions-{number}.png"))
    if figures:
        caption = (
            "How alike position embeddings are. Each tile belongs to the patch at its place and shows the likeness to all "
            "patches: bright around itself, and often along its row and column."
        )
        sections.append(Section("Position embeddings", caption, figures))
    assert found.filters is not None
    draw_filters(found.filters, out / "filters.png")
    caption = (
        "The principal components of the patch embedding, with their share of its variance: what the model can tell of the "
        "pixels in a patch. They look like the smooth patterns of which any patch can be put together."
        if found.filters.shares is not None
        else "The filters of the first convolution: edges, colours, and what is left to chance."
    )
    sections.append(Section("Embedding filters", caption, [Figure(out / "filters.png")]))
    return sections


def draw_masked(objective: MaskedPatches, pictures: Sequence[Picture], out: Path) -> Section:
    images = torch.cat([to_tensor(picture) for picture in pictures]).to(objective.mean.device)
    batch = Batch(images, torch.zeros(len(images), dtype=torch.int64), torch.arange(len(images)), step=0)
    draw_masked_patches(picture_masked_patches(objective, batch), out / "masked.png")
    caption = (
        "What the model was shown while it learned, patches hidden (grey), replaced or left; what it had to say of these "
        "patches; and what it says."
    )
    return Section("Masked patches", caption, [Figure(out / "masked.png")])


def list_numbers(found: Inspection) -> dict[str, Any]:
    """What there is in figures, for every patch, layer and head, but for the large arrays."""
    assert found.features is not None
    assert found.filters is not None
    images = []
    for number, picture in enumerate(found.pictures):
        entry: dict[str, Any] = {"image": picture.name, "num_outliers": int(found.features.outliers[number].sum())}
        if found.query is not None:
            entry["rollout"] = found.rollouts[number].tolist()
        images.append(entry)
    numbers: dict[str, Any] = {"images": images, "unreadable": found.unreadable}
    numbers["feature_shares"] = found.features.shares.tolist()
    if found.filters.shares is not None:
        numbers["filter_shares"] = found.filters.shares.tolist()
    if found.distances is not None:
        numbers["query"] = found.query
        numbers["distances"] = {
            "num_images": found.distances.num_images,
            "among_patches": found.distances.among_patches.tolist(),
            "as_they_are": found.distances.as_they_are.tolist(),
        }
    return numbers


def list_arrays(found: Inspection) -> dict[str, np.ndarray]:
    assert found.features is not None
    assert found.filters is not None
    arrays = {"filters": found.filters.values, "norms": found.features.norms, "colours": found.features.colours}
    if found.query is not None:
        arrays |= {"rollouts": np.stack(found.rollouts), "attention": np.stack(found.maps), "layers": np.array(found.layers)}
    for number, similarities in enumerate(found.similarities):
        for name in ("patches", "readout", "offsets"):
            values = getattr(similarities, name)
            if values is not None:
                arrays[f"positions_{number}_{name}"] = values
    return arrays
