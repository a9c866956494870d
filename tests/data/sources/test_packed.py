"""Packed sets as sources: what was packed comes back, and whatever was done to the files since is told in a sentence."""

import json
import multiprocessing
import os
import pickle
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.clock import wait_for_tick
from vitrine.core.checksums import compute_crc
from vitrine.core.console import VitrineWarning
from vitrine.data.open_data import DatasetHandle, find_data
from vitrine.data.pack import pack_data
from vitrine.data.source import Labels, Source
from vitrine.data.sources import packed
from vitrine.data.sources.image_files import FileSource
from vitrine.data.sources.packed import PackDescription, is_packed, list_packed_splits, open_packed

CLASSES = ("ant", "bee", "größe")
SPLIT_SIZES = {"train": 6, "val": 3}


def draw_pixels(index: int, height: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_images(root: Path, paths: list[str], height: int = 5, width: int = 7) -> None:
    for index, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw_pixels(index, height, width)).save(root / path)


def open_files(root: Path, split: str) -> FileSource:
    labels = [index % 3 for index in range(SPLIT_SIZES[split])]
    paths = [f"{split}/{CLASSES[label]}/{index}.png" for index, label in enumerate(labels)]
    return FileSource(root, paths, Labels.one_each(labels), CLASSES)


def make_split_files(root: Path, height: int = 5, width: int = 7) -> DatasetHandle:
    for split in SPLIT_SIZES:
        source = open_files(root, split)
        write_images(root, [source.name(index) for index in range(len(source))], height, width)
    return DatasetHandle(str(root), "files", tuple(SPLIT_SIZES), partial(open_files, root))


def make_packed(folder: Path) -> Path:
    pack_data(make_split_files(folder / "files"), folder / "packed", size=8)
    return folder / "packed"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_packed(tmp_path)


@dataclass(frozen=True)
class Content:
    """All that a packed set has to say, to be compared."""

    images: list[tuple[str, Any, bytes, tuple[int, ...]]]
    class_names: tuple[str, ...]


def read_source(source: Source) -> Content:
    images = []
    for index in range(len(source)):
        image, label = source.read(index)
        images.append((image.name, label, image.to_numpy().tobytes(), (image.height, image.width)))
    return Content(images, source.class_names)


def read_everything(path: Path) -> dict[str | None, Content]:
    data = find_data(path)
    assert data.kind == "packed"
    return {split: read_source(data.open(split)) for split in data.splits or (None,)}


def test_it_is_known_by_its_files(path: Path) -> None:
    assert sorted(os.listdir(path)) == ["images.bin", "index.npz", "pack.json"]
    assert is_packed(path)
    assert not is_packed(path / "images.bin")
    assert not is_packed(path.parent)
    assert not is_packed(path / "gone")
    assert list_packed_splits(path) == ("train", "val")
    assert (find_data(path).kind, find_data(path).splits) == ("packed", ("train", "val"))


def test_what_was_packed_comes_back(path: Path) -> None:
    for split in SPLIT_SIZES:
        source, files = find_data(path).open(split), open_files(path.parent / "files", split)
        assert read_source(source) == read_source(files)
        assert source.files() == [path / name for name in ("images.bin", "index.npz", "pack.json")]


def test_the_file_is_the_pixels_one_after_another(path: Path) -> None:
    files = [open_files(path.parent / "files", split) for split in SPLIT_SIZES]
    pixels = [source.read(index)[0].to_numpy().tobytes() for source in files for index in range(len(source))]
    assert (path / "images.bin").read_bytes() == b"".join(pixels)


