"""The ladder of a fit: cheap models first, better ones while time lasts.

First a framing, and linear heads in closed form on the features of a frozen model, chosen by cross-validation on the training
images. Then larger images, mirror images, logistic regression, fine-tuning. Every step that is better replaces the model in
the folder, so that there is always one to use.
"""

import math
import time
from copy import deepcopy
from dataclasses import replace
from timeit import timeit

import numpy as np
import torch
from torch import Tensor

from vitrine.core.console import name_setting
from vitrine.data.preprocessing import Framing
from vitrine.data.source import Source
from vitrine.data.subsets import SubsetSource
from vitrine.evaluation.calibration import SIGNIFICANCE, compute_log_losses, compute_p_value
from vitrine.fitting.budget import SLACK
from vitrine.fitting.finetune import find_unfinished, hold_out_rows
from vitrine.fitting.finetune_step import compare_earlier, try_finetuning
from vitrine.fitting.finish import finish
from vitrine.fitting.heads import (
    MANY_FOLDS,
    NUM_FOLDS,
    HeadKind,
    Samples,
    Validated,
    cross_validate,
    draw_folds,
    is_better,
    list_choices,
    pick_best,
)
from vitrine.fitting.images import FitImages, are_oblong, cap_classes, count_least, sample_evenly, thin_out
from vitrine.fitting.learning_curve import FRACTIONS, compute_learning_curve
from vitrine.fitting.readouts import Readout
from vitrine.fitting.result import FitResult
from vitrine.fitting.state import FitState
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import resize_checkpoint
from vitrine.models.config import ModelConfig, ViTConfig

NUM_TIMED, BATCH_SIZE = 48, 16  # images and batch that tell the speed of the model
MAX_MEASUREMENTS = 3
HEADS_S = 6.0  # to choose among heads; the first takes about one second with a thousand images
TEST_FRACTION = 0.3  # of the time for images that testing may take, where there are too many
FRAMING_FRACTION = 0.5  # of the time that the first model leaves, to choose a framing
MIN_FRAMED, MAX_FRAMED = 100, 600  # images; fewer say nothing about framings, more say hardly more
LARGER = 9 / 7  # times the side of images, e.g. 288 instead of 224 pixels
SLOWER_WITH_SIZE = 1.2  # by more than their area, because attention is quadratic
MIN_CURVE_S, CURVE_FRACTION = 3.0, 0.2  # seconds, and of the time that is left
MIN_MIRROR_S = 2.0
FEW_PER_CLASS, MIN_CLOSE_S = 100, 2.0  # images, seconds
MATRIX_SIZE = 1024  # of a product that tells how fast heads are fitted
FEW_WORKERS = 2
LOGISTIC_FRACTION = 0.05  # of the time that is left, for logistic regression
LOGISTIC_PER_S = 3e6  # images x features x classes that it gets through in a second
FRAMINGS: tuple[Framing, ...] = ("crop", "letterbox", "squash")


def climb_ladder(state: FitState) -> FitResult:
    """Climb as far as time allows, then test and describe the best model."""
    choose_framing(state)
    with state.budget.part("features"):
        state.read_samples()
    with state.budget.part("heads"):
        choose_head(state)
    try_larger_images(state)
    compute_curve(state)
    if state.budget.limit_s is None:  # the first model, however long it took
        validate_closely(state)
        compare_earlier(state)
        return finish(state, None)
    try_mirror_images(state)
    try_logistic(state)
    validate_closely(state)
    return finish(state, try_finetuning(state))


def measure_speed(state: FitState) -> float:
    """Measure how many images pass through the model in a second, reading included."""
    sample = SubsetSource(state.images.train, sample_evenly(state.images.train, NUM_TIMED))
    predictor = state.build_predictor(state.start)
    inference = replace(state.inference, batch_size=BATCH_SIZE, num_workers=0)
    reading, computing = [], []
    begin = time.monotonic()
    for batch in predictor.read_images(sample, inference, warn_skipped=False):
        reading.append(time.monotonic() - begin)
        begin = time.monotonic()
        if len(batch):
            predictor.engine.features(batch.image.to(predictor.engine.device)).cpu()
        computing.append(time.monotonic() - begin)
        begin = time.monotonic()
    read_s, compute_s = (float(np.median(times[1:] or times)) for times in (reading, computing))  # the first batch warms up
    return BATCH_SIZE / estimate_batch_s(read_s, compute_s, predictor.engine.device.type, state.num_workers)


