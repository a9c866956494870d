"""The last step of the ladder: fine-tune the best model in the time that is left, and compare the result with the head."""

import shutil
import time
from dataclasses import replace

import torch
from torch import Tensor

from vitrine.core.console import summarise_error
from vitrine.data.open_data import DatasetHandle
from vitrine.data.subsets import SubsetSource
from vitrine.evaluation.calibration import fit_temperature
from vitrine.evaluation.intervals import predictive_interval
from vitrine.fitting.finetune import (
    Plan,
    contest,
    finetune,
    hold_out_rows,
    make_dataset,
    plan_finetune,
    take_up_begun,
    was_trained_on,
)
from vitrine.fitting.heads import fit_head, measure_accuracies
from vitrine.fitting.result import LadderStep, Outcome
from vitrine.fitting.state import FitState
from vitrine.fitting.uncalibrated import HeldOutAnswers
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.run.folder import RunFolder

MIN_FINETUNE_S = 30.0
MIN_LONGER = 1.5  # times as many epochs as a finished fine-tuning, to train anew


def try_finetuning(state: FitState) -> int | None:
    """Fine-tune the best model in the time that is left; return the signal that stopped it, if any.

    If it cannot be done, e.g. for want of memory, the head stays the best model, and a note says why.
    """
    if not compare_earlier(state):
        return None
    if state.best.choice.is_balanced:
        state.why_not_tuned = "it would learn the frequencies of the classes again, which the head balances"
        state.note(f"The model was not fine-tuned: {state.why_not_tuned}.")
        return None
    with state.budget.part("fine-tuning"):
        try:
            return run_finetuning(state)
        except (ValueError, RuntimeError, OSError) as error:
            state.why_not_tuned = summarise_error(error)
            state.note(f"The model was not fine-tuned: {state.why_not_tuned}")
            return None


def run_finetuning(state: FitState) -> int | None:
    """Plan a fine-tuning, or take up one of an earlier call, train, and compare the result with the best model."""
    is_held = hold_out(state)
    reserve_s = state.test_s() + 1.2 * int(is_held.sum()) / state.images_per_s
    if not is_held.any() or state.budget.remaining_s(reserve_s) < MIN_FINETUNE_S:
        return None
    weight, bias = fit_without(state, is_held)
    start = state.build_checkpoint(state.best, weight, bias)
    dataset = list_trained(state, is_held)
    config, out = state.config, state.folder.finetune
    begun = take_up_begun(out, dataset, start, config.device, config.num_workers, config.precision)
    is_finished = begun is not None and RunFolder(out).summary.is_file()
    plan = begun
    if begun is None or is_finished:
        plan = plan_finetune(
            start,
            state.model,
            dataset,
            state.budget.remaining_s(reserve_s),
            seed=config.seed,
            device=config.device,
            num_workers=config.num_workers,
            precision=config.precision,
            images_per_s=state.images_per_s,
        )
    if plan is None:
        state.note("There was no time to fine-tune the model.")
        return None
    if begun is not None and is_finished:
        if plan.epochs < MIN_LONGER * begun.epochs:  # it would hardly be longer than the one there is
            if state.contest is None:
                compare_finetuned(state, load_checkpoint(RunFolder(out).model), begun)
            return None
        shutil.rmtree(out)
    deadline = time.monotonic() + state.budget.remaining_s(reserve_s)
    tuned, interrupted_by = finetune(plan, out, dataset, start, deadline)
    if tuned is not None and interrupted_by is None:
        compare_finetuned(state, tuned, plan)
    return interrupted_by


def compare_earlier(state: FitState) -> bool:
    """Compare the fine-tuned model of an earlier call, if there is one, with the best head; return whether it can be compared.

    It cannot if it was trained on images that are held out now, because there were more or fewer images then. It is kept.
    """
    if state.tuned_before is None:
        return True
    is_held = hold_out(state)
    if not is_held.any() or not was_trained_on(RunFolder(state.folder.finetune), list_trained(state, is_held)):
        state.note(
            "The fine-tuned model of an earlier call was kept: it was trained on other images than there is time for now, and "
            "cannot be compared. To begin anew, use another folder."
        )
        return False
    compare_finetuned(state, state.tuned_before, None)
    return True


def compare_finetuned(state: FitState, tuned: Checkpoint, plan: Plan | None) -> None:
    """Compare a fine-tuned model with the best head, and with an earlier one that beat it, on the held-out images.

    None of them was fitted to these. The best is kept. Without a plan, the model is that of an earlier call.
    """
    best, is_held = state.best, hold_out(state)
    weight, bias = fit_without(state, is_held)
    begin = time.monotonic()
    held = SubsetSource(state.images.train, state.index[is_held].numpy())
    found = state.build_predictor(tuned).predict_logits(held)
    state.learn_speed(len(held), time.monotonic() - begin)
    rows = is_held.nonzero()[:, 0][found.index]  # an image may have become unreadable
    features, targets = (
        state.samples.values[rows][:, torch.from_numpy(state.columns(best.readout))],
        state.samples.targets[rows],
    )
    # A model of an earlier call has a temperature that was fitted to these images.
    logits = tuned.calibration.temperature * found.values.double()
    rivals = [(features @ weight.T + bias).double() / best.temperature]
    if state.tuned_answers is not None and torch.equal(state.tuned_answers.index, state.index[rows]):
        rivals.append(state.tuned_answers.temperature * state.tuned_answers.logits)
    contests = [contest(rival, logits, targets, measure_accuracies) for rival in rivals]
    is_won = all(each.is_won for each in contests)
    shown = contests[0] if is_won else next(each for each in contests if not each.is_won)
    name, epochs = "Fine-tuning, of an earlier call", ""
    if plan is not None:
        depth = len(tuned.model.blocks)
        blocks = f"last {depth - plan.frozen_blocks} blocks" if plan.frozen_blocks else "all blocks"
        name, epochs = f"Fine-tuning, {blocks}", f"{plan.epochs:.1f} epochs, "
    detail = (
        f"{epochs}from the model above; log loss {shown.new_log_loss:.3f} against {shown.old_log_loss:.3f} on {len(targets)} "
        f"held-out images, p = {shown.p_value:.2g}"
    )
    if is_won:
        state.mark_replaced()
        temperature = fit_temperature(logits, targets)
        state.tuned_answers = HeldOutAnswers(logits / temperature, targets, state.index[rows], temperature)
        state.checkpoint = replace(tuned, calibration=state.calibrate(logits / temperature, targets, temperature))
    if is_won or state.tuned_answers is None:
        state.contest = shown
    state.folder.save_model(state.checkpoint)
    accuracy = predictive_interval(shown.new_accuracy, len(targets), None)
    outcome: Outcome = "kept" if is_won else "not surely better"
    state.steps.append(LadderStep(name, detail, state.budget.elapsed_s, accuracy, shown.new_log_loss, outcome))


def fit_without(state: FitState, is_held: Tensor) -> tuple[Tensor, Tensor]:
    """Fit the best head to the images that are not held out."""
    best = state.best
    return fit_head(state.samples.take(~is_held).select(state.columns(best.readout)), best.choice, best.temperature)


def hold_out(state: FitState) -> Tensor:
    """Return which images are held out from fine-tuning, bool (N)."""
    return hold_out_rows(state.samples.targets, state.images.num_classes, state.config.seed)


def list_trained(state: FitState, is_held: Tensor) -> DatasetHandle:
    """Return the images that are not held out as a dataset."""
    return make_dataset(state.data, SubsetSource(state.images.train, state.index[~is_held].numpy()))