def test_pixels_come_from_a_map_that_nobody_can_write_to(path: Path) -> None:
    pixels = find_data(path).open("val").fetch(1)
    assert isinstance(pixels, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        pixels[:] = 0


def test_a_split_is_named_as_everywhere(path: Path) -> None:
    for split in (None, "test"):
        with pytest.raises(ValueError, match=r"train, val"):
            find_data(path).open(split)


def test_sending_it_to_another_process_sends_no_pixels(tmp_path: Path) -> None:
    pack_data(make_split_files(tmp_path / "files", 300, 400), tmp_path / "packed", size=1000)
    source = find_data(tmp_path / "packed").open("train")
    expected = read_source(source)
    sent = pickle.dumps(source)
    assert len(sent) < 10_000 < os.path.getsize(tmp_path / "packed" / "images.bin")
    assert read_source(pickle.loads(sent)) == expected


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_the_same(method: str, path: Path) -> None:
    source = find_data(path).open("train")
    expected = read_source(source)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(read_source, (source,)) == expected


@pytest.mark.parametrize("side", [1, 32, 64])
@pytest.mark.parametrize("num_channels", [1, 3])
def test_small_squares_of_one_size_come_in_blocks(side: int, num_channels: int, tmp_path: Path) -> None:
    pack_data(make_split_files(tmp_path / "files", side, side), tmp_path / "packed", size=64, num_channels=num_channels)
    for split in SPLIT_SIZES:
        source = find_data(tmp_path / "packed").open(split)
        indices = np.array([2, 0, 2, 1])
        block = source.read_block(indices)
        assert block.shape == (4, side, side, num_channels)
        np.testing.assert_array_equal(block, np.stack([source.fetch(index) for index in indices.tolist()]))
        assert source.read_block(np.zeros(0, np.int64)).shape == (0, side, side, num_channels)


def test_others_do_not_come_in_blocks(tmp_path: Path) -> None:
    for number, (height, width) in enumerate([(65, 65), (64, 65), (5, 7), (300, 200)]):
        data = make_split_files(tmp_path / f"files{number}", height, width)
        pack_data(data, tmp_path / f"packed{number}", size=1000)
        assert find_data(tmp_path / f"packed{number}").open("train").read_block(np.array([0])) is None


def test_one_image_of_another_size_and_there_are_no_blocks(tmp_path: Path) -> None:
    data = make_split_files(tmp_path / "files", 8, 8)
    Image.new("RGB", (8, 7)).save(tmp_path / "files" / open_files(tmp_path / "files", "train").name(4))
    pack_data(data, tmp_path / "packed", size=64)
    assert find_data(tmp_path / "packed").open("train").read_block(np.array([0])) is None
    assert find_data(tmp_path / "packed").open("val").read_block(np.array([0])).shape == (1, 8, 8, 3)


# What has become of the files.


def expect_sentence(path: Path, *names: str) -> str:
    """Opening says what is wrong, in a sentence that names the file and what to do."""
    with pytest.raises(ValueError, match=r"pack (the data )?again\.$") as error:
        read_everything(path)
    message = str(error.value)
    assert "\n" not in message
    assert any(message.startswith(str(path / name)) for name in names), message
    return message


@pytest.mark.parametrize("length", [0, 1, -1, -1000, "gone"])
def test_a_set_cut_short_says_so(length: int | str, path: Path) -> None:
    content = (path / "images.bin").read_bytes()
    if length == "gone":
        (path / "images.bin").unlink()
    else:
        (path / "images.bin").write_bytes(content[:length])
    message = expect_sentence(path, "images.bin")
    assert "expected 945" in message


def test_a_set_grown_longer_says_so(path: Path) -> None:
    with (path / "images.bin").open("ab") as file:
        file.write(b"\0")
    assert "has 946 bytes; expected 945" in expect_sentence(path, "images.bin")


def test_a_set_without_its_description_or_index_costs_a_sentence(path: Path) -> None:
    for name in ("index.npz", "pack.json"):
        content = (path / name).read_bytes()
        (path / name).unlink()
        with pytest.raises(ValueError, match=re.escape(str(path / name))):
            read_everything(path)
        (path / name).write_bytes(content)
    read_everything(path)


def remove_checksums(path: Path) -> None:
    """Make the set one of format 1, which is still read: the other checks must hold by themselves."""
    description = json.loads((path / "pack.json").read_text())
    del description["checksums"]
    (path / "pack.json").write_text(json.dumps(description | {"format": 1}))


@pytest.fixture
def without_checksums(path: Path) -> None:
    remove_checksums(path)


@pytest.mark.usefixtures("without_checksums")
def test_a_set_of_format_1_is_read(path: Path) -> None:
    for split in SPLIT_SIZES:
        assert read_source(open_packed(path, split)) == read_source(open_files(path.parent / "files", split))


def test_a_changed_pixel_is_noticed_also_after_the_first_use(path: Path) -> None:
    read_everything(path)
    content = (path / "images.bin").read_bytes()
    times = os.stat(path / "images.bin")
    wait_for_tick(path / "images.bin")
    (path / "images.bin").write_bytes(flip(content, 500, 3))
    os.utime(path / "images.bin", ns=(times.st_atime_ns, times.st_mtime_ns))  # as by a copy that keeps times
    assert "checksum" in expect_sentence(path, "images.bin")
    (path / "images.bin").write_bytes(content)
    read_everything(path)


def test_the_images_are_read_through_on_first_use_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(packed, "compute_crc", lambda path: read.append(path) or compute_crc(path))
    for split in ("train", "val", "train"):
        open_packed(path, split)
    assert read == [path / "images.bin"]


@pytest.mark.parametrize("name", ["index.npz", "pack.json"])
def test_a_changed_label_or_name_is_noticed(name: str, path: Path) -> None:
    if name == "pack.json":
        content = (path / name).read_text().replace('"ant"', '"cat"').encode()
    else:
        content = save_index(path, load_index(path) | {"labels": np.zeros(9, np.int64)})
    (path / name).write_bytes(content)
    assert "checksum" in expect_sentence(path, name)


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.parametrize("splits", [{"train": [0, 6], "val": [5, 9]}, {"train": [0, 9], "val": [3, 4]}, {"a": [0, 10]}])
def test_splits_that_overlap_or_leave_the_file_are_refused(splits: dict[str, list[int]], path: Path) -> None:
    description = json.loads((path / "pack.json").read_text())
    (path / "pack.json").write_text(json.dumps(description | {"splits": splits}))
    assert "splits" in expect_sentence(path, "pack.json")


DIFFERENT = "read as if nothing had happened, and differently"


def check_damage(path: Path, name: str, content: bytes, expected: dict[str | None, Content]) -> str | None:
    """What is wrong with how a damaged file is taken, or None: it must be told in a sentence, or make no difference."""
    (path / name).write_bytes(content)
    try:
        found = read_everything(path)
    except ValueError as error:
        message = str(error)
        names_a_file = message.startswith(tuple(str(path / each) for each in ("images.bin", "index.npz", "pack.json")))
        is_sentence = type(error) is ValueError and names_a_file and "\n" not in message
        return None if is_sentence else f"{type(error).__name__}: {message}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if found == expected else DIFFERENT


def list_faults(path: Path, name: str, damaged: dict[str, bytes]) -> dict[str, str]:
    expected = read_everything(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VitrineWarning)  # of changes in the data, where the stamps were damaged
        warnings.simplefilter("ignore", UserWarning)  # zipfile's, of names that occur twice
        answers = {label: check_damage(path, name, content, expected) for label, content in damaged.items()}
    return {label: answer for label, answer in answers.items() if answer is not None}


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["index.npz", "pack.json"])
def test_a_file_that_ends_early_says_so(name: str, every: int, path: Path) -> None:
    content = (path / name).read_bytes().rstrip()
    assert list_faults(path, name, {str(end): content[:end] for end in range(0, len(content), every)}) == {}


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.full)])
def test_flipped_bits_in_the_index_are_noticed(count: int, path: Path) -> None:
    content, random = (path / "index.npz").read_bytes(), Random(count)
    damaged = {}
    for _ in range(count):
        place, bit = random.randrange(len(content)), random.randrange(8)
        damaged[f"bit {bit} of byte {place}"] = flip(content, place, bit)
    assert list_faults(path, "index.npz", damaged) == {}


