"""Tests of data/quality/edge_map.py: copies are told from pictures that are only alike."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.data.pictures import draw_picture, encode
from vitrine.data.image import LazyImage
from vitrine.data.quality import edge_map
from vitrine.data.quality.crowds import ImageSet
from vitrine.data.quality.duplicates import verify_candidates
from vitrine.data.quality.edge_map import (
    CLEAR_SIMILARITY,
    CROPS,
    MIN_SIMILARITY,
    EdgeMap,
    EdgeMaps,
    ImageComparer,
    build_window,
    compare_pairs,
    compute_edge_map,
    compute_whole_edges,
    correlate_with_crops,
    load_grey,
)
from vitrine.data.quality.image_stats import compute_image_stats
from vitrine.data.source import ArraySource, Labels

WINDOWS = np.stack([build_window(*crop) for crop in CROPS])


def load(image: Image.Image) -> EdgeMap:
    return compute_edge_map(load_grey(LazyImage(np.asarray(image), "picture")))


def compute_similarity(first: EdgeMap, second: EdgeMap) -> float:
    """Return the largest correlation of one image with a crop of the other, both cropped in turn."""
    return max(correlate_with_crops(first, second.whole), correlate_with_crops(second, first.whole))


def test_an_image_is_like_itself_and_no_other() -> None:
    pictures = [load(draw_picture(seed)) for seed in range(6)]
    assert compute_similarity(pictures[0], pictures[0]) == pytest.approx(1, abs=1e-5)
    assert max(compute_similarity(pictures[0], other) for other in pictures[1:]) < 0.5


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_confirmed(seed: int) -> None:
    image = draw_picture(seed, (200, 250))
    copies = [
        Image.open(io.BytesIO(encode(image, 50))),
        image.resize((125, 100), Image.Resampling.BICUBIC),
        ImageEnhance.Brightness(image).enhance(1.3),
        image.crop((12, 10, 238, 190)),
        image.crop((12, 0, 250, 200)),
        image.crop((0, 3, 240, 195)),
    ]
    assert min(compute_similarity(load(image), load(copy)) for copy in copies) > MIN_SIMILARITY


def test_alike_in_light_and_different_in_detail_is_not_the_same() -> None:
    """The same gradient from dark to light, with other things on it."""
    slope = np.linspace(0, 160, 128)[None, :, None] + np.zeros((96, 128, 3))
    first, second = (slope + 0.4 * np.asarray(draw_picture(seed)) for seed in (1, 2))
    similarity = compute_similarity(*(load(Image.fromarray(each.clip(0, 255).astype(np.uint8))) for each in (first, second)))
    assert similarity < MIN_SIMILARITY


def test_windows_keep_the_mean_of_what_they_see() -> None:
    assert np.allclose(WINDOWS.sum(axis=2), 1, atol=1e-6)
    assert np.allclose(WINDOWS[0], np.kron(np.eye(24), np.full((1, 2), 0.5)))


def compare_plainly(first: np.ndarray, second: np.ndarray) -> float:
    """Every piece of either is made and laid over the whole of the other."""

    def list_steps(image: np.ndarray) -> np.ndarray:
        return np.concatenate([np.diff(image, axis=0)[:, 1:].reshape(-1), np.diff(image, axis=1)[1:].reshape(-1)])

    similarity = []
    for larger, smaller in ((first, second), (second, first)):
        whole = list_steps(WINDOWS[0] @ smaller @ WINDOWS[0].T)
        for rows in WINDOWS:
            for columns in WINDOWS:
                steps = list_steps(rows @ larger @ columns.T)
                similarity.append(steps @ whole / np.sqrt((steps @ steps) * (whole @ whole)))
    return max(similarity)


def test_it_is_the_best_of_all_pieces() -> None:
    generator = np.random.default_rng(0)
    first = generator.uniform(0, 255, (48, 48)).astype(np.float32)
    second = np.roll(first, 2, axis=1) + 20 * generator.standard_normal((48, 48)).astype(np.float32)
    expected = compare_plainly(first.astype(np.float64), second.astype(np.float64))
    assert 0.1 < expected < 0.99
    assert compute_similarity(compute_edge_map(first), compute_edge_map(second)) == pytest.approx(expected, abs=1e-4)


def test_the_edges_of_a_whole_image_are_those_of_its_first_crop() -> None:
    first, second = (load_grey(LazyImage(np.asarray(draw_picture(seed)), "picture")) for seed in (0, 1))
    edges = compute_whole_edges(first)
    assert edges.norm == pytest.approx(compute_edge_map(first).whole.norm, rel=1e-5)
    expected = correlate_with_crops(compute_edge_map(second), compute_edge_map(first).whole)
    assert correlate_with_crops(compute_edge_map(second), edges) == pytest.approx(expected, abs=1e-5)


def test_blank_images_are_like_nothing() -> None:
    blank = compute_edge_map(np.full((48, 48), 7, dtype=np.float32))
    assert compute_similarity(blank, blank) < 1e-3


def test_processes_compare_as_threads_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.stack([np.asarray(draw_picture(seed, (40, 40))) for seed in range(6)])
    sources = [ArraySource(each, Labels.none_each(6), (), "pictures") for each in (pixels, pixels[::-1].copy())]
    pairs = np.stack(np.divmod(np.arange(36), 6), axis=1)
    found = []
    for limit in (36, 35):
        monkeypatch.setattr(edge_map, "MIN_FOR_PROCESSES", limit)
        monkeypatch.setattr(edge_map, "PAIRS_AT_ONCE", 5)
        with ImageComparer(*sources) as comparer:
            found.append(list(comparer.compare(pairs, (0, 1))))
            assert (comparer.pool is not None) == (limit == 35)
    assert found[0] == found[1]
    assert [pair for pair, value in zip(pairs.tolist(), found[0], strict=True) if value > MIN_SIMILARITY] == [
        [number, 5 - number] for number in range(6)
    ]


def test_a_clear_copy_is_not_cropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy, the middle of the first picture, and another picture are compared with the first."""
    picture = draw_picture(0)
    middle = picture.crop((4, 3, 124, 93)).resize(picture.size, Image.Resampling.BICUBIC)
    pictures = [picture, Image.open(io.BytesIO(encode(picture, 50))), middle, draw_picture(1)]
    source = ArraySource(np.stack([np.asarray(each) for each in pictures]), Labels.none_each(4), (), "pictures")
    cropped = []
    monkeypatch.setattr(edge_map, "compute_edge_map", lambda grey: (cropped.append(grey), compute_edge_map(grey))[1])
    maps = EdgeMaps(source)
    forth = compare_pairs(maps, maps, np.array([[1, 0], [2, 0], [3, 0]]))
    assert [number for number in range(4) if any(np.array_equal(maps.load_grey(number), grey) for grey in cropped)] == [0, 3]
    assert min(forth[:2]) > CLEAR_SIMILARITY > MIN_SIMILARITY > forth[2]
    back = compare_pairs(maps, maps, np.array([[0, 2], [0, 3]]))
    assert correlate_with_crops(maps.load(2), maps.load(0).whole) < CLEAR_SIMILARITY - 0.01  # the whole is not in its middle
    assert back == pytest.approx([compute_similarity(maps.load(0), maps.load(number)) for number in (2, 3)], abs=1e-5)