def estimate_batch_s(read_s: float, compute_s: float, device: str, num_workers: int) -> float:
    """Return the seconds of a batch that worker processes read while another one is computed.

    On a CPU they share its cores: few of them gain little, which is taken for nothing.
    """
    if device != "cpu":
        return max(read_s / max(1, num_workers), compute_s)
    return compute_s + read_s / (1 if num_workers <= FEW_WORKERS else num_workers)


def measure_products() -> float:
    """Return the operations that products of matrices get through in a second."""
    matrix = torch.ones(MATRIX_SIZE, MATRIX_SIZE)
    return 2 * MATRIX_SIZE**3 / float(np.median([timeit(lambda: matrix @ matrix, number=1) for _ in range(4)]))


def fit_into_time(state: FitState) -> tuple[int, int] | None:
    """Leave images out if there are more than time, and return how many training and test images are left then.

    Raise ValueError if there is not even time for the first model. A fit that is continued goes on with the images it had.
    """
    with state.budget.part("loading the model"):
        state.operations_per_s = measure_products()
        for _ in range(MAX_MEASUREMENTS):  # what else the machine was busy with for a moment must not cost images
            state.images_per_s = max(state.images_per_s, measure_speed(state))
            if has_time_for_all(state):
                break
    if state.budget.limit_s is None:
        return None
    num_used = state.folder.read_num_used(state.config.minutes) or choose_numbers(state, state.budget.limit_s)
    if num_used is None:
        return None
    state.images = thin_out(state.images, *num_used, state.config.seed)
    num_train, num_test = state.images.num_available
    test = "" if state.images.test is None else f" and {len(state.images.test):,} of {num_test:,} test images"
    state.note(f"There is time for {len(state.images.train):,} of {num_train:,} training images{test}.")
    return num_used


def has_time_for_all(state: FitState) -> bool:
    """Return whether there is time to read all images and to fit a first head."""
    return sum(state.images.num_available) / state.images_per_s <= state.budget.remaining_s(
        estimate_heads_s(state, state.readouts[0])
    )


def choose_numbers(state: FitState, limit_s: float) -> tuple[int, int] | None:
    """Return how many training and test images there is time for; None if it is enough for all of them."""
    if has_time_for_all(state):
        return None
    num_train, num_test = state.images.num_available
    seconds = state.budget.remaining_s(estimate_heads_s(state, state.readouts[0]))
    for_test = min(num_test, int(TEST_FRACTION * seconds * state.images_per_s)) if num_test else 0
    for_train = int(seconds * state.images_per_s) - for_test
    least = count_least(state.images)
    if for_train < least:
        # Time of the first model without reading: what has gone, heads and report.
        overhead_s = limit_s * (1 - SLACK) - seconds
        first = min(least + num_test, least / (1 - TEST_FRACTION))
        needed, every = (
            math.ceil((overhead_s + count / state.images_per_s) / (1 - SLACK) / 6) / 10
            for count in (first, num_train + num_test)
        )
        given, speed = name_setting("minutes", state.config.minutes), f"{state.images_per_s:.0f} images a second"
        raise ValueError(
            f"{given} is too short: the model reads {speed} here, so the first classifier takes {needed:.1f} minutes "
            f"({every:.1f} with all images)."
        )
    return for_train, for_test


def settle_begun(state: FitState) -> None:
    """Go on with framing and image size of a fine-tuning that was interrupted: with others it would begin anew."""
    checkpoint = find_unfinished(state.folder.finetune)
    if checkpoint is None:
        return
    state.is_settled = True
    state.start = replace(
        resize_start(state.start, checkpoint.model.config.image_size),
        preprocessing=checkpoint.preprocessing,
    )


def choose_head(state: FitState) -> None:
    """Cross-validate closed-form heads over the readouts, while time lasts, and save the best."""
    first = find_head(state, state.readouts[:1])
    state.replace_best(first)
    state.save_head(first)  # so that there is a model to use; the best of all is saved below
    best = find_head(state, state.readouts[1:], first)
    if best is not first:
        state.replace_best(best)
        state.save_head(best)


def find_head(state: FitState, readouts: list[Readout], best: Validated | None = None) -> Validated:
    """Cross-validate closed-form heads over some readouts, while time lasts; return the best of them and of `best`."""
    kinds = list_kinds(state.images)
    choices = state.list_choices(kinds)
    for readout in readouts:
        reserve_s = state.test_s() + state.save_s(readout, choices[0])
        if best is not None and not state.budget.has_time_for(state.validation_s(readout, choices), reserve_s):
            continue
        has_time = (lambda: True) if best is None else (lambda reserve_s=reserve_s: state.budget.has_time_for(0, reserve_s))
        validated = state.validate(readout, kinds, has_time)
        if validated and (best is None or is_better(pick_best(validated), best)):
            best = pick_best(validated)
    assert best is not None
    return best


