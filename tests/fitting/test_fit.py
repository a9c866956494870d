"""Fits of small folders from beginning to end: what is written, what is refused, and what the time allows."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from tests.fitting.colours import save_tiny, write_colours, write_divided
from vitrine.core.console import VitrineWarning
from vitrine.core.locks import exclusive_lock
from vitrine.evaluation.classification_report import evaluate
from vitrine.evaluation.predictor import predict
from vitrine.fitting import fit as module
from vitrine.fitting import ladder
from vitrine.fitting.config import FitConfig
from vitrine.fitting.fit import fit
from vitrine.fitting.folder import FitFolder
from vitrine.fitting.result import FitResult
from vitrine.fitting.state import FitState
from vitrine.formats.load import load_checkpoint

QUICK = FitConfig(minutes=0, num_workers=0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_divided(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def fitted(tiny: str, divided: Path, tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    return fit(divided, tiny, tmp_path_factory.mktemp("fit") / "out", QUICK, show_progress=False)


def test_the_model_is_a_checkpoint_like_any_other(fitted: FitResult, divided: Path) -> None:
    checkpoint = load_checkpoint(fitted.out / "model")
    assert checkpoint.class_names == ("blue", "green", "red")
    assert checkpoint.calibration.temperature != 1
    assert json.loads((fitted.out / "model" / "config.json").read_text())["format"] == 2
    report = evaluate(fitted.out / "model", divided).report
    assert report.top1 == fitted.result.report.top1
    assert report.top1.value > 0.9
    found = predict(str(fitted.out / "model"), divided / "test" / "red" / "000.png").predictions[0]
    assert found.classes[0] == "red"


def test_the_steps_are_told(fitted: FitResult) -> None:
    assert fitted.is_tested
    assert [step.outcome for step in fitted.steps].count("kept") == 1
    assert fitted.expected.low is not None
    assert fitted.expected.low <= fitted.result.report.top1.value
    names = [part.name for part in fitted.parts]
    assert names[0] == "looking at the images"
    assert {"features", "heads", "test"} <= set(names)
    numbers = json.loads((fitted.out / "report.json").read_text())
    assert numbers["is_tested"] is True


def test_twenty_photos_are_enough(tiny: str, tmp_path: Path) -> None:
    data = write_colours(tmp_path / "photos", dict.fromkeys(("red", "green", "blue", "grey", "white"), 4), noise=10)
    result = fit(data, tiny, tmp_path / "out", QUICK, show_progress=False)
    assert result.result.report.num_images == 20
    assert result.contest is None  # too few to hold any out


def test_uneven_classes_are_balanced_where_that_helps(tiny: str, tmp_path: Path) -> None:
    data = write_colours(tmp_path / "photos", {"red": 200, "grey": 10}, noise=70)
    results = {
        balance: fit(data, tiny, tmp_path / balance, FitConfig(minutes=0, balance=balance, num_workers=0), show_progress=False)
        for balance in ("off", "auto")
    }
    macro = {
        balance: np.mean([each.top1.value for each in result.result.report.classes]) for balance, result in results.items()
    }
    assert macro["auto"] > macro["off"]
    assert "balanced classes" in results["auto"].steps[-1].detail


def test_unreadable_and_leaked_images_are_left_out(tiny: str, tmp_path: Path) -> None:
    data = write_divided(tmp_path / "photos")
    shutil.copy(data / "test" / "red" / "000.png", data / "train" / "red" / "copy.png")
    (data / "train" / "green" / "broken.png").write_bytes(b"not an image")
    result = fit(data, tiny, tmp_path / "out", QUICK, show_progress=False)
    left_out = {reason: [Path(name).name for name in names] for reason, names in result.images.left_out.items()}
    assert left_out == {"cannot be read": ["broken.png"], "also in the test split": ["copy.png"]}
    assert len(result.images.train) == 90


@pytest.mark.parametrize("max_framed", [ladder.MAX_FRAMED, 10])
def test_the_whole_image_is_chosen_where_the_centre_says_nothing(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_framed: int
) -> None:
    """Tall images, grey in the middle: the colour of the class is at the top and at the bottom.

    With many classes, more images are looked at than otherwise: two of each.
    """
    monkeypatch.setattr(ladder, "MAX_FRAMED", max_framed)
    generator = np.random.default_rng(0)
    for name, colour in (("red", (230, 30, 30)), ("blue", (30, 30, 230)), ("green", (30, 230, 30))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(50):
            pixels = generator.normal(128, 40, (96, 24, 3))
            pixels[:24] = pixels[-24:] = np.array(colour) + generator.normal(0, 40, (24, 24, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(tmp_path / "photos" / name / f"{number}.png")
    model = load_checkpoint(tiny)
    cropping = model.preprocessing.with_framing("crop")
    path = tmp_path / "cropping"
    from dataclasses import replace

    from vitrine.formats.save import save_checkpoint

    save_checkpoint(replace(model, preprocessing=cropping), path)
    result = fit(tmp_path / "photos", str(path), tmp_path / "out", QUICK, show_progress=False)
    assert load_checkpoint(result.out / "model").preprocessing.framing in ("letterbox", "squash")
    assert result.result.report.top1.value > 0.95
    forced = fit(
        tmp_path / "photos",
        str(path),
        tmp_path / "crop",
        FitConfig(minutes=0, framing="crop", num_workers=0),
        show_progress=False,
    )
    assert load_checkpoint(forced.out / "model").preprocessing.framing == "crop"
    assert forced.result.report.top1.value < 0.7


@pytest.mark.full  # half a minute
def test_letterbox_is_chosen_where_proportions_tell_classes_apart(assets: Path, cache: Path, tmp_path: Path) -> None:
    """Portraits of several heights, with an ellipse at an edge: a squash hides how wide it is, a crop cuts it off."""
    generator = np.random.default_rng(0)
    for name, ratio in (("tall", 1.7), ("round", 1.0), ("wide", 1 / 1.7)):
        (tmp_path / "ellipses" / name).mkdir(parents=True)
        for number in range(36):
            height = round(200 * generator.uniform(1.2, 3))
            image = Image.new("RGB", (200, height), tuple(generator.integers(60, 200, 3).tolist()))
            width = generator.uniform(70, 100) / ratio**0.5
            left, top = generator.uniform(0, 200 - width), generator.choice([0, height - width * ratio])
            box = (left, top, left + width, top + width * ratio)
            ImageDraw.Draw(image).ellipse(box, fill=tuple(generator.integers(0, 256, 3).tolist()))
            image.save(tmp_path / "ellipses" / name / f"{number}.png")
    model = str(assets / "deit-tiny" / "model.safetensors")
    config = FitConfig(minutes=0, image_size=224, num_workers=0)  # no larger images are tried
    with pytest.warns(VitrineWarning, match="assuming"):
        result = fit(tmp_path / "ellipses", model, tmp_path / "out", config, show_progress=False)
    assert load_checkpoint(result.out / "model").preprocessing.framing == "letterbox"


def test_another_image_size_and_seed(tiny: str, divided: Path, tmp_path: Path) -> None:
    config = FitConfig(minutes=0, image_size=24, seed=1, num_workers=0)
    result = fit(divided, tiny, tmp_path / "out", config, show_progress=False)
    assert load_checkpoint(result.out / "model").model.config.image_size == (24, 24)
    assert json.loads((result.out / "fit.json").read_text())["seed"] == 1


def test_device_and_precision_reach_the_model(tiny: str, divided: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        fit(divided, tiny, tmp_path / "out", FitConfig(minutes=0, device="nowhere", num_workers=0), show_progress=False)
    half = FitConfig(minutes=0, precision="bfloat16", num_workers=0)
    result = fit(divided, tiny, tmp_path / "half", half, show_progress=False)
    whole = fit(divided, tiny, tmp_path / "whole", QUICK, show_progress=False)
    weights = [load_checkpoint(each.out / "model").model.head.weight for each in (result, whole)]
    assert not torch.equal(weights[0], weights[1])


def test_workers_change_nothing(tiny: str, divided: Path, fitted: FitResult, tmp_path: Path, cache: Path) -> None:
    result = fit(divided, tiny, tmp_path / "out", FitConfig(minutes=0, num_workers=1), show_progress=False)
    assert result.result.report.top1 == fitted.result.report.top1


def test_too_little_time_is_refused_before_anything_is_written(
    tiny: str, divided: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "measure_speed", lambda state: 0.5)
    with pytest.raises(ValueError, match=r"minutes=0.5.* too short: .* 0 images a second .* \d\.\d minutes"):
        fit(divided, tiny, tmp_path / "out", FitConfig(minutes=0.5, num_workers=0), show_progress=False)
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize("minutes", [0.3, 2])
def test_the_minutes_that_a_fit_needs_are_enough(
    minutes: float, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused fit names two numbers of minutes: for a first model, and for all images. Neither is refused."""

    class Begun(Exception):
        pass

    def begin(state: FitState) -> FitResult:
        raise Begun(len(state.images.train))

    data = write_colours(tmp_path / "photos", dict.fromkeys(("red", "green", "blue"), 30))
    monkeypatch.setattr(ladder, "measure_speed", lambda state: 0.05)
    monkeypatch.setattr(module, "climb_ladder", begin)
    with pytest.raises(ValueError, match="too short") as refused:
        fit(data, tiny, tmp_path / "out", FitConfig(minutes=minutes, num_workers=0), show_progress=False)
    first, every = (float(number) for number in re.findall(r"(\d+\.\d) (?:minutes|with)", str(refused.value)))
    counts = []
    for named in (first, every):
        with pytest.raises(Begun) as begun:
            fit(data, tiny, tmp_path / str(named), FitConfig(minutes=named, num_workers=0), show_progress=False)
        counts.append(begun.value.args[0])
    assert 15 <= counts[0] < 30
    assert counts[1] == 90


