"""Evaluators that measure a model during its run: top-1 accuracy, the objective's own loss, few-shot accuracy.

OBJECTIVES (objectives/config.py) names the evaluators that suit each objective. Some run only if the recipe's evaluation
settings ask for them. A new evaluator is a row of EVALUATORS.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.data.source import Source
from vitrine.data.subsets import select_subset
from vitrine.evaluation.config import EvaluationConfig
from vitrine.evaluation.features import Features, FeatureSplit, extract_features
from vitrine.evaluation.few_shot import evaluate_few_shot
from vitrine.evaluation.topk import Classification, TopK, count_hits, join_topk, summarise_counts
from vitrine.objectives.config import ObjectiveSpec
from vitrine.objectives.objective import Objective


@dataclass(frozen=True)
class EvaluationSetup:
    """What evaluators may use of a run."""

    objective: Objective
    runtime: Runtime
    config: EvaluationConfig
    seed: int
    train: Source
    source: Source
    """The images to measure on."""
    split: str
    """What they are, e.g. val: the first part of the names of most metrics."""
    read: Callable[[Source], Iterator[Batch]]
    """Reads all images of a source once, shared among the ranks."""
    evaluating: Callable[[], AbstractContextManager[None]]
    """Switches to evaluation mode, in the run's precision and with averaged weights."""


MetricLabels = dict[str, str]
Metrics = dict[str, float]


@dataclass(frozen=True)
class Evaluator:
    """Measures the model of a run on some images."""

    list_metrics: Callable[[EvaluationSetup], MetricLabels]
    """Returns the names of its metrics, each with its label in figures. The first one chooses the best weights."""
    measure: Callable[[EvaluationSetup], Metrics]
    """Returns their values. All ranks call it together, and all get the same."""
    is_wanted: Callable[[EvaluationConfig], bool] = lambda config: True
    """Whether the recipe's evaluation settings ask for it."""


def classify(setup: EvaluationSetup, keep: Callable[[TopK], None] = lambda topk: None) -> Classification:
    """Return top-1, top-5 and loss of the model on images with labels, shared among the ranks; `keep` gets this rank's."""
    with setup.evaluating():
        counts = count_hits(setup.objective.logits, setup.read(setup.source), setup.runtime.device, keep)
    return summarise_counts(setup.runtime.sum(counts))


def classify_images(setup: EvaluationSetup) -> tuple[Classification, TopK]:
    """Return what `classify` does, and the predictions of every image, of all ranks on each."""
    parts: list[TopK] = []
    result = classify(setup, parts.append)
    return result, gather_topk(join_topk(parts), len(setup.source), setup.runtime)


def gather_topk(topk: TopK, num_images: int, runtime: Runtime) -> TopK:
    """Return the predictions of all ranks in the order of the images; each rank has predicted some of `num_images`."""
    if runtime.world_size == 1:
        return topk
    num_classes = topk.classes.shape[1]
    columns = torch.cat([topk.classes, topk.probabilities, topk.hits, topk.losses[:, None], topk.has_label[:, None]], dim=1)
    rows, index = runtime.gather_rows(columns.float(), topk.index, num_images)  # float32 holds any class number exactly
    classes, probabilities, hits, losses, has_label = rows.split([num_classes] * 3 + [1, 1], dim=1)
    return TopK(index, classes.long(), probabilities, hits.bool(), losses[:, 0], has_label[:, 0].bool())


def list_top1_metrics(setup: EvaluationSetup) -> MetricLabels:
    """List top-1 and top-5 accuracy, and the loss if the objective is trained by the same."""
    split, label = setup.split, setup.split.replace("_", " ")
    labels = {f"{split}_top1": f"{label} top-1", f"{split}_top5": f"{label} top-5"}
    # The cross-entropy of a model trained by another loss would mislead.
    return labels | ({f"{split}_loss": label} if setup.objective.has_cross_entropy_loss else {})


