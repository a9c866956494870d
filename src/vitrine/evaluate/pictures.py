"""Pictures of how a classifier errs: what is taken for what, and the mistakes that it was surest of."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrine.core.figures import save_figure, shorten

MOST_NAMED = 60  # classes whose names can be read beside a matrix
MOST_COUNTED = 20  # classes whose counts can be read within it
COLUMNS = 5


def draw_confusions(confusions: np.ndarray, class_names: Sequence[str], path: Path) -> None:
    """A matrix (K, K) as `count_confusions` has it, each row as shares of its class, written as PNG."""
    from matplotlib.figure import Figure

    num_classes = len(class_names)
    shares = confusions / np.maximum(1, confusions.sum(axis=1, keepdims=True))
    is_named = num_classes <= MOST_NAMED
    side = 4.0 + (0.22 * num_classes if is_named else 5.0)
    figure = Figure(figsize=(side + 1.0, side), dpi=110, layout="constrained")
    panel = figure.add_subplot()
    image = panel.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.set_xlabel("answer", fontsize=11)
    panel.set_ylabel("label", fontsize=11)
    if is_named:
        names = [shorten(name) for name in class_names]
        panel.set_xticks(range(num_classes), names, rotation=90, fontsize=8, parse_math=False)
        panel.set_yticks(range(num_classes), names, fontsize=8, parse_math=False)
    if num_classes <= MOST_COUNTED:
        for row, column in zip(*np.nonzero(confusions), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "black"
            panel.text(column, row, str(confusions[row, column]), ha="center", va="center", fontsize=8, color=colour)
    figure.colorbar(image, ax=panel, shrink=0.6, label="share of the images with this label")
    save_figure(figure, path)


def draw_mistakes(images: Sequence[np.ndarray], titles: Sequence[tuple[str, str]], path: Path) -> None:
    """Images (H, W, C) as bytes in a grid, each under the answer to it and above its label."""
    from matplotlib.figure import Figure

    num_rows = math.ceil(len(images) / COLUMNS)
    figure = Figure(figsize=(2.3 * COLUMNS, 2.75 * num_rows), dpi=110, layout="constrained")
    for place, (image, (answer, label)) in enumerate(zip(images, titles, strict=True), start=1):
        panel = figure.add_subplot(num_rows, COLUMNS, place)
        panel.imshow(image if image.shape[2] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=255)
        panel.set_title(shorten(answer), fontsize=9, color="#b3253a", parse_math=False)
        panel.set_xlabel(shorten(label), fontsize=9, parse_math=False)
        panel.set_xticks([])
        panel.set_yticks([])
    save_figure(figure, path)