def test_time_that_went_before_the_call_counts(tiny: str, divided: Path, tmp_path: Path) -> None:
    config = FitConfig(minutes=20, num_workers=0)
    with pytest.raises(ValueError, match=r"minutes=20.* too short"):
        fit(divided, tiny, tmp_path / "out", config, show_progress=False, started=time.monotonic() - 1200)


def test_more_images_than_time_are_thinned_out(
    tiny: str, divided: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "measure_speed", lambda state: 0.12)
    result = fit(divided, tiny, tmp_path / "out", FitConfig(minutes=10, num_workers=0), show_progress=False)
    assert result.images.test is not None
    assert 30 <= len(result.images.train) < 90
    assert len(result.images.test) < 30
    assert result.images.is_thinned
    assert any("of 90 training images" in note for note in result.notes)


def test_the_same_command_continues_and_another_is_refused(tiny: str, divided: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "photos", tmp_path / "out"
    shutil.copytree(divided, data)
    first = fit(data, tiny, out, QUICK, show_progress=False)
    again = fit(data, None, out, QUICK, show_progress=False)  # without a model: the one it was begun with
    assert again.result.report.top1 == first.result.report.top1
    with pytest.raises(ValueError, match=r"other settings .*seed was 0 and is 1"):
        fit(data, tiny, out, FitConfig(minutes=0, seed=1, num_workers=0), show_progress=False)
    (data / "train" / "red" / "000.png").unlink()
    with pytest.raises(ValueError, match=r"images of the fit .* have changed: .*missing images .*changed='accept'"):
        fit(data, tiny, out, QUICK, show_progress=False)
    with pytest.warns(UserWarning, match="have changed"):
        changed = fit(data, tiny, out, FitConfig(minutes=0, changed="accept", num_workers=0), show_progress=False)
    assert len(changed.images.train) == 89
    fit(data, tiny, out, QUICK, show_progress=False)  # the change is known now


def test_one_process_at_a_time(tiny: str, divided: Path, tmp_path: Path) -> None:
    folder = FitFolder(tmp_path / "out")
    folder.path.mkdir()
    with exclusive_lock(folder.lock_file, "out"), pytest.raises(BlockingIOError, match="out"):
        fit(divided, tiny, tmp_path / "out", QUICK, show_progress=False)


def test_other_folders_are_not_written_into(tiny: str, divided: Path, tmp_path: Path) -> None:
    (tmp_path / "holiday.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not the folder of a fit"):
        fit(divided, tiny, tmp_path, QUICK, show_progress=False)


@pytest.mark.parametrize(
    ("counts", "message"), [({"red": 5}, r"only one class \(red\)"), ({"red": 5, "blue": 1}, r"fewer than 2 .* blue \(1\)")]
)
def test_data_that_cannot_be_fitted(counts: dict[str, int], message: str, tiny: str, tmp_path: Path) -> None:
    data = write_colours(tmp_path / "photos", counts)
    with pytest.raises(ValueError, match=message):
        fit(data, tiny, tmp_path / "out", QUICK, show_progress=False)


def test_an_interrupted_fit_tells_where_its_best_model_is(
    tiny: str, divided: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(state: FitState) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ladder, "compute_curve", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fit(divided, tiny, tmp_path / "out", QUICK, show_progress=False)
    assert str(tmp_path / "out" / "model") in "".join(capfd.readouterr().err.split())
    assert load_checkpoint(tmp_path / "out" / "model").class_names == ("blue", "green", "red")
    assert fit(divided, tiny, tmp_path / "out", QUICK, show_progress=False).is_tested


def test_a_killed_fit_leaves_its_best_model(tiny: str, tmp_path: Path) -> None:
    data = write_colours(tmp_path / "photos", {"red": 110, "grey": 110, "white": 110}, noise=90)
    command = [sys.executable, "-m", "vitrine", "fit", str(data), "--model", tiny, "--out", str(tmp_path / "out")]
    process = subprocess.Popen([*command, "--minutes", "3", "--num-workers", "0"], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not (tmp_path / "out" / "model" / "config.json").is_file() and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert load_checkpoint(tmp_path / "out" / "model").class_names == ("grey", "red", "white")
    result = fit(data, tiny, tmp_path / "out", QUICK, show_progress=False)
    assert result.result.report.num_images == 330
