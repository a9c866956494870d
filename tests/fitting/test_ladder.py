"""Steps of the ladder, each compared with what it should choose; whole fits are in test_fit.py."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fitting.colours import TINY, save_tiny, write_colours
from vitrine.fitting import finetune_step, ladder, state
from vitrine.fitting.config import FitConfig
from vitrine.fitting.fit import fit
from vitrine.fitting.heads import MANY_FOLDS, HeadChoice, Samples, Validated, cross_validate
from vitrine.fitting.readouts import Readout
from vitrine.fitting.state import FitState
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ResNetConfig


def test_each_better_head_is_a_step(tmp_path: Path) -> None:
    data = write_colours(tmp_path / "photos", {"red": 30, "grey": 30, "white": 30}, noise=80)
    result = fit(
        data, save_tiny(tmp_path / "tiny"), tmp_path / "out", FitConfig(minutes=60, num_workers=0), show_progress=False
    )
    outcomes = [step.outcome for step in result.steps]
    assert outcomes.count("kept") == 1
    assert set(outcomes) <= {"kept", "replaced", "not better"}
    assert {"mirror" in step.detail for step in result.steps} == {True, False}
    assert any(step.name == "Logistic regression" for step in result.steps)
    seconds = [step.seconds for step in result.steps]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("is_better", [True, False])
def test_larger_images_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_better: bool) -> None:
    """They are kept if cross-validation says so; the model and what it reads then have that size, else all is as before."""
    asked: list[tuple[str, bool]] = []

    def decide(new: Validated, old: Validated) -> bool:
        is_larger = new is not old and len(asked) > 0 and asked[-1][0] == "larger"
        return is_better if is_larger else new.log_loss < old.log_loss

    def challenge(self: FitState, new: Validated, words: str) -> bool:
        asked.append(("larger" if words.endswith(" px") else words, self.start.preprocessing.crop == (24, 24)))
        return plain_challenge(self, new, words)

    plain_challenge = FitState.challenge
    monkeypatch.setattr(FitState, "challenge", challenge)
    monkeypatch.setattr(state, "is_better", decide)
    data = write_colours(tmp_path / "photos", {"red": 30, "grey": 30, "white": 30}, noise=80)
    config = FitConfig(minutes=60, num_workers=0)
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", config, show_progress=False)
    assert asked[0] == ("larger", True)
    assert {is_large for _, is_large in asked[1:]} == {is_better}
    (step,) = (step for step in result.steps if "24 px" in step.detail)
    assert (step.outcome != "not better") == is_better
    size = (24, 24) if is_better else (16, 16)
    assert load_checkpoint(tmp_path / "out" / "model").model.config.image_size == size
    assert result.checkpoint.preprocessing.crop == size


def test_a_chosen_image_size_stays(tmp_path: Path) -> None:
    data = write_colours(tmp_path / "photos", {"red": 30, "grey": 30, "white": 30}, noise=80)
    config = FitConfig(minutes=60, num_workers=0, image_size=16)
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", config, show_progress=False)
    assert not any("px" in step.detail for step in result.steps)


def test_larger_images_are_a_whole_number_of_patches() -> None:
    assert ladder.enlarge(TINY) == (24, 24)
    assert ladder.enlarge(replace(TINY, image_size=(224, 224), patch_size=16)) == (288, 288)
    assert ladder.enlarge(replace(TINY, image_size=(224, 112), patch_size=14)) == (294, 140)
    assert ladder.enlarge(ResNetConfig(stages=(3, 4, 6, 3), image_size=(224, 224))) == (288, 288)


@pytest.mark.parametrize("is_close", [True, False])
def test_few_images_of_a_class_are_validated_in_more_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_close: bool
) -> None:
    """The chosen head is validated again; the accuracy to expect and the calibration are those of the new answers."""
    found: list[Validated] = []

    def validate(*arguments: Any) -> list[Validated]:
        found[:] = cross_validate(*arguments)
        assert arguments[3].unique().tolist() == list(range(MANY_FOLDS))
        return found

    monkeypatch.setattr(ladder, "cross_validate", validate)
    monkeypatch.setattr(ladder, "FEW_PER_CLASS", 30 if is_close else 29)
    data = write_colours(tmp_path / "photos", {"red": 30, "grey": 30, "white": 30}, noise=80)
    config = FitConfig(minutes=0, num_workers=0)
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", config, show_progress=False)
    assert len(found) == is_close
    (step,) = (step for step in result.steps if step.outcome == "kept")
    assert result.expected.value == step.accuracy.value
    assert ("in 20 folds" in step.detail) == is_close
    if is_close:
        assert (step.accuracy.value, step.log_loss) == (found[0].accuracy, found[0].log_loss)
        assert result.result.report.top1.value == pytest.approx(found[0].accuracy)
        assert load_checkpoint(tmp_path / "out" / "model").calibration.temperature == found[0].temperature


def test_of_many_images_some_are_held_out_from_the_head_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cross-validation takes 60 of 360 images; the strength and the calibration follow from heads that see 300."""
    seen: list[int] = []

    def validate(samples: Samples, readout: Readout, choices: list[HeadChoice], folds: torch.Tensor, *others: Any) -> Any:
        seen.append(int((folds < 0).sum()))
        assert len({each.kind for each in choices}) == 1
        assert len(choices) > 1
        return cross_validate(samples, readout, choices, folds, *others)

    monkeypatch.setattr(ladder, "cross_validate", validate)
    monkeypatch.setattr(state, "MAX_VALIDATED", 60)
    data = write_colours(tmp_path / "photos", {"red": 120, "grey": 120, "white": 120}, noise=80)
    config = FitConfig(minutes=0, num_workers=0)
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", config, show_progress=False)
    assert seen == [300]
    assert result.result.report.num_images == 60
    assert result.expected.value == result.result.report.top1.value
    assert "on 60 held-out images" in result.steps[-1].detail


