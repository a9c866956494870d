"""Tar shards: splits, patterns, classes, reading by position, and the index beside them."""

import io
import os
import pickle
import sys
import tarfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.failing import fail_to_open
from vitrine.core.console import VitrineWarning
from vitrine.data.image import BadImage
from vitrine.data.sources import webdataset
from vitrine.data.sources.webdataset import FORMAT, INDEX, open_shard, scan_shard

Content = dict[str, bytes | str]


def draw(seed: int, format: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)).save(file, format)
    return file.getvalue()


def write_tar(path: Path, members: Content | list[tuple[str, bytes | str]], format: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in members.items() if isinstance(members, dict) else members:
            body = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


def make_samples(count: int, start: int = 0) -> Content:
    samples: Content = {}
    for seed in range(start, start + count):
        samples |= {f"{seed:04d}.png": draw(seed), f"{seed:04d}.cls": str(seed % 3)}
    return samples


def make_tar_shards(folder: Path) -> Path:
    write_tar(folder / "train-000.tar", make_samples(4))
    write_tar(folder / "train-001.tar", make_samples(3, start=4))
    write_tar(folder / "val-000.tar", make_samples(2, start=7))
    (folder / "classes.txt").write_text("cat\ndog\nfox\n")
    return folder


def fails(path: Path, split: str | None = None) -> str:
    return fail_to_open(FORMAT, path, split)


def test_samples_of_splits_keep_their_order(tmp_path: Path) -> None:
    folder = make_tar_shards(tmp_path)
    assert FORMAT.matches(folder)
    assert FORMAT.list_splits(folder) == ("train", "val")
    train, val = FORMAT.open(folder, "train"), FORMAT.open(folder, "val")
    assert [train.name(index) for index in range(7)] == [
        *(f"train-000.tar/{index:04d}.png" for index in range(4)),
        *(f"train-001.tar/{index:04d}.png" for index in range(4, 7)),
    ]
    assert [train.fetch(index) for index in range(7)] == [draw(seed) for seed in range(7)]
    assert [train.labels[index] for index in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [val.fetch(index) for index in range(2)] == [draw(7), draw(8)]
    assert train.class_names == val.class_names == ("cat", "dog", "fox")
    image, label = train.read(5)
    assert (image.width, image.height, label) == (7, 5, 2)
    assert train.files() == [folder / "train-000.tar", folder / "train-001.tar", folder / "classes.txt"]


def test_unlabelled_and_partly_labelled_shards(tmp_path: Path) -> None:
    source = FORMAT.open(write_tar(tmp_path / "x.tar", {"a.png": draw(0), "b.png": draw(1)}), None)
    assert (len(source), source.labels[1], source.labels.has_several, source.class_names) == (2, (), True, ())
    path = write_tar(tmp_path / "y.tar", {"a.png": draw(0), "a.cls": "1", "b.png": draw(1)})
    assert "y.tar/b.png" in fails(path)


def test_splits_have_the_same_classes(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", {"a.png": draw(0), "a.cls": "5"})
    write_tar(tmp_path / "test-0.tar", {"a.png": draw(0), "a.cls": "1"})
    assert FORMAT.open(tmp_path, "test").class_names == FORMAT.open(tmp_path, "train").class_names == tuple("012345")


def test_split_folders_with_class_list_in_the_root(tmp_path: Path) -> None:
    write_tar(tmp_path / "train" / "0.tar", make_samples(2))
    write_tar(tmp_path / "validation" / "0.tar", make_samples(1))
    (tmp_path / "classes.txt").write_text("a\nb\n")
    assert FORMAT.matches(tmp_path)
    assert FORMAT.list_splits(tmp_path) == ("train", "val")
    source = FORMAT.open(tmp_path, "val")
    assert (source.name(0), source.class_names) == ("validation/0.tar/0000.png", ("a", "b"))
    (tmp_path / "classes.txt").rename(tmp_path / "validation" / "classes.txt")
    assert FORMAT.open(tmp_path, "val").class_names == ("a", "b")


def test_archive_beside_images_is_not_a_shard(tmp_path: Path) -> None:
    write_tar(tmp_path / "images.tar", make_samples(2))
    write_tar(tmp_path / "more.tar.gz", {})
    assert FORMAT.matches(tmp_path)
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "0.png").write_bytes(draw(0))
    assert not FORMAT.matches(tmp_path)
    assert FORMAT.matches(tmp_path / "*.tar")
    assert not FORMAT.matches(tmp_path / "train")
    assert not FORMAT.matches(tmp_path / "absent")


def test_shards_without_a_split_give_a_warning(tmp_path: Path) -> None:
    make_tar_shards(tmp_path)
    write_tar(tmp_path / "extra-0.tar", make_samples(2))
    with pytest.warns(VitrineWarning, match=r"extra-0\.tar"):
        assert len(FORMAT.open(tmp_path, "train")) == 7


def test_patterns(tmp_path: Path) -> None:
    make_tar_shards(tmp_path / "shards")
    braces, star = tmp_path / "shards" / "train-{000..001}.tar", tmp_path / "s*" / "train-*.tar"
    assert FORMAT.matches(braces)
    assert FORMAT.list_splits(braces) == ("train",)
    assert len(FORMAT.open(braces, "train")) == len(FORMAT.open(star, "train")) == 7
    assert FORMAT.open(star, "train").name(6) == "shards/train-001.tar/0006.png"
    assert len(FORMAT.open(tmp_path / "shards" / "{train,val}-000.tar", "val")) == 2
    assert "train-002.tar does not exist" in fails(tmp_path / "shards" / "train-{000..002}.tar", "train")
    assert "x-0.tar does not exist" in fails(tmp_path / "x-{0..999999999}.tar")


def test_compressed_shards_are_errors(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-0.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.png"))
    for path in (tmp_path, tmp_path / "train-0.tar.gz"):
        assert FORMAT.matches(path)
        assert "train-0.tar.gz is compressed" in fails(path, "train")
        with pytest.raises(ValueError, match="compressed"):
            FORMAT.list_splits(path)
    (tmp_path / "train-0.tar.gz").rename(tmp_path / "train-0.tar")
    assert "expected a plain tar file" in fails(tmp_path, "train")


def test_class_list_that_does_not_fit(tmp_path: Path) -> None:
    folder = make_tar_shards(tmp_path)
    (folder / "classes.txt").write_text("cat\ndog\n")
    assert "train-000.tar/0002.png has label 2" in fails(folder, "train")
    (folder / "classes.txt").write_text("cat\n\ndog\n")
    assert "classes.txt line 2 is empty" in fails(folder, "train")


def test_bad_image_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    source = FORMAT.open(write_tar(tmp_path / "x.tar", {"a.png": draw(0), "b.png": b"nothing", "c.png": b""}), None)
    source.read(0)
    for index, name in ((1, "x.tar/b.png"), (2, "x.tar/c.png")):
        with pytest.raises(BadImage, match=name):
            source.read(index)


def test_pickled_before_and_after_reading(tmp_path: Path) -> None:
    source = FORMAT.open(make_tar_shards(tmp_path), "train")
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(source))
        assert [copy.fetch(index) for index in range(7)] == [draw(seed) for seed in range(7)]
        assert copy.name(3) == source.name(3)
        source.fetch(0)


def test_number_of_open_files_is_limited(tmp_path: Path) -> None:
    for number in range(70):
        write_tar(tmp_path / f"{number:03d}.tar", {"a.png": draw(number)})
    source = FORMAT.open(tmp_path, None)
    open_shard.cache_clear()
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    assert [source.fetch(index) for index in range(70)] == [draw(number) for number in range(70)]
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) - before <= 64


def test_shard_stays_open_while_a_thread_reads(tmp_path: Path) -> None:
    """Otherwise its descriptor could mean another file that was opened meanwhile."""
    source = FORMAT.open(make_tar_shards(tmp_path), "train")
    expected = [draw(seed) for seed in range(7)]

    def read_all(_: int) -> bool:
        open_shard.cache_clear()
        return [source.fetch(index) for index in range(7)] == expected

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads interrupt each other often
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read_all, range(200)))
    finally:
        sys.setswitchinterval(interval)


