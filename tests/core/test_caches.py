"""Caches: their files are found by name, counted and deleted; other files in the same folder are left alone."""

import os
from pathlib import Path

import pytest

from vitrine.core.caches import CacheInfo, CacheKind, cache_folder, clear_caches, list_caches

KEY = "0123456789abcdef" * 2
FILES: dict[CacheKind, list[str]] = {
    "features": [f"{KEY}-{KEY}.safetensors", f"{KEY}.images", f".{KEY}-{KEY}.safetensors.vitrine-partial-77"],
    "glyphs": [f"{KEY}-0100.npz"],
    "image-stats": [f"{KEY}-1/000000.npz", f"{KEY}-1/.000001.npz.vitrine-partial-77"],
    "verified": [KEY],
}
FOREIGN = ["features/mine.safetensors", "features/deep/photo.png", f"surveys/{KEY}-1/mine.npz", "thesis.txt"]


@pytest.fixture
def filled(cache: Path) -> Path:
    for kind, names in FILES.items():
        for name in names:
            write(cache_folder(kind) / name)
    for name in FOREIGN:
        write(cache / name)
    return cache


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"12345")


def list_all(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_every_kind_is_counted(filled: Path) -> None:
    assert list_caches() == [
        CacheInfo("features", filled / "features", 3, 15),
        CacheInfo("glyphs", filled / "glyphs", 1, 5),
        CacheInfo("image-stats", filled / "surveys", 2, 10),
        CacheInfo("verified", filled / "verified", 1, 5),
    ]


def test_caches_that_do_not_exist_are_empty(cache: Path) -> None:
    assert [(each.num_files, each.num_bytes) for each in list_caches()] == [(0, 0)] * 4
    assert clear_caches() == list_caches()
    assert not cache.exists()


def test_one_kind_is_cleared(filled: Path) -> None:
    before = list_all(filled)
    assert clear_caches(["image-stats"]) == [CacheInfo("image-stats", filled / "surveys", 2, 10)]
    assert before - list_all(filled) == {f"surveys/{name}" for name in FILES["image-stats"]}


def test_clearing_everything_leaves_the_files_of_others(filled: Path) -> None:
    assert [each.num_files for each in clear_caches()] == [3, 1, 2, 1]
    assert list_all(filled) == set(FOREIGN)
    assert [each.num_files for each in list_caches()] == [0, 0, 0, 0]


def test_folders_that_become_empty_are_deleted(cache: Path) -> None:
    write(cache / "surveys" / f"{KEY}-1" / "000000.npz")
    clear_caches()
    assert os.listdir(cache / "surveys") == []


def test_a_linked_folder_stays_a_link(cache: Path, tmp_path: Path) -> None:
    """E.g. on a larger disk."""
    cache.mkdir()
    (tmp_path / "large").mkdir()
    (cache / "features").symlink_to(tmp_path / "large")
    write(cache / "features" / f"{KEY}.images")
    assert clear_caches(["features"])[0].num_files == 1
    assert os.listdir(tmp_path / "large") == []
    assert (cache / "features").is_symlink()


def test_an_unknown_kind_is_named(cache: Path) -> None:
    with pytest.raises(ValueError, match=r"'surveys'.*image-stats"):
        clear_caches(["surveys"])