def flip(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.parametrize(("num_arrays", "every"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.full)])
def test_flipped_bits_in_the_headers_of_arrays_are_noticed(num_arrays: int, every: int, path: Path) -> None:
    """They are parsed before the checksum of the zip archive is reached."""
    content = (path / "index.npz").read_bytes()
    starts = [match.start() for match in re.finditer(rb"\x93NUMPY", content)]
    damaged = {
        f"bit {bit} of byte {place}": flip(content, place, bit)
        for start in starts[:num_arrays]
        for place in range(start, start + 80, every)
        for bit in range(8)
    }
    assert list_faults(path, "index.npz", damaged) == {}


def load_index(path: Path) -> dict[str, np.ndarray]:
    with np.load(path / "index.npz") as content:
        return dict(content)


def save_index(path: Path, index: dict[str, np.ndarray]) -> bytes:
    target = path.parent / "changed.npz"
    np.savez(target, **index)
    return target.read_bytes()


ODD_ARRAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "empty": lambda array: array[:0],
    "shorter": lambda array: array[:-1],
    "longer": lambda array: np.append(array, array[-1:]),
    "a number": lambda array: array[0],
    "a column": lambda array: array[:, None],
    "two columns": lambda array: np.stack([array, array], axis=1),
    "text": lambda array: array.astype(str),
    "bytes": lambda array: array.astype(bytes),
    "fields": lambda array: array.astype([("a", np.int64)]),
    "floats": lambda array: array.astype(np.float64),
    "complex": lambda array: array.astype(np.complex128),
    "flags": lambda array: array.astype(bool),
    "dates": lambda array: array.astype("datetime64[s]"),
    "unsigned": lambda array: array.astype(np.uint64),
    "narrow": lambda array: array.astype(np.int8),
    "negative": lambda array: -1 - array.astype(np.int64),
    "zeros": lambda array: np.zeros_like(array),
    "one more": lambda array: array + array.dtype.type(1),
    "huge": lambda array: np.full_like(array, np.iinfo(array.dtype).max),
    "least": lambda array: np.full_like(array, np.iinfo(array.dtype).min),
    "reversed": lambda array: array[::-1],
    "not a number": lambda array: np.full(array.shape, np.nan),
}
ARRAYS = ("offsets", "heights", "widths", "name_starts", "labels")


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.parametrize("name", [*ARRAYS, "name_bytes"])
def test_odd_arrays_in_the_index_are_noticed(name: str, path: Path) -> None:
    index = load_index(path)
    damaged = {"missing": save_index(path, {key: array for key, array in index.items() if key != name})}
    for label, change in ODD_ARRAYS.items():
        if name == "name_bytes" and label in ("zeros", "one more", "huge", "least", "reversed"):
            continue  # other names of the same length: nothing but a checksum would tell, and the archive has one
        if name == "labels" and label in ("zeros", "reversed"):
            continue  # labels like any other
        changed = change(index[name])
        if changed.shape == index[name].shape and changed.dtype == index[name].dtype and (changed == index[name]).all():
            continue  # images of one size, from last to first
        damaged[label] = save_index(path, index | {name: changed})
    assert list_faults(path, "index.npz", damaged) == {}


