"""HTML report of an inspection, with numbers.json and arrays.npz; figures of masked patch prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.core.console import warn_user
from vitrine.core.files import atomic_file, make_folder, write_json
from vitrine.core.html_report import Figure, Section, save_figure, write_html_report
from vitrine.data.batch import Batch
from vitrine.inspection.figures import (
    InspectedImage,
    aspect_ratio,
    draw_attention,
    draw_distances,
    draw_features,
    draw_filters,
    draw_rollouts,
    draw_similarities,
    make_panels,
    show_image,
)
from vitrine.inspection.inspect_model import Inspection
from vitrine.models.patches import cut_patches, join_patches
from vitrine.objectives.masked_patches import MaskedPatches, expand, to_byte_range

MASK_GREY = 127.0  # drawn in place of a masked patch


@dataclass(frozen=True)
class MaskedImages:
    """Masked patch prediction of some images, uint8 (B, H, W, C) each, at the model's input size."""

    image: np.ndarray
    shown: np.ndarray
    """The corrupted image: masked patches grey, replaced patches by their replacement."""
    target: np.ndarray
    """The image with the prediction targets in the corrupted patches."""
    prediction: np.ndarray


def write_inspection(inspection: Inspection, out: str | Path, title: str, masked: MaskedPatches | None = None) -> Path:
    """Write figures (of masked patch prediction too, if given), numbers.json, arrays.npz and index.html; return its path."""
    out = Path(out)
    make_folder(out)
    sections = [*draw_image_sections(inspection, out), *draw_weight_sections(inspection, out)]
    if masked is not None:
        sections.append(draw_masked_section(masked, inspection.images, out))
    write_json(out / "numbers.json", collect_numbers(inspection))
    with atomic_file(out / "arrays.npz") as partial, partial.open("wb") as file:
        np.savez(file, **collect_arrays(inspection))  # pyright: ignore[reportArgumentType]  (an array is taken for its flag)
    page = out / "index.html"
    subtitle = f"{len(inspection.images)} images drawn"
    if inspection.attention is not None:
        subtitle += f", attention distance measured on {inspection.attention.distances.num_images}"
    write_html_report(page, f"Inspection of {title}", f"{subtitle}.", sections)
    return page


def draw_image_sections(inspection: Inspection, out: Path) -> list[Section]:
    """Draw the figures that depend on images: rollout, attention maps, attention distance and patch features."""
    sections = []
    if inspection.attention is not None:
        attention = inspection.attention
        choice = attention.choice
        names = {"class": "the class token", "mean": "all patches (mean)"}
        query = names.get(choice.query, f"the patch at {choice.query}")
        draw_rollouts(inspection.images, attention.rollouts, out / "rollout.png")
        caption = (
            f"Contribution of each patch to the output of {query}: the attention of all layers multiplied, residual path "
            "included unless turned off. Middle: bright patches contribute most. Right: the rollout alone. The part of the "
            "image that the centre crop cuts off is dark in the middle and white on the right."
        )
        sections.append(Section("Attention rollout", caption, [Figure(out / "rollout.png")]))
        figures = []
        for number, (image, maps) in enumerate(zip(inspection.images, attention.maps, strict=True)):
            path = out / f"attention-{number}.png"
            draw_attention(image, maps, choice.layers, choice.heads, path, choice.query)
            figures.append(Figure(path))
        caption = f"Attention of {query} to each patch, by layer and head. Each map is scaled to its own maximum."
        sections.append(Section("Attention maps", caption, figures))
        draw_distances(attention.distances, out / "distances.png")
        caption = (
            "Mean distance in pixels between a patch and the patches it attends to; a dot for each head. Heads near the bottom "
            "attend locally, as convolutions do; heads at the top attend over the whole image. Left: attention among patches "
            "only. Right: attention to the class token and registers counts as distance 0, as in most published figures."
        )
        sections.append(Section("Mean attention distance", caption, [Figure(out / "distances.png")]))
    draw_features(inspection.images, inspection.features, out / "features.png")
    caption = (
        "Patches of similar colour have similar features: red, green and blue are the first three principal components over "
        "these images. Right: norm of each patch token before the final norm; a cyan frame marks patches with more than twice "
        "the median norm. Such outliers hold information about the whole image; models trained with registers have none."
    )
    sections.append(Section("Patch features", caption, [Figure(out / "features.png")]))
    return sections


def draw_weight_sections(inspection: Inspection, out: Path) -> list[Section]:
    """Draw the figures that depend only on weights: position embeddings and filters."""
    sections = []
    figures = []
    for number, similarities in enumerate(inspection.similarities):
        draw_similarities(similarities, out / f"positions-{number}.png")
        figures.append(Figure(out / f"positions-{number}.png"))
    if figures:
        caption = (
            "Cosine similarity of position embeddings. Each tile belongs to one patch and shows its similarity to all patches: "
            "high around the patch itself, and often along its row and column."
        )
        sections.append(Section("Position embeddings", caption, figures))
    draw_filters(inspection.filters, out / "filters.png")
    caption = (
        "Principal components of the patch embedding filters, with the variance that each explains. They resemble a basis for "
        "the fine structure within a patch."
        if inspection.filters.explained_variance is not None
        else "Filters of the first convolution."
    )
    sections.append(Section("Embedding filters", caption, [Figure(out / "filters.png")]))
    return sections


