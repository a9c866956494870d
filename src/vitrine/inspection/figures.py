"""Figures of what is inside a model, written as PNG. Pictures are bytes (H, W, C), maps floats (rows, columns)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrine.core.html_report import save_figure, shorten
from vitrine.inspection.distance import Distances
from vitrine.inspection.filters import Filters
from vitrine.inspection.patch_features import PatchFeatures
from vitrine.inspection.positions import Similarities

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DARK = 0.15  # how bright what is not attended to stays
PANEL = 2.2  # inches
COLUMNS_OF_FILTERS = 7


@dataclass(frozen=True)
class Picture:
    """An image as it is shown: at its own aspect ratio, and the part of it that the model sees."""

    name: str
    pixels: np.ndarray
    box: tuple[float, float, float, float]
    """Left, top, right and bottom of that part, as shares of the width and the height."""
    seen: np.ndarray
    """What the model sees, at its own size."""


def overlay_heatmap(picture: Picture, heat: np.ndarray) -> np.ndarray:
    """The picture, dark where there is least of `heat`, bright where there is most; dark too where the model does not see."""
    from PIL import Image

    height, width = picture.pixels.shape[:2]
    left, top, right, bottom = (round(share * side) for share, side in zip(picture.box, (width, height) * 2, strict=True))
    least, span = heat.min(), heat.max() - heat.min()
    scaled = Image.fromarray(((heat - least) / (span if span > 0 else 1.0)).astype(np.float32))
    brightness = np.full((height, width), DARK, dtype=np.float32)
    inside = np.asarray(scaled.resize((max(1, right - left), max(1, bottom - top)), Image.Resampling.BILINEAR))
    brightness[top : top + inside.shape[0], left : left + inside.shape[1]] = DARK + (1 - DARK) * inside
    return (picture.pixels * brightness[..., None]).round().astype(np.uint8)


def draw_rollouts(pictures: Sequence[Picture], heats: Sequence[np.ndarray], path: Path) -> None:
    """Each image, the same one lit by what the output holds of it, and that by itself, where the model sees."""
    figure, panels = make_panels(len(pictures), 3, [get_aspect(picture.pixels) for picture in pictures])
    for row, (picture, heat) in enumerate(zip(pictures, heats, strict=True)):
        show(panels[row, 0], picture.pixels)
        show(panels[row, 1], overlay_heatmap(picture, heat))
        height, width = picture.pixels.shape[:2]
        left, top, right, bottom = (share * side for share, side in zip(picture.box, (width, height) * 2, strict=True))
        panels[row, 2].imshow(heat, cmap="inferno", interpolation="nearest", extent=(left, right, bottom, top))
        panels[row, 2].set(xlim=(0, width), ylim=(height, 0))
        panels[row, 0].set_ylabel(shorten_path(picture.name), fontsize=8, parse_math=False)
    save_figure(figure, path)


def draw_attention(
    picture: Picture, maps: np.ndarray, layers: Sequence[int], heads: Sequence[int], path: Path, query: str
) -> None:
    """Maps (layers, heads, rows, columns) in a grid, each from nothing to its own largest value; the image before them."""
    figure, panels = make_panels(len(layers), len(heads) + 1, get_aspect(picture.seen), 1.5)
    for row, layer in enumerate(layers):
        show(panels[row, 0], picture.seen)
        panels[row, 0].set_ylabel(f"layer {layer}", fontsize=9)
        for column, head in enumerate(heads, start=1):
            panel, heat = panels[row, column], maps[row, column - 1]
            extent = (0, picture.seen.shape[1], picture.seen.shape[0], 0)
            panel.imshow(
                heat, cmap="inferno", vmin=0, vmax=max(float(heat.max()), 1e-12), interpolation="nearest", extent=extent
            )
            if row == 0:
                panel.set_title(f"head {head}", fontsize=9)
    mark_query(list(panels[:, 0]), query, maps.shape[2:], picture.seen.shape)
    save_figure(figure, path)


def mark_query(panels: Iterable["Axes"], query: str, grid: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """A frame around the patch that reads, if it is one."""
    from matplotlib.patches import Rectangle

    if "," not in query:
        return
    row, column = map(int, query.split(","))
    down, across = shape[0] / grid[0], shape[1] / grid[1]
    for panel in panels:
        panel.add_patch(Rectangle((column * across, row * down), across, down, fill=False, edgecolor="red", linewidth=1.5))


def draw_distances(distances: Distances, path: Path) -> None:
    """A dot for each head, layer by layer, as figure 7 right and figure 11 have it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), dpi=110, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    num_layers, num_heads = distances.among_patches.shape
    titles = {"among patches": distances.among_patches, "as it is, other tokens at no distance": distances.as_they_are}
    for panel, (title, values) in zip(panels, titles.items(), strict=True):
        for head in range(num_heads):
            panel.plot(range(num_layers), values[:, head], "o", markersize=4, alpha=0.8)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("layer", fontsize=9)
        panel.set_ylim(bottom=0)
        panel.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("mean distance in pixels", fontsize=9)
    save_figure(figure, path)