def test_odd_runs_of_several_labels_are_noticed(tmp_path: Path) -> None:
    files = make_split_files(tmp_path / "files").open("train")
    labels = Labels.several_each([(0, 1), (), (2,), (1, 2), (), (0, 2)])
    files.labels = labels
    pack_data(DatasetHandle(str(tmp_path / "files"), "files", (), lambda split: files), tmp_path / "packed", size=8)
    remove_checksums(tmp_path / "packed")
    index = load_index(tmp_path / "packed")
    damaged = {}
    for label, change in ODD_ARRAYS.items():
        for name in ("label_starts", "labels"):
            changed = change(index[name])
            if name == "labels" and label in ("zeros", "reversed"):
                continue
            damaged[f"{name} {label}"] = save_index(tmp_path / "packed", index | {name: changed})
    without = {name: array for name, array in index.items() if name != "label_starts"}
    damaged["label_starts missing"] = save_index(tmp_path / "packed", without)
    assert list_faults(tmp_path / "packed", "index.npz", damaged) == {}


@pytest.mark.usefixtures("without_checksums")
def test_names_that_are_no_text_are_noticed_or_kept(path: Path) -> None:
    """File names need not be text, so these may be such names: what they may not do is to stop a run later on."""
    index = load_index(path)
    damaged = {
        "all": save_index(path, index | {"name_bytes": np.full_like(index["name_bytes"], 0xFF)}),
        "cut": save_index(path, index | {"name_starts": move_a_start(index)}),
    }
    assert set(list_faults(path, "index.npz", damaged).values()) <= {DIFFERENT}