def estimate_heads_s(state: FitState, readout: Readout) -> float:
    """Return the seconds to choose and to fit a head on one readout, and on others where that is quick."""
    choices = state.list_choices(list_kinds(state.images))
    return max(HEADS_S, state.validation_s(readout, choices) + state.save_s(readout, choices[0]))


def list_kinds(images: FitImages) -> list[HeadKind]:
    """List the kinds of heads that have a closed form; a discriminant is for one label per image."""
    return ["ridge"] if images.train.labels.has_several else ["discriminant", "ridge"]


def choose_framing(state: FitState) -> None:
    """Cross-validate each framing on a part of the images, and take another than the model's own if it is surely better."""
    own, train = state.start.preprocessing.framing, state.images.train
    if state.config.framing != "auto" or state.is_settled or not are_oblong(train):
        return
    least = max(MIN_FRAMED, 2 * state.images.num_classes)
    count = max(MAX_FRAMED, least)
    if state.budget.limit_s is not None:
        free_s = state.budget.remaining_s(state.test_s() + 1.1 * len(train) / state.images_per_s + HEADS_S)
        count = min(count, int(FRAMING_FRACTION * free_s * state.images_per_s / len(FRAMINGS)))
    if min(count, len(train)) < least:
        why = "there are too few images" if len(train) < least else "there was no time"
        state.note(f"Framing: the model's own ({own}); {why} to try others.")
        return
    with state.budget.part("framings"):
        part = cap_classes(train, count, state.config.seed)
        losses: dict[Framing, Tensor] = {framing: measure_framing(state, part, framing) for framing in FRAMINGS}
        best = min(losses, key=lambda each: float(losses[each].mean()))
        if len(losses[best]) == len(losses[own]) and compute_p_value(losses[best], losses[own]) < SIGNIFICANCE:
            state.start = replace(state.start, preprocessing=state.start.preprocessing.with_framing(best))


def measure_framing(state: FitState, part: Source, framing: Framing) -> Tensor:
    """Return the cross-validated log loss of each image with one framing, by the best head on the first readout."""
    features = state.read_features(state.start.preprocessing.with_framing(framing), part)
    samples = Samples(features.values, features.labels, state.images.num_classes)
    if state.readouts[0].layers:
        samples = samples.select(state.columns(state.readouts[0]))
    folds = draw_folds(samples.targets, samples.num_classes, state.config.seed)
    found = cross_validate(samples, state.readouts[0], list_choices(list_kinds(state.images)), folds)
    return compute_log_losses(min(found, key=lambda each: each.log_loss).logits, samples.targets)


def try_larger_images(state: FitState) -> None:
    """Try larger images than the model's own: frozen features of a few more patches are often better (arXiv:1906.06423)."""
    size = enlarge(state.start.model.config)
    slower = SLOWER_WITH_SIZE * math.prod(size) / math.prod(state.start.model.config.image_size)
    if state.config.image_size is not None or state.is_settled or state.budget.limit_s is None:
        return
    heads_s = estimate_heads_s(state, state.best.readout)
    if not state.budget.has_time_for(1.1 * slower * len(state.images) / state.images_per_s + heads_s + MIN_CURVE_S):
        return
    before = state.start, state.samples, state.index, state.rows, state.folds, state.images_per_s
    with state.budget.part("features"):
        state.start = resize_start(state.start, size)
        state.images_per_s /= slower
        state.read_samples()
    with state.budget.part("heads"):
        best = state.best
        others = [readout for readout in state.readouts if readout != best.readout]
        found = find_head(state, [best.readout, *others])
        if not state.challenge(found, f"{size[0]} px"):
            state.start, state.samples, state.index, state.rows, state.folds, state.images_per_s = before


def compute_curve(state: FitState) -> None:
    """Compute the accuracy by number of images with the best head, if there is time."""
    num_fits = 2 * len(FRACTIONS) * NUM_FOLDS  # in float64, which takes twice as long
    needed_s = max(MIN_CURVE_S, state.validation_s(state.best.readout, [state.best.choice], num_fits))
    if state.samples.has_several_labels or not state.budget.has_time_for(needed_s, state.test_s()):
        return
    with state.budget.part("learning curve"):
        samples = state.validated.select(state.columns(state.best.readout))
        end = time.monotonic() + CURVE_FRACTION * state.budget.remaining_s(state.test_s())
        state.curve = compute_learning_curve(
            samples,
            state.best.choice,
            state.folds,
            state.best.temperature,
            state.config.seed,
            lambda: time.monotonic() < end,
            len(state.samples),
        )


