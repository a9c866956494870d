"""What a fit has found, computed once for report.json and report.html: accuracy, confidence, and what was left out."""

from dataclasses import dataclass

from vitrine.core.console import join_names
from vitrine.evaluation.calibration import Coverage, compute_coverage
from vitrine.evaluation.intervals import Estimate, wilson_interval
from vitrine.fitting.images import FitImages
from vitrine.fitting.readouts import Readout
from vitrine.fitting.result import FitResult
from vitrine.formats.checkpoint import Checkpoint


@dataclass(frozen=True)
class Measured:
    """The accuracy of the final model, and the images that it was measured on."""

    accuracy: Estimate
    num_images: int
    images: str
    """Which images, e.g. "test photos"."""

    @property
    def num_hits(self) -> int:
        return round(self.accuracy.value * self.num_images)


@dataclass(frozen=True)
class Rejection:
    """What saying "unsure" below a confidence does to the measured images."""

    threshold: float
    coverage: float
    """Fraction of images that get an answer."""
    accuracy: Estimate
    """Of these answers."""


def has_several_labels(result: FitResult) -> bool:
    return result.images.train.labels.has_several


def find_measured(result: FitResult) -> Measured:
    """Return the accuracy on the test split, else on the photos held out from fine-tuning, else of cross-validation."""
    report = result.result.report
    return Measured(report.top1, report.num_images, describe_measured(result, "photos"))


def describe_measured(result: FitResult, noun: str) -> str:
    """Return which images, called `noun`, the accuracy was measured on."""
    if result.is_tested:
        return f"test {noun}"
    if result.is_unmeasured:
        return f"training {noun} in cross-validation of the linear head (not of the earlier fine-tuned model that was kept)"
    return f"training {noun} held out from fine-tuning" if result.is_tuned else f"training {noun} in cross-validation"


def compute_macro_accuracy(result: FitResult) -> float | None:
    """Return the mean accuracy over classes; None for several labels."""
    macro = result.result.report.macro_top1
    return None if macro is None else macro.value


def find_coverage(result: FitResult) -> Coverage | None:
    """Return coverage and accuracy of the measured answers; None for several labels, which have no single confidence."""
    if has_several_labels(result):
        return None
    counted = result.result.counted
    return compute_coverage(counted.probabilities[:, 0].double().numpy(), counted.hits[:, 0].numpy())


def find_rejection(result: FitResult) -> Rejection | None:
    """Return what the model's threshold does to the measured answers; None without a threshold, or if none is above it."""
    threshold = result.checkpoint.calibration.reject_below
    if threshold is None or has_several_labels(result):
        return None
    counted = result.result.counted
    is_answered = counted.probabilities[:, 0] >= threshold
    num_answered = int(is_answered.sum())
    if num_answered == 0:
        return None
    accuracy = wilson_interval(float(counted.hits[is_answered, 0].double().mean()), num_answered)
    return Rejection(threshold, num_answered / len(counted), accuracy)


def describe_framing(checkpoint: Checkpoint) -> str:
    """Return what the model sees of an image, e.g. "centre crop 224 px"."""
    height, width = checkpoint.preprocessing.crop
    size = f"{height} px" if height == width else f"{height} x {width} px"
    words = {"crop": "centre crop", "letterbox": "whole photo between bars,", "squash": "whole photo squeezed to"}
    return f"{words[checkpoint.preprocessing.framing]} {size}"


def describe_readout(checkpoint: Checkpoint) -> str:
    """Return the layers that the head reads, e.g. "class token of blocks 9 to 11"."""
    config = checkpoint.model.config
    return Readout(getattr(config, "readout_layers", ()), getattr(config, "readout", None)).describe()


def list_cautions(images: FitImages, notes: list[str]) -> list[str]:
    """List what the reader should know about the images: those without time, those left out, and the notes of the fit."""
    cautions = list(notes)
    if images.is_thinned:
        parts = [f"{len(images.train):,} of {images.num_available[0]:,} training photos"]
        if images.test is not None:
            parts.append(f"{len(images.test):,} of {images.num_available[1]:,} test photos")
        cautions.append(f"All figures are of a subset, drawn at random, of large classes fewer: {' and '.join(parts)}.")
    for reason, names in images.left_out.items():
        noun = "1 training photo" if len(names) == 1 else f"{len(names):,} training photos"
        cautions.append(f"Left out: {noun}, {reason} ({join_names(names, 4)}).")
    if not images.was_searched and images.test is not None:
        cautions.append("There was no time to look for copies of test photos among the training photos.")
    return cautions