def move_a_start(index: dict[str, np.ndarray]) -> np.ndarray:
    """One name ends in the middle of a letter of two bytes."""
    place = index["name_bytes"].tobytes().index("ö".encode()) + 1
    starts = index["name_starts"].copy()
    starts[np.searchsorted(starts, place)] = place
    return starts


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.parametrize(
    ("dtype", "height", "width"),
    [(np.int8, 16, 16), (np.int16, 256, 256), (np.int32, 32_768, 43_691)],
    ids=["int8", "int16", "int32"],
)
def test_sizes_that_multiply_to_something_else_are_noticed(dtype: type, height: int, width: int, path: Path) -> None:
    """Narrow integers go round: 256 x 256 is nothing in 16 bits"""
    index = load_index(path)
    heights, widths = (index[name].astype(dtype) for name in ("heights", "widths"))
    heights[0], widths[0] = height, width
    lengths = heights * widths * np.array(3, dtype)
    num_bytes = int(lengths.sum())
    assert 0 <= lengths.min() <= num_bytes < height * width * 3 + 8 * 105
    (path / "images.bin").write_bytes(bytes(num_bytes))
    description = json.loads((path / "pack.json").read_text()) | {"num_bytes": num_bytes}
    (path / "pack.json").write_text(json.dumps(description))
    offsets = np.cumsum(lengths, dtype=np.int64) - lengths
    (path / "index.npz").write_bytes(save_index(path, index | {"heights": heights, "widths": widths, "offsets": offsets}))
    expect_sentence(path, "index.npz", "images.bin")


def build_archive(path: Path, members: dict[str, bytes], index: dict[str, np.ndarray]) -> bytes:
    """The index as it is, with some members replaced by other bytes."""
    content = save_index(path, index)
    target = path.parent / "archive.npz"
    (path.parent / "source.npz").write_bytes(content)
    with zipfile.ZipFile(path.parent / "source.npz") as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, members.get(name, old.read(name)))
        for name in members.keys() - set(old.namelist()):
            new.writestr(name, members[name])
    return target.read_bytes()


def build_npy(header: str, content: bytes = b"", version: int = 1) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text + content


def describe_array(shape: str, dtype: str = "<i8") -> str:
    return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"


HOSTILE_MEMBERS = {
    "a million million million": build_npy(describe_array("(1000000000000000000,)")),
    "a thousand million million": build_npy(describe_array("(1000000000000000,)")),
    "more than 64 bits": build_npy(describe_array("(99999999999999999999999999,)")),
    "less than nothing": build_npy(describe_array("(-9,)")),
    "a shape that is none": build_npy(describe_array("'nine'")),
    "too little": build_npy(describe_array("(9,)"), b"1234"),
    "an open bracket": build_npy("{'descr': '<i8', 'fortran_order': False, 'shape': (9,"),
    "an open string": build_npy("{'descr': '<i8', 'fortran_order': False, 'shape': (9,), '''"),
    "indented": build_npy("  {'descr': \n '<i8'\n  , 9L}\n   x\n y"),
    "a call": build_npy("__import__('os').abort()"),
    "nested": build_npy("(" * 5000),
    "minus a list": build_npy("{'descr': '<i8', 'fortran_order': False, 'shape': -[9]}"),
    "objects": build_npy(describe_array("(9,)", "|O"), pickle.dumps([1] * 9)),
    "an unknown type": build_npy(describe_array("(9,)", "<z9")),
    "a type of enormous items": build_npy(describe_array("(9,)", "|V2147483647")),
    "an unknown version": build_npy(describe_array("(9,)"), version=9),
    "a header of four gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "no array": b"hello",
    "nothing": b"",
    "a pickle": pickle.dumps({"a": 1}),
}


