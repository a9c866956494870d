"""Checksums: damage is noticed, files of former versions are read, and a file is read through on first use only."""

import io
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.clock import wait_for_tick
from tests.corruptions import DAMAGED_ZIP, Corruption
from vitrine.core import checksums
from vitrine.core.checksums import (
    CrcWriter,
    check_members,
    compute_crc,
    load_arrays,
    open_zip,
    save_arrays,
    seal,
    unseal,
    verify_once,
)

ARRAYS = {"heights": np.arange(6), "widths": np.arange(6)[::-1].copy(), "names": np.frombuffer(b"some text", np.uint8)}


@pytest.mark.parametrize("content", [b"", b"text", bytes(range(256)), b"ends like one" + checksums.MARK])
def test_what_is_sealed_comes_back_and_every_change_is_noticed(content: bytes) -> None:
    sealed = seal(content)
    assert unseal(sealed) == content
    for place in range(len(content)):
        with pytest.raises(ValueError, match="checksum"):
            unseal(sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :])
    with pytest.raises(ValueError, match="checksum"):
        unseal(sealed[:-1])


def test_content_without_a_checksum_is_from_before() -> None:
    assert unseal(b"content") == b"content"


def test_arrays_come_back_and_numpy_reads_the_file_too(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.npz", ARRAYS)
    assert os.listdir(tmp_path) == ["a.npz"]
    with np.load(tmp_path / "a.npz") as file:
        for found in (load_arrays(tmp_path / "a.npz"), file):
            assert {name: found[name].tolist() for name in found} == {name: array.tolist() for name, array in ARRAYS.items()}


def test_arrays_from_before_there_were_checksums_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    assert load_arrays(tmp_path / "a.npz")["widths"].tolist() == [5, 4, 3, 2, 1, 0]


def swap_names(random: Random, content: bytes) -> bytes:
    """Exchange two arrays, which no CRC of the archive notices."""
    return content.replace(b"heights", b"xxxxxxx").replace(b"widths", b"height").replace(b"xxxxxxx", b"swidths")


@pytest.mark.parametrize("corruption", [*DAMAGED_ZIP, swap_names], ids=lambda corruption: corruption.__name__)
def test_damaged_arrays_are_a_value_error_or_the_same(corruption: Corruption, tmp_path: Path) -> None:
    path, random = tmp_path / "a.npz", Random(corruption.__name__)
    for old in (False, True):
        save_arrays(path, ARRAYS)
        content = path.read_bytes()
        content = unseal(content) if old and corruption is not swap_names else content
        for _ in range(60):
            path.write_bytes(corruption(random, content))
            try:
                found = load_arrays(path)
            except ValueError:
                continue
            if not old:
                assert {name: found[name].tolist() for name in ARRAYS} == {name: a.tolist() for name, a in ARRAYS.items()}


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", bomb=np.zeros(10**6, np.uint8))
    with pytest.raises(ValueError, match="larger than the file"):
        load_arrays(tmp_path / "a.npz")


def test_the_crc_of_a_file_is_that_of_zlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "CHUNK_BYTES", 7)
    content = Random(0).randbytes(100)
    writer = CrcWriter(io.BytesIO())
    for start in range(0, 100, 30):
        writer.write(memoryview(content[start : start + 30]))
    (tmp_path / "file").write_bytes(content)
    assert compute_crc(tmp_path / "file") == writer.checksum() == f"crc32:{zlib.crc32(content):08x}"
    assert writer.num_bytes == 100


def count_calls() -> tuple[list[None], Callable[[], None]]:
    calls: list[None] = []
    return calls, lambda: calls.append(None)


def test_a_file_is_verified_once_until_it_changes(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    calls, verify = count_calls()
    for _ in range(3):
        verify_once(path, "sum", verify)
    assert len(calls) == 1
    times = path.stat()
    wait_for_tick(path)
    path.write_bytes(b"another")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    verify_once(path, "sum", verify)
    assert len(calls) == 2
    verify_once(path, "another sum", verify)
    assert len(calls) == 3
    (note,) = (cache / "verified").iterdir()
    note.write_bytes(note.read_bytes()[:-1])
    verify_once(path, "another sum", verify)
    assert len(calls) == 4


def test_a_file_that_failed_is_verified_again(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")

    def fail() -> None:
        raise ValueError("damaged")

    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            verify_once(tmp_path / "file", "sum", fail)


def test_a_cache_that_cannot_be_written_means_verifying_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"content")
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "file" / "inside"))
    calls, verify = count_calls()
    for _ in range(2):
        verify_once(tmp_path / "file", "sum", verify)
    assert len(calls) == 2


def test_members_are_compared_with_their_checksums(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("first", b"some content")
        archive.writestr("second", b"other content")
    with open_zip(path) as archive:
        check_members(archive)
    path.write_bytes(path.read_bytes().replace(b"other content", b"otter content"))
    with open_zip(path) as archive, pytest.raises(zipfile.BadZipFile, match="second"):
        check_members(archive)


def test_an_empty_member_does_not_end_the_comparison(tmp_path: Path) -> None:
    """The checksum of nothing is 0, like that of a member that was written without one."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("empty", b"")
        archive.writestr("second", b"other content")
    path.write_bytes(path.read_bytes().replace(b"other content", b"otter content"))
    with open_zip(path) as archive, pytest.raises(zipfile.BadZipFile, match="second"):
        check_members(archive)


def test_an_archive_without_any_checksums_is_not_compared(tmp_path: Path) -> None:
    """torch.save writes such files if told not to compute them."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("first", b"some content")
    crc = zlib.crc32(b"some content").to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(crc, bytes(4)))
    with open_zip(path) as archive:
        check_members(archive)


def test_an_archive_of_too_many_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "MAX_MEMBERS", 2)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(3):
            archive.writestr(str(number), b"")
    with pytest.raises(ValueError, match="3 members"):
        open_zip(tmp_path / "a.zip")


def test_an_archive_whose_directory_lost_members_is_refused(tmp_path: Path) -> None:
    """A wrong length of one entry makes zipfile skip those behind it."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(3):
            archive.writestr(str(number), b"")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[content.index(b"PK\1\2") + 32] = 47  # the length of the first entry's comment: that of the second entry
    (tmp_path / "a.zip").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert len(archive.namelist()) == 2
    with pytest.raises(ValueError, match="2 of 3"):
        open_zip(tmp_path / "a.zip")


def test_an_archive_with_a_comment_is_opened(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"")
        archive.comment = b"x" * 60_000
    with open_zip(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["a"]
