"""FitState: what is known at a moment of a fit, and what its steps share: features, heads that are tried, the best model."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitrine.core.console import print_notice
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.scan import count_cpus
from vitrine.data.source import Source
from vitrine.engines.engine import TorchEngine
from vitrine.evaluation.calibration import choose_rejection, choose_thresholds
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import FeatureCache, Features, open_feature_cache
from vitrine.evaluation.intervals import predictive_interval
from vitrine.evaluation.predictor import Predictor
from vitrine.fitting.budget import Budget
from vitrine.fitting.config import FitConfig
from vitrine.fitting.finetune import Contest
from vitrine.fitting.folder import FITTED, FitFolder
from vitrine.fitting.heads import (
    MAX_EXACT,
    NUM_FOLDS,
    HeadChoice,
    HeadKind,
    Samples,
    Validated,
    count_operations,
    cross_validate,
    draw_folds,
    fit_head,
    is_better,
    list_choices,
)
from vitrine.fitting.images import FitImages
from vitrine.fitting.learning_curve import LearningCurve
from vitrine.fitting.readouts import Readout, build_reader, flip_engine, join_readouts, list_readouts, select_columns, set_head
from vitrine.fitting.result import LadderStep, Outcome
from vitrine.fitting.uncalibrated import HeldOutAnswers
from vitrine.formats.checkpoint import Calibration, Checkpoint

MIN_TIMED = 200  # images of a pass that tell the speed; fewer tell how long a loader takes to start
MAX_VALIDATED = 5000  # images; more do not change a choice, and cost time that fine-tuning can use


class FitState:
    """What one call of `fit` knows so far."""

    samples: Samples
    """Features of the training images that can be read, from `read_samples`."""
    index: Tensor
    """Place of each of them in the training images, int64 (N)."""
    rows: Tensor
    """Those that heads are cross-validated on, int64."""
    folds: Tensor
    best: Validated
    """The best head so far, from the first step of the ladder on."""
    checkpoint: Checkpoint
    """The best model so far, which is in the folder."""

    def __init__(
        self,
        model: str,
        start: Checkpoint,
        data: str,
        images: FitImages,
        folder: FitFolder,
        config: FitConfig,
        budget: Budget,
        show_progress: bool,
        tuned_before: Checkpoint | None = None,
    ) -> None:
        """Begin a fit; `tuned_before` is the model of an earlier call, if fine-tuning won there."""
        self.model, self.data, self.images, self.folder = model, data, images, folder
        self.config, self.budget, self.show_progress = config, budget, show_progress
        self.inference = InferenceConfig(num_workers=config.num_workers, bad_images="skip", precision=config.precision)
        self.num_workers = count_cpus() if config.num_workers is None else config.num_workers
        self.cache: FeatureCache = open_feature_cache()
        self.steps: list[LadderStep] = []
        self.notes: list[str] = []
        framing = start.preprocessing.framing if config.framing == "auto" else config.framing
        self.start = replace(start, preprocessing=start.preprocessing.with_framing(framing))
        self.readouts = list_readouts(start.model.config)
        self.whole = join_readouts(self.readouts)
        """What is read of each image at once; the readouts are parts of it."""
        self.images_per_s = self.operations_per_s = 0.0
        self.is_settled = False
        """Whether framing and image size are those of a fine-tuning that was interrupted."""
        self.contest: Contest | None = None
        self.curve: LearningCurve | None = None
        self.tuned_answers: HeldOutAnswers | None = None
        self.tuned_before = tuned_before
        """Heads do not replace it before both are compared."""
        self.why_not_tuned: str | None = None
        """Why fine-tuning was not tried, as the end of a sentence."""

    def note(self, text: str) -> None:
        """Tell the user something about the fit now and in its report."""
        self.notes.append(text)
        if self.show_progress:
            print_notice(text)

    def build_predictor(self, checkpoint: Checkpoint) -> Predictor:
        """Return a predictor on the device of the fit."""
        return Predictor(checkpoint, self.config.device, self.inference, show_progress=self.show_progress)

    def read_features(self, preprocessing: Preprocessing, source: Source, *, flip: bool = False) -> Features:
        """Return the features of all readouts at once, from the cache if they are there, and learn the speed."""
        reader = build_reader(self.start, self.whole, self.images.num_classes, preprocessing)
        predictor = self.build_predictor(reader)
        if flip:
            assert isinstance(predictor.engine, TorchEngine)
            predictor.engine = flip_engine(predictor.engine)
        begin = time.monotonic()
        features = predictor.features(source, self.cache, "features of mirror images" if flip else "features")
        self.learn_speed(len(source), time.monotonic() - begin)
        return features

    def learn_speed(self, num_images: int, seconds: float) -> None:
        """Take a pass over images for the speed if it was slower than thought; faster may only mean that it was cached."""
        if num_images >= MIN_TIMED:
            self.images_per_s = min(self.images_per_s, num_images / seconds)

    def read_samples(self) -> None:
        """Read the features of the training images that can be read, and divide them into folds."""
        features = self.read_features(self.start.preprocessing, self.images.train)
        self.index = features.index
        self.samples = Samples(features.values, features.labels, self.images.num_classes)
        self.rows = self.choose_rows(MAX_VALIDATED)
        self.folds = draw_folds(self.validated.targets, self.images.num_classes, self.config.seed)

    def columns(self, readout: Readout) -> np.ndarray:
        """Return the columns of a readout among all features."""
        width = self.samples.values.shape[1] if not readout.layers else self.start.model.config.width
        return select_columns(readout, self.whole, width)

    @property
    def validated(self) -> Samples:
        """The images that heads are cross-validated on: all, or some thousands of them."""
        return self.samples if len(self.rows) == len(self.samples) else self.samples.take(self.rows)

    def choose_rows(self, count: int) -> Tensor:
        """Return the rows of at most `count` images, drawn at random: a few of each class first, then in proportion."""
        generator = torch.Generator().manual_seed(self.config.seed)
        order = torch.randperm(len(self.samples), generator=generator)
        if self.samples.has_several_labels:
            return order[:count].sort().values
        targets = self.samples.targets[order]
        counts = torch.bincount(targets, minlength=self.images.num_classes)
        by_class = targets.argsort(stable=True)
        ranks = torch.empty_like(targets)
        ranks[by_class] = torch.arange(len(targets)) - (counts.cumsum(dim=0) - counts)[targets[by_class]]
        priority = torch.where(ranks < NUM_FOLDS, -1.0, ranks / counts[targets])
        return order[priority.argsort(stable=True)[:count]].sort().values

    def list_choices(self, kinds: list[HeadKind]) -> list[HeadChoice]:
        """List the heads to try: balanced ones too, or they alone, where classes are uneven or the user wants it."""
        is_uneven = self.images.is_uneven
        balances = {"auto": (False, True) if is_uneven else (False,), "on": (True,), "off": (False,)}[self.config.balance]
        return list_choices(kinds, balances)

    def validate(self, readout: Readout, kinds: list[HeadKind], has_time: Callable[[], bool] = lambda: True) -> list[Validated]:
        """Cross-validate heads on one readout."""
        samples = self.validated.select(self.columns(readout))
        return cross_validate(samples, readout, self.list_choices(kinds), self.folds, has_time)

    def validation_s(
        self, readout: Readout, choices: list[HeadChoice], num_fits: int = NUM_FOLDS, *, num_views: int = 1
    ) -> float:
        """Return about how many seconds it takes to cross-validate heads on one readout."""
        rows = num_views * min(len(self.images.train), MAX_VALIDATED)
        return self.count_seconds(rows, readout, choices, num_fits)

    def save_s(self, readout: Readout, choice: HeadChoice, num_views: int = 1) -> float:
        """Return about how many seconds it takes to fit a head to all images."""
        rows = num_views * len(self.images.train)
        return self.count_seconds(rows, readout, [choice], 1 if rows > MAX_EXACT else 2)

    def count_seconds(self, num_rows: int, readout: Readout, choices: list[HeadChoice], num_fits: int) -> float:
        """Return the seconds that closed-form heads on so many rows of a readout take in float32."""
        width = readout.count_features(self.start.model.config)
        return count_operations(num_rows, width, choices, num_fits) / self.operations_per_s

    def challenge(self, new: Validated, words: str) -> bool:
        """Keep a head if it is better than the best; record it either way."""
        if not is_better(new, self.best):
            self.record(new, "not better", words)
            return False
        self.replace_best(new, words)
        self.save_head(new)
        return True

    def replace_best(self, new: Validated, words: str = "") -> None:
        """Take a head for the best so far."""
        self.best = new
        self.mark_replaced()
        self.record(new, "kept", words)

    def keep_closer(self, new: Validated, words: str) -> None:
        """Take closer figures of the best head, and its calibration from them; `words` say how they were measured."""
        self.best = new
        accuracy = predictive_interval(new.accuracy, len(self.rows), None)
        self.steps = [
            replace(step, accuracy=accuracy, log_loss=new.log_loss, detail=f"{step.detail}, {words}")
            if step.outcome == "kept"
            else step
            for step in self.steps
        ]
        self.save_head(new)

    def mark_replaced(self) -> None:
        """Say of the step that was the best so far that it was replaced."""
        self.steps = [replace(step, outcome="replaced" if step.outcome == "kept" else step.outcome) for step in self.steps]

    def record(self, validated: Validated, outcome: Outcome, words: str = "") -> None:
        """Add a step to the ladder."""
        choice = validated.choice
        name = {"discriminant": "Linear discriminant", "ridge": "Ridge regression", "logistic": "Logistic regression"}[
            choice.kind
        ]
        details = [validated.readout.describe(), words, "balanced classes" if choice.is_balanced else ""]
        accuracy = predictive_interval(validated.accuracy, len(self.rows), None)
        seconds, detail = self.budget.elapsed_s, ", ".join(filter(None, details))
        self.steps.append(LadderStep(name, detail, seconds, accuracy, validated.log_loss, outcome))

    def save_head(self, best: Validated) -> None:
        """Fit a chosen head to all images and save the model with it."""
        weight, bias = fit_head(self.samples.select(self.columns(best.readout)), best.choice, best.temperature)
        checkpoint = self.build_checkpoint(best, weight, bias)
        calibration = self.calibrate(best.logits, self.validated.targets, best.temperature)
        self.checkpoint = replace(checkpoint, calibration=calibration)
        if self.tuned_before is None:
            self.folder.save_model(self.checkpoint)

    def build_checkpoint(self, best: Validated, weight: Tensor, bias: Tensor) -> Checkpoint:
        """Return the model with a fitted head."""
        reader = build_reader(self.start, best.readout, self.images.num_classes)
        set_head(reader.model, weight, bias)
        provenance = {"source": self.model, "from": self.start.provenance, FITTED: describe_choice(best)}
        calibration = Calibration(temperature=best.temperature)
        return replace(reader, class_names=self.images.class_names, provenance=provenance, calibration=calibration)

    def calibrate(self, logits: Tensor, targets: Tensor, temperature: float) -> Calibration:
        """Return the calibration of a model, from calibrated logits of images that it was not fitted to."""
        if targets.ndim == 2:
            return Calibration(temperature, choose_thresholds(logits.sigmoid().numpy(), targets.numpy()))
        confidences, classes = logits.softmax(dim=1).max(dim=1)
        return Calibration(temperature, reject_below=choose_rejection(confidences.numpy(), (classes == targets).numpy()))

    def test_s(self) -> float:
        """Return the seconds that the test at the end will take."""
        return 0.0 if self.images.test is None else 1.1 * len(self.images.test) / self.images_per_s + 0.5


def describe_choice(best: Validated) -> dict[str, object]:
    """Return what a head is, for the checkpoint's provenance."""
    return {"head": best.choice.kind, "strength": best.choice.strength, "balanced": best.choice.is_balanced}