@pytest.mark.usefixtures("without_checksums")
def test_hostile_arrays_in_the_index_are_noticed(path: Path) -> None:
    index = load_index(path)
    damaged = {
        f"{member}: {label}": build_archive(path, {f"{member}.npy": content}, index)
        for label, content in HOSTILE_MEMBERS.items()
        for member in ("heights", "name_bytes", "stranger")
        if member != "stranger" or label.startswith(("a million", "an open", "nested"))
    }
    assert list_faults(path, "index.npz", damaged) == {}  # of a member that nobody asks for, no complaint is needed either


@pytest.mark.usefixtures("without_checksums")
def test_other_files_in_place_of_the_index_are_noticed(path: Path) -> None:
    target = path.parent / "single.npy"
    np.save(target, np.arange(9))
    damaged = {
        "one array": target.read_bytes(),
        "pickle": pickle.dumps({"heights": [1]}),
        "empty": b"",
        "text": b"hello\n",
        "empty archive": b"PK\x05\x06" + bytes(18),
        "member without its suffix": build_archive(path, {"heights": b"123"}, {"widths": np.arange(9)}),
        "deflated with something else": change_methods(path, 97),
        "encrypted": change_flags(path, 1),
    }
    assert list_faults(path, "index.npz", damaged) == {}


def change_methods(path: Path, method: int) -> bytes:
    """In the central directory (APPNOTE.TXT 4.3.12) the method stands 10 bytes behind the signature, the flags 8 bytes."""
    return change_directory(path, 10, method)


def change_flags(path: Path, flags: int) -> bytes:
    return change_directory(path, 8, flags)


def change_directory(path: Path, place: int, value: int) -> bytes:
    content = bytearray((path / "index.npz").read_bytes())
    for match in re.finditer(rb"PK\x01\x02", bytes(content)):
        content[match.start() + place] = value
    return bytes(content)


ODD_VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "minus one": -1,
    "a half": 0.5,
    "three point nought": 3.0,
    "one point nought": 1.0,
    "a large number": 10**30,
    "infinity": float("inf"),
    "text": "ant",
    "empty text": "",
    "a null character": "\0",
    "long text": "x" * 5000,
    "half a letter": "\ud800",
    "empty list": [],
    "empty object": {},
    "numbers": [1, 2],
    "texts": ["ant", "bee", "cat"],
    "a list of null": [None],
    "lists": [[0, 6], [6, 9]],
    "object of numbers": {"ant": 0, "bee": 1, "größe": 2},
    "object of text": {"train": "06"},
    "object of null": {"train": None},
    "object of one number": {"train": [0]},
    "object of three numbers": {"train": [0, 1, 2]},
    "object of fractions": {"train": [0.0, 6.0]},
    "object of flags": {"train": [False, True]},
    "beyond the end": {"train": [0, 10]},
    "before the beginning": {"train": [-1, 6]},
    "the wrong way": {"train": [6, 0]},
    "a path of null characters": {"\0": [1, 2]},
    "a long path": {"x" * 5000: [1, 2]},
}
# Which of them are as good as any other value of the field.
FINE = {
    "size": {"a large number"},
    "data": {"text", "empty text", "a null character", "long text", "half a letter"},
    "stamps": {"empty object", "a path of null characters", "a long path"},
    "splits": {"empty object"},
    "checksums": {"empty object"},
}

