"""IDX files against the format's definition, the counts that Fashion-MNIST publishes, and files that are not what they say."""

import gzip
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrine.data.source import ArraySource
from vitrine.data.sources.idx import FASHION_NAMES, FORMAT

RANDOM = np.random.default_rng(0)
IMAGES = {part: RANDOM.integers(0, 256, (number, 5, 4), dtype=np.uint8) for part, number in (("train", 6), ("t10k", 3))}
LABELS = {"train": np.array([1, 0, 1, 0, 1, 0], np.uint8), "t10k": np.array([2, 0, 1], np.uint8)}
FASHION_FOLDER = Path(os.environ.get("VITRINE_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))  # Debian's package


def encode(array: np.ndarray, type: int = 0x08) -> bytes:
    return bytes([0, 0, type, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def make_idx(folder: Path, prefix: str = "", ending: str = "", mark: str = "-") -> Path:
    folder.mkdir(exist_ok=True)
    for part in ("train", "t10k"):
        for kind, array in (("images", IMAGES[part]), ("labels", LABELS[part])):
            content = encode(array)
            name = f"{prefix}{part}-{kind}{mark}idx{array.ndim}-ubyte{ending}"
            (folder / name).write_bytes(gzip.compress(content) if ending == ".gz" else content)
    return folder


def require_train(source: ArraySource) -> None:
    assert len(source) == 6
    np.testing.assert_array_equal(source.pixels, IMAGES["train"][..., None])
    assert [source.read(index)[1] for index in range(6)] == LABELS["train"].tolist()
    np.testing.assert_array_equal(source.read(4)[0].to_numpy(1), IMAGES["train"][4][..., None])


@pytest.mark.parametrize(
    ("prefix", "ending", "mark"), [("", "", "-"), ("", ".gz", "-"), ("", "", "."), ("emnist-letters-", ".gz", "-")]
)
def test_a_folder_as_downloaded(tmp_path: Path, prefix: str, ending: str, mark: str) -> None:
    path = make_idx(tmp_path, prefix, ending, mark)
    assert FORMAT.matches(path)
    assert FORMAT.list_splits(path) == ("train", "test")
    source = FORMAT.open(path, "train")
    require_train(source)
    assert source.class_names == ("0", "1", "2")  # the last of them is only in test
    assert source.name(3) == f"{prefix}train-images{mark}idx3-ubyte{ending}[3]"
    assert [file.parent for file in source.files()] == [path, path]
    test = FORMAT.open(path, "test")
    np.testing.assert_array_equal(test.pixels, IMAGES["t10k"][..., None])
    assert [test.labels[index] for index in range(3)] == [2, 0, 1]
    require_train(pickle.loads(pickle.dumps(source)))


def test_emnist_calls_its_second_part_test(tmp_path: Path) -> None:
    make_idx(tmp_path, "emnist-digits-")
    for file in sorted(tmp_path.glob("*t10k*")):
        file.rename(tmp_path / file.name.replace("t10k", "test"))
    assert FORMAT.list_splits(tmp_path) == ("train", "test")
    assert len(FORMAT.open(tmp_path, "test")) == 3


def test_one_file_is_exactly_its_images(tmp_path: Path) -> None:
    make_idx(tmp_path, ending=".gz")
    make_idx(tmp_path, "other-")
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    assert FORMAT.matches(path)
    assert not FORMAT.matches(tmp_path / "t10k-labels-idx1-ubyte.gz")
    assert FORMAT.list_splits(path) == ()
    source = FORMAT.open(path, None)
    np.testing.assert_array_equal(source.pixels, IMAGES["t10k"][..., None])
    assert source.class_names == ("0", "1", "2")


def test_unpacked_files_are_mapped_and_preferred_to_archives(tmp_path: Path) -> None:
    make_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"spoilt")
    source = FORMAT.open(tmp_path, "train")
    assert isinstance(source.pixels, np.memmap)
    require_train(source)


def test_a_plain_file_under_the_name_of_an_archive(tmp_path: Path) -> None:
    make_idx(tmp_path)  # browsers unpack downloads and leave the name
    for file in sorted(tmp_path.iterdir()):
        file.rename(tmp_path / f"{file.name}.gz")
    require_train(FORMAT.open(tmp_path, "train"))


def test_colour(tmp_path: Path) -> None:
    make_idx(tmp_path)
    colours = RANDOM.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    (tmp_path / "train-images-idx4-ubyte").write_bytes(encode(colours))
    np.testing.assert_array_equal(FORMAT.open(tmp_path, "train").pixels, colours)
    (tmp_path / "train-images-idx4-ubyte").write_bytes(encode(colours[..., :2]))
    with pytest.raises(ValueError, match=r"train-images-idx4-ubyte has images of 2 channels"):
        FORMAT.open(tmp_path, "train")


@pytest.mark.parametrize("place", ["fashion-mnist", "FashionMNIST/raw"])
def test_fashion_is_known_by_its_folder(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    make_idx(tmp_path / place)
    assert FORMAT.open(tmp_path / place, "train").class_names == FASHION_NAMES
    (tmp_path / place / "t10k-labels-idx1-ubyte").write_bytes(encode(np.array([1, 2, 10], np.uint8)))
    assert FORMAT.open(tmp_path / place, "train").class_names == tuple(map(str, range(11)))


def test_what_is_not_ours(tmp_path: Path) -> None:
    assert not FORMAT.matches(tmp_path)
    assert not FORMAT.matches(tmp_path / "train-images-idx3-ubyte")
    (tmp_path / "train-images-idx3-ubyte").mkdir()  # a folder under the name of a file, as some archives unpack to
    assert not FORMAT.matches(tmp_path)
    (tmp_path / "notes").write_bytes(b"")
    assert not FORMAT.matches(tmp_path / "notes")


def test_several_data_sets_in_a_folder_cost_a_sentence(tmp_path: Path) -> None:
    make_idx(tmp_path, "emnist-letters-")
    make_idx(tmp_path, "emnist-digits-")
    assert FORMAT.matches(tmp_path)
    with pytest.raises(ValueError, match=r"holds 2 datasets"):
        FORMAT.list_splits(tmp_path)


def test_two_test_parts_cost_a_sentence(tmp_path: Path) -> None:
    make_idx(tmp_path)
    (tmp_path / "test-images-idx3-ubyte").write_bytes(encode(IMAGES["t10k"]))
    with pytest.raises(ValueError, match="has both t10k and test images"):
        FORMAT.list_splits(tmp_path)


def test_missing_and_too_few_labels_cost_a_sentence(tmp_path: Path) -> None:
    make_idx(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(encode(LABELS["train"][:5]))
    with pytest.raises(ValueError, match=r"6 images .* 5 labels"):
        FORMAT.open(tmp_path, "train")
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte has no label file"):
        FORMAT.open(tmp_path, "train")


WHOLE = encode(IMAGES["train"])
DAMAGED = {
    "cut short": (WHOLE[:-1], r"less data than"),
    "too long": (WHOLE + b"\0", r"more data than"),
    "no header": (WHOLE[:9], "truncated"),
    "empty": (b"", r"begins with b''"),
    "not IDX": (b"<html>" + WHOLE, r"begins with b'<htm'"),
    "floats": (encode(IMAGES["train"], type=0x0D), r"holds numbers of type 0x0d"),
    "labels": (encode(LABELS["train"]), r"has shape \(6,\)"),
    "no images": (encode(IMAGES["train"][:0]), r"has shape \(0, 5, 4\)"),
    "claims a terabyte": (bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**20, 2**10, 2**10), "less data"),
    "claims the most": (bytes([0, 0, 8, 3]) + b"\xff" * 12, "less data"),
    "255 dimensions": (bytes([0, 0, 8, 255]) + b"\0\0\0\1" * 255, "expected images"),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_damage_costs_a_sentence(tmp_path: Path, damage: str, ending: str) -> None:
    content, sentence = DAMAGED[damage]
    make_idx(tmp_path, ending=ending)
    path = tmp_path / f"train-images-idx3-ubyte{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    with pytest.raises(ValueError, match=sentence) as caught:
        FORMAT.open(tmp_path, "train")
    assert str(caught.value).startswith(str(path))


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    make_idx(tmp_path, ending=".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    zeros = gzip.compress(bytes(2**25))  # gzip files one behind the other are one
    claim = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**19, 2**10, 2**10)  # half a terabyte
    for content in (gzip.compress(WHOLE) + zeros, gzip.compress(claim) + zeros):
        path.write_bytes(content)
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"(less|more) data"):
            FORMAT.open(tmp_path, "train")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**22


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), is_cut=st.booleans())
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_any_spoilt_byte_costs_at_most_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, ending: str, place: float, value: int, is_cut: bool
) -> None:
    folder = make_idx(tmp_path_factory.mktemp("idx"), ending=ending)
    path = folder / f"train-images-idx3-ubyte{ending}"
    content = bytearray(path.read_bytes())
    index = int(place * len(content))
    content[index] = value
    path.write_bytes(content[:index] if is_cut else content)
    try:
        source = FORMAT.open(folder, "train")
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017 (it may also go well, if the byte is the same or a pixel)
    else:
        assert len(source) == 6
        # What a gzip file holds is guarded by its checksum.
        assert not ending or np.array_equal(source.pixels[..., 0], IMAGES["train"])


@pytest.mark.skipif(
    not FASHION_FOLDER.is_dir(), reason="no Fashion-MNIST: install dataset-fashion-mnist or set VITRINE_FASHION_MNIST"
)
@pytest.mark.parametrize(("split", "count"), [("test", 1_000), pytest.param("train", 6_000, marks=pytest.mark.full)])
def test_fashion_mnist_has_its_published_counts(split: str, count: int) -> None:
    source = FORMAT.open(FASHION_FOLDER, split)
    assert source.pixels.shape == (10 * count, 28, 28, 1)
    assert np.bincount(source.labels.values).tolist() == [count] * 10
    assert source.class_names == FASHION_NAMES
    if split == "train":
        assert source.pixels.mean() == pytest.approx(0.2860 * 255, abs=0.00005 * 255)  # published with four digits
        assert source.pixels.std() == pytest.approx(0.3530 * 255, abs=0.00005 * 255)
