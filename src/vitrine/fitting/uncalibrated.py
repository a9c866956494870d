"""Calibration error that a fitted model would have without its temperature, from the same pass over the images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrine.data.batch import Batch
from vitrine.data.source import Source
from vitrine.evaluation.class_mapping import map_classes
from vitrine.evaluation.classification_report import EvaluationResult, build_report, compute_calibration_error
from vitrine.evaluation.predictor import Predictor
from vitrine.evaluation.topk import predict_batches


@dataclass(frozen=True)
class HeldOutAnswers:
    """Answers for training images by models that were not fitted to them."""

    logits: Tensor
    """float64 (N, K), divided by the temperature already."""
    targets: Tensor
    index: Tensor
    """int64 (N): the images' places in their source."""
    temperature: float


def evaluate_both(
    predictor: Predictor, source: Source, is_enough: Callable[[int], bool] = lambda num_images: False
) -> tuple[EvaluationResult, float]:
    """Evaluate a model, as `evaluate_classifier` does, and return its uncalibrated calibration error too.

    Reading stops as soon as `is_enough` says so of the number of images read.
    """
    engine, sizes, parts = predictor.engine, list[int](), list[Tensor]()
    mapped = map_classes(source, engine.class_names, engine.num_classes)

    def read() -> Iterator[Batch]:
        for batch in predictor.read_images(mapped, title="testing"):
            sizes.append(len(batch))
            yield batch
            if is_enough(sum(sizes)):
                return

    def compute_logits(images: Tensor) -> Tensor:
        logits = engine.logits(images)
        parts.append(compute_confidences(logits[: sizes[-1]].cpu(), engine.calibration.temperature))  # not all have float64
        return logits

    with predictor.explain_memory():
        predictions = predict_batches(compute_logits, read(), engine.device)
    result = EvaluationResult(
        mapped, engine.preprocessing, predictions, build_report(predictions, mapped.labels, mapped.class_names)
    )
    is_counted = predictions.has_label
    return result, measure_error(torch.cat(parts)[is_counted], predictions.hits[is_counted, 0])


def measure_uncalibrated(answers: HeldOutAnswers, hits: Tensor) -> float:
    """Return the error of answers without their temperature; `hits` is bool (N)."""
    return measure_error(compute_confidences(answers.logits, answers.temperature), hits)


def compute_confidences(logits: Tensor, temperature: float) -> Tensor:
    """Return the probability of the first class (N) without the temperature by which logits (N, K) are divided already."""
    return (temperature * logits.double()).softmax(dim=1).amax(dim=1)


def measure_error(confidences: Tensor, hits: Tensor) -> float:
    """Return the calibration error of confidences and hits, both (N)."""
    return compute_calibration_error(confidences.numpy().astype(np.float64), hits.numpy())
