"""The examples run without arguments, on a small model that is trained once, and with arguments."""

import ast
import json
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

EXAMPLES_FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = ("convert", "few_shot", "finetune", "fit", "look_inside", "predict")
TOOLS = ("check_device", "small")  # longer, and without a MODEL to give
IMAGES, MODEL = Path("runs/example-images"), Path("runs/example/model")

pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of all examples: the first trains the model, the others reuse it."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(EXAMPLES_FOLDER)  # as Python itself does for a script


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(name: str, *arguments: object) -> list[str]:
        """Run an example and return the lines it prints."""
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        runpy.run_path(str(EXAMPLES_FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def small(call: Call) -> None:
    """Make the model and the images, by calling an example without arguments."""
    if not IMAGES.is_dir():
        call("predict")


def read_percentages(lines: list[str]) -> list[float]:
    return [float(percent) for line in lines for percent in re.findall(r"([\d.]+)%", line)[:1]]


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES_FOLDER.glob("*.py")} == {*EXAMPLES, *TOOLS}


def test_the_readme_lists_every_example() -> None:
    assert sorted(re.findall(r"`python examples/(\w+)\.py`", (EXAMPLES_FOLDER / "README.md").read_text())) == sorted(
        [*EXAMPLES, "check_device"]
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_documents_its_call(name: str) -> None:
    text = (EXAMPLES_FOLDER / f"{name}.py").read_text()
    assert 15 <= len(text.splitlines()) <= 40
    assert f"\n    python examples/{name}.py [MODEL " in (ast.get_docstring(ast.parse(text)) or "")
    assert "vitrine.commands" not in text


def test_a_cpu_is_equal_to_itself(call: Call) -> None:
    machine, *checks, last = call("check_device", "cpu", 10)
    assert machine.startswith("cpu, ")
    assert len(checks) == 19
    assert [line for line in checks if not line.startswith("ok  ")] == []
    assert sum("0.0e+00" in line for line in checks) == 7  # bit-equal: first losses, resuming, inspection
    assert last == "Written to runs/check-device/device-check.json."
    assert len(json.loads(Path("runs/check-device/device-check.json").read_text())["checks"]) == 19


def test_most_digits_are_predicted_correctly(call: Call) -> None:
    lines = call("predict")
    predictions = [re.match(r".*/\d+-is-a-(\d)\.png: (\d) \d+%, ", line) for line in lines]
    assert len(predictions) == len(list(IMAGES.glob("test/odd/*.png"))) > 10
    hits = [match[1] == match[2] for match in predictions if match is not None]
    assert len(hits) == len(predictions)
    assert sum(hits) > 0.6 * len(hits)  # chance: 0.1


def test_an_unreadable_file_is_reported(call: Call, small: None, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    good, bad = call("predict", MODEL, tmp_path / "good.png", tmp_path / "bad.png")
    assert good.startswith(f"{tmp_path}/good.png: ")
    assert "bad.png" in bad


def test_finetuning_learns_odd_and_even(call: Call) -> None:
    accuracy, classes = call("finetune")
    assert accuracy.startswith("160 images, 60 steps: top-1 ")
    assert read_percentages([accuracy])[0] > 60
    assert classes.endswith("even, odd")
    assert vitrine.load_checkpoint("runs/example-finetuned/model").class_names == ("even", "odd")


def test_a_fit_tells_its_steps_and_accuracy(call: Call) -> None:
    lines = call("fit")
    accuracy = next(line for line in lines if line.startswith("top-1 "))
    assert read_percentages([accuracy])[0] > 60
    assert sum(line.endswith("kept") for line in lines) == 1
    assert vitrine.load_checkpoint("runs/example-fitted/model").class_names == ("even", "odd")


def test_a_tenth_of_undivided_data_is_held_out(call: Call, small: None, tmp_path: Path) -> None:
    accuracy, _ = call("finetune", MODEL, IMAGES / "train", tmp_path / "out")
    assert accuracy.startswith("144 images, ")
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()


def test_more_shots_are_better_than_one(call: Call) -> None:
    lines = call("few_shot")
    assert [line.split(":")[0] for line in lines] == [f"{shots} images per class" for shots in (1, 5, 10)]
    one, _, ten = read_percentages(lines)
    assert 40 < one < ten


def test_few_shot_takes_a_folder(call: Call, small: None) -> None:
    lines = call("few_shot", MODEL, IMAGES)
    assert len(lines) == 3
    assert all("of 40 test images" in line for line in lines)


def test_inspection_writes_a_page_and_prints_each_layer(call: Call) -> None:
    first, *layers, last = call("look_inside")
    assert re.search(r"row [0-3], column [0-3] of 4 x 4 patches", first)
    assert [line.split(":")[0] for line in layers] == ["layer 0", "layer 1"]
    assert last.endswith("runs/example-inside/index.html")
    assert Path("runs/example-inside/index.html").stat().st_size > 10_000  # figures are embedded
    assert "2-is-a-4.png" in Path("runs/example-inside/numbers.json").read_text()


def test_a_converted_model_is_the_same_network(call: Call) -> None:
    (line,) = call("convert")
    assert line.startswith("runs/example.safetensors read by vitrine")
    assert line.endswith(" 0")
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(vitrine.load_model("runs/example.safetensors")(images), vitrine.load_model(MODEL)(images))
    assert "blocks.0.attn.qkv.weight" in Path("runs/example.safetensors").read_bytes()[:20_000].decode("latin-1")


def test_a_different_network_is_an_error(call: Call, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = vitrine.load_checkpoint(MODEL)
    other = vitrine.Checkpoint(vitrine.build_model(original.model.config), original.preprocessing, original.class_names, {})
    monkeypatch.setattr(verify, "load_checkpoint", lambda path: other)
    with pytest.raises(SystemExit, match="is not the same network"):
        call("convert", MODEL, tmp_path / "copy", "vitrine")


def test_an_unknown_format_is_an_error(call: Call, small: None, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"onnx.*vitrine, "):
        call("convert", MODEL, tmp_path / "copy", "onnx")
