"""map_images reads in order, by threads, with bounded look-ahead; fingerprints change exactly when images do."""

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
    """Images of one pixel with their index as value; those in `bad` are unreadable or raise `error`."""

    def __init__(self, count: int, bad: tuple[int, ...] = (), error: Exception | None = None, slow: bool = False) -> None:
        self.labels, self.class_names = Labels.none_each(count), ()
        self.bad, self.error, self.slow = bad, error, slow
        self.fetched: list[int] = []

    def fetch(self, index: int) -> bytes | np.ndarray:
        self.fetched.append(index)
        if self.slow:
            time.sleep(0.002 * (index % 3))  # so that they finish out of order
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


def test_first_bad_image_is_the_error() -> None:
    source = Numbers(100, bad=(7, 5, 60), slow=True)
    images = map_images(source, value)
    assert [next(images) for _ in range(5)] == [(index, index) for index in range(5)]
    with pytest.raises(BadImage, match=r"^5\.png "):
        next(images)
    assert len(source.fetched) <= 6 + AT_MOST


def test_skipped_images_are_reported_once_at_the_end() -> None:
    with pytest.warns(VitrineWarning, match=r"0\.png, 3\.png, 19\.png.*3 of 20") as caught:
        seen = [index for index, _ in map_images(Numbers(20, bad=(0, 3, 19)), value, "skip")]
    assert seen == [index for index in range(20) if index not in (0, 3, 19)]
    assert len(caught) == 1
    assert len(list(map_images(Numbers(5), value, "skip"))) == 5  # a warning would be an error in tests
    with pytest.warns(VitrineWarning, match="20 of 20"):
        assert list(map_images(Numbers(20, bad=tuple(range(20))), value, "skip")) == []


def test_image_that_fails_in_the_function_is_bad() -> None:
    """Most files fail only when they are decoded."""

    def make(image: LazyImage) -> int:
        if value(image) == 2:
            raise BadImage("2.png is cut short.")
        return value(image)

    with pytest.raises(BadImage, match=r"^2\.png "):
        list(map_images(Numbers(5), make))
    with pytest.warns(VitrineWarning, match=r"2\.png"):
        assert [index for index, _ in map_images(Numbers(5), make, "skip")] == [0, 1, 3, 4]


def test_missing_file_is_a_bad_image() -> None:
    source = Numbers(5, bad=(1,), error=FileNotFoundError(2, "No such file or directory"))
    with pytest.raises(BadImage, match=r"^1\.png .*No such file"):
        list(map_images(source, value))
    with pytest.warns(VitrineWarning, match=r"1\.png"):
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
    """Wait until the threads stop, and return the count."""
    before = -1
    while before != count():
        before = count()
        time.sleep(0.05)
    return before


def test_look_ahead_is_bounded() -> None:
    source = Numbers(200)
    images = map_images(source, value)
    assert source.fetched == []  # nothing before the first request
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


def test_several_threads_work_at_a_time() -> None:
    if count_cpus() == 1:
        pytest.skip("needs two CPUs")
    meeting = threading.Barrier(2, timeout=600)

    def meet(index: int) -> int:
        if index < 2:
            meeting.wait()  # returns only if two threads are here at the same time
        return index

    assert list(map_in_threads(meet, 5)) == list(range(5))


NAMES = ("a.bmp", "b.bmp", "c.bmp")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for seed, name in enumerate(NAMES):
        draw(tmp_path / "images" / name, seed)
    return tmp_path / "images"


def draw(path: Path, seed: int) -> None:
    """Write an uncompressed image, so that all files have the same size."""
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)).save(path)


def open_files(folder: Path, names: tuple[str, ...] = NAMES) -> FileSource:
    return FileSource(folder, names, Labels.none_each(len(names)), ())


def make_array(pixels: np.ndarray) -> ArraySource:
    return ArraySource(pixels, Labels.none_each(len(pixels)), (), "made")


