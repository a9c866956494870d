"""Page, numbers.json, arrays.npz, masked patches.

What masked patch prediction makes of images: what the network was shown, what it had to say, what it said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.core.files import atomic_file, make_folder, write_json
from vitrine.core.html_report import Figure, Section, save_figure, write_html_report
from vitrine.data.batch import Batch
from vitrine.inspection.figures import (
    Picture,
    draw_attention,
    draw_distances,
    draw_features,
    draw_filters,
    draw_rollouts,
    draw_similarities,
    get_aspect,
    make_panels,
    show,
)
from vitrine.inspection.inspect_model import Inspection, to_tensor
from vitrine.models.patches import cut_patches, join_patches
from vitrine.objectives.masked_patches import MaskedPatches, expand, to_byte_range

GREY = 127.0  # where a patch was masked


@dataclass(frozen=True)
class MaskedPictures:
    """Bytes (B, H, W, C) each, in the size that the network sees."""

    image: np.ndarray
    shown: np.ndarray
    """Masked patches grey, replaced ones as the patches that they were replaced by."""
    target: np.ndarray
    """The image, with what was to be predicted in place of the corrupted patches."""
    prediction: np.ndarray


def picture_masked_patches(objective: MaskedPatches, batch: Batch) -> MaskedPictures:
    """The patches that a training step would corrupt in these images, in this step."""
    corruption = objective.draw(batch)
    with torch.no_grad():
        answers = objective.target.answer(objective.predict(batch.image, corruption))
        targets = objective.read_targets(batch.image, corruption.places)
        patches = cut_patches(to_byte_range(batch.image), objective.patch_size)
        shown = corruption.apply(patches, torch.full_like(patches[0, 0], GREY))
        places = expand(corruption.places, patches)
        target, prediction = (patches.scatter(1, places, objective.render(each)) for each in (targets, answers))

    def join(each: Tensor) -> np.ndarray:
        images = join_patches(each, objective.encoder.config.grid, objective.patch_size)
        return images.round().byte().permute(0, 2, 3, 1).cpu().numpy()

    return MaskedPictures(join(patches), join(shown), join(target), join(prediction))


def draw_masked_patches(pictures: MaskedPictures, path: Path, names: Sequence[str] = ()) -> None:
    """A row for each image, written as PNG."""
    columns = {
        "image": pictures.image,
        "shown": pictures.shown,
        "to be predicted": pictures.target,
        "predicted": pictures.prediction,
    }
    figure, panels = make_panels(len(pictures.image), len(columns), get_aspect(pictures.image[0]))
    for column, (title, images) in enumerate(columns.items()):
        panels[0, column].set_title(title, fontsize=10)
        for row, image in enumerate(images):
            show(panels[row, column], image)
    for row, name in enumerate(names):
        panels[row, 0].set_ylabel(name, fontsize=9, parse_math=False)
    save_figure(figure, path)


def write_inspection(found: Inspection, out: Path, title: str, masked: MaskedPatches | None = None) -> Path:
    """Figures, numbers and arrays into the folder `out`, and the page that shows them, whose path is returned."""
    make_folder(out)
    sections = [*draw_images(found, out), *draw_weights(found, out)]
    if masked is not None:
        sections.append(draw_masked(masked, found.pictures, out))
    write_json(out / "numbers.json", list_numbers(found))
    with atomic_file(out / "arrays.npz") as partial, partial.open("wb") as file:
        np.savez(file, **list_arrays(found))  # pyright: ignore[reportArgumentType]  (an array is taken for its flag)
    page = out / "index.html"
    images = f"{len(found.pictures)} images drawn"
    measured = "" if found.distances is None else f", {found.distances.num_images} measured"
    write_html_report(page, f"Inside {title}", images + measured + ".", sections)
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
