"""`vitrine cache`: what a command cached is shown, and gone after --clear."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.cli import main


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number in range(4):
        folder = tmp_path / "pictures" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "pictures"


def run_cache(tmp_path: Path, *words: str) -> dict[str, int]:
    main(["cache", *words, "--json", str(tmp_path / "out.json")])
    return {each["kind"]: each["num_files"] for each in json.loads((tmp_path / "out.json").read_text())}


def test_show_and_clear(pictures: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "check", str(pictures)])
    main(["data", "pack", str(pictures), str(tmp_path / "packed"), "--size", "16"])
    main(["data", "check", str(tmp_path / "packed")])
    capsys.readouterr()
    assert run_cache(tmp_path) == {"features": 0, "glyphs": 0, "image-stats": 2, "verified": 1}
    shown = capsys.readouterr().out
    assert str(cache) in shown
    assert "image-stats" in shown
    assert run_cache(tmp_path, "--clear", "verified") == {"verified": 1}
    assert run_cache(tmp_path) == {"features": 0, "glyphs": 0, "image-stats": 2, "verified": 0}
    assert run_cache(tmp_path, "--clear") == {"features": 0, "glyphs": 0, "image-stats": 2, "verified": 0}
    assert run_cache(tmp_path) == {"features": 0, "glyphs": 0, "image-stats": 0, "verified": 0}


def test_an_unknown_cache_costs_a_sentence(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["cache", "--clear", "everything"])
    assert stop.value.code == 2
    assert "image-stats" in capsys.readouterr().err
