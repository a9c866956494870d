"""How a user's words on a checkpoint are understood, and that it is read with them."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.formats import cases
from tests.formats.cases import assert_same_weights, forget, make_checkpoint, save_quietly
from tests.test_package import BLOCKS
from vitrine.commands.checkpoint import CheckpointOptions, read_class_names
from vitrine.formats.config import Facts


@pytest.fixture
def ours(tmp_path: Path) -> str:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "ours", "vitrine")
    return str(tmp_path / "ours")


def test_nothing_said_is_nothing_asked_for(ours: str) -> None:
    options = CheckpointOptions()
    assert (options.facts, options.size, options.names) == (Facts(), None, None)
    checkpoint, expected = options.load(ours), make_checkpoint(cases.VIT)
    assert_same_weights(checkpoint.model, expected.model)
    assert (checkpoint.preprocessing, checkpoint.class_names) == (expected.preprocessing, expected.class_names)


def test_words_become_facts(tmp_path: Path) -> None:
    options = CheckpointOptions(gelu="erf", norm_eps=1e-5, num_heads=3, grid="14x20", preprocess="imagenet")
    assert options.facts == Facts(gelu="erf", norm_eps=1e-5, num_heads=3, grid=(14, 20), preprocess="imagenet")
    assert CheckpointOptions(preprocess="inception").facts.preprocess == "inception"
    assert CheckpointOptions(preprocess="own.json").facts.preprocess == Path("own.json")


@pytest.mark.parametrize(("text", "size"), [("32", (32, 32)), ("32x44", (32, 44)), ("1", (1, 1))])
def test_a_size_is_one_number_or_two(text: str, size: tuple[int, int]) -> None:
    assert CheckpointOptions(image_size=text).size == size
    assert CheckpointOptions(grid=text).facts.grid == size


def test_a_bare_file_is_read_with_the_facts(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.OBLONG), tmp_path / "a.safetensors", "timm")
    forget(tmp_path / "a.safetensors")
    own = make_checkpoint(cases.OBLONG).preprocessing
    (tmp_path / "own.json").write_text(json.dumps(own.to_json()))
    options = CheckpointOptions(
        num_heads=2, gelu="erf", norm_eps=1e-6, grid="3x7", preprocess=str(tmp_path / "own.json"), image_size="12x28"
    )
    checkpoint = options.load(str(tmp_path / "a.safetensors"))  # without a notice: nothing is left to assume
    assert (checkpoint.model.config, checkpoint.preprocessing) == (cases.OBLONG, own)


def test_positions_are_resized_to_the_size(ours: str) -> None:
    checkpoint = CheckpointOptions(image_size="32x44").load(ours)
    assert checkpoint.model.config.image_size == checkpoint.preprocessing.crop == (32, 44)


def test_class_names_are_one_a_line_in_any_script(ours: str, tmp_path: Path) -> None:
    names = ("ant", "größe, weit", "猫", "  spaced ", "[bold]")
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    assert read_class_names(tmp_path / "names.txt") == names
    options = CheckpointOptions(class_names=tmp_path / "names.txt")
    assert options.load(ours).class_names == names
    (tmp_path / "names.txt").write_bytes("\r\n".join(names).encode())  # as Windows writes it, without a last line's end
    assert options.names == names


def test_class_names_replace_none_at_all(tmp_path: Path) -> None:
    save_quietly(replace(make_checkpoint(cases.VIT), class_names=None), tmp_path / "ours", "vitrine")
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\ne\n")
    checkpoint = CheckpointOptions(class_names=tmp_path / "names.txt").load(str(tmp_path / "ours"))
    assert checkpoint.class_names == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize("content", ["a\n", "a\nb\nc\nd\ne\n\nf\n", ""])
def test_as_many_names_as_classes_are_needed(content: str, ours: str, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text(content)
    count = len(content.splitlines())
    with pytest.raises(ValueError, match=f"^{count} class names do not fit a model of 5 classes: give one for each"):
        CheckpointOptions(class_names=tmp_path / "names.txt").load(ours)


def test_names_that_cannot_be_read_cost_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    for name in ("latin", "missing", "."):
        path = tmp_path / name
        with pytest.raises(
            ValueError, match=f"^--class-names {re.escape(str(path))} must be a text file with one name per line"
        ):
            read_class_names(path)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("image_size", "big", "--image-size big must be one number, as 224, or two"),
        ("image_size", "1x2x3", "--image-size 1x2x3 must be one number"),
        ("image_size", "-3", "--image-size -3 must be one number"),
        ("grid", "3x", "--grid 3x must be one number"),
        ("grid", "0", "grid=(0, 0) must be a tuple of whole numbers of at least 1"),
        ("num_heads", 0, "num_heads=0 must be above 0"),
        ("norm_eps", -1e-6, "norm_eps=-1e-06 must be above 0"),
        ("norm_eps", float("nan"), "norm_eps=nan must be a number"),
        ("class_names", Path("no.txt"), "--class-names no.txt must be a text file"),
    ],
)
def test_a_mistake_is_found_before_the_model_is_looked_for(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        CheckpointOptions(**{option: value}).load("nowhere")


def test_and_before_torch_is_imported() -> None:
    code = "from vitrine.commands.checkpoint import CheckpointOptions; CheckpointOptions(image_size='big').load('nowhere')"
    result = subprocess.run([sys.executable, "-c", f"{BLOCKS['mark']}\n{code}"], capture_output=True, text=True)
    assert result.stderr.splitlines()[-1].startswith("ValueError: --image-size big must be one number")
