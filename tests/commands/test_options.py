"""Options on a checkpoint are parsed and applied; percentages and intervals are formatted for tables."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats import cases
from tests.formats.cases import assert_same_weights, forget, make_checkpoint, save_quietly
from tests.test_package import BLOCK_TORCH
from vitrine.commands.options import CheckpointOptions, format_estimate, format_percent, read_class_names
from vitrine.core.console import VitrineWarning
from vitrine.evaluation.intervals import Estimate
from vitrine.formats.config import Overrides


@pytest.fixture
def saved(tmp_path: Path) -> str:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "saved", "vitrine")
    return str(tmp_path / "saved")


def test_without_options_the_checkpoint_is_loaded_unchanged(saved: str) -> None:
    options = CheckpointOptions()
    assert options.overrides == Overrides()
    checkpoint, expected = options.load(saved), make_checkpoint(cases.VIT)
    assert_same_weights(checkpoint.model, expected.model)
    assert (checkpoint.preprocessing, checkpoint.class_names) == (expected.preprocessing, expected.class_names)


def test_options_become_overrides() -> None:
    options = CheckpointOptions(gelu="quick", norm_eps=1e-5, num_heads=3, grid="14x20", pool="first", preprocess="imagenet")
    expected = Overrides(gelu="quick", norm_eps=1e-5, num_heads=3, grid=(14, 20), pool="first", preprocess="imagenet")
    assert options.overrides == expected
    assert CheckpointOptions(preprocess="inception").overrides.preprocess == "inception"
    assert CheckpointOptions(preprocess="own.json").overrides.preprocess == Path("own.json")


def test_a_bare_file_is_loaded_with_the_overrides(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.OBLONG), tmp_path / "a.safetensors", "timm")
    forget(tmp_path / "a.safetensors")
    own = make_checkpoint(cases.OBLONG).preprocessing
    (tmp_path / "own.json").write_text(json.dumps(own.to_json()))
    options = CheckpointOptions(
        num_heads=2, gelu="erf", norm_eps=1e-6, grid="3x7", preprocess=str(tmp_path / "own.json"), image_size="12x28"
    )
    checkpoint = options.load(str(tmp_path / "a.safetensors"))  # without a warning: nothing is left to assume
    assert (checkpoint.model.config, checkpoint.preprocessing) == (cases.OBLONG, own)


@pytest.mark.parametrize(("text", "size"), [("32x44", (32, 44)), ("32", (32, 32))])
def test_positions_are_resized_to_the_image_size(text: str, size: tuple[int, int], saved: str) -> None:
    checkpoint = CheckpointOptions(image_size=text).load(saved)
    assert checkpoint.model.config.image_size == checkpoint.preprocessing.crop == size


def test_class_names_are_one_per_line_in_any_script(saved: str, tmp_path: Path) -> None:
    names = ("ant", "größe, weit", "猫", "  spaced ", "[bold]")
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    assert read_class_names(tmp_path / "names.txt") == names
    with pytest.warns(VitrineWarning, match="replace"):
        assert CheckpointOptions(class_names=tmp_path / "names.txt").load(saved).class_names == names
    (tmp_path / "names.txt").write_bytes("\r\n".join(names).encode())  # Windows line ends, none at the end
    assert read_class_names(tmp_path / "names.txt") == names


def test_class_names_can_be_added_to_a_checkpoint_without_any(tmp_path: Path) -> None:
    save_quietly(replace(make_checkpoint(cases.VIT), class_names=None), tmp_path / "saved", "vitrine")
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\ne\n")
    checkpoint = CheckpointOptions(class_names=tmp_path / "names.txt").load(str(tmp_path / "saved"))
    assert checkpoint.class_names == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize("content", ["a\n", "a\nb\nc\nd\ne\n\nf\n", ""])
def test_the_number_of_class_names_must_be_the_model_s(content: str, saved: str, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text(content)
    with pytest.raises(ValueError, match=f"{len(content.splitlines())} .*5 classes"):
        CheckpointOptions(class_names=tmp_path / "names.txt").load(saved)


def test_class_names_that_are_not_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    for name in ("latin", "missing", "."):
        with pytest.raises(ValueError, match=f"--class-names {re.escape(str(tmp_path / name))}"):
            read_class_names(tmp_path / name)


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("image_size", "big", "--image-size big"),
        ("image_size", "1x2x3", "--image-size 1x2x3"),
        ("image_size", "-3", "--image-size -3"),
        ("grid", "3x", "--grid 3x"),
        ("grid", "0", "grid=(0, 0)"),
        ("num_heads", 0, "num_heads=0"),
        ("norm_eps", -1e-6, "norm_eps=-1e-06"),
        ("norm_eps", float("nan"), "norm_eps=nan"),
        ("class_names", Path("no.txt"), "--class-names no.txt"),
    ],
)
def test_a_mistake_is_found_before_the_model_is_loaded(option: str, value: object, named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        CheckpointOptions(**{option: value}).load("nowhere")


def test_a_mistake_is_found_before_torch_is_imported() -> None:
    code = "from vitrine.commands.options import CheckpointOptions; CheckpointOptions(image_size='big').load('nowhere')"
    result = subprocess.run([sys.executable, "-c", f"{BLOCK_TORCH}\n{code}"], capture_output=True, text=True)
    assert result.stderr.splitlines()[-1].startswith("ValueError: --image-size big")


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.8821, "88.21 %"), (0.0, "0.00 %"), (1.0, "100.00 %"), (1 / 3, "33.33 %"), (0.99999, "100.00 %"), (None, "")],
)
def test_a_fraction_is_shown_as_percent(fraction: float | None, text: str) -> None:
    assert format_percent(fraction) == text


def test_an_estimate_with_a_unit_is_multiplied_by_100() -> None:
    assert format_estimate(Estimate(0.8821, 0.8, 1.0), "%") == ("88.21 %", "80.00 .. 100.00 %")
    assert format_estimate(Estimate(-0.015, -0.02, 0.001), "points") == ("-1.50 points", "-2.00 .. 0.10 points")
    assert format_estimate(Estimate(2.41196, 1.0, 3.00006)) == ("2.4120", "1.0000 .. 3.0001")
    assert format_estimate(Estimate(0.5, None, None), "%") == ("50.00 %", "")


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_formatted_estimates_parse_to_their_values(value: float, low: float, high: float) -> None:
    written, interval = format_estimate(Estimate(value, low, high), "%")
    assert float(written.removesuffix(" %")) == pytest.approx(100 * value, abs=0.005001)
    ends = interval.removesuffix(" %").split(" .. ")
    assert list(map(float, ends)) == pytest.approx([100 * low, 100 * high], abs=0.005001)
