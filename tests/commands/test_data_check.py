"""`vitrine data check` as a user calls it."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.data.pictures import draw_picture, encode, write_classes
from vitrine.cli import main
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.subsets import read_exclude_list


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    return write_classes(tmp_path / "data", {"train": 3, "test": 2})


def run(*arguments: str) -> int:
    try:
        main(["data", "check", *arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_clean_data_ends_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(folder)) == 0
    out = capsys.readouterr().out
    assert re.search(r"train +6 +2 +3 \(cat\) +3 \(dog\) +96, 96, 96", out)
    assert "No problems found." in out


def test_what_is_only_worth_a_look_ends_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "train" / "cat" / "grey.png"
    Image.new("RGB", (96, 96), (90, 90, 90)).save(path)
    assert run(str(folder)) == 0
    assert re.search(r"suspicious +1 +worth a look", capsys.readouterr().out)


def test_what_is_wrong_is_said_shown_and_listed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train" / "cat" / "leak.jpg").write_bytes((folder / "test" / "cat" / "0.jpg").read_bytes())
    (folder / "train" / "dog" / "bad.jpg").write_bytes(b"nothing")
    files = [str(tmp_path / name) for name in ("page.html", "list.txt", "all.json")]
    assert run(str(folder), "--page", files[0], "--leave-out", files[1], "--json", files[2]) == 1
    out = capsys.readouterr().out
    assert re.search(r"unreadable +1 +error", out)
    assert re.search(r"in two splits +1 +error", out)
    assert "  train/cat/leak.jpg = test/cat/0.jpg: identical bytes, in both test and train" in out
    assert re.search(r"\b2 training images .*--data\.exclude", out)
    assert read_exclude_list(tmp_path / "list.txt") == {"train/cat/leak.jpg", "train/dog/bad.jpg"}
    content = json.loads((tmp_path / "all.json").read_text())
    assert content["is_clean"] is False
    assert [finding["kind"] for finding in content["findings"]] == ["unreadable", "in two splits"]
    assert content["findings"][1]["images"][0] == {"name": "train/cat/leak.jpg", "split": "train", "classes": ["cat"]}
    assert content["splits"][0] == {"split": "train", "num_images": 8, "classes": {"cat": 4, "dog": 4}}
    assert "leak.jpg" in (tmp_path / "page.html").read_text()


def test_a_crowd_of_copies_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One picture in many compressions, in train and in test: the JSON and the list name all copies, the terminal a few."""
    for split, qualities in (("train", range(30, 90)), ("test", range(90, 50, -1))):
        for quality in qualities:
            (folder / split / "cat" / f"crowd-{quality}.jpg").write_bytes(encode(draw_picture(99), quality))
    assert run(str(folder), "--leave-out", str(tmp_path / "list.txt"), "--json", str(tmp_path / "all.json")) == 1
    assert re.search(r"in two splits +1 +error", out := capsys.readouterr().out)
    assert re.search(r"crowd-30.jpg = .* = .. and 94 more", out)
    (finding,) = json.loads((tmp_path / "all.json").read_text())["findings"]
    assert len({image["name"] for image in finding["images"]}) == 100
    assert read_exclude_list(tmp_path / "list.txt") == {f"train/cat/crowd-{quality}.jpg" for quality in range(30, 90)}


def test_a_model_doubts_labels(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vitrine.formats.save import save_model
    from vitrine.models.registry import build_model

    model = build_model("ViT-Ti/16", image_size=32, depth=1, width=32, num_heads=2, mlp_dim=32, num_classes=2)
    save_model(model, tmp_path / "model", preprocessing=Preprocessing(resize=32, crop=(32, 32)))
    assert run(str(folder), "--model", str(tmp_path / "model")) == 0
    assert "split" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere",), "nowhere does not exist"),
        (("shapes", "--json", "."), "it is a folder"),
        (("digits", "--json", "same", "--page", "same"), "the same file"),
        (("digits", "--model", "missing"), "missing"),
    ],
)
def test_a_mistake_costs_a_sentence(arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_no_image_for_the_model_to_see(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vitrine.formats.save import save_model
    from vitrine.models.registry import build_model

    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "bad.jpg").write_bytes(b"nothing")
    model = build_model("ViT-Ti/16", image_size=32, depth=1, width=32, num_heads=2, mlp_dim=32, num_classes=2)
    save_model(model, tmp_path / "model", preprocessing=Preprocessing(resize=32, crop=(32, 32)))
    assert run(str(tmp_path / "data"), "--model", str(tmp_path / "model")) == 1
    output = capsys.readouterr()
    assert "no image can be read" in output.err
    assert re.search(r"unreadable +2 +error", output.out)


def test_names_are_printed_on_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train" / "cat" / "a\nb.jpg").write_bytes((folder / "train" / "cat" / "0.jpg").read_bytes())
    assert run(str(folder), "--leave-out", str(tmp_path / "list.txt"), "--json", str(tmp_path / "all.json")) == 2
    output = capsys.readouterr()
    assert "a\\nb.jpg" in output.out
    assert "rename" in output.err
    assert (tmp_path / "all.json").is_file()


@pytest.mark.parametrize(
    "words",
    [
        ("--gelu", "erf"),
        ("--num-heads", 2),
        ("--image-size", 64),
        ("--batch-size", 8),
        ("--num-workers", 0),
        ("--no-cache",),
        ("--device", "cpu"),
    ],
    ids=lambda words: words[0],
)
def test_options_of_the_model_need_a_model(words: tuple[object, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["data", "check", "digits", *map(str, words)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert words[0] in error
    assert "--model" in error