def test_relative_paths_after_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tar_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    sources = [FORMAT.open(Path(path), "val") for path in (".", "val-000.tar", "val-{000..000}.tar")]
    monkeypatch.chdir("/")
    assert [(source.name(1), source.fetch(1)) for source in sources] == [("val-000.tar/0008.png", draw(8))] * 3


def test_unusual_member_names(tmp_path: Path) -> None:
    members = {"a\nb.png": draw(0), "/abs.png": draw(1), "../up.png": draw(2)}
    source = FORMAT.open(write_tar(tmp_path / "x.tar", members), None)
    assert [source.name(index) for index in range(3)] == ["x.tar/a\\nb.png", "x.tar/abs.png", "x.tar/../up.png"]


def test_index_is_used_and_kept_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []
    monkeypatch.setattr(webdataset, "scan_shard", lambda path: (scanned.append(path.name), scan_shard(path))[1])
    folder = make_tar_shards(tmp_path)
    before = FORMAT.open(folder, "train")
    FORMAT.open(folder, "train")
    assert scanned == ["train-000.tar", "train-001.tar"]
    FORMAT.open(folder / "val-000.tar", "val")
    after = FORMAT.open(folder, "train")
    assert scanned == ["train-000.tar", "train-001.tar", "val-000.tar"]
    assert [after.name(index) for index in range(7)] == [before.name(index) for index in range(7)]
    assert after.labels.values.tolist() == before.labels.values.tolist()
    assert not list(folder.glob("*partial*"))
    write_tar(folder / "train-001.tar", make_samples(5, start=20))
    changed = FORMAT.open(folder, "train")
    assert scanned[3:] == ["train-001.tar"]
    assert [changed.fetch(index) for index in range(4, 9)] == [draw(seed) for seed in range(20, 25)]
    with pytest.raises(ValueError, match=r"train-001\.tar has changed since"):
        after.fetch(6)


