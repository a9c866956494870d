"""Files of an inspection: figures as PNG, numbers.json, arrays.npz and the page; masked patch prediction."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.core.console import warn_user
from vitrine.core.files import atomic_file, make_folder, write_json
from vitrine.core.html_report import write_page
from vitrine.data.batch import Batch
from vitrine.inspection.figures import (
    InspectedImage,
    MaskedImages,
    draw_attention,
    draw_distances,
    draw_features,
    draw_filters,
    draw_masked_patches,
    draw_rollouts,
    draw_similarities,
)
from vitrine.inspection.inspect_model import Inspection
from vitrine.inspection.page import build_page
from vitrine.models.patches import cut_patches, join_patches
from vitrine.objectives.masked_patches import MaskedPatches, expand, to_byte_range

MASK_GREY = 127.0  # drawn in place of a masked patch


def write_inspection(
    inspection: Inspection, out: str | Path, title: str, masked: MaskedPatches | None = None, command: str | None = None
) -> Path:
    """Write figures (of masked patch prediction too, if given), numbers.json, arrays.npz and index.html; return its path.

    `command` is shown on the page.
    """
    out = Path(out)
    make_folder(out)
    draw_figures(inspection, out)
    predicted = None if masked is None else predict_masked_images(masked, inspection.images)
    if predicted is not None:
        draw_masked_patches(predicted, out / "masked.png")
    write_json(out / "numbers.json", collect_numbers(inspection))
    with atomic_file(out / "arrays.npz") as partial, partial.open("wb") as file:
        np.savez(file, **collect_arrays(inspection))  # pyright: ignore[reportArgumentType]  (an array is taken for its flag)
    page = out / "index.html"
    write_page(page, build_page(inspection, title, page, predicted, command))
    return page


def draw_figures(inspection: Inspection, out: Path) -> None:
    """Draw all figures but those of masked patches as PNG files."""
    attention = inspection.attention
    if attention is not None:
        choice = attention.choice
        draw_rollouts(inspection.images, attention.rollouts, out / "rollout.png")
        for number, (image, maps) in enumerate(zip(inspection.images, attention.maps, strict=True)):
            draw_attention(image, maps, choice.layers, choice.heads, out / f"attention-{number}.png", choice.query)
        draw_distances(attention.distances, out / "distances.png")
    draw_features(inspection.images, inspection.features, out / "features.png")
    for number, similarities in enumerate(inspection.similarities):
        draw_similarities(similarities, out / f"positions-{number}.png")
    draw_filters(inspection.filters, out / "filters.png")


def collect_numbers(inspection: Inspection) -> dict[str, Any]:
    """Return the content of numbers.json: everything except the large arrays."""
    attention = inspection.attention
    images = []
    for number, image in enumerate(inspection.images):
        entry: dict[str, Any] = {"image": image.name, "num_outliers": int(inspection.features.outliers[number].sum())}
        prediction = inspection.predictions[number] if inspection.predictions else None
        if prediction is not None:
            ranked = zip(prediction.classes, prediction.probabilities, strict=True)
            entry["predictions"] = [{"class": name, "probability": probability} for name, probability in ranked]
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


def predict_masked_images(objective: MaskedPatches, images: Sequence[InspectedImage]) -> MaskedImages:
    """Predict masked patches of the inspected images."""
    pixels = torch.stack([torch.from_numpy(image.model_input).permute(2, 0, 1) for image in images])
    batch = Batch(pixels, torch.zeros(len(images), dtype=torch.int64), torch.arange(len(images)), 0)
    return predict_masked_patches(objective, objective.add_draws(batch).to(objective.mean.device))


def predict_masked_patches(objective: MaskedPatches, batch: Batch) -> MaskedImages:
    """Corrupt images as in a training step (the batch's) and return the corrupted image, targets and predictions."""
    corruption = objective.read_corruption(batch)
    with torch.no_grad():
        outputs = objective.target.predict(objective.predict(batch.image, corruption).float())
        targets = objective.compute_targets(batch.image, corruption.index)
        patches = cut_patches(to_byte_range(batch.image), objective.patch_size)
        shown = corruption.apply(patches, torch.full_like(patches[0, 0], MASK_GREY))
        index = expand(corruption.index, patches)
        target, prediction = (patches.scatter(1, index, objective.render(each)) for each in (targets, outputs))

    def join(each: Tensor) -> np.ndarray:
        images = join_patches(each, objective.encoder.config.grid, objective.patch_size)
        return images.round().byte().permute(0, 2, 3, 1).cpu().numpy()

    return MaskedImages(join(patches), join(shown), join(target), join(prediction))
