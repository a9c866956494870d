"""`vitrine data duplicates` as a user calls it."""

import json
import re
from pathlib import Path

import pytest

from tests.data.pictures import draw_picture, encode, write_picture
from vitrine.cli import main
from vitrine.data.subsets import read_exclude_list


@pytest.fixture
def folders(tmp_path: Path, cache: Path) -> tuple[str, str]:
    for number in range(6):
        write_picture(tmp_path / "web" / "all" / f"{number}.jpg", number)
        write_picture(tmp_path / "bench" / "test" / "cat" / f"{number}.jpg", 10 + number)
        write_picture(tmp_path / "bench" / "train" / "cat" / f"{number}.jpg", number)  # not what is tested on
    (tmp_path / "web" / "all" / "same.jpg").write_bytes((tmp_path / "bench" / "test" / "cat" / "2.jpg").read_bytes())
    (tmp_path / "web" / "all" / "small.jpg").write_bytes(encode(draw_picture(13).resize((64, 48))))
    (tmp_path / "web" / "all" / "bad.jpg").write_bytes(b"nothing")
    return str(tmp_path / "web"), str(tmp_path / "bench")


def test_what_is_in_the_test_set_is_listed(
    folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["data", "duplicates", *folders, "--out", str(tmp_path / "list.txt"), "--json", str(tmp_path / "pairs.json")])
    out = capsys.readouterr().out
    assert re.search(r"pre-training +9 +1 pairs +1 pairs +2", out)
    assert re.search(r"test +6 +2", out)
    assert "all/same.jpg = test/cat/2.jpg" in out
    assert "1 images of" in out
    assert "unreadable" in out
    assert read_exclude_list(tmp_path / "list.txt") == {"all/same.jpg", "all/small.jpg"}
    pairs = json.loads((tmp_path / "pairs.json").read_text())["pairs"]
    assert [(pair["image"], pair["test_image"], pair["same_bytes"]) for pair in pairs] == [
        ("all/same.jpg", "test/cat/2.jpg", True),
        ("all/small.jpg", "test/cat/3.jpg", False),
    ]


def test_other_splits_can_be_compared(folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "duplicates", *folders, "--test-split", "train"])
    assert re.search(r"pre-training +9 +6 pairs", capsys.readouterr().out)


def test_the_list_leaves_images_out_of_a_run(folders: tuple[str, str], tmp_path: Path) -> None:
    from vitrine.data.config import DataConfig
    from vitrine.data.open_data import open_train_data

    main(["data", "duplicates", *folders, "--out", str(tmp_path / "list.txt")])
    source, _ = open_train_data(DataConfig(source=folders[0], exclude=tmp_path / "list.txt"))
    names = [source.name(number) for number in range(len(source))]
    assert names == [*(f"all/{number}.jpg" for number in range(6)), "all/bad.jpg"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere", "digits"), "nowhere does not exist"),
        (("digits", "digits", "--split", "other"), "no split 'other'"),
        (("digits", "digits", "--out", "."), "it is a folder"),
    ],
)
def test_a_mistake_costs_a_sentence(arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["data", "duplicates", *arguments])
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err
