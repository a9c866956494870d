"""Samples of tar files compared with the reader of `datasets`; damaged and malicious shards."""

import io
import json
import subprocess
import sysconfig
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.sources.test_webdataset import Content, draw, fails, make_samples, make_tar_shards, write_tar
from vitrine.core.console import VitrineWarning
from vitrine.data.sources.webdataset import FORMAT, scan_shard
from vitrine.data.sources.webdataset_samples import is_stored, list_members


def test_samples_equal_those_of_datasets(tmp_path: Path) -> None:
    peer = pytest.importorskip("datasets.packaged_modules.webdataset.webdataset").WebDataset
    names = ["a/b.jpg", "a/b.seg.png", "a/b.cls", "c.JPG", "c.json", "c.txt", "d.e/f.g.h", "d.e/f.webp", "d.e/f.cls", "plain"]
    names += [".hidden.jpg", "x/.also.png", "last.cls", "last.png"]
    contents = {name: {"cls": "2", "json": '{"label": 1}'}.get(name[-3:].lower(), name) for name in names}
    contents["c.json"] = '{"label": 1}'
    path = write_tar(tmp_path / "x.tar", contents)
    with tarfile.open(path) as tar:
        stream = [(member.name, io.BytesIO(tar.extractfile(member).read())) for member in tar.getmembers()]
    theirs = [
        (sample["__key__"], end, sample[name])
        for sample in peer_without_decoding(peer)._get_pipeline_from_tar(str(path), stream)
        for name in sample
        if (end := name.lower()) in ("jpg", "webp", "png")
    ]
    # Multiple extensions are not images, hidden files have no key, and case does not matter.
    assert [(key, end) for key, end, _ in theirs] == [("a/b", "jpg"), ("c", "jpg"), ("d.e/f", "webp"), ("last", "png")]
    source = FORMAT.open(path, None)
    assert [source.name(index).lower() for index in range(len(source))] == [f"x.tar/{key}.{end}" for key, end, _ in theirs]
    assert [source.fetch(index) for index in range(len(source))] == [content for _, _, content in theirs]
    assert [source.labels[index] for index in range(4)] == [2, 1, 2, 2]


def peer_without_decoding(peer: Any) -> Any:
    return type("Undecoded", (peer,), {"DECODERS": {}})


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_format(tmp_path: Path, format: int) -> None:
    # ustar splits 155 + 100 bytes at a slash; the others have no limit.
    key = "/".join(["folder" * 10] * (3 if format == tarfile.USTAR_FORMAT else 30)) + "/ünïcode"
    path = write_tar(
        tmp_path / "x.tar", {f"{key}.png": draw(1), f"{key}.cls": "0", "short.png": draw(2), "short.cls": "1"}, format
    )
    source = FORMAT.open(path, None)
    assert [source.name(index) for index in range(2)] == [f"x.tar/{key}.png", "x.tar/short.png"]
    assert [source.fetch(index) for index in range(2)] == [draw(1), draw(2)]


def test_all_kinds_of_members() -> None:
    """CPython's test archive has V7, ustar, GNU, pax, sparse files of four kinds, links, devices and large numbers."""
    path = next((Path(sysconfig.get_path("stdlib")) / "test").rglob("testtar.tar"), None)
    if path is None:
        pytest.skip("this Python comes without its tests")
    with tarfile.open(path, encoding="iso8859-1") as tar:
        expected = [member for member in tar.getmembers() if not member.isdir()]
    members = list_members(path)
    assert len(members) == len(expected) > 30
    for member, info in zip(members, expected, strict=True):
        assert (member.offset_data, member.size) == (info.offset_data, info.size), info.name
    assert 20 < sum(map(is_stored, members)) < len(members) - 10


