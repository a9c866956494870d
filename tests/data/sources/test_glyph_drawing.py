"""Drawing of glyphs against SciPy's interpolation, and images that do not depend on what else is drawn."""

import numpy as np
import pytest
from scipy import ndimage, stats
from scipy.interpolate import RegularGridInterpolator

from vitrine.data.sampling import hash_keys
from vitrine.data.sources import glyph_drawing
from vitrine.data.sources.glyph_atlas import SIDE, STEPS, GlyphAtlas
from vitrine.data.sources.glyph_drawing import (
    DRAWS,
    NUM_NODES,
    GlyphStyle,
    draw_glyphs,
    draw_numbers,
    make_noise,
    place_nodes,
    read_fields,
    spread_nodes,
)

PLAIN = GlyphStyle(warp=0, noise=0)


def make_atlas(num_classes: int = 4, faces: int = 2) -> GlyphAtlas:
    """Make an atlas of discs of different sizes and places."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:SIDE, :SIDE]
    centres, radii = random.uniform(18, 30, (num_classes * faces, 2)), random.uniform(6, 14, num_classes * faces)
    distances = [radius - np.hypot(x - across, y - down) for (across, down), radius in zip(centres, radii, strict=True)]
    fields = np.clip(np.rint(STEPS * np.stack(distances)), -128, 127).astype(np.int8)
    return GlyphAtlas(fields, np.arange(0, num_classes * faces + 1, faces))


ATLAS = make_atlas()
CLASSES, KEYS = np.arange(300) % 4, hash_keys(7, np.arange(300))


@pytest.mark.parametrize("size", [8, 28, 64])
def test_an_image_is_the_same_in_every_batch(size: int) -> None:
    together = draw_glyphs(ATLAS, CLASSES, KEYS, size, GlyphStyle())
    assert together.shape == (300, size, size, 1)
    order = np.random.default_rng(0).permutation(300)
    assert np.array_equal(draw_glyphs(ATLAS, CLASSES[order], KEYS[order], size, GlyphStyle()), together[order])
    for index in (0, 1, 17, 299):
        alone = draw_glyphs(ATLAS, CLASSES[[index]], KEYS[[index]], size, GlyphStyle())
        assert np.array_equal(alone[0], together[index])


def test_images_of_a_class_differ() -> None:
    images = draw_glyphs(ATLAS, np.zeros(50, np.int64), KEYS[:50], 28, GlyphStyle())
    assert len({image.tobytes() for image in images}) == 50


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw_glyphs(ATLAS, CLASSES[:0], KEYS[:0], 28, GlyphStyle()).shape == (0, 28, 28, 1)


def test_fields_are_read_as_by_scipy() -> None:
    random = np.random.default_rng(1)
    x, y = random.uniform(0, SIDE - 1.01, (2, 8, 5, 5)).astype(np.float32)
    which = np.arange(8)
    expected = [ndimage.map_coordinates(ATLAS.fields[i].astype(float), [y[i], x[i]], order=1) / STEPS for i in which]
    np.testing.assert_allclose(read_fields(ATLAS.fields, which, x.copy(), y.copy()), expected, atol=1e-4)


def test_positions_outside_of_a_field_read_its_border() -> None:
    x, y = np.full((1, 1, 1), -5, np.float32), np.full((1, 1, 1), 99, np.float32)
    assert read_fields(ATLAS.fields, np.array([2]), x, y)[0, 0, 0] == pytest.approx(ATLAS.fields[2, -1, 0] / STEPS, abs=0.01)


def test_nodes_are_spread_as_by_scipy() -> None:
    nodes = np.random.default_rng(2).normal(size=(3, NUM_NODES, NUM_NODES)).astype(np.float32)
    line = np.linspace(0, 1, NUM_NODES)
    pixels = (np.arange(13) + 0.5) / 13
    grid = np.stack(np.meshgrid(pixels, pixels, indexing="ij"), axis=-1)
    expected = [RegularGridInterpolator((line, line), each)(grid) for each in nodes]
    np.testing.assert_allclose(spread_nodes(nodes, 13), expected, atol=1e-5)


def test_without_a_warp_every_pixel_reads_its_own_place() -> None:
    x, y = (spread_nodes(nodes, SIDE)[0] for nodes in place_nodes(draw_numbers(KEYS[:1]), PLAIN))
    np.testing.assert_allclose(x, np.tile(np.arange(SIDE), (SIDE, 1)), atol=1e-4)
    np.testing.assert_allclose(y, np.tile(np.arange(SIDE)[:, None], (1, SIDE)), atol=1e-4)


@pytest.mark.parametrize(
    ("number", "matrix"),
    [
        (0, [[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]]),
        (1, [[1, 0.4], [0, 1]]),
        (2, [[np.exp(0.3), 0], [0, 1]]),
        (3, [[1, 0], [0, np.exp(0.3)]]),
    ],
)
def test_turn_shear_and_stretch_are_their_matrices(number: int, matrix: list[list[float]]) -> None:
    draws = {"affine": np.full((1, 6), 0.5), "nodes": np.full((1, DRAWS["nodes"]), 0.5)}
    draws["affine"][0, number] = 1.0  # the strongest
    x, y = place_nodes(draws, GlyphStyle(warp=1))
    line = np.linspace(-SIDE / 2, SIDE / 2, NUM_NODES)
    places = np.stack(np.meshgrid(line, line)).reshape(2, -1)
    expected = np.array(matrix) @ places + (SIDE - 1) / 2
    np.testing.assert_allclose(np.stack([x[0].ravel(), y[0].ravel()]), expected, atol=1e-4)


def test_plain_images_are_the_coverage_of_a_field() -> None:
    """With one face and no warp, bright where the field is positive; ink and contrast differ between images."""
    atlas = make_atlas(2, faces=1)
    images = draw_glyphs(atlas, np.zeros(20, np.int64), KEYS[:20], SIDE, PLAIN)[..., 0].astype(float)
    is_inside, is_outside = atlas.fields[0] > 3 * STEPS, atlas.fields[0] < -4 * STEPS
    for image in images:
        assert image[is_inside].min() > image[is_outside].max() + 60
        assert np.ptp(image[is_outside]) == 0
    assert len({image[0, 0] for image in images}) > 10


def test_all_faces_are_drawn() -> None:
    """A class with faces that differ much has as many kinds of images, each about as often."""
    fields = np.full((3, SIDE, SIDE), -128, np.int8)
    for face in range(3):
        fields[face, :, 16 * face : 16 * face + 16] = 127
    images = draw_glyphs(
        GlyphAtlas(fields, np.array([0, 3])), np.zeros(3000, np.int64), hash_keys(1, np.arange(3000)), 12, PLAIN
    )
    counts = np.bincount(images[..., 0].mean(axis=1).reshape(3000, 3, 4).mean(axis=2).argmax(axis=1), minlength=3)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_noise_has_mean_0_and_deviation_1_and_no_pattern() -> None:
    noise = make_noise(draw_numbers(KEYS)["noise"][:, 0], 28)
    assert noise.mean() == pytest.approx(0, abs=0.01)  # 235,200 pixels: a standard deviation of 0.002
    assert noise.std() == pytest.approx(1, abs=0.01)
    for one, other in ((noise[:, :-1], noise[:, 1:]), (noise[..., :-1], noise[..., 1:]), (noise[:-1], noise[1:])):
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] == pytest.approx(0, abs=0.01)
    assert np.abs(noise).max() < 4


@pytest.mark.parametrize("setting", ["warp", "noise"])
def test_more_of_a_setting_makes_images_more_different(setting: str) -> None:
    atlas = make_atlas(1, faces=1)
    spreads = []
    for value in (0.0, 0.5, 1.0):
        style = GlyphStyle(**{"warp": 0.0, "noise": 0.0, setting: value})
        images = draw_glyphs(atlas, np.zeros(200, np.int64), KEYS[:200], 28, style).astype(float)
        spreads.append(float((images - images.mean(axis=(1, 2), keepdims=True)).std(axis=0).mean()))
    assert spreads == sorted(spreads)
    assert spreads[2] > 1.2 * spreads[0]


def test_blocks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of images is drawn in blocks that fit into the processor's cache."""
    sizes = []
    plain = glyph_drawing.draw_block
    monkeypatch.setattr(glyph_drawing, "draw_block", lambda *words: sizes.append(len(words[1])) or plain(*words))
    draw_glyphs(ATLAS, CLASSES, KEYS, 28, PLAIN)
    assert max(sizes) * 28**2 <= glyph_drawing.PIXELS_AT_ONCE
    assert sum(sizes) == 300