def replace_content(path: Path, content: bytes) -> None:
    """Overwrite a file with content of the same size, keeping its modification time."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of a file system may tick every 10 ms
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def fingerprints(source: Source) -> tuple[str | None, str]:
    return file_fingerprint(source), content_fingerprint(source)


def test_fingerprints_are_reproducible(folder: Path) -> None:
    source = open_files(folder)
    assert fingerprints(source) == fingerprints(open_files(folder))
    assert file_fingerprint(source) != content_fingerprint(source)


def test_replaced_image_is_noticed_even_with_equal_size_and_time(folder: Path) -> None:
    before = fingerprints(open_files(folder))
    content = bytearray((folder / "b.bmp").read_bytes())
    content[-1] ^= 1
    replace_content(folder / "b.bmp", bytes(content))
    after = fingerprints(open_files(folder))
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_rewritten_file_has_the_same_content_fingerprint(folder: Path) -> None:
    before = fingerprints(open_files(folder))
    replace_content(folder / "b.bmp", (folder / "b.bmp").read_bytes())
    after = fingerprints(open_files(folder))
    assert before[0] != after[0]  # only the content tells
    assert before[1] == after[1]


def test_copied_and_renamed_images_have_the_same_content(folder: Path, tmp_path: Path) -> None:
    before = fingerprints(open_files(folder))
    shutil.copytree(folder, tmp_path / "copy")
    copied = fingerprints(open_files(tmp_path / "copy"))
    (tmp_path / "copy" / "b.bmp").rename(tmp_path / "copy" / "größer 猫.bmp")
    renamed = fingerprints(open_files(tmp_path / "copy", ("a.bmp", "größer 猫.bmp", "c.bmp")))
    assert before[1] == copied[1] == renamed[1]
    assert len({before[0], copied[0], renamed[0]}) == 3


def test_order_and_number_of_images_matter(folder: Path) -> None:
    orders = [NAMES, NAMES[::-1], NAMES[:2], NAMES[1:], (*NAMES, NAMES[2])]
    assert len({content_fingerprint(open_files(folder, order)) for order in orders}) == len(orders)
    assert len({file_fingerprint(open_files(folder, order)) for order in orders}) == len(orders)


def test_labels_do_not_matter(folder: Path) -> None:
    source = open_files(folder)
    for labels, names in ((Labels.one_each([1, 0, 1]), ("x", "y")), (Labels.several_each([[0], [], [0]]), ("z",))):
        assert fingerprints(RelabelledSource(source, labels, names)) == fingerprints(source)


def test_parts_of_the_same_files_differ(folder: Path) -> None:
    parts = hold_out(open_files(folder), 0.34)
    keys = [fingerprints(part) for part in (*parts, open_files(folder))]
    assert len({disk for disk, _ in keys}) == 3
    assert len({content for _, content in keys}) == 3


def test_label_file_changes_only_the_file_fingerprint(folder: Path) -> None:
    for name in NAMES:
        (folder / "cat").mkdir(exist_ok=True)
        (folder / name).rename(folder / "cat" / name)
    (folder / "classes.txt").write_text("cat\n")
    before = fingerprints(open_data(folder))
    replace_content(folder / "classes.txt", b"cat ")
    after = fingerprints(open_data(folder))
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_missing_image_changes_the_fingerprints(folder: Path) -> None:
    whole = fingerprints(open_files(folder))
    (folder / "b.bmp").rename(folder / "away.bmp")
    without = fingerprints(open_files(folder))
    assert without == fingerprints(open_files(folder))
    assert without[0] != whole[0]
    assert without[1] != whole[1]
    (folder / "away.bmp").rename(folder / "b.bmp")
    assert content_fingerprint(open_files(folder)) == whole[1]


def test_folder_instead_of_an_image_has_a_fingerprint(folder: Path) -> None:
    (folder / "b.bmp").unlink()
    (folder / "b.bmp").mkdir()
    assert content_fingerprint(open_files(folder)) == content_fingerprint(open_files(folder))


def test_generated_images_have_no_file_fingerprint() -> None:
    assert file_fingerprint(make_array(np.zeros((2, 3, 3, 3), np.uint8))) is None
    assert file_fingerprint(open_data("shapes@16", "val")) is None


def test_fingerprint_of_pixels_depends_on_values_and_shape() -> None:
    pixels = np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
    key = content_fingerprint(make_array(pixels))
    assert content_fingerprint(make_array(np.asfortranarray(pixels))) == key  # any memory layout
    assert content_fingerprint(make_array(pixels.reshape(2, 2, 8, 3))) != key
    assert content_fingerprint(make_array(pixels.reshape(1, 8, 4, 3))) != key
    for position in ((0, 0, 0, 0), (1, 3, 3, 2)):
        changed = pixels.copy()
        changed[position] ^= 1
        assert content_fingerprint(make_array(changed)) != key


def test_memory_map_has_the_fingerprint_of_its_pixels(tmp_path: Path) -> None:
    pixels = np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.save(tmp_path / "x.npy", pixels)
    mapped = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"), Labels.none_each(2), (), "x", [tmp_path / "x.npy"])
    assert content_fingerprint(mapped) == content_fingerprint(make_array(pixels))
    assert file_fingerprint(mapped) is not None


def test_names_that_are_not_utf8(folder: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe.bmp")
    try:
        (folder / "a.bmp").rename(folder / odd)
    except OSError:
        pytest.skip("the file system rejects such names")
    first, second = open_files(folder, (odd, *NAMES[1:])), open_files(folder)
    assert file_fingerprint(first) != file_fingerprint(second)
    assert content_fingerprint(first) != content_fingerprint(second)