def measure_top1(setup: EvaluationSetup) -> Metrics:
    """Measure top-1 and top-5 accuracy and, for the softmax loss, the loss."""
    result, split = classify(setup), setup.split
    values = {f"{split}_top1": result.top1, f"{split}_top5": result.top5}
    if result.loss is not None and setup.objective.has_cross_entropy_loss:
        values[f"{split}_loss"] = result.loss
    return values


def list_objective_metrics(setup: EvaluationSetup) -> MetricLabels:
    split, label = setup.split, setup.split.replace("_", " ")
    return {f"{split}_{name}": f"{label} {name}" for name in setup.objective.metric_names} | {f"{split}_loss": label}


def measure_objective(setup: EvaluationSetup) -> Metrics:
    """Measure the objective's own metrics and loss, with the same random numbers (those of step 0) at every evaluation."""
    names = (*setup.objective.metric_names, "loss")
    sizes, values = list[int](), list[Tensor]()
    with setup.evaluating(), torch.no_grad():
        for batch in setup.read(setup.source):
            filled = setup.objective.add_draws(replace(batch, step=0).filled())
            output = setup.objective(filled.to(setup.runtime.device))
            if len(batch) > 0:  # all ranks go through equally many batches, and the last may be empty on some
                sizes.append(len(batch))
                values.append(torch.stack([{**output.metrics, "loss": output.loss}[name] for name in names]).float())
    sums = torch.zeros(1 + len(names), dtype=torch.float64)
    rows = torch.stack(values).cpu() if values else []  # read once: each read makes the device wait
    for size, row in zip(sizes, rows, strict=True):
        sums += size * torch.cat([torch.ones(1), row]).double()
    num_images, *totals = setup.runtime.sum(sums).tolist()
    return {f"{setup.split}_{name}": total / num_images for name, total in zip(names, totals, strict=True)}


def measure_few_shot(setup: EvaluationSetup) -> Metrics:
    """Measure the accuracy of a linear classifier fitted to a few training images of each class.

    The ranks share the computation of the features; each gets all of them and fits the same classifier.
    """
    shots = setup.config.few_shot
    support = select_subset(setup.train, f"{shots}/class", setup.seed)
    with setup.evaluating():
        train, test = (extract_shared_features(setup, source) for source in (support, setup.source))
    split = FeatureSplit(train, test, len(setup.train.class_names))
    return {f"few_shot_{shots}": evaluate_few_shot(split, shots, seeds=(setup.seed,)).mean}


def extract_shared_features(setup: EvaluationSetup, source: Source) -> Features:
    """Return the features of all images of a source, in their order, on every rank; each computes a part of them."""
    runtime = setup.runtime
    part = extract_features(setup.objective.features, setup.read(source), runtime.device, is_part=runtime.world_size > 1)
    values, index = runtime.gather_rows(part.values, part.index, len(source))
    labels = source.labels.to_targets(index.numpy(), len(source.class_names))
    return Features(values, torch.from_numpy(labels), index)


# They run in this order.
EVALUATORS: dict[str, Evaluator] = {
    "top1": Evaluator(list_top1_metrics, measure_top1),
    "objective": Evaluator(list_objective_metrics, measure_objective),
    "few_shot": Evaluator(
        lambda setup: {f"few_shot_{setup.config.few_shot}": f"few-shot {setup.config.few_shot}"},
        measure_few_shot,
        lambda config: config.few_shot > 0,
    ),
}


def list_evaluators(spec: ObjectiveSpec, config: EvaluationConfig) -> list[str]:
    """Return the names of the evaluators of a run: those that suit its objective and that its settings ask for."""
    return [name for name, evaluator in EVALUATORS.items() if name in spec.evaluators and evaluator.is_wanted(config)]


def choose_selector(spec: ObjectiveSpec, config: EvaluationConfig) -> str:
    """Return the name of the evaluator that chooses the best weights: the first of the objective's that runs."""
    return next(name for name in spec.evaluators if EVALUATORS[name].is_wanted(config))
