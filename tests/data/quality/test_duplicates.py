"""Tests of data/quality/duplicates.py.

Copies are found across and within data sets; other pictures are not.
Copies are told from pictures that are only alike.
"""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.data.pictures import draw_picture, encode, write_picture
from vitrine.data.image import LazyImage
from vitrine.data.open_data import open_data
from vitrine.data.quality import duplicates
from vitrine.data.quality.duplicates import (
    CROPS,
    MIN_SIMILARITY,
    EdgeMap,
    build_window,
    compute_edge_map,
    compute_similarity,
    find_duplicates_between,
    find_duplicates_within,
    load_edge_map,
    pair_identical,
)
from vitrine.data.quality.image_stats import ImageStats, compute_image_stats, stats_of_chunk
from vitrine.data.quality.perceptual_hash import PerceptualHashes
from vitrine.data.source import Source
from vitrine.data.subsets import SubsetSource, select_subset

WINDOWS = np.stack([build_window(*crop) for crop in CROPS])
NUM_PICTURES = 12


def name_pairs(first: Source, second: Source) -> list[tuple[str, str, bool]]:
    pairs = find_duplicates_between(compute_image_stats(first, ""), first, compute_image_stats(second, ""), second)
    return [(first.name(a), second.name(b), bool(e)) for (a, b), e in zip(pairs.indices.tolist(), pairs.is_exact, strict=True)]


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    for number in range(NUM_PICTURES):
        write_picture(tmp_path / "first" / "all" / f"{number:02}.jpg", seed=number)
    write_picture(tmp_path / "second" / "all" / "other.jpg", seed=100)
    return tmp_path


def test_every_kind_of_copy_is_found(folder: Path) -> None:
    image, place = draw_picture(4), folder / "second" / "all"
    (place / "exact.jpg").write_bytes((folder / "first" / "all" / "04.jpg").read_bytes())
    (place / "compressed.jpg").write_bytes(encode(image, 50))
    image.resize((64, 48), Image.Resampling.BICUBIC).save(place / "half.png")
    ImageEnhance.Brightness(image).enhance(1.3).save(place / "bright.png")
    image.crop((6, 5, 122, 91)).save(place / "cut.png")
    found = name_pairs(open_data(folder / "first"), open_data(folder / "second"))
    names = ("bright.png", "compressed.jpg", "cut.png", "exact.jpg", "half.png")
    assert found == [("all/04.jpg", f"all/{name}", name == "exact.jpg") for name in names]


def test_nothing_is_found_where_there_is_nothing(folder: Path) -> None:
    assert name_pairs(open_data(folder / "first"), open_data(folder / "second")) == []
    source = open_data(folder / "first")
    assert len(find_duplicates_within(compute_image_stats(source, ""), source)) == 0


def test_copies_within_are_paired_with_the_first(folder: Path) -> None:
    place = folder / "first" / "all"
    for name in ("20.jpg", "21.jpg"):
        (place / name).write_bytes((place / "03.jpg").read_bytes())
    (place / "22.jpg").write_bytes(encode(draw_picture(3), 40))
    source = open_data(folder / "first")
    pairs = find_duplicates_within(compute_image_stats(source, ""), source)
    assert pairs.indices.tolist() == [[3, 12], [3, 13], [3, 14]]
    assert pairs.is_exact.tolist() == [True, True, False]
    assert pairs.similarity[2] > 0.9


def test_what_cannot_be_read_is_like_nothing(folder: Path) -> None:
    for name in ("first", "second"):
        (folder / name / "all" / "broken.jpg").write_bytes(b"the same nothing")
        Image.new("RGB", (20, 20), "red").save(folder / name / "all" / f"{name}.png", compress_level=len(name) % 5)
    found = name_pairs(open_data(folder / "first"), open_data(folder / "second"))
    assert [pair for pair in found if not pair[2]] == []
    assert all("broken" not in name for pair in found for name in pair[:2])


def survey_digests(*rows: tuple[int, int]) -> ImageStats:
    digests = np.zeros((len(rows), 16), dtype=np.uint8)
    digests[:, :2] = rows
    return ImageStats(digests, PerceptualHashes.empty(len(rows)), np.zeros((len(rows), 2), np.int64))


