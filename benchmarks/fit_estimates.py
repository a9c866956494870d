"""Whether the estimates of `vitrine fit` hold: `python benchmarks/fit_estimates.py MODEL DATA`.

The images of both splits are divided anew at random, twenty times, into as many training and test images as before. Each
time heads are chosen by cross-validation on the training images as in a fit, without framings, mirror images and
fine-tuning. Counted are the divisions whose test accuracy lies in the 95 % interval that was computed for a test set of its
size, and the width of that interval beside binomial error alone. The calibration error is that of all test answers pooled,
with the temperature and without. `--json FILE` saves the results.
"""

import math
import statistics
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from tyro.conf import Positional

from vitrine.core.console import print_table
from vitrine.core.files import write_json
from vitrine.data.open_data import find_data
from vitrine.evaluation.classification_report import compute_calibration_error
from vitrine.evaluation.features import open_feature_cache
from vitrine.evaluation.intervals import DEVIATIONS, predictive_interval
from vitrine.evaluation.predictor import Predictor
from vitrine.fitting.heads import MANY_FOLDS, HeadKind, Samples, cross_validate, draw_folds, fit_head, list_choices, pick_best
from vitrine.fitting.readouts import build_reader, join_readouts, list_readouts, select_columns
from vitrine.formats.load import load_checkpoint

KINDS: tuple[HeadKind, ...] = ("discriminant", "ridge")


def main(
    model: Annotated[Positional[str], tyro.conf.arg(metavar="MODEL")],
    data: Annotated[Positional[str], tyro.conf.arg(metavar="DATA")],
    divisions: int = 20,
    json: Path | None = None,
) -> None:
    """Divide, choose and measure; print and save the results."""
    samples, readouts, columns, num_train = read_all(model, data)
    rows, confidences, plain, hits = [], [], [], []
    for seed in range(divisions):
        order = draw_division(samples.targets, num_train, seed)
        train, test = samples.take(order[:num_train]), samples.take(order[num_train:])
        folds = draw_folds(train.targets, train.num_classes, seed)
        parts = {readout: train.select(columns[readout]) for readout in readouts}
        choices = list_choices(KINDS)
        chosen = pick_best([each for readout in readouts for each in cross_validate(parts[readout], readout, choices, folds)])
        many = draw_folds(train.targets, train.num_classes, seed, MANY_FOLDS)
        (best,) = cross_validate(parts[chosen.readout], chosen.readout, [chosen.choice], many)
        weight, bias = fit_head(train.select(columns[best.readout]), best.choice, best.temperature)
        logits = (test.select(columns[best.readout]).values @ weight.T + bias).double()
        is_right = (logits.argmax(dim=1) == test.targets).numpy()
        interval = predictive_interval(best.accuracy, num_train, len(test))
        rows.append((best.accuracy, interval.low, interval.high, float(is_right.mean())))
        confidences.append((logits / best.temperature).softmax(dim=1).amax(dim=1).numpy())
        plain.append(logits.softmax(dim=1).amax(dim=1).numpy())
        hits.append(is_right)
    num_test = len(samples) - num_train
    held = sum(low <= test <= high for _, low, high, test in rows)
    widths = [(high - low) / (2 * DEVIATIONS * math.sqrt(test * (1 - test) / num_test)) for _, low, high, test in rows]
    result = {
        "data": Path(data).name,
        "divisions": divisions,
        "num_train": num_train,
        "num_test": num_test,
        "held": held,
        "relative_width": statistics.median(widths),
        "expected": statistics.fmean(row[0] for row in rows),
        "accuracy": statistics.fmean(row[3] for row in rows),
        "calibration_error": compute_calibration_error(np.concatenate(confidences), np.concatenate(hits)),
        "uncalibrated_error": compute_calibration_error(np.concatenate(plain), np.concatenate(hits)),
    }
    print_table(list(result), [[f"{value:.4f}" if isinstance(value, float) else str(value) for value in result.values()]])
    if json is not None:
        write_json(json, {**result, "rows": rows})


def read_all(model: str, data: str) -> tuple[Samples, list, dict, int]:
    """Return the features of both splits, the readouts, their columns, and the number of training images."""
    dataset, start = find_data(data), load_checkpoint(model)
    sources = dataset.open("train"), dataset.open("test")
    readouts = list_readouts(start.model.config)
    whole, num_classes = join_readouts(readouts), len(sources[0].class_names)
    predictor = Predictor(build_reader(start, whole, num_classes), show_progress=True)
    parts = [predictor.features(source, open_feature_cache()) for source in sources]
    values, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("values", "labels"))
    columns = {readout: select_columns(readout, whole, start.model.config.width) for readout in readouts}
    return Samples(values, labels, num_classes), readouts, columns, len(parts[0])


def draw_division(targets: torch.Tensor, num_train: int, seed: int) -> torch.Tensor:
    """Return the images in a random order whose first part has the same share of each class."""
    generator = torch.Generator().manual_seed(1000 + seed)
    order = torch.randperm(len(targets), generator=generator)
    counts = torch.bincount(targets)
    ranks = torch.empty(len(targets), dtype=torch.float64)
    for label in range(len(counts)):
        members = order[targets[order] == label]
        ranks[members] = (torch.arange(len(members)).double() + 0.5) / len(members)
    return ranks.argsort(stable=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