def collect_numbers(inspection: Inspection) -> dict[str, Any]:
    """Return the content of numbers.json: everything except the large arrays."""
    attention = inspection.attention
    images = []
    for number, image in enumerate(inspection.images):
        entry: dict[str, Any] = {"image": image.name, "num_outliers": int(inspection.features.outliers[number].sum())}
        if attention is not None:
            entry["rollout"] = attention.rollouts[number].tolist()
        images.append(entry)
    numbers: dict[str, Any] = {"images": images, "unreadable": inspection.unreadable}
    numbers["feature_shares"] = inspection.features.explained_variance.tolist()
    if inspection.filters.explained_variance is not None:
        numbers["filter_shares"] = inspection.filters.explained_variance.tolist()
    if attention is not None:
        numbers["query"] = attention.choice.query
        numbers["distances"] = {
            "num_images": attention.distances.num_images,
            "among_patches": attention.distances.among_patches.tolist(),
            "as_they_are": attention.distances.over_all_tokens.tolist(),
        }
    return numbers


def collect_arrays(inspection: Inspection) -> dict[str, np.ndarray]:
    """Return the content of arrays.npz."""
    features, attention = inspection.features, inspection.attention
    arrays = {"filters": inspection.filters.values, "norms": features.norms, "colours": features.colours}
    if attention is not None:
        arrays["rollouts"] = np.stack(attention.rollouts)
        arrays["attention"] = np.stack(attention.maps)
        arrays["layers"] = np.array(attention.choice.layers)
    for number, similarities in enumerate(inspection.similarities):
        for name in ("patches", "readout", "offsets"):
            values = getattr(similarities, name)
            if values is not None:
                arrays[f"positions_{number}_{name}"] = values
    return arrays


def load_masked_objective(model: str | Path) -> MaskedPatches | None:
    """Return the objective of a model saved by a run of masked patch prediction (RUN/model); None for any other model."""
    from vitrine.run.build import load_objective
    from vitrine.run.folder import RunFolder

    path = Path(model)
    run = RunFolder(path.parent)
    is_run = path.is_dir() and run.recipe.is_file() and run.has_valid_recipe()
    if not is_run or run.read_recipe().objective != "masked-patches":
        return None
    if next(run.list_checkpoints(), None) is None:
        warn_user(f"{run.path} has no checkpoint left, so predictions of masked patches cannot be drawn.")
        return None
    objective = load_objective(run.path)
    assert isinstance(objective, MaskedPatches)
    return objective


def draw_masked_section(objective: MaskedPatches, images: Sequence[InspectedImage], out: Path) -> Section:
    """Draw masked patch prediction on the inspected images and return the section of the report."""
    pixels = torch.stack([torch.from_numpy(image.model_input).permute(2, 0, 1) for image in images])
    batch = Batch(pixels.to(objective.mean.device), torch.zeros(len(images), dtype=torch.int64), torch.arange(len(images)), 0)
    draw_masked_patches(predict_masked_patches(objective, batch), out / "masked.png")
    caption = "The corrupted image (masked patches grey), the targets of the corrupted patches, and the model's predictions."
    return Section("Masked patches", caption, [Figure(out / "masked.png")])


def predict_masked_patches(objective: MaskedPatches, batch: Batch) -> MaskedImages:
    """Corrupt images as in a training step (the batch's) and return the corrupted image, targets and predictions."""
    corruption = objective.draw_corruption(batch)
    with torch.no_grad():
        outputs = objective.target.predict(objective.predict(batch.image, corruption))
        targets = objective.compute_targets(batch.image, corruption.index)
        patches = cut_patches(to_byte_range(batch.image), objective.patch_size)
        shown = corruption.apply(patches, torch.full_like(patches[0, 0], MASK_GREY))
        index = expand(corruption.index, patches)
        target, prediction = (patches.scatter(1, index, objective.render(each)) for each in (targets, outputs))

    def join(each: Tensor) -> np.ndarray:
        images = join_patches(each, objective.encoder.config.grid, objective.patch_size)
        return images.round().byte().permute(0, 2, 3, 1).cpu().numpy()

    return MaskedImages(join(patches), join(shown), join(target), join(prediction))


def draw_masked_patches(masked: MaskedImages, path: Path, names: Sequence[str] = ()) -> None:
    """Draw masked patch prediction to a PNG file, a row for each image."""
    columns = {"image": masked.image, "corrupted": masked.shown, "target": masked.target, "prediction": masked.prediction}
    figure, panels = make_panels(len(masked.image), len(columns), aspect_ratio(masked.image[0]))
    for column, (title, images) in enumerate(columns.items()):
        panels[0, column].set_title(title, fontsize=10)
        for row, image in enumerate(images):
            show_image(panels[row, column], image)
    for row, name in enumerate(names):
        panels[row, 0].set_ylabel(name, fontsize=9, parse_math=False)
    save_figure(figure, path)