def test_every_copy_is_paired_once() -> None:
    """Of many on both sides, each with the first of the other, so that a thousand placeholders make no million pairs."""
    first, second = survey_digests((0, 0), (1, 2), (3, 4), (1, 2)), survey_digests((1, 2), (0, 0), (3, 4), (1, 2), (1, 2))
    assert pair_identical(first, second).tolist() == [[1, 0], [1, 3], [1, 4], [2, 2], [3, 0]]
    many = survey_digests(*[(5, 6)] * 300)
    assert len(pair_identical(many, many)) == 599


def test_copies_of_a_near_copy_are_named_too(folder: Path) -> None:
    (folder / "second" / "all" / "half.jpg").write_bytes(encode(draw_picture(4).resize((64, 48))))
    for name in ("first/all/04-again.jpg", "first/all/04-more.jpg"):
        (folder / name).write_bytes((folder / "first" / "all" / "04.jpg").read_bytes())
    found = name_pairs(open_data(folder / "first"), open_data(folder / "second"))
    assert [pair[0] for pair in found] == ["all/04-again.jpg", "all/04-more.jpg", "all/04.jpg"]


def test_many_shots_of_one_scene_take_few_looks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    pixels = np.asarray(draw_picture(1), dtype=np.float64)
    for number in range(40):
        shot = (pixels + generator.normal(0, 3, pixels.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(shot).save(folder / "second" / "all" / f"{number:02}.png")
    looks = []
    look = duplicates.compute_similarity
    monkeypatch.setattr(duplicates, "compute_similarity", lambda *both: (looks.append(both), look(*both))[1])
    source = open_data(folder / "second")
    pairs = find_duplicates_within(compute_image_stats(source, ""), source)
    assert {number for pair in pairs.indices.tolist() for number in pair} == set(range(40))
    assert len(looks) < 80  # of 780 pairs


def test_tiny_images_are_compared_by_their_bytes_alone(cache: Path) -> None:
    """Of handwritten digits of 8 x 8 pixels, most look like others."""
    source = select_subset(open_data("digits", "test"), "150")
    assert len(find_duplicates_within(compute_image_stats(source, ""), source)) == 0


def test_what_one_side_finds_the_other_finds_too(cache: Path, assets: Path) -> None:
    source = open_data(assets / "cifar10-12k", "test")
    first, second = (SubsetSource(source, np.arange(start, 2000, 2)) for start in (0, 1))
    surveys = [stats_of_chunk(each, range(len(each))) for each in (first, second)]
    forth = find_duplicates_between(surveys[0], first, surveys[1], second)
    back = find_duplicates_between(surveys[1], second, surveys[0], first)
    assert len(forth) > 0
    assert sorted(map(tuple, forth.indices.tolist())) == sorted((a, b) for b, a in back.indices.tolist())


def test_copies_of_photographs(assets: Path, cache: Path, tmp_path: Path) -> None:
    """Of every tenth photograph of pets, among all of them: all copies, and no other."""
    source = open_data(assets / "pets", "test")
    chosen = range(0, len(source), 10)
    for number in chosen:
        image = source.read(number)[0].to_pil()
        place = tmp_path / "copies" / "all"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:03}-compressed.jpg").write_bytes(encode(image, 50))
        width, height = image.size
        image.crop((round(0.03 * width), round(0.05 * height), width, height)).save(place / f"{number:03}-cut.jpg")
    copies = open_data(tmp_path / "copies")
    found = find_duplicates_between(compute_image_stats(source, ""), source, compute_image_stats(copies, ""), copies)
    expected = {(number, 2 * place + which) for place, number in enumerate(chosen) for which in (0, 1)}
    assert expected <= set(map(tuple, found.indices.tolist()))
    assert len(found) - len(expected) <= 2  # two photographs of this set are the same


def load(image: Image.Image) -> EdgeMap:
    return load_edge_map(LazyImage(np.asarray(image), "picture"))


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


def test_blank_images_are_like_nothing() -> None:
    blank = compute_edge_map(np.full((48, 48), 7, dtype=np.float32))
    assert compute_similarity(blank, blank) < 1e-3