def try_mirror_images(state: FitState) -> None:
    """Add the features of mirror images if there is time to compute them."""
    readout, kind = state.best.readout, state.best.choice.kind
    reserve_s = state.test_s() + state.save_s(readout, state.best.choice, num_views=2)
    heads_s = max(MIN_MIRROR_S, state.validation_s(readout, state.list_choices([kind]), num_views=2))
    if not state.budget.has_time_for(1.1 * len(state.samples) / state.images_per_s + heads_s, reserve_s):
        return
    with state.budget.part("features"):
        source = SubsetSource(state.images.train, state.index.numpy())
        flipped = state.read_features(state.start.preprocessing, source, flip=True).values
    if len(flipped) != len(state.samples):
        return
    with state.budget.part("heads"):
        before, state.samples = state.samples, replace(state.samples, flipped=flipped)
        validated = state.validate(readout, [kind], lambda: state.budget.has_time_for(0, reserve_s))
        if not (validated and state.challenge(pick_best(validated), "with mirror images")):
            state.samples = before


def try_logistic(state: FitState) -> None:
    """Try logistic regression on the best readout, where it takes only seconds."""
    size = len(state.samples) * len(state.columns(state.best.readout)) * state.images.num_classes
    allowed_s = LOGISTIC_FRACTION * state.budget.remaining_s(state.test_s())
    if size / LOGISTIC_PER_S > allowed_s:
        return
    with state.budget.part("heads"):
        end = time.monotonic() + allowed_s
        validated = state.validate(state.best.readout, ["logistic"], lambda: time.monotonic() < end)
        if validated:
            state.challenge(pick_best(validated), "")


def validate_closely(state: FitState) -> None:
    """Validate the best head again where cross-validation saw far fewer images of a class than the head that is kept.

    With ten images of a class, heads that see eight of them are less accurate and less sure: more folds. With many thousand
    images, of which cross-validation took some, less regularisation is better: heads of its kind are fitted to all images but
    some that are held out. Calibration and the accuracy to expect are those of the new answers.
    """
    best, samples, held = state.best, state.samples, None
    if len(state.rows) < len(samples) and not state.images.is_uneven:  # of small classes, too few would be held out
        held = hold_out_rows(samples.targets, samples.num_classes, state.config.seed + 1)
        choices = [each for each in state.list_choices([best.choice.kind]) if each.is_balanced == best.choice.is_balanced]
        folds, words, num_fits = torch.where(held, 0, -1), f"on {int(held.sum()):,} held-out images", 1
    elif len(state.rows) == len(samples) <= FEW_PER_CLASS * samples.num_classes:
        folds = draw_folds(samples.targets, samples.num_classes, state.config.seed, MANY_FOLDS)
        num_fits = int(folds.max()) + 1  # no more than images of the largest class
        choices, words = [best.choice], f"in {num_fits} folds"
    else:
        return
    num_views = 1 if samples.flipped is None else 2
    seconds = state.count_seconds(num_views * len(samples), best.readout, choices, num_fits)
    needed_s = max(MIN_CLOSE_S, seconds + state.save_s(best.readout, best.choice, num_views))
    is_closer = held is not None or num_fits > NUM_FOLDS
    if not is_closer or best.choice.kind == "logistic" or not state.budget.has_time_for(needed_s, state.test_s()):
        return
    with state.budget.part("heads"):
        selected = samples.select(state.columns(best.readout))
        found = cross_validate(selected, best.readout, choices, folds, lambda: state.budget.has_time_for(0, state.test_s()))
        if found:
            state.rows = torch.arange(len(samples)) if held is None else held.nonzero()[:, 0]
            state.keep_closer(pick_best(found), words)


def resize_start(start: Checkpoint, size: tuple[int, int]) -> Checkpoint:
    """Return the checkpoint for images of another size; the given one stays as it is."""
    return resize_checkpoint(replace(start, model=deepcopy(start.model)), size, "paper")


def enlarge(config: ModelConfig) -> tuple[int, int]:
    """Return the next larger image size to try, a whole number of patches."""
    stride = config.image_size[0] // config.grid[0] if isinstance(config, ViTConfig) else 32  # of the last stage of a ResNet
    height, width = (max(side, stride * round(LARGER * side / stride)) for side in config.image_size)
    return height, width
