"""The examples as a reader calls them: by themselves, where they train a small model once, and with arguments of one's own."""

import ast
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitrine
from vitrine.formats import verify

Call = Callable[..., list[str]]

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = ("convert", "few_shot", "finetune", "look_inside", "predict")
IMAGES, MODEL = Path("runs/example-images"), Path("runs/example/model")

pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of them run, so that the model is trained by the first and found by the others."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(FOLDER)  # as Python itself does for a script


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(name: str, *arguments: object) -> list[str]:
        """The lines that it prints."""
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def small(call: Call) -> None:
    """The model and the images that are there once an example was called without arguments."""
    if not IMAGES.is_dir():
        call("predict")


def read_shares(lines: list[str]) -> list[float]:
    return [float(share) for line in lines for share in re.findall(r"([\d.]+)%", line)[:1]]


def test_every_example_is_tried_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*EXAMPLES, "small"}


def test_the_list_of_them_names_each() -> None:
    assert sorted(re.findall(r"`python examples/(\w+)\.py`", (FOLDER / "README.md").read_text())) == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_says_how_it_is_called(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    assert 15 <= len(text.splitlines()) <= 40
    assert f"\n    python examples/{name}.py [MODEL " in (ast.get_docstring(ast.parse(text)) or "")


def test_most_digits_are_recognised(call: Call) -> None:
    lines = call("predict")
    answers = [re.match(r".*/\d+-is-a-(\d)\.png: (\d) \d+%, ", line) for line in lines]
    assert len(answers) == len(list(IMAGES.glob("test/odd/*.png"))) > 10
    hits = [answer[1] == answer[2] for answer in answers if answer is not None]
    assert len(hits) == len(answers)
    assert sum(hits) > 0.6 * len(hits)  # chance is a tenth


def test_a_file_that_is_no_image_is_told_of(call: Call, small: None, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    good, bad = call("predict", MODEL, tmp_path / "good.png", tmp_path / "bad.png")
    assert good.startswith(f"{tmp_path}/good.png: ")
    assert bad.startswith("not read: ")
    assert "bad.png" in bad


def test_odd_and_even_are_told_apart_after_fine_tuning(call: Call) -> None:
    figure, classes = call("finetune")
    assert figure.startswith("160 images, 60 steps: top-1 ")
    assert read_shares([figure])[0] > 60
    assert classes == "runs/example-finetuned/model tells apart: even, odd"
    assert vitrine.load_checkpoint("runs/example-finetuned/model").class_names == ("even", "odd")


def test_a_folder_that_is_not_divided_is_measured_on_a_tenth(call: Call, small: None, tmp_path: Path) -> None:
    figure, _ = call("finetune", MODEL, IMAGES / "train", tmp_path / "out")
    assert figure.startswith("144 images, ")
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()


def test_more_shots_are_better_than_one(call: Call) -> None:
    lines = call("few_shot")
    assert [line.split(":")[0] for line in lines] == [f"{shots} images of each of 10 classes" for shots in (1, 5, 10)]
    one, _, ten = read_shares(lines)
    assert 40 < one < ten


def test_few_shot_takes_a_folder(call: Call, small: None) -> None:
    lines = call("few_shot", MODEL, IMAGES)
    assert all(" of each of 2 classes: " in line and line.endswith(" of 40") for line in lines)


def test_a_page_is_written_and_each_layer_has_its_line(call: Call) -> None:
    first, *layers, last = call("look_inside")
    assert re.fullmatch(r"it looks most at row [0-3], column [0-3] of its 4 x 4 patches", first)
    assert [line.split(":")[0] for line in layers] == ["layer 0", "layer 1"]
    assert last == "the page is runs/example-inside/index.html"
    assert Path("runs/example-inside/index.html").stat().st_size > 10_000  # figures and all
    assert "2-is-a-4.png" in Path("runs/example-inside/numbers.json").read_text()


def test_what_is_converted_is_the_same_network(call: Call) -> None:
    lines = call("convert")
    assert lines == ["runs/example.safetensors read by vitrine: logits differ by 0 at most"]
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(vitrine.load_model("runs/example.safetensors")(images), vitrine.load_model(MODEL)(images))
    assert "blocks.0.attn.qkv.weight" in Path("runs/example.safetensors").read_bytes()[:20_000].decode("latin-1")


def test_a_network_that_is_not_the_same_is_told_of(
    call: Call, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = vitrine.load_checkpoint(MODEL)
    other = vitrine.Checkpoint(vitrine.build_model(original.model.config), original.preprocessing, original.class_names, {})
    monkeypatch.setattr(verify, "load_checkpoint", lambda path: other)
    with pytest.raises(SystemExit, match="is not the same network"):
        call("convert", MODEL, tmp_path / "copy", "vitrine")


def test_an_unknown_format_costs_a_sentence(call: Call, small: None, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="onnx is no format; there are vitrine, "):
        call("convert", MODEL, tmp_path / "copy", "onnx")
