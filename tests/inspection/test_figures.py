"""Figures: brightness of the heatmap overlay, and drawing of grids and images of every shape."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.inspection.distance import Distances
from vitrine.inspection.figures import (
    MIN_BRIGHTNESS,
    InspectedImage,
    draw_attention,
    draw_distances,
    draw_features,
    draw_filters,
    draw_rollouts,
    draw_similarities,
    overlay_heatmap,
    shorten_path,
)
from vitrine.inspection.filters import Filters
from vitrine.inspection.patch_features import PatchFeatures
from vitrine.inspection.positions import Similarities

RANDOM = np.random.default_rng(0)


def make_image(
    height: int, width: int, num_channels: int = 3, box: tuple[float, float, float, float] = (0, 0, 1, 1)
) -> InspectedImage:
    pixels = np.full((height, width, num_channels), 200, dtype=np.uint8)
    return InspectedImage("$folder/image_{1}.jpg", pixels, box, np.full((32, 48, num_channels), 200, dtype=np.uint8))


def read_size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_overlay_is_bright_where_heat_is_high() -> None:
    heat = np.zeros((2, 4))
    heat[1, 3] = 0.7
    lit = overlay_heatmap(make_image(40, 80), heat)
    assert lit.shape == (40, 80, 3)
    assert lit[39, 79].tolist() == [200, 200, 200]
    assert (lit[:20, :40] == round(200 * MIN_BRIGHTNESS)).all()


def test_overlay_is_dark_outside_the_crop() -> None:
    heat = np.array([[1.0, 2.0], [2.0, 1.0]])
    lit = overlay_heatmap(make_image(40, 80, box=(0.25, 0.0, 0.75, 1.0)), heat)
    assert (lit[:, :20] == round(200 * MIN_BRIGHTNESS)).all()
    assert (lit[:, 60:] == round(200 * MIN_BRIGHTNESS)).all()
    assert lit[0, 59, 0] == 200
    assert lit[39, 20, 0] == 200


def test_overlay_of_constant_heat() -> None:
    assert (overlay_heatmap(make_image(8, 8), np.full((2, 2), 0.25)) == round(200 * MIN_BRIGHTNESS)).all()


@pytest.mark.parametrize("num_channels", [1, 3])
def test_rollouts_of_any_shape_are_drawn(num_channels: int, tmp_path: Path) -> None:
    images = [make_image(40, 80, num_channels), make_image(90, 30, num_channels, (0, 0.3, 1, 0.6))]
    draw_rollouts(images, [RANDOM.random((2, 4)), RANDOM.random((3, 3))], tmp_path / "rollout.png")
    assert read_size(tmp_path / "rollout.png")[1] > 500


@pytest.mark.parametrize("query", ["class", "1,2"])
def test_attention_figure_grows_with_layers_and_heads(query: str, tmp_path: Path) -> None:
    draw_attention(make_image(40, 80), RANDOM.random((2, 3, 4, 6)), (0, 7), (0, 1, 5), tmp_path / "maps.png", query)
    width, height = read_size(tmp_path / "maps.png")
    assert width > height


def test_query_patch_is_framed(tmp_path: Path) -> None:
    maps = RANDOM.random((1, 1, 4, 6))
    for name, query in (("plain", "mean"), ("framed", "1,2")):
        draw_attention(make_image(40, 80), maps, (0,), (0,), tmp_path / f"{name}.png", query)
    counts = {}
    for name in ("plain", "framed"):
        with Image.open(tmp_path / f"{name}.png") as image:
            pixels = np.asarray(image.convert("RGB")).astype(int)
        counts[name] = ((pixels[..., 0] > 220) & (pixels[..., 1:].max(axis=2) < 60)).sum()
    assert counts["framed"] > counts["plain"] + 20


def test_other_figures_are_drawn(tmp_path: Path) -> None:
    draw_distances(Distances(RANDOM.random((12, 3)), RANDOM.random((12, 3)), 5), tmp_path / "distances.png")
    patches = RANDOM.uniform(-1, 1, (3, 6, 3, 6))
    draw_similarities(Similarities("all layers", patches, RANDOM.random((2, 3, 6))), tmp_path / "positions.png")
    draw_similarities(Similarities("all layers", patches, None), tmp_path / "fixed.png")
    draw_similarities(Similarities("layer 0", None, None, RANDOM.random((35, 35))), tmp_path / "offsets.png")
    draw_filters(Filters(RANDOM.random((10, 8, 8, 3)), RANDOM.random(10)), tmp_path / "filters.png")
    draw_filters(Filters(RANDOM.random((64, 7, 7, 1)), None), tmp_path / "roots.png")
    outliers = RANDOM.random((2, 3, 6)) > 0.9
    features = PatchFeatures(RANDOM.random((2, 3, 6, 3)), RANDOM.random(3), RANDOM.random((2, 3, 6)), outliers)
    draw_features([make_image(40, 80), make_image(30, 30)], features, tmp_path / "features.png")
    for path in tmp_path.iterdir():
        with Image.open(path) as image:
            assert len(np.unique(np.asarray(image.convert("L")))) > 20, path.name


def test_long_paths_keep_their_end() -> None:
    assert shorten_path("a" * 40 + "/cat.jpg").endswith("a/cat.jpg")
    assert len(shorten_path("a" * 40)) == 28
    assert shorten_path("short") == "short"
