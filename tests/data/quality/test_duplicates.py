"""Tests of data/quality/duplicates.py.

Copies are found across and within data sets; other pictures are not.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.data.pictures import draw_picture, encode, write_picture
from vitrine.data.open_data import open_data
from vitrine.data.quality import duplicates, edge_map
from vitrine.data.quality.crowds import MAX_SEARCHED
from vitrine.data.quality.duplicates import extend_to_copies, find_duplicates_between, find_duplicates_within, pair_identical
from vitrine.data.quality.image_stats import ImageStats, compute_image_stats, stats_of_chunk
from vitrine.data.quality.perceptual_hash import PerceptualHashes
from vitrine.data.scan import count_cpus
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.subsets import SubsetSource, select_subset

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


def test_crowds_of_identical_and_of_near_copies_do_not_multiply() -> None:
    """Of 200 images with identical bytes, the first has 100 near copies: each other one is paired with the first few."""
    near = np.stack([np.zeros(100, np.int64), np.arange(100)], axis=1)
    pairs, similarity = extend_to_copies(near, np.linspace(0.8, 0.9, 100), np.zeros(200, np.int64), np.arange(100))
    assert len(pairs) == len(similarity) == 100 + 199 * MAX_SEARCHED
    assert set(pairs[:, 0].tolist()) == set(range(200))


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
    look = edge_map.correlate_with_crops
    monkeypatch.setattr(edge_map, "correlate_with_crops", lambda *both: (looks.append(both), look(*both))[1])
    source = open_data(folder / "second")
    pairs = find_duplicates_within(compute_image_stats(source, ""), source)
    assert {number for pair in pairs.indices.tolist() for number in pair} == set(range(40))
    assert len(looks) < 80  # of 780 pairs, each looked at one way


@pytest.fixture
def shots() -> ArraySource:
    """Sixteen noisy copies of each of four pictures."""
    pixels = np.repeat([np.asarray(draw_picture(seed), dtype=np.float64) for seed in range(4)], 16, axis=0)
    noisy = pixels + np.random.default_rng(0).normal(0, 3, pixels.shape)
    return ArraySource(noisy.clip(0, 255).astype(np.uint8), Labels.none_each(64), (), "shots")


def test_only_the_first_of_several_copies_is_cropped(shots: ArraySource, monkeypatch: pytest.MonkeyPatch) -> None:
    cropped, crop = [], edge_map.compute_edge_map
    monkeypatch.setattr(edge_map, "compute_edge_map", lambda grey: (cropped.append(grey), crop(grey))[1])
    pairs = find_duplicates_within(compute_image_stats(shots, ""), shots)
    assert pairs.indices.tolist() == [[first, first + copy] for first in range(0, 64, 16) for copy in range(1, 16)]
    assert len(cropped) <= 4 * count_cpus()  # threads may crop the same image at the same time


def test_copies_that_are_known_make_no_waves(shots: ArraySource, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of 16 copies, in two groups of pairs, decides the groups of the others."""
    stats = compute_image_stats(shots, "")
    expected = find_duplicates_within(stats, shots)
    num_waves, compare = [], edge_map.ImageComparer.compare
    monkeypatch.setattr(edge_map.ImageComparer, "compare", lambda *given: (num_waves.append(1), compare(*given))[1])
    monkeypatch.setattr(duplicates, "GROUPS_AT_ONCE", 2)
    found = find_duplicates_within(stats, shots)
    assert np.array_equal(found.indices, expected.indices)
    assert np.array_equal(found.similarity, expected.similarity)
    assert len(num_waves) <= 8  # not 44


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