@pytest.mark.parametrize(
    ("device", "num_workers", "seconds"),
    [("cpu", 0, 3.0), ("cpu", 2, 3.0), ("cpu", 8, 1.25), ("cuda", 4, 1.0), ("cuda", 1, 2.0)],
)
def test_workers_read_while_a_batch_is_computed(device: str, num_workers: int, seconds: float) -> None:
    assert ladder.estimate_batch_s(2.0, 1.0, device, num_workers) == seconds


def test_an_interrupted_fine_tuning_keeps_framing_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call has time for larger images, because the features are cached; it goes on with the run all the same."""
    monkeypatch.setattr(finetune_step, "MIN_FINETUNE_S", 1.0)
    larger, stopped = ladder.try_larger_images, finetune_step.finetune
    monkeypatch.setattr(ladder, "try_larger_images", lambda state: None)
    monkeypatch.setattr(finetune_step, "finetune", lambda *words: (stopped(*words[:-1], 0.0)[0], signal.SIGTERM))
    data = write_colours(tmp_path / "photos", {"red": 110, "grey": 110, "white": 110}, noise=90)
    arguments = data, save_tiny(tmp_path / "tiny"), tmp_path / "out", FitConfig(minutes=60, num_workers=0)
    assert fit(*arguments, show_progress=False).interrupted_by == signal.SIGTERM
    begun = (tmp_path / "out" / "finetune" / "recipe.json").stat().st_mtime_ns
    monkeypatch.setattr(ladder, "try_larger_images", larger)
    monkeypatch.setattr(finetune_step, "finetune", stopped)
    result = fit(*arguments, show_progress=False)
    assert result.interrupted_by is None
    assert result.contest is not None
    assert not any("px" in step.detail for step in result.steps)
    assert (tmp_path / "out" / "finetune" / "recipe.json").stat().st_mtime_ns == begun


def test_a_fit_that_is_continued_has_the_images_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is faster in the second call; the same images are used, so that their features are in the cache."""
    data = write_colours(tmp_path / "photos", {"red": 60, "grey": 60, "white": 60}, noise=90)
    arguments = data, save_tiny(tmp_path / "tiny"), tmp_path / "out"
    counts = []
    for speed, minutes in ((0.3, 5), (0.4, 5), (0.4, 6)):
        monkeypatch.setattr(ladder, "measure_speed", lambda state, speed=speed: speed)
        result = fit(*arguments, FitConfig(minutes=minutes, num_workers=0), show_progress=False)
        counts.append(len(result.images.train))
    assert counts[0] == counts[1] < counts[2] < 180
