"""`vitrine data pack` as a user runs it: what it prints, what it writes, its mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.core.test_console import Terminal, show_on
from tests.data.sources.test_packed import make_packed
from tests.test_package import BLOCK_TORCH
from vitrine.cli import main
from vitrine.data.open_data import find_data


def make_folder(folder: Path, size: tuple[int, int] = (40, 30)) -> Path:
    """An image folder with splits and classes, of which a user packs most."""
    for split, count in (("train", 4), ("val", 2)):
        for label in ("ant", "bee"):
            (folder / split / label).mkdir(parents=True)
            for index in range(count):
                pixels = np.random.default_rng(index).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{index}.png")
    return folder


def fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["data", "pack", *map(str, arguments)])
    assert stop.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("vitrine: ")
    assert output.err.count("\n") == 1
    return output.err


def test_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = make_folder(tmp_path / "images"), tmp_path / "packed"
    main(["data", "pack", str(folder), str(out), "--size", "12", "--json", str(tmp_path / "report.json")])
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert output.err == ""
    assert lines[0].split() == ["split", "images", "skipped", "size", "images", "per", "second"]
    assert [line.split()[:5] for line in lines[1:]] == [["train", "8", "0", "4.61", "kB"], ["val", "4", "0", "2.3", "kB"]]
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["data"], report["out"], report["size"]) == (str(folder), str(out), 12)
    assert [(part["split"], part["num_images"], part["num_skipped"], part["num_bytes"]) for part in report["splits"]] == [
        ("train", 8, 0, 8 * 12 * 16 * 3),
        ("val", 4, 0, 4 * 12 * 16 * 3),
    ]
    source = find_data(out).open("val")
    assert source.class_names == ("ant", "bee")
    assert source.name(3) == "val/bee/1.png"


def test_a_packed_set_is_data_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "pack", str(make_packed(tmp_path)), str(tmp_path / "again"), "--size", "4", "--channels", "1"])
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [["train", "6"], ["val", "3"]]
    assert find_data(tmp_path / "again").open("val").fetch(2).shape == (4, 6, 1)


def test_built_in_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "pack", "digits", str(tmp_path / "digits"), "--size", "8", "--splits", "test", "--channels", "1"])
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["test", "360", "0"]
    packed, digits = find_data(tmp_path / "digits").open("test"), find_data("digits").open("test")
    np.testing.assert_array_equal(packed.read_block(np.arange(360)), digits.read_block(np.arange(360)))


def test_bad_images_are_counted_or_stop_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = make_folder(tmp_path / "images"), tmp_path / "packed"
    (folder / "train" / "bee" / "2.png").write_bytes(b"not a picture")
    assert "vitrine: train/bee/2.png is not a readable image" in fail(capsys, folder, out, "--size", "8")
    assert os.listdir(tmp_path) == ["images"]
    main(["data", "pack", str(folder), str(out), "--size", "8", "--bad-images", "skip"])
    output = capsys.readouterr()
    assert output.err == "Warning: Skipped train/bee/2.png: cannot be read (1 of 8 images).\n"
    assert output.out.splitlines()[1].split()[:3] == ["train", "7", "1"]
    assert len(find_data(out).open("train")) == 7


def test_what_exists_is_not_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, out = make_packed(tmp_path), tmp_path / "out"
    main(["data", "pack", str(packed), str(out), "--size", "4"])
    before = (out / "images.bin").read_bytes()
    assert fail(capsys, packed, out, "--size", "3") == f"vitrine: {out} exists: choose another name, or add --overwrite.\n"
    assert (out / "images.bin").read_bytes() == before
    main(["data", "pack", str(packed), str(out), "--size", "3", "--overwrite"])
    assert len((out / "images.bin").read_bytes()) < len(before)


def test_what_is_not_ours_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = make_packed(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "baby.jpg").write_text("precious")
    (tmp_path / "notes.txt").write_text("precious")
    for name in ("photos", "notes.txt", "files"):
        assert "holds other files" in fail(capsys, packed, tmp_path / name, "--size", "4", "--overwrite")
    assert (tmp_path / "photos" / "baby.jpg").read_text() == (tmp_path / "notes.txt").read_text() == "precious"


def test_mistakes_cost_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, out = make_packed(tmp_path), tmp_path / "out"
    assert "size=0 must be at least 1" in fail(capsys, packed, out, "--size", "0")
    assert "--size" in fail(capsys, packed, out)
    assert "'x'" in fail(capsys, packed, out, "--size", "x")
    assert "num_channels=2 must be 1 (grey) or 3" in fail(capsys, packed, out, "--size", "4", "--channels", "2")
    assert "no split 'test'" in fail(capsys, packed, out, "--size", "4", "--splits", "test")
    assert "--bad-images" in fail(capsys, packed, out, "--size", "4", "--bad-images", "ignore")
    assert "the folder" in fail(capsys, packed, tmp_path / "gone" / "out", "--size", "4")
    assert "the folder" in fail(capsys, packed, out, "--size", "4", "--json", tmp_path / "gone" / "report.json")
    assert "gone" in fail(capsys, tmp_path / "gone", out, "--size", "4")
    assert not out.exists()


def test_a_packed_set_that_was_cut_short_is_not_packed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = make_packed(tmp_path)
    (packed / "images.bin").write_bytes(b"short")
    assert "5 bytes" in fail(capsys, packed, tmp_path / "out", "--size", "4")


def test_changes_of_the_data_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = make_packed(tmp_path)
    os.utime(tmp_path / "files" / "train" / "ant" / "0.png", (1, 1))
    main(["data", "pack", str(packed), str(tmp_path / "out"), "--size", "4", "--splits", "train"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Warning: {tmp_path / 'files'} has changed since it was packed into {packed} (")


def test_progress_is_shown_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = make_packed(tmp_path)
    screen = show_on(Terminal(), monkeypatch)
    main(["data", "pack", str(packed), str(tmp_path / "out"), "--size", "4"])
    assert "6/6" in screen.getvalue()


def test_help_and_mistakes_need_no_torch(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = f"{BLOCK_TORCH}\nfrom vitrine.cli import main; main({['data', 'pack', *arguments]!r})"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    result = run("--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "usage: vitrine data pack" in result.stdout
    result = run("digits", str(tmp_path), "--size", "4")
    assert (result.returncode, result.stderr) == (2, f"vitrine: {tmp_path} exists: choose another name, or add --overwrite.\n")


def test_packing_needs_no_torch(tmp_path: Path) -> None:
    """It reads and writes pixels: nobody should wait for torch."""
    packed = make_packed(tmp_path)
    arguments = ["data", "pack", str(packed), str(tmp_path / "out"), "--size", "4"]
    code = f"{BLOCK_TORCH}\nfrom vitrine.cli import main; main({arguments!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(find_data(tmp_path / "out").open("train")) == 6
