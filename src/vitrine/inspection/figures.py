"""Figures of an inspection, written as PNG. Images are uint8 (H, W, C), maps are floats (rows, columns)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrine.core.figures import (
    VIT,
    WIDE,
    diverging_colormap,
    draw_png,
    figure_style,
    save_figure,
    sequential_colormap,
    shorten_label,
)
from vitrine.inspection.distance import Distances
from vitrine.inspection.filters import Filters
from vitrine.inspection.patch_features import PatchFeatures
from vitrine.inspection.positions import Similarities

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_BRIGHTNESS = 0.15  # of patches that are not attended to
PANEL_SIZE = 2.2  # inches
COMPONENTS_PER_ROW, KERNELS_PER_ROW = 7, 8


@dataclass(frozen=True)
class InspectedImage:
    """An image for figures: at its own aspect ratio, and as the model sees it."""

    name: str
    pixels: np.ndarray
    box: tuple[float, float, float, float]
    """Left, top, right and bottom of the part that the model sees, as fractions of width and height."""
    model_input: np.ndarray
    """The preprocessed image, not normalised."""
    path: Path | None = None
    """Its file; None if it is not one."""


@dataclass(frozen=True)
class MaskedImages:
    """Masked patch prediction of some images, uint8 (B, H, W, C) each, at the model's input size."""

    image: np.ndarray
    shown: np.ndarray
    """The corrupted image: masked patches grey, replaced patches by their replacement."""
    target: np.ndarray
    """The image with the prediction targets in the corrupted patches."""
    prediction: np.ndarray


def overlay_heatmap(image: InspectedImage, heat: np.ndarray) -> np.ndarray:
    """Return the image darkened where `heat` is low, and outside the part that the model sees."""
    from PIL import Image

    height, width = image.pixels.shape[:2]
    left, top, right, bottom = (round(fraction * side) for fraction, side in zip(image.box, (width, height) * 2, strict=True))
    lowest, span = heat.min(), heat.max() - heat.min()
    scaled = Image.fromarray(((heat - lowest) / (span if span > 0 else 1.0)).astype(np.float32))
    brightness = np.full((height, width), MIN_BRIGHTNESS, dtype=np.float32)
    seen = np.asarray(scaled.resize((max(1, right - left), max(1, bottom - top)), Image.Resampling.BILINEAR))
    inside = seen[max(0, -top) :, max(0, -left) :][: height - max(0, top), : width - max(0, left)]  # without a letterbox's bars
    rows, columns = (slice(max(0, start), max(0, start) + size) for start, size in zip((top, left), inside.shape, strict=True))
    brightness[rows, columns] = MIN_BRIGHTNESS + (1 - MIN_BRIGHTNESS) * inside
    return (image.pixels * brightness[..., None]).round().astype(np.uint8)


@figure_style()
def draw_rollouts(images: Sequence[InspectedImage], heats: Sequence[np.ndarray], path: Path) -> None:
    """Draw for each image: the image, its rollout as brightness, and the rollout alone."""
    figure, panels = make_panels(len(images), 3, [aspect_ratio(image.pixels) for image in images])
    for row, (image, heat) in enumerate(zip(images, heats, strict=True)):
        show_image(panels[row, 0], image.pixels)
        show_image(panels[row, 1], overlay_heatmap(image, heat))
        height, width = image.pixels.shape[:2]
        left, top, right, bottom = (fraction * side for fraction, side in zip(image.box, (width, height) * 2, strict=True))
        panels[row, 2].imshow(heat, cmap=sequential_colormap(), interpolation="nearest", extent=(left, right, bottom, top))
        panels[row, 2].set(xlim=(0, width), ylim=(height, 0))
        panels[row, 0].set_ylabel(shorten_path(image.name), fontsize=8, parse_math=False)
    save_figure(figure, path)