# And which can be told from the truth by nobody.
OTHER_NAMES = {("class_names", "texts"), ("splits", "a path of null characters"), ("splits", "a long path")}


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.parametrize("field", [field.name for field in fields(PackDescription)])
def test_odd_values_in_the_description_are_noticed(field: str, path: Path) -> None:
    description = json.loads((path / "pack.json").read_text())
    without = {key: value for key, value in description.items() if key != field}
    damaged = {"missing": json.dumps(without).encode()}
    for label, value in ODD_VALUES.items():
        if label not in FINE.get(field, ()) and (field, label) not in OTHER_NAMES:
            damaged[label] = json.dumps(description | {field: value}).encode()
    assert list_faults(path, "pack.json", damaged) == {}  # a number in another spelling, as 1.0, may be taken for it


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.parametrize("field", FINE)
def test_other_good_values_in_the_description_are_taken(field: str, path: Path) -> None:
    """Above all: where the data was is only a hint, and the strangest one must not keep the images from being read."""
    description = json.loads((path / "pack.json").read_text())
    for label in sorted(FINE[field]):
        changed = description | {field: ODD_VALUES[label]}
        (path / "pack.json").write_text(json.dumps(changed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VitrineWarning)
            contents = read_everything(path)
        assert sum(len(content.images) for content in contents.values()) == 9, label


@pytest.mark.usefixtures("without_checksums")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "17",
        '"text"',
        "{" * 100_000,
        "[" * 100_000,
        '{"format": 1' + "0" * 10_000 + "}",
        '{"format": 2}',
        "\ufeff{}",
        "{} {}",
    ],
    ids=lambda text: text[:12],
)
def test_a_description_of_something_else_is_noticed(text: str, path: Path) -> None:
    assert list_faults(path, "pack.json", {"text": text.encode()}) == {}


@pytest.mark.usefixtures("without_checksums")
def test_a_description_that_is_no_text_or_knows_more_is_noticed(path: Path) -> None:
    description = json.loads((path / "pack.json").read_text())
    damaged = {
        "bytes": b"\xff\xfe\0\0",
        "a field more": json.dumps(description | {"colour": 1}).encode(),
        "a later format": json.dumps(description | {"format": 3}).encode(),
    }
    assert list_faults(path, "pack.json", damaged) == {}
    (path / "pack.json").write_bytes(damaged["a later format"])
    assert "format 3" in expect_sentence(path, "pack.json")


@pytest.mark.usefixtures("without_checksums")
def test_labels_beyond_the_class_names_are_noticed(path: Path) -> None:
    description = json.loads((path / "pack.json").read_text())
    changed = json.dumps(description | {"class_names": ["ant", "bee"]}).encode()
    (path / "pack.json").write_bytes(changed)
    assert "labels" in expect_sentence(path, "index.npz")


# What has become of the data.


