"""The index beside tar shards: used, kept up to date, and built again where it cannot be believed."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.data.sources.test_tar_shards import draw, make_samples, make_tar_shards, write_tar
from vitrine.core.notices import Notice
from vitrine.data.sources import tar_index
from vitrine.data.sources.tar_index import INDEX, scan_shard
from vitrine.data.sources.tar_shards import KIND


def test_index_is_used_and_kept_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []
    monkeypatch.setattr(tar_index, "scan_shard", lambda path: (scanned.append(path.name), scan_shard(path))[1])
    folder = make_tar_shards(tmp_path)
    before = KIND.open(folder, "train")
    KIND.open(folder, "train")
    assert scanned == ["train-000.tar", "train-001.tar"]
    KIND.open(folder / "val-000.tar", "val")
    after = KIND.open(folder, "train")
    assert scanned == ["train-000.tar", "train-001.tar", "val-000.tar"]
    assert [after.name(index) for index in range(7)] == [before.name(index) for index in range(7)]
    assert after.labels.values.tolist() == before.labels.values.tolist()
    assert not list(folder.glob("*partial*"))
    write_tar(folder / "train-001.tar", make_samples(5, start=20))
    changed = KIND.open(folder, "train")
    assert scanned[3:] == ["train-001.tar"]
    assert [changed.fetch(index) for index in range(4, 9)] == [draw(seed) for seed in range(20, 25)]
    with pytest.raises(ValueError, match=r"train-001\.tar has changed since"):
        after.fetch(6)


def spoil_array(path: Path, name: str, value: np.ndarray) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    arrays[name] = value
    np.savez(path, **arrays)


SPOILT = {
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


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SPOILT.items() for value in values])
def test_index_that_does_not_agree_is_built_again(tmp_path: Path, name: str, value: np.ndarray) -> None:
    folder = make_tar_shards(tmp_path)
    KIND.open(folder, "train")
    spoil_array(folder / INDEX, f"train-000.tar/{name}", value)
    check_rebuilt(folder)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"\x93NUMPY\x01\x00", b"half"])
def test_damaged_index_is_built_again(tmp_path: Path, content: bytes) -> None:
    folder = make_tar_shards(tmp_path)
    KIND.open(folder, "train")
    whole = (folder / INDEX).read_bytes()
    (folder / INDEX).write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    check_rebuilt(folder)


def test_index_with_pickles_or_blown_up_is_built_again(tmp_path: Path) -> None:
    folder = make_tar_shards(tmp_path)
    KIND.open(folder, "train")
    spoil_array(folder / INDEX, "train-000.tar/text", np.array([os.system, "echo run"], dtype=object))
    check_rebuilt(folder)
    with np.load(folder / INDEX) as file:
        arrays = dict(file)
    np.savez_compressed(folder / INDEX, **{**arrays, "x.tar/text": np.zeros(10**7, np.uint8)})
    check_rebuilt(folder)


def check_rebuilt(folder: Path) -> None:
    with pytest.warns(Notice, match=r"\.vitrine-index\.npz is damaged"):
        source = KIND.open(folder, "train")
    assert [source.fetch(index) for index in range(7)] == [draw(seed) for seed in range(7)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert KIND.open(folder, "train").labels.values.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_a_shard_without_images_is_remembered_too(tmp_path: Path) -> None:
    folder = make_tar_shards(tmp_path)
    write_tar(folder / "train-002.tar", {"a.cls": "1"})
    for _ in range(2):
        with pytest.warns(Notice) as caught:
            assert len(KIND.open(folder, "train")) == 7
        assert [str(each.message) for each in caught] == [f"1 samples of {folder} have no image and are left out."]


def test_unwritable_folder_costs_a_notice(tmp_path: Path) -> None:
    folder = make_tar_shards(tmp_path)
    (folder / f".{INDEX}.vitrine-partial-{os.getpid()}").mkdir()  # in the way of writing; root writes into any folder
    with pytest.warns(Notice, match="cannot be written"):
        source = KIND.open(folder, "train")
    assert source.fetch(6) == draw(6)
