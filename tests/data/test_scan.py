"""Tests of data/scan.py.

Reading everything once: in order, by threads, never far ahead, and to a clean end whatever happens.
What is the same keeps its key, and every change has another one.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.core.console import VitrineWarning
from vitrine.data.config import BadImages
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.open_data import open_data
from vitrine.data.scan import AHEAD, content_fingerprint, count_cpus, file_fingerprint, map_images, map_in_threads
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.image_files import FileSource
from vitrine.data.subsets import hold_out
from vitrine.data.wrappers import RelabelledSource

AT_MOST = AHEAD * count_cpus()


class Numbers(Source):
    """Images of one pixel, which is their number; some of them are bad, others worse."""

    def __init__(self, count: int, bad: tuple[int, ...] = (), error: Exception | None = None, slow: bool = False) -> None:
        self.labels, self.class_names = Labels.none_each(count), ()
        self.bad, self.error, self.slow = bad, error, slow
        self.fetched: list[int] = []

    def fetch(self, index: int) -> bytes | np.ndarray:
        self.fetched.append(index)
        if self.slow:
            time.sleep(0.002 * (index % 3))  # so that they end in another order than they began
        if index in self.bad:
            if self.error is not None:
                raise self.error
            return b"not an image"
        return np.full((1, 1), index, dtype=np.uint8)

    def name(self, index: int) -> str:
        return f"{index}.png"

    def files(self) -> list[Path]:
        return []


def value(image: LazyImage) -> int:
    return int(image.to_numpy(1)[0, 0, 0])


def test_every_image_once_in_order() -> None:
    source = Numbers(50, slow=True)
    assert list(map_images(source, value)) == [(index, index) for index in range(50)]
    assert sorted(source.fetched) == list(range(50))


@pytest.mark.parametrize("count", [0, 1, 2, AT_MOST, AT_MOST + 1])
def test_any_number_of_images(count: int) -> None:
    assert [index for index, _ in map_images(Numbers(count), value)] == list(range(count))


def test_the_first_bad_image_is_the_error() -> None:
    source = Numbers(100, bad=(7, 5, 60), slow=True)
    images = map_images(source, value)
    assert [next(images) for _ in range(5)] == [(index, index) for index in range(5)]
    with pytest.raises(BadImage, match=r"^5\.png is not a readable image"):
        next(images)
    assert len(source.fetched) <= 6 + AT_MOST


def test_skipped_images_are_told_once_at_the_end() -> None:
    with pytest.warns(VitrineWarning) as notices:
        seen = [index for index, _ in map_images(Numbers(20, bad=(0, 3, 19)), value, "skip")]
    assert seen == [index for index in range(20) if index not in (0, 3, 19)]
    assert [str(notice.message) for notice in notices] == ["Skipped 0.png, 3.png, 19.png: cannot be read (3 of 20 images)."]


def test_many_skipped_images_are_counted_and_some_named() -> None:
    with pytest.warns(VitrineWarning, match=r"^Skipped 0\.png, .* 7\.png and 12 more: cannot be read \(20 of 20 images\)\.$"):
        assert list(map_images(Numbers(20, bad=tuple(range(20))), value, "skip")) == []


def test_nothing_is_said_where_nothing_was_skipped() -> None:
    assert len(list(map_images(Numbers(5), value, "skip"))) == 5  # a notice would be an error here


def test_what_is_bad_in_making_is_bad() -> None:
    """Most faults show when the pixels are asked for."""

    def make(image: LazyImage) -> int:
        if value(image) == 2:
            raise BadImage("2.png is cut short.")
        return value(image)

    with pytest.raises(BadImage, match=r"^2\.png is cut short"):
        list(map_images(Numbers(5), make))
    with pytest.warns(VitrineWarning, match=r"^Skipped 2\.png: "):
        assert [index for index, _ in map_images(Numbers(5), make, "skip")] == [0, 1, 3, 4]


def test_a_file_that_is_gone_is_a_bad_image() -> None:
    source = Numbers(5, bad=(1,), error=FileNotFoundError(2, "No such file or directory"))
    with pytest.raises(BadImage, match=r"^1\.png cannot be read \(No such file or directory\)"):
        list(map_images(source, value))
    with pytest.warns(VitrineWarning, match=r"^Skipped 1\.png: "):
        assert len(list(map_images(source, value, "skip"))) == 4


@pytest.mark.parametrize("bad_images", ["error", "skip"])
@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError("not about an image"), MemoryError(), KeyError("x")])
def test_other_errors_are_never_skipped(error: Exception, bad_images: BadImages) -> None:
    source = Numbers(60, bad=(4,), error=error)
    with pytest.raises(type(error)) as raised:
        list(map_images(source, value, bad_images))
    assert raised.value is error
    assert len(source.fetched) <= 5 + AT_MOST


def wait_until_idle(count: Callable[[], int]) -> int:
    """What the threads come to when nobody takes anything from them."""
    before = -1
    while before != count():
        before = count()
        time.sleep(0.05)
    return before


def test_it_is_never_far_ahead_of_its_reader() -> None:
    source = Numbers(200)
    images = map_images(source, value)
    assert source.fetched == []  # nothing before the first is asked for
    for taken in range(1, 60):
        next(images)
        if taken % 20 == 1:
            assert wait_until_idle(lambda: len(source.fetched)) <= taken + AT_MOST
    images.close()


def list_readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")}


def test_an_early_end_stops_the_threads() -> None:
    source = Numbers(10_000, slow=True)
    before = list_readers()
    images = map_images(source, value)
    for _ in range(3):
        next(images)
    images.close()
    assert list_readers() <= before
    assert len(source.fetched) <= 3 + AT_MOST


def test_leaving_a_loop_stops_the_threads() -> None:
    source, before = Numbers(10_000), list_readers()
    for index, _ in map_images(source, value):
        if index == 5:
            break
    assert list_readers() <= before
    assert len(source.fetched) <= 6 + AT_MOST


def test_images_are_read_by_several_threads() -> None:
    if count_cpus() == 1:
        pytest.skip("this process may use one processor only")
    meeting = threading.Barrier(2, timeout=600)

    def meet(index: int) -> int:
        if index < 2:
            meeting.wait()  # comes back only if two are here at a time
        return index

    assert list(map_in_threads(meet, 5)) == list(range(5))


def test_at_least_one_processor() -> None:
    assert count_cpus() >= 1


NAMES = ("a.bmp", "b.bmp", "c.bmp")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for seed, name in enumerate(NAMES):
        draw(tmp_path / "images" / name, seed)
    return tmp_path / "images"


def draw(path: Path, seed: int) -> None:
    """Without compression, so that all have the same size in bytes."""
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)).save(path)


def open_files(folder: Path, names: tuple[str, ...] = NAMES) -> FileSource:
    return FileSource(folder, names, Labels.none_each(len(names)), ())


def make_array(pixels: np.ndarray) -> ArraySource:
    return ArraySource(pixels, Labels.none_each(len(pixels)), (), "made")


def replace_content(path: Path, content: bytes) -> None:
    """In place, of the same size, and with the time that the file had."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # file systems count time in hundredths of a second at worst
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def compute_both(source: Source) -> tuple[str | None, str]:
    return file_fingerprint(source), content_fingerprint(source)