def list_notices(path: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_source(open_packed(path, "val"))
    return [str(warning.message) for warning in caught if issubclass(warning.category, VitrineWarning)]


def expect_notice(path: Path, *names: str) -> None:
    (message,) = list_notices(path)
    root = path.parent / "files"
    assert message.startswith(f"{root} has changed since it was packed into {path} (")
    assert message.endswith("): pack it again, unless the images are still the same.")
    for name in names:
        assert str(root / name) in message


FIRST = "train/ant/0.png"
LATER = 2_000_000_000  # seconds: no clock of a file system is too coarse to tell


@pytest.fixture
def root(path: Path) -> Path:
    """Everything is old, as it is when time has passed, and was packed then: clocks of file systems are coarse."""
    root = path.parent / "files"
    for folder, _, names in os.walk(root):
        for name in (*names, "."):
            os.utime(os.path.join(folder, name), (1_000_000_000, 1_000_000_000))
    shutil.rmtree(path)
    pack_data(DatasetHandle(str(root), "files", tuple(SPLIT_SIZES), partial(open_files, root)), path, size=8)
    return root


def test_nothing_is_said_of_data_that_is_as_it_was(root: Path, path: Path) -> None:
    assert list_notices(path) == []
    for split in SPLIT_SIZES:
        read_source(open_files(root, split))
    assert list_notices(path) == []


def test_nothing_is_said_after_the_packed_set_was_moved(root: Path, path: Path) -> None:
    expected = read_everything(path)
    moved = path.parent / "elsewhere" / "moved"
    moved.parent.mkdir()
    path.rename(moved)
    assert list_notices(moved) == []
    assert read_everything(moved) == expected


def test_nothing_is_said_where_the_data_is_gone(root: Path, path: Path) -> None:
    root.rename(root.parent / "moved")
    assert list_notices(path) == []
    shutil.rmtree(root.parent / "moved")
    assert list_notices(path) == []
    assert len(read_everything(path)["train"].images) == 6


def replace_first(root: Path) -> None:
    Image.new("RGB", (9, 9)).save(root / FIRST)
    os.utime(root / FIRST, (1_000_000_000, 1_000_000_000))  # as by a copy that keeps times: the size tells


# What is done to the data, and what the notice names: of an added class or split the folder above, which is what changes.
CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a changed file": (replace_first, FIRST),
    "a touched file": (lambda root: os.utime(root / FIRST, (LATER, LATER)), FIRST),
    "an older file": (lambda root: os.utime(root / FIRST, (1, 1)), FIRST),
    "a file of another split": (lambda root: os.utime(root / "val/größe/2.png", (LATER, LATER)), "val/größe/2.png"),
    "an added file": (lambda root: shutil.copy(root / FIRST, root / "train/ant/new.png"), "train/ant"),
    "a removed file": (lambda root: (root / FIRST).unlink(), FIRST),
    "a renamed file": (lambda root: (root / FIRST).rename(root / "train/bee/0.png"), FIRST),
    "a removed class": (lambda root: shutil.rmtree(root / "train/ant"), "train/ant"),
    "an added class": (lambda root: write_images(root, ["train/cow/0.png"]), "train"),
    "an added split": (lambda root: write_images(root, ["test/ant/0.png"]), ""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_data_is_noticed(change: str, root: Path, path: Path) -> None:
    make, name = CHANGES[change]
    make(root)
    expect_notice(path, name)


def test_many_changes_are_counted_and_some_named(root: Path, path: Path) -> None:
    for index in range(6):
        os.utime(root / open_files(root, "train").name(index), (LATER, LATER))
    (message,) = list_notices(path)
    assert message.count(".png") == 3
    assert " and 3 more)" in message


def test_of_very_many_files_some_are_looked_at_and_every_folder(
    root: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MAX_STAMPS", 3)
    shutil.rmtree(path)
    pack_data(DatasetHandle(str(root), "files", tuple(SPLIT_SIZES), partial(open_files, root)), path, size=8)
    stamps = json.loads((path / "pack.json").read_text())["stamps"]
    assert sum(name.endswith(".png") for name in stamps) == 3
    assert list_notices(path) == []
    shutil.copy(root / FIRST, root / "val" / "ant" / "new.png")
    expect_notice(path, "val/ant")


def test_the_data_may_be_given_from_here(root: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path at packing is the same place when the set is opened from elsewhere."""
    monkeypatch.chdir(root.parent)
    shutil.rmtree(path)
    pack_data(DatasetHandle("files", "files", tuple(SPLIT_SIZES), partial(open_files, Path("files"))), Path("packed"), size=8)
    monkeypatch.chdir("/")
    assert list_notices(path) == []
    os.utime(root / FIRST, (LATER, LATER))
    expect_notice(path, FIRST)


def test_small_images_of_each_split_are_its_own(tmp_path: Path) -> None:
    """Images of one size are read as a block, which begins where the split begins."""
    files = make_split_files(tmp_path / "files", height=8, width=8)
    for index in range(SPLIT_SIZES["val"]):  # other pictures than those of train
        Image.fromarray(draw_pixels(100 + index, 8, 8)).save(tmp_path / "files" / files.open("val").name(index))
    pack_data(files, tmp_path / "packed", size=8)
    for split in SPLIT_SIZES:
        block = open_packed(tmp_path / "packed", split).read_block(np.arange(SPLIT_SIZES[split]))
        assert block is not None
        expected = [files.open(split).read(index)[0].to_numpy() for index in range(SPLIT_SIZES[split])]
        np.testing.assert_array_equal(block, np.stack(expected))