@figure_style()
def draw_attention(
    image: InspectedImage, maps: np.ndarray, layers: Sequence[int], heads: Sequence[int], path: Path, query: str
) -> None:
    """Draw attention maps (layers, heads, rows, columns) in a grid beside the image, each scaled to its own maximum."""
    figure, panels = make_panels(len(layers), len(heads) + 1, aspect_ratio(image.model_input), 1.5)
    for row, layer in enumerate(layers):
        show_image(panels[row, 0], image.model_input)
        panels[row, 0].set_ylabel(f"layer {layer}", fontsize=9)
        for column, head in enumerate(heads, start=1):
            panel, heat = panels[row, column], maps[row, column - 1]
            extent = (0, image.model_input.shape[1], image.model_input.shape[0], 0)
            highest = max(float(heat.max()), 1e-12)
            panel.imshow(
                heat,
                cmap=sequential_colormap(),
                vmin=0,
                vmax=highest,
                interpolation="nearest",
                extent=extent,
            )
            if row == 0:
                panel.set_title(f"head {head}", fontsize=9)
    frame_query(list(panels[:, 0]), query, maps.shape[2:], image.model_input.shape)
    save_figure(figure, path)


def frame_query(panels: Iterable["Axes"], query: str, grid: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Draw a frame around the query patch on panels that show an image of this shape; nothing for class and mean."""
    from matplotlib.patches import Rectangle

    if "," not in query:
        return
    row, column = map(int, query.split(","))
    height, width = shape[0] / grid[0], shape[1] / grid[1]
    for panel in panels:
        panel.add_patch(Rectangle((column * width, row * height), width, height, fill=False, edgecolor="red", linewidth=1.5))


def draw_distances(distances: Distances, path: Path) -> None:
    """Draw the mean attention distance by layer, a dot for each head, as in figures 7 (right) and 11 of the paper."""
    draw_png(lambda figure: draw_distance_panels(figure, distances), path, WIDE, 3.2)


def draw_distance_panels(figure: "Figure", distances: Distances) -> None:
    """Draw attention distances in two panels, side by side or, on a narrow figure, below each other."""
    from matplotlib.ticker import MaxNLocator

    is_wide = figure.get_figwidth() > 5
    panels = figure.subplots(1 if is_wide else 2, 2 if is_wide else 1, sharex=True, sharey=True, squeeze=False)
    titles = {"Among patches, px": distances.among_patches, "All tokens, others at 0, px": distances.over_all_tokens}
    for panel, (title, values) in zip(panels.flat, titles.items(), strict=True):
        panel.plot(values, "o", color=VIT, markersize=4, alpha=0.8, markeredgewidth=0)
        panel.set_title(title)
        panel.set_ylim(bottom=0)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    for panel in panels[-1]:
        panel.set_xlabel("layer")


@figure_style()
def draw_similarities(similarities: Similarities, path: Path) -> None:
    """Draw a tile for each patch with its similarity to all patches; the tiles of class and distillation token beside them."""
    from matplotlib.figure import Figure

    if similarities.patches is None:
        draw_offsets(similarities, path)
        return
    rows, columns = similarities.patches.shape[:2]
    readout = [] if similarities.readout is None else list(similarities.readout)
    widths = [5.5, *(1.5 for _ in readout)]
    figure = Figure(figsize=(sum(widths) + 0.8, 5.5 * rows / columns + 0.6), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    image = panels[0].imshow(
        tile_similarities(similarities.patches),
        cmap=diverging_colormap(),
        vmin=-1,
        vmax=1,
        interpolation="nearest",
    )
    row_step, column_step = max(1, rows // 7), max(1, columns // 7)
    panels[0].set_xticks(np.arange(0, columns, column_step) * (columns + 1) + columns / 2, range(0, columns, column_step))
    panels[0].set_yticks(np.arange(0, rows, row_step) * (rows + 1) + rows / 2, range(0, rows, row_step))
    panels[0].grid(visible=False)
    panels[0].set_xlabel("patch column", fontsize=9)
    panels[0].set_ylabel("patch row", fontsize=9)
    panels[0].set_title(similarities.title, fontsize=10)
    for panel, values, name in zip(panels[1:], readout, ("class token", "distillation token"), strict=False):
        panel.imshow(values, cmap=diverging_colormap(), vmin=-1, vmax=1, interpolation="nearest")
        panel.set(xticks=[], yticks=[])
        panel.set_title(name, fontsize=9)
    figure.colorbar(image, ax=list(panels), shrink=0.7, label="cosine similarity")
    save_figure(figure, path)


def tile_similarities(patches: np.ndarray) -> np.ndarray:
    """Return similarities (rows, columns, rows, columns) as one image: a tile for each patch, NaN between tiles."""
    rows, columns = patches.shape[:2]
    framed = np.full((rows, columns, rows + 1, columns + 1), np.nan)
    framed[:, :, :rows, :columns] = patches
    return framed.transpose(0, 2, 1, 3).reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]


@figure_style()
def draw_offsets(similarities: Similarities, path: Path) -> None:
    """Draw the similarity of relative positions, each offset with every other."""
    from matplotlib.figure import Figure

    assert similarities.offsets is not None
    reach = len(similarities.offsets) // 2
    figure = Figure(figsize=(5.5, 4.8), dpi=110, layout="constrained")
    panel = figure.add_subplot()
    extent = (-reach, reach, reach, -reach)
    image = panel.imshow(
        similarities.offsets,
        cmap=diverging_colormap(),
        vmin=-1,
        vmax=1,
        interpolation="nearest",
        extent=extent,
    )
    panel.grid(visible=False)
    panel.set_xlabel("offset between two patches in raster order", fontsize=9)
    panel.set_title(similarities.title, fontsize=10)
    figure.colorbar(image, ax=panel, shrink=0.8, label="cosine similarity")
    save_figure(figure, path)


@figure_style()
def draw_filters(filters: Filters, path: Path) -> None:
    """Draw the filters of the first layer in a grid, with the variance that each explains if known."""
    images, variance = filters.scaled, filters.explained_variance
    columns = KERNELS_PER_ROW if variance is None else COMPONENTS_PER_ROW
    figure, panels = make_panels(-(-len(images) // columns), columns, 1.0, 1.1)
    for index, panel in enumerate(panels.flat):
        if index < len(images):
            image = images[index]
            panel.imshow(image if image.shape[2] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=1)
            if variance is not None:
                panel.set_title(f"{100 * variance[index]:.1f} %", fontsize=8)
        else:
            panel.axis("off")
    save_figure(figure, path)


@figure_style()
def draw_features(images: Sequence[InspectedImage], features: PatchFeatures, path: Path) -> None:
    """Draw for each image: the image, its patch features as colours, and their norms with outliers framed."""
    figure, panels = make_panels(len(images), 3, aspect_ratio(images[0].model_input))
    largest = float(features.norms.max())
    for row, image in enumerate(images):
        show_image(panels[row, 0], image.model_input)
        panels[row, 0].set_ylabel(shorten_path(image.name), fontsize=8, parse_math=False)
        panels[row, 1].imshow(features.colours[row], interpolation="nearest")
        norms = panels[row, 2].imshow(
            features.norms[row], cmap=sequential_colormap(), vmin=0, vmax=largest, interpolation="nearest"
        )
        for patch_row, patch_column in zip(*np.nonzero(features.outliers[row]), strict=True):
            panels[row, 2].plot(patch_column, patch_row, "s", markersize=5, markerfacecolor="none", markeredgecolor="cyan")
        figure.colorbar(norms, ax=panels[row, 2], shrink=0.8)
    for column, title in enumerate(("model input", "features", "norms")):
        panels[0, column].set_title(title, fontsize=10)
    save_figure(figure, path)


def make_panels(
    rows: int, columns: int, aspect: float | Sequence[float], size: float = PANEL_SIZE
) -> tuple["Figure", np.ndarray]:
    """Return a figure and its panels (rows, columns) without ticks; `aspect` is height / width, of all or of each row."""
    from matplotlib.figure import Figure

    aspects = aspect if isinstance(aspect, Sequence) else [aspect] * rows
    heights = [size * each + 0.2 for each in aspects]
    figure = Figure(figsize=(size * columns + 0.3, sum(heights) + 0.2), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
    for panel in panels.flat:
        panel.set(xticks=[], yticks=[])
    return figure, panels


def show_image(panel: "Axes", pixels: np.ndarray) -> None:
    """Show a colour or grey image (H, W, C) on a panel."""
    panel.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=255)


def aspect_ratio(pixels: np.ndarray) -> float:
    """Return height / width of an image (H, W, C)."""
    return pixels.shape[0] / pixels.shape[1]


def shorten_path(name: str) -> str:
    """Cut the beginning of a path to fit beside a figure, because its end says more."""
    return shorten_label(name[::-1])[::-1]


@figure_style()
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
