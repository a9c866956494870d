"""Tests of commands/options.py.

How a user's words on a checkpoint are understood, and that it is read with them.
Figures as people read them.
The features that commands fit something to, against the model's own.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.test_predictor import draw_images, featurise_by_hand
from tests.formats import cases
from tests.formats.cases import assert_same_weights, forget, make_checkpoint, save_quietly
from tests.test_package import BLOCKS
from vitrine.commands.options import CheckpointOptions, FeatureOptions, format_estimate, format_percent, read_class_names
from vitrine.core.console import VitrineWarning
from vitrine.data.open_data import open_train_and_test
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import Features
from vitrine.evaluation.intervals import Estimate
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.config import Overrides


@pytest.fixture
def ours(tmp_path: Path) -> str:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "ours", "vitrine")
    return str(tmp_path / "ours")


def test_nothing_said_is_nothing_asked_for(ours: str) -> None:
    options = CheckpointOptions()
    assert (options.facts, options.size, options.names) == (Overrides(), None, None)
    checkpoint, expected = options.load(ours), make_checkpoint(cases.VIT)
    assert_same_weights(checkpoint.model, expected.model)
    assert (checkpoint.preprocessing, checkpoint.class_names) == (expected.preprocessing, expected.class_names)


def test_words_become_facts(tmp_path: Path) -> None:
    options = CheckpointOptions(gelu="erf", norm_eps=1e-5, num_heads=3, grid="14x20", preprocess="imagenet")
    assert options.facts == Overrides(gelu="erf", norm_eps=1e-5, num_heads=3, grid=(14, 20), preprocess="imagenet")
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
    code = "from vitrine.commands.options import CheckpointOptions; CheckpointOptions(image_size='big').load('nowhere')"
    result = subprocess.run([sys.executable, "-c", f"{BLOCKS['mark']}\n{code}"], capture_output=True, text=True)
    assert result.stderr.splitlines()[-1].startswith("ValueError: --image-size big must be one number")


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.8821, "88.21 %"), (0.0, "0.00 %"), (1.0, "100.00 %"), (1 / 3, "33.33 %"), (0.99999, "100.00 %"), (None, "")],
)
def test_a_share_is_per_cent(share: float | None, text: str) -> None:
    assert format_percent(share) == text


def test_a_figure_with_a_unit_is_a_hundred_times_as_much() -> None:
    assert format_estimate(Estimate(0.8821, 0.8, 1.0), "%") == ("88.21 %", "80.00 .. 100.00 %")
    assert format_estimate(Estimate(-0.015, -0.02, 0.001), "points") == ("-1.50 points", "-2.00 .. 0.10 points")


def test_a_figure_without_a_unit_is_as_it_is() -> None:
    assert format_estimate(Estimate(2.41196, 1.0, 3.00006)) == ("2.4120", "1.0000 .. 3.0001")


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_what_is_written_can_be_read_again(value: float, low: float, high: float) -> None:
    written, interval = format_estimate(Estimate(value, low, high), "%")
    assert float(written.removesuffix(" %")) == pytest.approx(100 * value, abs=0.005001)
    assert written == format_percent(value)
    ends = interval.removesuffix(" %").split(" .. ")
    assert list(map(float, ends)) == pytest.approx([100 * low, 100 * high], abs=0.005001)


pytestmark = pytest.mark.usefixtures("cache")

HERE = InferenceConfig(num_workers=0, batch_size=3)


def draw_classes(folder: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """Images in a folder for each class."""
    for number, (name, count) in enumerate(counts.items()):
        draw_images(folder / name, count, seed=100 * seed + number)
    return folder


def draw_divided(folder: Path, classes: Sequence[str], num_train: int, num_test: int, test: str = "test") -> Path:
    draw_classes(folder / "train", dict.fromkeys(classes, num_train), seed=1)
    draw_classes(folder / test, dict.fromkeys(classes, num_test), seed=2)
    return folder


def assert_features(found: Features, checkpoint: Checkpoint, files: Sequence[Path], labels: Sequence[int]) -> None:
    torch.testing.assert_close(found.values, featurise_by_hand(checkpoint, files))
    assert found.labels.tolist() == list(labels)
    assert found.index.tolist() == list(range(len(files)))


@pytest.mark.parametrize("test", ["test", "val"])
def test_divided_data_stays_divided(test: str, tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 2, test)
    checkpoint = make_checkpoint(cases.VIT)
    split = FeatureOptions(held_out=0.9, reading=HERE).compute(checkpoint, str(folder))
    assert split.num_classes == 2  # the data's, whatever the model's
    assert_features(split.train, checkpoint, sorted((folder / "train").rglob("*.png")), [0, 0, 0, 1, 1, 1])
    assert_features(split.test, checkpoint, sorted((folder / test).rglob("*.png")), [0, 0, 1, 1])


def test_some_of_the_images_are_fitted_to(tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 2)
    split = FeatureOptions(subset="2/class", reading=HERE).compute(make_checkpoint(cases.VIT), str(folder))
    assert (split.train.labels.tolist(), split.test.labels.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 1])


def test_of_what_is_not_divided_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    folder = draw_classes(tmp_path / "photos", {"ant": 4, "bee": 8})
    checkpoint = make_checkpoint(cases.VIT)
    split = FeatureOptions(held_out=0.25, reading=HERE).compute(checkpoint, str(folder), seed=3)
    sources = open_train_and_test(str(folder), 0.25, seed=3)
    for found, source in zip((split.train, split.test), sources, strict=True):
        files = [folder / source.name(index) for index in range(len(source))]
        assert_features(found, checkpoint, files, [int(file.parent.name == "bee") for file in files])
    assert split.train.labels.bincount().tolist() == [3, 6]
    other = FeatureOptions(held_out=0.25, reading=HERE).compute(checkpoint, str(folder), seed=4)
    assert not torch.equal(other.test.values, split.test.values)


def test_features_are_found_again_without_the_model_at_work(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint = make_checkpoint(cases.VIT)
    options = FeatureOptions(reading=HERE)
    first = options.compute(checkpoint, str(folder))
    assert len(list(cache.rglob("*.safetensors"))) == 2
    monkeypatch.setattr(checkpoint.model, "encode", lambda images: pytest.fail("the model was run"))
    second = options.compute(checkpoint, str(folder))
    assert torch.equal(first.train.values, second.train.values)
    assert torch.equal(first.test.values, second.test.values)


def test_labels_are_those_of_now(tmp_path: Path) -> None:
    """A class that was renamed is another number, and its features are the same."""
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint, options = make_checkpoint(cases.VIT), FeatureOptions(reading=HERE)
    first = options.compute(checkpoint, str(folder))
    for part in ("train", "test"):
        (folder / part / "ant").rename(folder / part / "cat")
    second = options.compute(checkpoint, str(folder))
    assert second.train.labels.tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(second.train.values, first.train.values[[2, 3, 0, 1]])


def test_without_a_cache_nothing_is_kept_nor_found(tmp_path: Path, cache: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint = make_checkpoint(cases.VIT)
    split = FeatureOptions(no_cache=True, reading=HERE).compute(checkpoint, str(folder))
    assert not cache.exists()
    FeatureOptions(reading=HERE).compute(checkpoint, str(folder))
    for path in cache.rglob("*.safetensors"):
        path.write_bytes(b"damaged")
    again = FeatureOptions(no_cache=True, reading=HERE).compute(checkpoint, str(folder))  # and no word on the damage
    assert torch.equal(again.train.values, split.train.values)


def test_two_images_of_two_classes_are_enough(tmp_path: Path) -> None:
    folder = draw_classes(tmp_path / "photos", {"ant": 1, "bee": 1})
    split = FeatureOptions(held_out=0.5, reading=HERE).compute(make_checkpoint(cases.VIT), str(folder))
    assert sorted([*split.train.labels.tolist(), *split.test.labels.tolist()]) == [0, 1]


def test_a_bad_image_stops_it_or_is_left_out(tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 1)
    (folder / "train" / "bee" / "1.png").write_text("no image")
    checkpoint = make_checkpoint(cases.VIT)
    skipping = FeatureOptions(reading=InferenceConfig(num_workers=0, bad_images="skip"))
    with pytest.warns(VitrineWarning, match=r"Skipped train/bee/1\.png"):
        split = skipping.compute(checkpoint, str(folder))
    assert split.train.index.tolist() == [0, 1, 2, 3, 5]
    assert split.train.labels.tolist() == [0, 0, 0, 1, 1]
    with pytest.warns(VitrineWarning, match=r"Without train/bee/1\.png"):
        again = skipping.compute(checkpoint, str(folder))  # from the cache
    assert (again.train.index.tolist(), again.train.labels.tolist()) == ([0, 1, 2, 3, 5], [0, 0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"train/bee/1\.png is not an image that can be read"):
        FeatureOptions(reading=HERE).compute(checkpoint, str(folder))  # what was kept does not hide it


def test_mistakes_are_said_in_a_sentence(tmp_path: Path) -> None:
    checkpoint, options = make_checkpoint(cases.VIT), FeatureOptions(reading=HERE)
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 1, 1)
    with pytest.raises(FileNotFoundError, match="There is no data at"):
        options.compute(checkpoint, str(tmp_path / "none"))
    for share in (0.0, 1.0, -1.0, 0.01):
        with pytest.raises(ValueError, match=f"held_out={share} of 2 images leaves one of the two parts empty"):
            FeatureOptions(held_out=share, reading=HERE).compute(checkpoint, str(folder / "train"))
    with pytest.raises(ValueError, match=r"one has one class only, ant, and nothing to tell it from: give two or more"):
        options.compute(checkpoint, str(draw_classes(tmp_path / "one", {"ant": 10})))