def overwrite_array(path: Path, name: str, value: np.ndarray) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    arrays[name] = value
    np.savez(path, **arrays)


INVALID = {
    "facts": [np.zeros(3, np.int64), np.zeros(4, np.float32), np.zeros((4, 1), np.int64), np.zeros(0, np.int64)],
    "rows": [
        np.array([[10**9, 1, 1, 8]] * 4),
        np.array([[0, 2**62, 1, 8]] * 4),
        np.array([[2**62, 2**62, 1, 8]] * 4),
        np.array([[-1, 1, 1, 8]] * 4),
        np.array([[0, 1, 2, 8]] * 4),
        np.array([[0, 1, 1, 9]] * 4),
        np.array([[0, 1, 1, 2**62]] * 4),
        np.array([[0, 1, 1, 8]] * 3),
        np.array([[0, 1, 1]] * 4),
    ],
    "labels": [np.array([-2] * 4), np.array([2**40] * 4), np.zeros(3, np.int64)],
    "text": [np.zeros(4, np.uint8), np.zeros(33, np.uint8), np.zeros(32, np.int64)],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in INVALID.items() for value in values])
def test_inconsistent_index_is_built_again(tmp_path: Path, name: str, value: np.ndarray) -> None:
    folder = make_tar_shards(tmp_path)
    FORMAT.open(folder, "train")
    overwrite_array(folder / INDEX, f"train-000.tar/{name}", value)
    check_rebuilt(folder)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"\x93NUMPY\x01\x00", b"half"])
def test_damaged_index_is_built_again(tmp_path: Path, content: bytes) -> None:
    folder = make_tar_shards(tmp_path)
    FORMAT.open(folder, "train")
    whole = (folder / INDEX).read_bytes()
    (folder / INDEX).write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    check_rebuilt(folder)


def test_index_with_pickles_or_a_decompression_bomb_is_built_again(tmp_path: Path) -> None:
    folder = make_tar_shards(tmp_path)
    FORMAT.open(folder, "train")
    overwrite_array(folder / INDEX, "train-000.tar/text", np.array([os.system, "echo run"], dtype=object))
    check_rebuilt(folder)
    with np.load(folder / INDEX) as file:
        arrays = dict(file)
    np.savez_compressed(folder / INDEX, **{**arrays, "x.tar/text": np.zeros(10**7, np.uint8)})
    check_rebuilt(folder)


def check_rebuilt(folder: Path) -> None:
    with pytest.warns(VitrineWarning, match=r"\.vitrine-index\.npz is damaged"):
        source = FORMAT.open(folder, "train")
    assert [source.fetch(index) for index in range(7)] == [draw(seed) for seed in range(7)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FORMAT.open(folder, "train").labels.values.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_shard_without_images_is_indexed(tmp_path: Path) -> None:
    folder = make_tar_shards(tmp_path)
    write_tar(folder / "train-002.tar", {"a.cls": "1"})
    for _ in range(2):
        with pytest.warns(VitrineWarning) as caught:
            assert len(FORMAT.open(folder, "train")) == 7
        assert [str(each.message) for each in caught] == [f"{folder}: left out 1 samples without an image."]


def test_unwritable_folder_gives_a_warning(tmp_path: Path) -> None:
    folder = make_tar_shards(tmp_path)
    (folder / f".{INDEX}.vitrine-partial-{os.getpid()}").mkdir()  # blocks writing; root can write into any folder
    with pytest.warns(VitrineWarning, match="cannot be written"):
        source = FORMAT.open(folder, "train")
    assert source.fetch(6) == draw(6)
