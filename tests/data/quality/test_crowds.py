"""Tests of data/quality/crowds.py: many copies of one picture are all found, at a cost in proportion to their number."""

from threading import Lock
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import draw_picture
from vitrine.data.quality import edge_map, perceptual_hash
from vitrine.data.quality.crowds import MAX_SEARCHED, NUM_KEPT, ImageSet, find_candidates, pair_crowds
from vitrine.data.quality.duplicates import DuplicatePairs, find_duplicates_between, find_duplicates_within
from vitrine.data.quality.edge_map import ImageComparer
from vitrine.data.quality.image_stats import stats_of_chunk
from vitrine.data.source import ArraySource, Labels

Pictures = np.ndarray  # uint8 (N, H, W, 3)
PICTURE = np.asarray(draw_picture(0, (64, 64)))


def draw_others(count: int, seed: int = 1000) -> Pictures:
    return np.stack([np.asarray(draw_picture(seed + number, (64, 64))) for number in range(count)])


def copy(picture: np.ndarray, count: int, seed: int = 0) -> Pictures:
    """Make copies with faint noise, each with a brightness of its own."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(0, 4, (count, *picture.shape))
    return (picture * generator.uniform(0.85, 1.1, (count, 1, 1, 1)) + noise).clip(0, 255).astype(np.uint8)


def mix(*parts: Pictures) -> Pictures:
    return np.random.default_rng(0).permutation(np.concatenate(parts))


def open_pictures(pictures: Pictures) -> ArraySource:
    return ArraySource(pictures, Labels.none_each(len(pictures)), (), "pictures")


def build_set(pictures: Pictures) -> ImageSet:
    source = open_pictures(pictures)
    return ImageSet(stats_of_chunk(source, range(len(source))), np.arange(len(source)), ImageComparer(source))


def find_within(pictures: Pictures) -> DuplicatePairs:
    source = open_pictures(pictures)
    return find_duplicates_within(stats_of_chunk(source, range(len(source))), source)


def find_between(first: Pictures, second: Pictures) -> DuplicatePairs:
    sources = open_pictures(first), open_pictures(second)
    stats = [stats_of_chunk(source, range(len(source))) for source in sources]
    return find_duplicates_between(stats[0], sources[0], stats[1], sources[1])


class Work:
    """What searches did: pairs of hashes compared, candidates found (in each table and view), pairs verified by edges."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.compared = self.candidates = self.correlated = 0

    def count(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, counter: str) -> None:
        """Add up the lengths of what a function returns, or the calls that return a number."""
        function = getattr(module, name)

        def call(*arguments: object) -> object:
            result = function(*arguments)
            with self.lock:
                setattr(self, counter, getattr(self, counter) + (1 if isinstance(result, float) else len(result)))
            return result

        monkeypatch.setattr(module, name, call)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work()
    work.count(monkeypatch, perceptual_hash, "expand_ranges", "compared")
    work.count(monkeypatch, perceptual_hash, "search_block", "candidates")
    work.count(monkeypatch, edge_map, "correlate_with_crops", "correlated")  # once or twice for each pair
    return work


@pytest.mark.parametrize("count", [100, 400, 1600])
def test_the_cost_grows_like_the_number_of_copies(count: int, work: Work) -> None:
    """All pairs of 1,600 copies would be 1,600 candidates for each of them, in each of 16 tables and views."""
    pairs = find_within(mix(copy(PICTURE, count), draw_others(10)))
    assert len(pairs) >= count - 1
    assert work.candidates + work.correlated < 400 * count
    assert work.compared < 1000 * count


@pytest.mark.parametrize("counts", [(100, 100), (800, 100), (100, 800), (800, 800), (1600, 1)])
def test_crowds_in_two_sets_do_not_multiply(counts: tuple[int, int], work: Work) -> None:
    first, second = (mix(copy(PICTURE, count, seed), draw_others(10, 1000 * (1 + seed))) for seed, count in enumerate(counts))
    pairs = find_between(first, second)
    assert [len(np.unique(pairs.indices[:, side])) for side in (0, 1)] == list(counts)  # each image has its pair
    assert len(pairs) < 40 * sum(counts)
    assert work.candidates + work.correlated < 400 * sum(counts)
    assert work.compared < 1000 * sum(counts)


