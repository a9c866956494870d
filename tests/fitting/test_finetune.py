"""Fine-tuning in a given time, and when its result replaces the head."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.fitting.colours import save_tiny, write_colours
from vitrine.data.open_data import open_data
from vitrine.fitting import finetune as module
from vitrine.fitting.finetune import (
    MAX_EPOCHS,
    contest,
    finetune,
    hold_out_rows,
    make_dataset,
    plan_finetune,
    take_up_begun,
)
from vitrine.fitting.heads import measure_accuracies
from vitrine.formats.checkpoint import Calibration, Checkpoint
from vitrine.formats.load import load_checkpoint, resize_checkpoint
from vitrine.run.build import load_initial_model
from vitrine.training.optimizer import clip_gradients

assert clip_gradients  # training is imported before a test measures time


@pytest.fixture
def start(tmp_path: Path) -> Checkpoint:
    """A model with a head of three colours."""
    loaded = load_checkpoint(save_tiny(tmp_path / "tiny"))
    loaded.model.reset_head(3)
    torch.nn.init.normal_(loaded.model.head.weight)
    return replace(loaded, class_names=("blue", "green", "red"), calibration=Calibration(temperature=2.0))


def draw_targets(num_images: int) -> torch.Tensor:
    return torch.arange(num_images) % 3


def test_a_sixth_is_held_out_unless_it_is_too_few() -> None:
    held = hold_out_rows(draw_targets(600), 3, seed=0)
    assert held.sum() == 100
    assert torch.bincount(draw_targets(600)[held]).max() <= 34
    assert not hold_out_rows(draw_targets(290), 3, seed=0).any()
    many = torch.arange(10).repeat_interleave(2000)  # class by class, as folders are
    assert torch.bincount(many[hold_out_rows(many, 10, seed=0)], minlength=10).min() > 150  # 2,000 in all
    assert not torch.equal(held, hold_out_rows(draw_targets(600), 3, seed=1))


@pytest.mark.parametrize(("shift", "flips", "is_won"), [(1.0, 0, True), (0.0, 0, False), (-1.0, 0, False), (1.0, 25, False)])
def test_only_a_surely_better_model_wins(shift: float, flips: int, is_won: bool) -> None:
    """Better logits at the label win, unless they are right on fewer images."""
    generator = torch.Generator().manual_seed(0)
    targets = draw_targets(100)
    old = torch.randn(100, 3, generator=generator) + 2 * F.one_hot(targets, 3)
    new = old + shift * F.one_hot(targets, 3) + 0.1 * torch.randn(100, 3, generator=generator)
    new[:flips] = 0.5 * F.one_hot((targets[:flips] + 1) % 3, 3).float()
    found = contest(old, new, targets, measure_accuracies)
    assert found.is_won == is_won
    assert found.num_images == 100
    assert found.old_log_loss == pytest.approx(F.cross_entropy(old, targets).item(), rel=1e-5)


def test_the_length_follows_from_the_time(start: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_dataset("photos", open_data(write_colours(tmp_path / "photos", {"blue": 40, "green": 40, "red": 40})))
    monkeypatch.setattr(module, "measure_step", lambda recipe, start, dataset: 1.0 if recipe.optim.frozen_blocks else 2.0)
    plans = {s: plan_finetune(start, "tiny", data, s, seed=3, device="cpu", num_workers=0) for s in (1e5, 46.5, 11.0, 7.0)}
    long, middle, short, none = plans.values()
    assert long is not None
    assert long.epochs == pytest.approx(MAX_EPOCHS, abs=0.1)
    assert (long.recipe.seed, long.recipe.head_init, long.frozen_blocks) == (3, "keep", 0)
    assert middle is not None
    assert (middle.recipe.total_steps, middle.frozen_blocks) == (
        20,
        0,
    )  # 95 % of 46.5 s less 4 to begin and end, 2 for each step
    assert middle.recipe.optim.warmup_steps == 2
    assert short is not None
    assert (short.recipe.total_steps, short.frozen_blocks) == (6, 2)
    assert none is None


def test_fine_tuning_starts_from_the_fitted_head(start: Checkpoint, tmp_path: Path) -> None:
    data = make_dataset("photos", open_data(write_colours(tmp_path / "photos", {"blue": 40, "green": 40, "red": 40})))
    plan = plan_finetune(start, "tiny", data, 60.0, seed=0, device="cpu", num_workers=0)
    assert plan is not None
    begun = load_initial_model(plan.recipe, ("blue", "green", "red"), start)
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(begun.model(images), start.model(images) / 2)  # with the temperature in the weights
    with pytest.raises(ValueError, match="needs a checkpoint with the classes"):
        load_initial_model(plan.recipe, ("ant", "bee", "cat"), start)


def test_a_run_on_other_images_is_removed(start: Checkpoint, tmp_path: Path) -> None:
    counts = {"blue": 40, "green": 40, "red": 40}
    data = make_dataset("photos", open_data(write_colours(tmp_path / "photos", counts)))
    assert take_up_begun(tmp_path / "run", data, start, None, None, "auto") is None
    plan = plan_finetune(start, "tiny", data, 60.0, seed=0, device="cpu", num_workers=0)
    assert plan is not None
    finetune(plan, tmp_path / "run", data, start, deadline=time.monotonic())
    other = make_dataset("photos", open_data(write_colours(tmp_path / "others", {**counts, "red": 41})))
    assert take_up_begun(tmp_path / "run", other, start, None, None, "auto") is None
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_model_is_removed(start: Checkpoint, tmp_path: Path) -> None:
    """A later call may have found that larger images are better: the run of smaller ones has other positions."""
    data = make_dataset("photos", open_data(write_colours(tmp_path / "photos", {"blue": 40, "green": 40, "red": 40})))
    plan = plan_finetune(start, "tiny", data, 60.0, seed=0, device="cpu", num_workers=0)
    assert plan is not None
    finetune(plan, tmp_path / "run", data, start, deadline=time.monotonic())
    assert take_up_begun(tmp_path / "run", data, start, None, None, "auto") is not None
    assert take_up_begun(tmp_path / "run", data, resize_checkpoint(start, (24, 24), "paper"), None, None, "auto") is None
    assert not (tmp_path / "run").exists()


def test_a_slow_model_is_not_even_timed(start: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_dataset("photos", open_data(write_colours(tmp_path / "photos", {"blue": 40, "green": 40, "red": 40})))
    monkeypatch.setattr(module, "measure_step", lambda *arguments: pytest.fail("it was timed"))
    assert plan_finetune(start, "tiny", data, 60.0, seed=0, device="cpu", num_workers=0, images_per_s=4.0) is None


def test_a_deadline_stops_and_the_next_call_goes_on(start: Checkpoint, tmp_path: Path) -> None:
    data = make_dataset("photos", open_data(write_colours(tmp_path / "photos", {"blue": 40, "green": 40, "red": 40})))
    plan = plan_finetune(start, "tiny", data, 60.0, seed=0, device="cpu", num_workers=0)
    assert plan is not None
    stopped, signal = finetune(plan, tmp_path / "run", data, start, deadline=time.monotonic())
    assert stopped is not None
    assert signal is None
    assert not (tmp_path / "run" / "summary.json").exists()
    begun = take_up_begun(tmp_path / "run", data, start, "cpu", 1, "auto")  # another speed would give another length
    assert begun is not None
    assert (begun.epochs, begun.recipe.loader.num_workers) == (plan.epochs, 1)
    finished, _ = finetune(begun, tmp_path / "run", data, start, deadline=None)
    assert finished is not None
    assert (tmp_path / "run" / "summary.json").exists()
    steps = [int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert max(steps) == plan.recipe.total_steps
