"""The end of a fit: test the best model once, and describe it."""

from dataclasses import replace

import torch

from vitrine.data.source import Source
from vitrine.data.subsets import SubsetSource
from vitrine.evaluation.classification_report import EvaluationResult, build_report
from vitrine.evaluation.features import Features
from vitrine.evaluation.intervals import predictive_interval
from vitrine.evaluation.multi_label import MultiLabelResult, build_label_result, evaluate_labels
from vitrine.evaluation.topk import rank_classes
from vitrine.fitting.budget import REPORT_S
from vitrine.fitting.images import thin_out
from vitrine.fitting.result import FitResult
from vitrine.fitting.state import FitState
from vitrine.fitting.suspects import find_suspects
from vitrine.fitting.uncalibrated import HeldOutAnswers, evaluate_both, measure_uncalibrated

MIN_TESTED = 50  # images that are tested in any case


def finish(state: FitState, interrupted_by: int | None) -> FitResult:
    """Test the best model once, or take its cross-validated answers, and describe it."""
    is_unmeasured = state.tuned_before is not None and state.contest is None
    if state.tuned_before is not None and is_unmeasured:
        state.checkpoint = state.tuned_before
    thin_out_test(state)
    best, is_tested = state.best, state.images.test is not None and interrupted_by is None
    with state.budget.part("test"):
        result, uncalibrated_error, labels = measure_model(state, is_tested)
    num_test = len(state.images.test) if state.images.test is not None else None
    accuracy, count = (
        (state.contest.new_accuracy, state.contest.num_images)
        if state.contest and state.contest.is_won
        else (best.accuracy, len(state.rows))
    )
    return FitResult(
        out=state.folder.path,
        model=state.model,
        data=state.data,
        images=state.images,
        checkpoint=state.checkpoint,
        steps=state.steps,
        expected=predictive_interval(accuracy, count, num_test),
        result=result,
        is_tested=is_tested,
        uncalibrated_error=uncalibrated_error,
        curve=state.curve,
        contest=state.contest,
        parts=state.budget.parts,
        minutes=state.config.minutes,
        seconds=state.budget.elapsed_s,
        interrupted_by=interrupted_by,
        notes=state.notes,
        labels=labels,
        suspects=find_suspects(best.logits, state.validated.targets, state.index[state.rows]),
        why_not_tuned=state.why_not_tuned,
        is_unmeasured=is_unmeasured and not is_tested,
    )


def measure_model(state: FitState, is_tested: bool) -> tuple[EvaluationResult, float, MultiLabelResult | None]:
    """Return the evaluation of the best model, its calibration error without the temperature, and that of several labels."""
    if is_tested and not state.samples.has_several_labels:
        return *test_in_time(state), None
    best, labels, source = state.best, None, state.images.train
    if state.samples.has_several_labels:
        labels, source = (found := measure_labels(state, is_tested)), found.source
        logits, sets = torch.from_numpy(found.probabilities).double().logit(1e-9), torch.from_numpy(found.labels)
        answers = HeldOutAnswers(logits, sets.double(), torch.from_numpy(found.index), best.temperature)
    else:
        head_answers = HeldOutAnswers(best.logits, state.validated.targets, state.index[state.rows], best.temperature)
        answers = state.tuned_answers or head_answers
    result = describe_answers(state, answers, source)
    return result, measure_uncalibrated(answers, result.predictions.hits[:, 0]), labels


def thin_out_test(state: FitState) -> None:
    """Leave test images out if the machine has become so slow that all of them would exceed the time."""
    if state.budget.limit_s is None or state.images.test is None:
        return
    seconds = state.budget.limit_s - state.budget.elapsed_s - REPORT_S
    count = max(MIN_TESTED, int(seconds * state.images_per_s))
    if count < len(state.images.test):
        state.images = thin_out(state.images, len(state.images.train), count, state.config.seed)
        state.note(f"There was time to test {count:,} of {state.images.num_available[1]:,} images.")


def test_in_time(state: FitState) -> tuple[EvaluationResult, float]:
    """Test the best model; if the machine becomes slow on the way, on the images read so far, which come in random order."""
    test, limit_s = state.images.test, state.budget.limit_s
    assert test is not None
    predictor = state.build_predictor(state.checkpoint)
    if limit_s is None:
        return evaluate_both(predictor, test)
    shuffled = SubsetSource(test, torch.randperm(len(test), generator=torch.Generator().manual_seed(state.config.seed)).numpy())
    end_s = limit_s - REPORT_S
    result, error = evaluate_both(
        predictor, shuffled, lambda num_images: num_images >= MIN_TESTED and state.budget.elapsed_s > end_s
    )
    num_read = len(result.predictions)
    if num_read < len(test) and state.budget.elapsed_s > end_s:
        state.images = replace(state.images, test=SubsetSource(shuffled, result.predictions.index.numpy()))
        state.note(f"There was time to test {num_read:,} of {state.images.num_available[1]:,} images.")
    return result, error


def describe_answers(state: FitState, answers: HeldOutAnswers, source: Source) -> EvaluationResult:
    """Return answers for images of a source, by models that were not fitted to them, as an evaluation."""
    predictions = rank_classes(answers.logits, answers.targets, answers.index)
    report = build_report(predictions, source.labels, state.images.class_names)
    return EvaluationResult(source, state.checkpoint.preprocessing, predictions, report)


def measure_labels(state: FitState, is_tested: bool) -> MultiLabelResult:
    """Measure several labels per image on the test split, else in cross-validation, or on images held out from tuning."""
    if is_tested:
        assert state.images.test is not None
        return evaluate_labels(state.build_predictor(state.checkpoint), state.images.test)
    tuned = state.tuned_answers
    logits = (
        Features(state.best.logits.float(), state.validated.targets, state.index[state.rows])
        if tuned is None
        else Features(tuned.logits.float(), tuned.targets, tuned.index)
    )
    return build_label_result(state.images.train, state.checkpoint.preprocessing, state.checkpoint.calibration, logits)
