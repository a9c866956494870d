"""Reading everything once: in order, by threads, never far ahead, and to a clean end whatever happens."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vitrine.core.notices import Notice
from vitrine.data.config import BadImages
from vitrine.data.decode import BadImage
from vitrine.data.reading import AHEAD, count_processors, map_ahead, read_all
from vitrine.data.source import Labels, Source
from vitrine.data.stored import StoredImage

AT_MOST = AHEAD * count_processors()


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


def value(image: StoredImage) -> int:
    return int(image.pixels(1)[0, 0, 0])


def test_every_image_once_in_order() -> None:
    source = Numbers(50, slow=True)
    assert list(read_all(source, value)) == [(index, index) for index in range(50)]
    assert sorted(source.fetched) == list(range(50))


@pytest.mark.parametrize("count", [0, 1, 2, AT_MOST, AT_MOST + 1])
def test_any_number_of_images(count: int) -> None:
    assert [index for index, _ in read_all(Numbers(count), value)] == list(range(count))


def test_the_first_bad_image_is_the_error() -> None:
    source = Numbers(100, bad=(7, 5, 60), slow=True)
    images = read_all(source, value)
    assert [next(images) for _ in range(5)] == [(index, index) for index in range(5)]
    with pytest.raises(BadImage, match=r"^5\.png is not an image that can be read"):
        next(images)
    assert len(source.fetched) <= 6 + AT_MOST


def test_skipped_images_are_told_once_at_the_end() -> None:
    with pytest.warns(Notice) as notices:
        seen = [index for index, _ in read_all(Numbers(20, bad=(0, 3, 19)), value, "skip")]
    assert seen == [index for index in range(20) if index not in (0, 3, 19)]
    assert [str(notice.message) for notice in notices] == ["Skipped 0.png, 3.png, 19.png: cannot be read (3 of 20 images)."]


def test_many_skipped_images_are_counted_and_some_named() -> None:
    with pytest.warns(Notice, match=r"^Skipped 0\.png, .* 7\.png and 12 more: cannot be read \(20 of 20 images\)\.$"):
        assert list(read_all(Numbers(20, bad=tuple(range(20))), value, "skip")) == []


def test_nothing_is_said_where_nothing_was_skipped() -> None:
    assert len(list(read_all(Numbers(5), value, "skip"))) == 5  # a notice would be an error here


def test_what_is_bad_in_making_is_bad() -> None:
    """Most faults show when the pixels are asked for."""

    def make(image: StoredImage) -> int:
        if value(image) == 2:
            raise BadImage("2.png is cut short.")
        return value(image)

    with pytest.raises(BadImage, match=r"^2\.png is cut short"):
        list(read_all(Numbers(5), make))
    with pytest.warns(Notice, match=r"^Skipped 2\.png: "):
        assert [index for index, _ in read_all(Numbers(5), make, "skip")] == [0, 1, 3, 4]


def test_a_file_that_is_gone_is_a_bad_image() -> None:
    source = Numbers(5, bad=(1,), error=FileNotFoundError(2, "No such file or directory"))
    with pytest.raises(BadImage, match=r"^1\.png cannot be read \(No such file or directory\)"):
        list(read_all(source, value))
    with pytest.warns(Notice, match=r"^Skipped 1\.png: "):
        assert len(list(read_all(source, value, "skip"))) == 4


@pytest.mark.parametrize("bad_images", ["error", "skip"])
@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError("not about an image"), MemoryError(), KeyError("x")])
def test_other_errors_are_never_skipped(error: Exception, bad_images: BadImages) -> None:
    source = Numbers(60, bad=(4,), error=error)
    with pytest.raises(type(error)) as raised:
        list(read_all(source, value, bad_images))
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
    images = read_all(source, value)
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
    images = read_all(source, value)
    for _ in range(3):
        next(images)
    images.close()
    assert list_readers() <= before
    assert len(source.fetched) <= 3 + AT_MOST


def test_leaving_a_loop_stops_the_threads() -> None:
    source, before = Numbers(10_000), list_readers()
    for index, _ in read_all(source, value):
        if index == 5:
            break
    assert list_readers() <= before
    assert len(source.fetched) <= 6 + AT_MOST


def test_images_are_read_by_several_threads() -> None:
    if count_processors() == 1:
        pytest.skip("this process may use one processor only")
    meeting = threading.Barrier(2, timeout=600)

    def meet(index: int) -> int:
        if index < 2:
            meeting.wait()  # comes back only if two are here at a time
        return index

    assert list(map_ahead(meet, 5)) == list(range(5))


def test_at_least_one_processor() -> None:
    assert count_processors() >= 1