def test_nothing_changed_is_the_same(folder: Path) -> None:
    source = open_files(folder)
    assert compute_both(source) == compute_both(open_files(folder))
    assert file_fingerprint(source) != content_fingerprint(source)


def test_a_replaced_image_is_noticed_though_size_and_time_are_kept(folder: Path) -> None:
    before = compute_both(open_files(folder))
    content = bytearray((folder / "b.bmp").read_bytes())
    content[-1] ^= 1
    replace_content(folder / "b.bmp", bytes(content))
    after = compute_both(open_files(folder))
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_the_same_content_written_again_is_the_same_content(folder: Path) -> None:
    before = compute_both(open_files(folder))
    replace_content(folder / "b.bmp", (folder / "b.bmp").read_bytes())
    after = compute_both(open_files(folder))
    assert before[0] != after[0]  # it takes a look to know
    assert before[1] == after[1]


def test_reading_changes_nothing(folder: Path) -> None:
    source = open_files(folder)
    before = file_fingerprint(source)
    content_fingerprint(source)
    assert file_fingerprint(source) == before


def test_copied_and_renamed_images_have_the_same_content(folder: Path, tmp_path: Path) -> None:
    before = compute_both(open_files(folder))
    shutil.copytree(folder, tmp_path / "copy")
    copied = compute_both(open_files(tmp_path / "copy"))
    (tmp_path / "copy" / "b.bmp").rename(tmp_path / "copy" / "größer 猫.bmp")
    renamed = compute_both(open_files(tmp_path / "copy", ("a.bmp", "größer 猫.bmp", "c.bmp")))
    assert before[1] == copied[1] == renamed[1]
    assert len({before[0], copied[0], renamed[0]}) == 3