def test_members_of_gnu_tar(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, content in make_samples(3).items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    subprocess.run(["tar", "--sort=name", "-cf", tmp_path / "x.tar", "-C", folder, "."], check=True)
    source = FORMAT.open(tmp_path / "x.tar", None)
    assert [source.name(index) for index in range(3)] == [f"x.tar/{index:04d}.png" for index in range(3)]
    assert [source.fetch(index) for index in range(3)] == [draw(0), draw(1), draw(2)]


def test_labels_in_json(tmp_path: Path) -> None:
    def label_of(*contents: object) -> Any:
        members: Content = {}
        for index, content in enumerate(contents):
            members |= {f"{index}.png": draw(index), f"{index}.json": json.dumps(content)}
        source = FORMAT.open(write_tar(tmp_path / "x.tar", members), None)
        return [source.labels[index] for index in range(len(contents))], source.labels.has_several, source.class_names

    assert label_of({"label": 2}, {"cls": 0}) == ([2, 0], False, ("0", "1", "2"))
    assert label_of({"labels": [2, 0]}, {"labels": []}, {"label": 1}) == ([(2, 0), (), (1,)], True, ("0", "1", "2"))
    assert label_of({"caption": "a dog"}, ["label"]) == ([(), ()], True, ())
    assert label_of({"label": None}, {}) == ([(), ()], True, ())
    for wrong in (-1, 1.5, True, "dog", [[1]], [None], 10**30):
        with pytest.raises(ValueError, match=r"x\.tar: 0\.json"):
            label_of({"label": wrong})


def test_cls_takes_precedence_over_json(tmp_path: Path) -> None:
    members: Content = {"0.png": draw(0), "0.json": '{"label": 4}', "0.cls": "1\n", "0.index": "77"}
    assert FORMAT.open(write_tar(tmp_path / "x.tar", members), None).labels[0] == 1


def test_invalid_samples_are_errors(tmp_path: Path) -> None:
    def fail_with(members: list[tuple[str, bytes | str]]) -> str:
        return fails(write_tar(tmp_path / "x.tar", members))

    assert "a.jpg and a.png" in fail_with([("a.jpg", "x"), ("a.png", "x")])
    assert "a.jpg and a.jpg" in fail_with([("a.jpg", "x"), ("a.jpg", "x")])
    assert "a.cls and a.cls" in fail_with([("a.jpg", "x"), ("a.cls", "1"), ("a.cls", "2")])
    assert "key 'a'" in fail_with([("a.jpg", "x"), ("b.jpg", "x"), ("a.jpg", "x")])
    assert "no images in its 1 samples" in fail_with([("a.image.jpg", "x"), ("a.cls", "1")])
    assert "no images in its 0 samples" in fail_with([])
    for label in ("two", "-1", "99999999", "", "1.5"):
        assert "a.cls is not a label" in fail_with([("a.jpg", "x"), ("a.cls", label)])
    for content in ("{", b"\xff\xfe\xfd", "[" * 100_000, "1" * 5000):
        assert "a.json is not a label" in fail_with([("a.jpg", "x"), ("a.json", content)])
    with pytest.warns(VitrineWarning, match=r"left out 1 samples"):
        FORMAT.open(write_tar(tmp_path / "y.tar", [("note.txt", "x"), ("a.jpg", "x")]), None)


def test_links_and_sparse_files_are_errors(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.GNUTYPE_SPARSE):
        path = tmp_path / f"{kind.decode()}.tar"
        link = tarfile.TarInfo("b.png")
        link.type, link.linkname = kind, "a.png"
        with tarfile.open(write_tar(path, {"a.png": draw(0)}), "a") as tar:
            tar.addfile(link)
        assert "b.png as a link" in fails(path)
    link = tarfile.TarInfo("a.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(write_tar(tmp_path / "fine.tar", {"a.png": draw(0)}), "a") as tar:
        tar.addfile(link)
    assert len(FORMAT.open(tmp_path / "fine.tar", None)) == 1


def test_damaged_shards(tmp_path: Path) -> None:
    path = make_tar_shards(tmp_path) / "val-000.tar"
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1].offset_data
    for length in (0, 100, 512, 700, 1024, last - 512, last - 100, last, last + 512, last + 1024):
        path.write_bytes(whole[:length])
        assert f"{path} cannot be read (" in (message := fails(path, "val")), length
        assert "expected a plain tar file" in message
    path.write_bytes(whole + whole)
    assert f"from byte {last + 512}" in fails(path, "val")
    path.write_bytes(b"<html>" * 1000)
    assert "expected a plain tar file" in fails(path, "val")
    path.write_bytes(whole[: last - 512] + b"\1" + whole[last - 511 :])  # a header at which `tarfile` stops without an error
    assert f"from byte {last - 512}" in fails(path, "val")
    path.write_bytes(whole[: last - 512] + bytes(2**20) + whole[last - 512 :])  # a hole, e.g. in a preallocated download
    assert f"from byte {last - 512}" in fails(path, "val")


def test_damaged_headers_give_an_error_or_an_index(tmp_path: Path) -> None:
    """Checksums are corrected, so that the damage reaches the parser."""
    path = write_tar(tmp_path / "x.tar", {"a" * 120 + ".png": draw(0), "b.cls": "1"})
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(400):
        damaged = bytearray(whole)
        for at in random.integers(0, len(whole) - 9000, 3):
            damaged[at] = random.integers(256)
        for start in range(0, len(whole) - 9000, 512):
            total = sum(damaged[start : start + 148]) + 8 * 32 + sum(damaged[start + 156 : start + 512])
            if damaged[start + 257 : start + 262] == b"ustar":
                damaged[start + 148 : start + 156] = b"%06o\0 " % total
        path.write_bytes(damaged)
        with suppress(ValueError):
            shard = scan_shard(path)
            assert shard.is_valid()


def write_header(path: Path, text: bytes, size: int, kind: bytes = tarfile.XHDTYPE, member_size: int = 512) -> Path:
    """Write an extended header that claims `size` bytes, and an image after it."""
    extended, member = tarfile.TarInfo("x"), tarfile.TarInfo("a.png")
    extended.type, extended.size, member.size = kind, size, member_size
    body = text.ljust(512, b"\0") + member.tobuf(tarfile.GNU_FORMAT) + b"\1" * 512 + bytes(1024)
    path.write_bytes(extended.tobuf(tarfile.GNU_FORMAT) + body)
    return path


def pax(size: object) -> bytes:
    return b"%d size=%s\n" % (9 + len(str(size)), str(size).encode())


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE])
@pytest.mark.parametrize("text", [b"0 path=a\n", *map(pax, (-1, -512, -(10**9), 0, 9999, "9" * 11, "9" * 11 + "e"))])
def test_wrong_sizes_in_pax_records(tmp_path: Path, text: bytes, kind: bytes) -> None:
    is_read = False
    with suppress(ValueError):
        shard = scan_shard(write_header(tmp_path / "x.tar", text, len(text), kind))
        assert (shard.rows[:, 1] <= 512).all()
        is_read = True
    assert is_read or "expected a plain tar file" in fails(tmp_path / "x.tar")


@pytest.mark.parametrize("size", [2**40, 2**33, -(2**33), -1, -512, -1024, 2**80])
def test_wrong_sizes_are_errors(tmp_path: Path, size: int) -> None:
    path = write_header(tmp_path / "x.tar", b"", 0, tarfile.REGTYPE, member_size=size)
    assert "expected a plain tar file" in fails(path)
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE, b"?"):
        assert "expected a plain tar file" in fails(write_header(tmp_path / "x.tar", b"", size, kind)), kind
    whole = write_tar(tmp_path / "y.tar", make_samples(3)).read_bytes()
    header = tarfile.TarInfo("b.png")
    header.size = size
    path.write_bytes(whole[:-10240] + header.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    assert "expected a plain tar file" in fails(path)


def test_endless_headers_are_errors(tmp_path: Path) -> None:
    extended = tarfile.TarInfo("x")
    extended.type = tarfile.XHDTYPE
    (tmp_path / "x.tar").write_bytes(extended.tobuf(tarfile.GNU_FORMAT) * 5000 + bytes(1024))
    assert "expected a plain tar file" in fails(tmp_path / "x.tar")
