"""CIFAR's binary files against their definition, on random pixels."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from vitrine.data.sources.cifar import FORMAT

RANDOM = np.random.default_rng(0)
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN_LABELS = (0, 1, 2, 0, 1, 2, 9, 1, 2, 0)
TRAIN = RANDOM.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
TEST_LABELS = (2, 1)
TEST = RANDOM.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)


def encode(image: np.ndarray, *labels: int) -> bytes:
    """Red, then green, then blue."""
    return bytes(labels) + b"".join(image[:, :, channel].tobytes() for channel in range(3))


def make_cifar(folder: Path) -> Path:
    path = folder / "cifar-10-batches-bin"
    path.mkdir(parents=True)
    for batch in range(5):
        records = [encode(TRAIN[index], TRAIN_LABELS[index]) for index in (2 * batch, 2 * batch + 1)]
        (path / f"data_batch_{batch + 1}.bin").write_bytes(b"".join(records))
    (path / "test_batch.bin").write_bytes(b"".join(map(encode, TEST, TEST_LABELS)))
    (path / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    (path / "readme.html").write_text("<html></html>")
    return path


def make_cifar_100(folder: Path) -> Path:
    path = folder / "cifar-100-binary"
    path.mkdir(parents=True)
    (path / "train.bin").write_bytes(encode(TRAIN[0], 19, 99) + encode(TRAIN[1], 3, 0) + encode(TRAIN[2], 0, 42))
    (path / "test.bin").write_bytes(encode(TEST[0], 1, 7))
    (path / "fine_label_names.txt").write_text("".join(f"fine_{number}\n" for number in range(100)))
    (path / "coarse_label_names.txt").write_text("".join(f"coarse_{number}\n" for number in range(20)))
    return path


@pytest.mark.parametrize("is_parent", [False, True])
def test_cifar_10(tmp_path: Path, is_parent: bool) -> None:
    folder = make_cifar(tmp_path)
    path = tmp_path if is_parent else folder
    assert FORMAT.matches(path)
    assert FORMAT.list_splits(path) == ("train", "test")
    source = FORMAT.open(path, "train")
    np.testing.assert_array_equal(source.pixels, TRAIN)
    assert source.pixels.flags.c_contiguous
    assert [source.read(index)[1] for index in range(10)] == list(TRAIN_LABELS)
    np.testing.assert_array_equal(source.read(6)[0].to_numpy(), TRAIN[6])
    assert source.class_names == NAMES
    assert source.name(6) == "data_batch_*.bin[6]"
    assert source.files() == [folder / f"data_batch_{number}.bin" for number in range(1, 6)]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(6)[0].to_numpy(), TRAIN[6])
    test = FORMAT.open(path, "test")
    np.testing.assert_array_equal(test.pixels, TEST)
    assert (test.labels[0], test.labels[1], test.name(1)) == (2, 1, "test_batch.bin[1]")


@pytest.mark.parametrize("is_parent", [False, True])
def test_cifar_100_has_its_fine_labels(tmp_path: Path, is_parent: bool) -> None:
    folder = make_cifar_100(tmp_path)
    path = tmp_path if is_parent else folder
    assert FORMAT.matches(path)
    assert FORMAT.list_splits(path) == ("train", "test")
    source = FORMAT.open(path, "train")
    np.testing.assert_array_equal(source.pixels, TRAIN[:3])
    assert source.labels.values.tolist() == [99, 0, 42]
    assert (len(source.class_names), source.class_names[42], source.name(2)) == (100, "fine_42", "train.bin[2]")
    assert FORMAT.open(path, "test").labels.values.tolist() == [7]


def test_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(b"anything")
    assert not FORMAT.matches(tmp_path)
    assert not FORMAT.matches(tmp_path / "train.bin")


def test_a_parent_of_both_costs_a_sentence(tmp_path: Path) -> None:
    make_cifar(tmp_path)
    make_cifar_100(tmp_path)
    assert FORMAT.matches(tmp_path)
    with pytest.raises(ValueError, match=r"both CIFAR-10 and CIFAR-100"):
        FORMAT.list_splits(tmp_path)


@pytest.mark.parametrize(
    ("folder", "names"),
    [("cifar-10-batches-py", ("batches.meta", "data_batch_1", "test_batch")), ("cifar-100-python", ("meta", "train", "test"))],
)
def test_the_pickled_version_is_refused(tmp_path: Path, folder: str, names: tuple[str, ...]) -> None:
    (tmp_path / folder).mkdir()
    for name in names:
        (tmp_path / folder / name).write_bytes(pickle.dumps({}))
    for path in (tmp_path, tmp_path / folder):
        assert FORMAT.matches(path)
        with pytest.raises(ValueError, match=r"Python version"):
            FORMAT.open(path, "train")


def test_missing_files_cost_a_sentence(tmp_path: Path) -> None:
    path = make_cifar(tmp_path)
    (path / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3\.bin"):
        FORMAT.open(path, "train")
    assert len(FORMAT.open(path, "test")) == 2
    (path / "batches.meta.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"batches\.meta\.txt does not exist"):
        FORMAT.open(path, "test")
    for file in sorted(path.glob("data_batch_*")):
        file.unlink()
    assert FORMAT.list_splits(path) == ("test",)


def test_names_without_images_cost_a_sentence(tmp_path: Path) -> None:
    path = make_cifar_100(tmp_path)
    for name in ("train.bin", "test.bin"):
        (path / name).unlink()
    assert FORMAT.matches(path)
    with pytest.raises(FileNotFoundError, match=r"train\.bin does not exist"):
        FORMAT.list_splits(path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("data_batch_2.bin", bytes(3072), r"has 3072 bytes"),
        ("data_batch_2.bin", bytes(3073 + 3072), r"has 6145 bytes"),
        ("data_batch_2.bin", b"", r"has 0 bytes"),
        (
            "data_batch_2.bin",
            bytes(3073) + bytes([10]) + bytes(3072),
            r"has label 10 in record 1",
        ),
        ("batches.meta.txt", b"cat\ndog\n", r"has 2 class names"),
        ("batches.meta.txt", b"\xff\xfe", r"is not UTF-8 text \(see b'\\xff'\)"),
    ],
)
def test_damage_costs_a_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    path = make_cifar(tmp_path)
    (path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as caught:
        FORMAT.open(path, "train")
    assert str(caught.value).startswith(str(path / name))


def test_a_label_outside_of_cifar_100_costs_a_sentence(tmp_path: Path) -> None:
    path = make_cifar_100(tmp_path)
    (path / "test.bin").write_bytes(encode(TEST[0], 1, 100))
    with pytest.raises(ValueError, match=r"test\.bin has label 100 in record 0"):
        FORMAT.open(path, "test")


def test_a_folder_in_the_place_of_a_file_costs_a_sentence(tmp_path: Path) -> None:
    path = make_cifar(tmp_path)
    (path / "batches.meta.txt").unlink()
    (path / "batches.meta.txt").mkdir()
    with pytest.raises(ValueError, match=r"batches\.meta\.txt cannot be read \(Is a directory\)"):
        FORMAT.open(path, "train")