@pytest.mark.parametrize(("weight", "low", "high", "is_copy"), [(0.62, 0.79, 0.91, True), (0.45, 0.57, 0.72, False)])
def test_the_threshold_lies_between_what_is_left_of_a_copy_and_what_is_only_similar(
    weight: float, low: float, high: float, is_copy: bool
) -> None:
    """Blends of two pictures: their edges correlate with the first by about w / sqrt(w^2 + (1 - w)^2)."""
    pictures = [np.asarray(draw_picture(seed)).astype(float) for seed in (1, 2)]
    blend = Image.fromarray((weight * pictures[0] + (1 - weight) * pictures[1]).round().astype(np.uint8))
    source = ArraySource(np.stack([np.asarray(draw_picture(1)), np.asarray(blend)]), Labels.none_each(2), (), "blends")
    similarity = compute_similarity(load(draw_picture(1)), load(blend))
    assert low < similarity < high
    assert similarity == pytest.approx(weight / np.hypot(weight, 1 - weight), abs=0.08)
    with ImageComparer(source) as comparer:
        images = ImageSet(compute_image_stats(source, ""), np.arange(2), comparer)
        pairs, _ = verify_candidates(np.array([[0, 1]]), images, images, {}, show_progress=False)
    assert pairs.tolist() == ([[0, 1]] if is_copy else [])