def test_order_and_number_of_images_matter(folder: Path) -> None:
    orders = [NAMES, NAMES[::-1], NAMES[:2], NAMES[1:], (*NAMES, NAMES[2])]
    assert len({content_fingerprint(open_files(folder, order)) for order in orders}) == len(orders)
    assert len({file_fingerprint(open_files(folder, order)) for order in orders}) == len(orders)


def test_labels_do_not_matter(folder: Path) -> None:
    source = open_files(folder)
    for labels, names in ((Labels.one_each([1, 0, 1]), ("x", "y")), (Labels.several_each([[0], [], [0]]), ("z",))):
        assert compute_both(RelabelledSource(source, labels, names)) == compute_both(source)


def test_parts_of_the_same_files_are_told_apart(folder: Path) -> None:
    parts = hold_out(open_files(folder), 0.34)
    keys = [compute_both(part) for part in (*parts, open_files(folder))]
    assert len({disk for disk, _ in keys}) == 3
    assert len({content for _, content in keys}) == 3


def test_a_file_that_says_what_the_images_show_is_noticed_on_the_disk_only(folder: Path) -> None:
    for name in NAMES:
        (folder / "cat").mkdir(exist_ok=True)
        (folder / name).rename(folder / "cat" / name)
    (folder / "classes.txt").write_text("cat\n")
    before = compute_both(open_data(folder))
    replace_content(folder / "classes.txt", b"cat ")
    after = compute_both(open_data(folder))
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_an_image_that_is_gone_is_no_error_and_comes_back_as_it_was(folder: Path) -> None:
    whole = compute_both(open_files(folder))
    (folder / "b.bmp").rename(folder / "away.bmp")
    without = compute_both(open_files(folder))
    assert without == compute_both(open_files(folder))
    assert without[0] != whole[0]
    assert without[1] != whole[1]
    (folder / "away.bmp").rename(folder / "b.bmp")
    assert content_fingerprint(open_files(folder)) == whole[1]


def test_a_folder_in_place_of_an_image_is_no_error(folder: Path) -> None:
    (folder / "b.bmp").unlink()
    (folder / "b.bmp").mkdir()
    assert content_fingerprint(open_files(folder)) == content_fingerprint(open_files(folder))


def test_what_is_in_no_file_has_no_key_of_the_disk() -> None:
    assert file_fingerprint(make_array(np.zeros((2, 3, 3, 3), np.uint8))) is None
    assert file_fingerprint(open_data("shapes@16", "val")) is None


def test_pixels_in_memory_count_by_value_and_shape() -> None:
    pixels = np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
    key = content_fingerprint(make_array(pixels))
    assert content_fingerprint(make_array(np.asfortranarray(pixels))) == key  # however it lies there
    assert content_fingerprint(make_array(pixels.reshape(2, 2, 8, 3))) != key
    assert content_fingerprint(make_array(pixels.reshape(1, 8, 4, 3))) != key
    for place in ((0, 0, 0, 0), (1, 3, 3, 2)):
        changed = pixels.copy()
        changed[place] ^= 1
        assert content_fingerprint(make_array(changed)) != key


def test_a_map_of_a_file_is_as_good_as_memory(tmp_path: Path) -> None:
    pixels = np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.save(tmp_path / "x.npy", pixels)
    mapped = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"), Labels.none_each(2), (), "x", [tmp_path / "x.npy"])
    assert content_fingerprint(mapped) == content_fingerprint(make_array(pixels))
    assert file_fingerprint(mapped) is not None


def test_names_may_hold_any_bytes(folder: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe.bmp")
    try:
        (folder / "a.bmp").rename(folder / odd)
    except OSError:
        pytest.skip("the file system takes no such names")
    first, second = open_files(folder, (odd, *NAMES[1:])), open_files(folder)
    assert file_fingerprint(first) != file_fingerprint(second)
    assert content_fingerprint(first) != content_fingerprint(second)


def test_nothing_has_a_key_too() -> None:
    assert content_fingerprint(make_array(np.zeros((0, 2, 2, 3), np.uint8))) != content_fingerprint(
        make_array(np.zeros((1, 2, 2, 3), np.uint8))
    )