def draw_similarities(similarities: Similarities, path: Path) -> None:
    """A tile for each patch, at its place, with its likeness to all patches; the class token's beside them."""
    from matplotlib.figure import Figure

    if similarities.patches is None:
        draw_offsets(similarities, path)
        return
    rows, columns = similarities.patches.shape[:2]
    readout = [] if similarities.readout is None else list(similarities.readout)
    widths = [5.5, *(1.5 for _ in readout)]
    figure = Figure(figsize=(sum(widths) + 0.8, 5.5 * rows / columns + 0.6), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    framed = np.full((rows, columns, rows + 1, columns + 1), np.nan)  # a line between tiles
    framed[:, :, :rows, :columns] = similarities.patches
    tiles = framed.transpose(0, 2, 1, 3).reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]
    image = panels[0].imshow(tiles, cmap="viridis", vmin=-1, vmax=1, interpolation="nearest")
    step_down, step_across = max(1, rows // 7), max(1, columns // 7)
    panels[0].set_xticks(np.arange(0, columns, step_across) * (columns + 1) + columns / 2, range(0, columns, step_across))
    panels[0].set_yticks(np.arange(0, rows, step_down) * (rows + 1) + rows / 2, range(0, rows, step_down))
    panels[0].set_xlabel("column of the patch", fontsize=9)
    panels[0].set_ylabel("row of the patch", fontsize=9)
    panels[0].set_title(similarities.title, fontsize=10)
    for panel, values, name in zip(panels[1:], readout, ("class token", "distillation token"), strict=False):
        show_map(panel, values)
        panel.set_title(name, fontsize=9)
    figure.colorbar(image, ax=list(panels), shrink=0.7, label="cosine")
    save_figure(figure, path)


def draw_offsets(similarities: Similarities, path: Path) -> None:
    from matplotlib.figure import Figure

    assert similarities.offsets is not None
    reach = len(similarities.offsets) // 2
    figure = Figure(figsize=(5.5, 4.8), dpi=110, layout="constrained")
    panel = figure.add_subplot()
    extent = (-reach, reach, reach, -reach)
    image = panel.imshow(similarities.offsets, cmap="viridis", vmin=-1, vmax=1, interpolation="nearest", extent=extent)
    panel.set_xlabel("offset of two patches in raster order", fontsize=9)
    panel.set_title(similarities.title, fontsize=10)
    figure.colorbar(image, ax=panel, shrink=0.8, label="cosine")
    save_figure(figure, path)


def draw_filters(filters: Filters, path: Path) -> None:
    count = len(filters.values)
    columns = COLUMNS_OF_FILTERS if filters.shares is not None else 8
    figure, panels = make_panels(-(-count // columns), columns, 1.0, 1.1)
    for place, panel in enumerate(panels.flat):
        if place < count:
            picture = filters.pictures[place]
            panel.imshow(picture if picture.shape[2] == 3 else picture[..., 0], cmap="gray", vmin=0, vmax=1)
            if filters.shares is not None:
                panel.set_title(f"{100 * filters.shares[place]:.1f} %", fontsize=8)
        else:
            panel.axis("off")
    save_figure(figure, path)


def draw_features(pictures: Sequence[Picture], features: PatchFeatures, path: Path) -> None:
    """Each image, its patches' colours, and their norms with a frame around outliers."""
    figure, panels = make_panels(len(pictures), 3, get_aspect(pictures[0].seen))
    largest = float(features.norms.max())
    for row, picture in enumerate(pictures):
        show(panels[row, 0], picture.seen)
        panels[row, 0].set_ylabel(shorten_path(picture.name), fontsize=8, parse_math=False)
        panels[row, 1].imshow(features.colours[row], interpolation="nearest")
        image = panels[row, 2].imshow(features.norms[row], cmap="magma", vmin=0, vmax=largest, interpolation="nearest")
        for place_row, place_column in zip(*np.nonzero(features.outliers[row]), strict=True):
            panels[row, 2].plot(place_column, place_row, "s", markersize=5, markerfacecolor="none", markeredgecolor="cyan")
        figure.colorbar(image, ax=panels[row, 2], shrink=0.8)
    for column, title in enumerate(("seen", "features", "norms")):
        panels[0, column].set_title(title, fontsize=10)
    save_figure(figure, path)


def make_panels(rows: int, columns: int, aspect: float | Sequence[float], size: float = PANEL) -> tuple["Figure", np.ndarray]:
    """Panels (rows, columns) without ticks, `aspect` times as high as wide, or of one aspect in each row."""
    from matplotlib.figure import Figure

    aspects = aspect if isinstance(aspect, Sequence) else [aspect] * rows
    heights = [size * each + 0.2 for each in aspects]
    figure = Figure(figsize=(size * columns + 0.3, sum(heights) + 0.2), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
    for panel in panels.flat:
        panel.set_xticks([])
        panel.set_yticks([])
    return figure, panels


def show(panel: "Axes", pixels: np.ndarray) -> None:
    panel.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=255)


def show_map(panel: "Axes", values: np.ndarray) -> None:
    panel.imshow(values, cmap="viridis", vmin=-1, vmax=1, interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks([])


def get_aspect(pixels: np.ndarray) -> float:
    return pixels.shape[0] / pixels.shape[1]


def shorten_path(name: str) -> str:
    """The end of a path says more than its beginning."""
    return shorten(name[::-1])[::-1]