def test_a_crowd_is_one_group_around_its_first_image() -> None:
    pictures = mix(copy(PICTURE, 200), draw_others(20), copy(draw_others(1)[0], 5))
    pairs = find_within(pictures)
    is_copy = np.abs(pictures - PICTURE.astype(float)).mean(axis=(1, 2, 3)) < 40
    first, *copies = np.flatnonzero(is_copy).tolist()
    assert len(copies) == 199
    assert pairs.indices[pairs.indices[:, 0] == first, 1].tolist() == copies
    assert pairs.similarity.min() > 0.75
    assert set(pairs.indices[is_copy[pairs.indices[:, 1]], 0].tolist()) == {first}
    assert (~is_copy[pairs.indices]).all(axis=1).sum() == 5  # the other picture and its copies


def test_small_groups_are_left_as_they_are() -> None:
    images = build_set(mix(*(copy(picture, MAX_SEARCHED, seed) for seed, picture in enumerate(draw_others(5)))))
    assert pair_crowds(images, images) == {}
    assert images.is_searched.all()


def test_all_but_a_few_of_a_crowd_leave_the_search() -> None:
    """Those with the most and the least noise stay, and their representative."""
    pictures = copy(PICTURE, 100)
    images = build_set(pictures)
    pairs = pair_crowds(images, images)
    assert {first for first, _ in pairs} == {0}
    assert len(pairs) == 99
    by_similarity = [second for _, second in sorted(pairs, key=pairs.__getitem__)]
    half = NUM_KEPT // 2
    assert np.flatnonzero(images.is_searched).tolist() == sorted([0, *by_similarity[:half], *by_similarity[-half:]])


def test_many_small_crowds_are_compared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, each of 30 crowds would be compared in three parts at least."""
    images = build_set(mix(*(copy(picture, 40, seed) for seed, picture in enumerate(draw_others(30)))))
    calls: list[int] = []
    compare = ImageComparer.compare
    monkeypatch.setattr(ImageComparer, "compare", lambda self, pairs, sides: calls.append(1) or compare(self, pairs, sides))
    pairs = pair_crowds(images, images)
    crowds = {first for first, _ in pairs}
    assert len(crowds) > 20  # a few may not have been drawn
    assert len(pairs) == 39 * len(crowds)
    assert len(calls) < 30


def test_pictures_with_similar_hashes_are_not_taken_for_copies() -> None:
    """A hundred pictures with the same coarse shapes and different details, among a hundred copies of one of them."""
    coarse = np.asarray(draw_picture(0, (8, 8)).resize((64, 64), Image.Resampling.BICUBIC), dtype=float)
    details = np.random.default_rng(0).choice([-30, 30], (101, 64, 64, 1))
    different = (coarse + details).clip(0, 255).astype(np.uint8)
    images = build_set(different)
    assert len(find_candidates(images, images)) > 1000  # or this test is about nothing
    found = find_within(np.concatenate([different[:100], copy(different[100], 100)]))
    assert found.indices.min() >= 100
    assert len(np.unique(found.indices)) == 100


def test_a_copy_of_a_crowd_in_the_other_set_is_found() -> None:
    """The images that have left the search have their pair already; one more copy on the other side finds the others."""
    pairs = find_between(copy(PICTURE, 300), mix(draw_others(50), copy(PICTURE, 1, seed=5)))
    assert np.unique(pairs.indices[:, 0]).tolist() == list(range(300))
    assert len(np.unique(pairs.indices[:, 1])) == 1


def test_tiny_images_are_not_searched_for_each_other(work: Work) -> None:
    tiny = copy(np.asarray(Image.fromarray(PICTURE).resize((24, 24))), 200)
    assert len(find_within(tiny)) == 0
    assert work.compared == work.correlated == 0


def test_a_tiny_copy_of_a_larger_image_is_found() -> None:
    tiny = np.stack([np.asarray(Image.fromarray(picture).resize((31, 31))) for picture in draw_others(4)])
    assert find_between(draw_others(4), tiny).indices.tolist() == [[number, number] for number in range(4)]
    assert find_between(tiny, draw_others(4)).indices.tolist() == [[number, number] for number in range(4)]
