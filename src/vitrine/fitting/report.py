"""report.json and report.html of a fit."""

import math
from dataclasses import asdict, is_dataclass
from typing import Any

from vitrine.core.console import summarise_error, warn_user
from vitrine.core.files import write_json
from vitrine.core.html_report import write_page
from vitrine.evaluation.classification_report import find_mistakes, list_confusions
from vitrine.fitting.findings import (
    compute_macro_accuracy,
    describe_framing,
    describe_readout,
    find_coverage,
    find_measured,
    find_rejection,
    has_several_labels,
    list_cautions,
)
from vitrine.fitting.folder import FitFolder
from vitrine.fitting.page import build_page
from vitrine.fitting.result import FitResult
from vitrine.version import __version__

NUM_LISTED = 50  # mistakes


def write_fit_report(result: FitResult, folder: FitFolder, command: str | None = None) -> None:
    """Write what a fit has found as JSON and as a page. An error of the page becomes a warning: the model is complete."""
    write_json(folder.numbers, fit_to_json(result))
    try:
        write_page(folder.report, build_page(result, folder, command))
    except Exception as error:
        warn_user(f"{folder.report} was not written ({summarise_error(error)}); the model and report.json are complete.")


def fit_to_json(result: FitResult) -> dict[str, Any]:
    """Return every figure of the report; a value that is not finite becomes None."""
    images, checkpoint, train = result.images, result.checkpoint, result.images.train
    content = {
        "version": __version__,
        "model": result.model,
        "num_parameters": sum(parameter.numel() for parameter in checkpoint.model.parameters()),
        "reads": describe_readout(checkpoint),
        "framing": checkpoint.preprocessing.framing,
        "image_size": list(checkpoint.preprocessing.crop),
        "sees": describe_framing(checkpoint),
        "calibration": checkpoint.calibration.to_json(),
        "data": result.data,
        "class_names": list(images.class_names),
        "images": {
            "train": len(train),
            "test": None if images.test is None else len(images.test),
            "available": list(images.num_available),
            "is_thinned": images.is_thinned,
            "was_searched": images.was_searched,
            "left_out": images.left_out,
        },
        "cautions": list_cautions(images, result.notes),
        "notes": result.notes,
        "measured": find_measured(result),
        "is_tested": result.is_tested,
        "expected": result.expected,
        "report": result.result.report,
        "labels": None if result.labels is None else result.labels.report,
        "macro_accuracy": compute_macro_accuracy(result),
        "uncalibrated_error": result.uncalibrated_error,
        "steps": result.steps,
        "contest": result.contest,
        "curve": result.curve,
        "coverage": find_coverage(result),
        "rejection": find_rejection(result),
        "confusions": list_confused(result),
        "mistakes": list_mistakes(result),
        "suspects": [
            {
                "image": train.name(each.index),
                "label": train.class_names[each.label],
                "suggested": train.class_names[each.suggested],
                "probability": each.fraction,
            }
            for each in result.suspects
        ],
        "parts": result.parts,
        "minutes": result.minutes,
        "seconds": result.seconds,
        "interrupted_by": result.interrupted_by,
    }
    return to_plain(content)


def list_confused(result: FitResult) -> list[dict[str, Any]]:
    """List the pairs of label and wrong prediction with their counts, the most frequent first; none for several labels."""
    if has_several_labels(result):
        return []
    names, entries = result.result.source.class_names, list_confusions(result.result.counted, result.result.source.labels)
    wrong = sorted((entry for entry in entries.tolist() if entry[0] != entry[1]), key=lambda entry: -entry[2])
    return [{"label": names[label], "predicted": names[taken], "count": count} for label, taken, count in wrong]


def list_mistakes(result: FitResult) -> list[dict[str, Any]]:
    """List the surest mistakes, the surest first."""
    evaluated, mistakes = result.result, find_mistakes(result.result.predictions, NUM_LISTED)
    rows = zip(mistakes.index.tolist(), mistakes.classes[:, 0].tolist(), mistakes.probabilities[:, 0].tolist(), strict=True)
    names = evaluated.source.class_names
    return [
        {
            "image": evaluated.source.name(index),
            "label": evaluated.name_labels(index),
            "predicted": names[predicted],
            "confidence": confidence,
        }
        for index, predicted, confidence in rows
    ]


def to_plain(value: Any) -> Any:
    """Return dataclasses as objects and tuples as lists; numbers that are not finite as None."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value))
    if isinstance(value, dict):
        return {str(name): to_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
