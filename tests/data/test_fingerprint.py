"""What is the same keeps its key, and every change has another one."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data.fingerprint import compute_content_key, compute_disk_key
from vitrine.data.opening import open_data
from vitrine.data.relabel import Relabelled
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.files import FileSource
from vitrine.data.subset import hold_out

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
    return compute_disk_key(source), compute_content_key(source)


def test_nothing_changed_is_the_same(folder: Path) -> None:
    source = open_files(folder)
    assert compute_both(source) == compute_both(open_files(folder))
    assert compute_disk_key(source) != compute_content_key(source)


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
    before = compute_disk_key(source)
    compute_content_key(source)
    assert compute_disk_key(source) == before


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
    assert len({compute_content_key(open_files(folder, order)) for order in orders}) == len(orders)
    assert len({compute_disk_key(open_files(folder, order)) for order in orders}) == len(orders)


def test_labels_do_not_matter(folder: Path) -> None:
    source = open_files(folder)
    for labels, names in ((Labels.one_each([1, 0, 1]), ("x", "y")), (Labels.several_each([[0], [], [0]]), ("z",))):
        assert compute_both(Relabelled(source, labels, names)) == compute_both(source)


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
    assert compute_content_key(open_files(folder)) == whole[1]


def test_a_folder_in_place_of_an_image_is_no_error(folder: Path) -> None:
    (folder / "b.bmp").unlink()
    (folder / "b.bmp").mkdir()
    assert compute_content_key(open_files(folder)) == compute_content_key(open_files(folder))


def test_what_is_in_no_file_has_no_key_of_the_disk() -> None:
    assert compute_disk_key(make_array(np.zeros((2, 3, 3, 3), np.uint8))) is None
    assert compute_disk_key(open_data("shapes@16", "val")) is None


def test_pixels_in_memory_count_by_value_and_shape() -> None:
    pixels = np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
    key = compute_content_key(make_array(pixels))
    assert compute_content_key(make_array(np.asfortranarray(pixels))) == key  # however it lies there
    assert compute_content_key(make_array(pixels.reshape(2, 2, 8, 3))) != key
    assert compute_content_key(make_array(pixels.reshape(1, 8, 4, 3))) != key
    for place in ((0, 0, 0, 0), (1, 3, 3, 2)):
        changed = pixels.copy()
        changed[place] ^= 1
        assert compute_content_key(make_array(changed)) != key


def test_a_map_of_a_file_is_as_good_as_memory(tmp_path: Path) -> None:
    pixels = np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.save(tmp_path / "x.npy", pixels)
    mapped = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"), Labels.none_each(2), (), "x", [tmp_path / "x.npy"])
    assert compute_content_key(mapped) == compute_content_key(make_array(pixels))
    assert compute_disk_key(mapped) is not None


def test_names_may_hold_any_bytes(folder: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe.bmp")
    try:
        (folder / "a.bmp").rename(folder / odd)
    except OSError:
        pytest.skip("the file system takes no such names")
    first, second = open_files(folder, (odd, *NAMES[1:])), open_files(folder)
    assert compute_disk_key(first) != compute_disk_key(second)
    assert compute_content_key(first) != compute_content_key(second)


def test_nothing_has_a_key_too() -> None:
    assert compute_content_key(make_array(np.zeros((0, 2, 2, 3), np.uint8))) != compute_content_key(
        make_array(np.zeros((1, 2, 2, 3), np.uint8))
    )
