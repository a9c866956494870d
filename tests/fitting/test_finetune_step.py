"""Fine-tuning as the last step of a fit: compared with the head, taken up by later calls, left out where it cannot help."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fitting.colours import save_tiny, write_colours
from vitrine.fitting import finetune_step, ladder
from vitrine.fitting.config import FitConfig
from vitrine.fitting.findings import describe_measured
from vitrine.fitting.finetune import Contest
from vitrine.fitting.fit import fit
from vitrine.formats.load import load_checkpoint

QUICK = FitConfig(minutes=0, num_workers=0)


def test_the_best_model_is_fine_tuned_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune_step, "MIN_FINETUNE_S", 2.0)
    data = write_colours(tmp_path / "photos", {"red": 110, "grey": 110, "white": 110}, noise=90)
    result = fit(
        data, save_tiny(tmp_path / "tiny"), tmp_path / "out", FitConfig(minutes=60, num_workers=0), show_progress=False
    )
    assert result.contest is not None
    assert result.contest.num_images == 55
    assert result.steps[-1].name.startswith("Fine-tuning")
    assert result.steps[-1].outcome == ("kept" if result.contest.is_won else "not surely better")
    assert (tmp_path / "out" / "finetune" / "summary.json").is_file()
    tuned = load_checkpoint(tmp_path / "out" / "finetune" / "model")
    assert tuned.class_names == ("grey", "red", "white")


def test_a_fine_tuned_model_is_not_replaced_by_a_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call compares it again with the head, and does not train again for as much time as the first had."""
    monkeypatch.setattr(finetune_step, "MIN_FINETUNE_S", 2.0)
    monkeypatch.setattr(Contest, "is_won", property(lambda contest: True))
    data = write_colours(tmp_path / "photos", {"red": 110, "grey": 110, "white": 110}, noise=90)
    fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", FitConfig(minutes=60, num_workers=0), show_progress=False)
    weights = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    again = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", QUICK, show_progress=False)
    assert again.contest is not None
    assert again.result.report.num_images == 55  # the held-out images: its own answers
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == weights
    assert (
        fit(
            data, save_tiny(tmp_path / "tiny"), tmp_path / "out", FitConfig(minutes=60, num_workers=0), show_progress=False
        ).contest
        is not None
    )
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == weights


def test_an_error_in_fine_tuning_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ValueError("A training step needs 900 GB: use a smaller model.")

    monkeypatch.setattr(finetune_step, "plan_finetune", fail)
    monkeypatch.setattr(finetune_step, "MIN_FINETUNE_S", 1.0)
    data = write_colours(tmp_path / "photos", {"red": 110, "grey": 110, "white": 110}, noise=90)
    result = fit(
        data, save_tiny(tmp_path / "tiny"), tmp_path / "out", FitConfig(minutes=60, num_workers=0), show_progress=False
    )
    assert any("900 GB" in note for note in result.notes)
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_balanced_head_is_not_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune_step, "MIN_FINETUNE_S", 1.0)
    data = write_colours(tmp_path / "photos", {"red": 300, "grey": 30}, noise=90)
    config = FitConfig(minutes=60, balance="on", num_workers=0)
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", config, show_progress=False)
    assert result.contest is None
    assert any("frequencies" in note for note in result.notes)


def test_an_earlier_model_that_saw_other_images_is_kept_and_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call had time for a part of the images, some of which would be held out now."""
    monkeypatch.setattr(finetune_step, "MIN_FINETUNE_S", 1.0)
    monkeypatch.setattr(Contest, "is_won", property(lambda contest: True))
    monkeypatch.setattr(ladder, "choose_numbers", lambda state, limit_s: (380, 0))
    data = write_colours(tmp_path / "photos", {"red": 140, "grey": 140, "white": 140}, noise=90)
    arguments = data, save_tiny(tmp_path / "tiny"), tmp_path / "out"
    first = fit(*arguments, FitConfig(minutes=60, num_workers=0), show_progress=False)
    assert first.is_tuned
    weights = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    again = fit(*arguments, QUICK, show_progress=False)
    assert again.contest is None
    assert again.is_unmeasured
    assert any("was kept" in note for note in again.notes)
    assert "not of the earlier fine-tuned model" in describe_measured(again, "photos")
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("is_better", [True, False])
def test_a_longer_fine_tuning_must_beat_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_better: bool
) -> None:
    """It has beaten the head; against the model that it would replace it is compared too, and its figures stay if it loses."""
    monkeypatch.setattr(finetune_step, "MIN_FINETUNE_S", 1.0)
    monkeypatch.setattr(Contest, "is_won", property(lambda contest: contest.p_value < 0.5))
    data = write_colours(tmp_path / "photos", {"red": 110, "grey": 110, "white": 110}, noise=90)
    arguments = data, save_tiny(tmp_path / "tiny"), tmp_path / "out"
    p_values: list[float] = [0.1]
    plain = finetune_step.contest
    monkeypatch.setattr(finetune_step, "contest", lambda *words: replace(plain(*words), p_value=p_values.pop(0)))
    first = fit(*arguments, FitConfig(minutes=60, num_workers=0), show_progress=False)
    assert first.is_tuned
    weights = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    monkeypatch.setattr(finetune_step, "MIN_LONGER", 0.0)  # trains again
    p_values[:] = [
        0.1,
        0.2,
        0.3 if is_better else 0.9,
    ]  # the earlier one against the head, the new one against head and earlier
    again = fit(*arguments, FitConfig(minutes=60, seed=0, num_workers=0), show_progress=False)
    assert p_values == []
    assert again.contest is not None
    assert again.is_tuned
    assert again.contest.p_value == (0.2 if is_better else 0.1)
    assert [step.outcome for step in again.steps[-2:]] == (["replaced", "kept"] if is_better else ["kept", "not surely better"])
    assert again.result.report.num_images == 55
    if not is_better:
        assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == weights
