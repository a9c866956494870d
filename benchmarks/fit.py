"""Overhead of the training loop: a step of `fit` against the same step written by hand, `python benchmarks/fit.py`.

By hand: normalise, forward pass, cross-entropy, backward pass, AdamW, clear gradients. `fit` also seeds, sets the learning
rate, clips, computes metrics and reads them every 10 steps. A third contestant, by hand with clipping, shows how much of the
difference is due to that. They alternate step by step: while `fit` waits for its next batch, the others step.
Takes about 10 minutes on two cores; `--json FILE` saves the results.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.progress import track
from torch import nn
from torch.nn import functional as F

from measure import Figure, build_table, compute_figures
from vitrine.core.files import write_json
from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.models.model import Model
from vitrine.models.registry import build_model
from vitrine.objectives.config import SupervisedConfig
from vitrine.objectives.supervised import Supervised
from vitrine.training.config import MachineConfig, OptimConfig
from vitrine.training.loop import MetricAverager, fit
from vitrine.training.optimizer import build_optimizer
from vitrine.training.parallel import Parallel
from vitrine.training.state import TrainState

PLAIN, CLIPPED, FIT = "by hand", "by hand, clipping", "fit"
MAX_RATIO = 1.03
WARM_UP_STEPS = 3
ROUND_STEPS = 10  # steps between two reads of the metrics, so that each round has one
NUM_BATCHES = 4
MODEL, IMAGE_SIZE = "ViT-Ti/16", (224, 224)
PREPROCESSING = build_inception_preprocessing(IMAGE_SIZE)
# A small learning rate: once these few batches are memorised, gradients would become denormal and slow.
OPTIM = OptimConfig(learning_rate=1e-6, decay="constant", max_grad_norm=1.0)

PlainStep = Callable[[Batch], None]
Seconds = dict[str, float]


def main(rounds: int = 6, batch_sizes: tuple[int, ...] = (32, 16), threads: int = 2, json: Path | None = None) -> None:
    """Measure each batch size; print and save the results."""
    if rounds < 2:
        raise SystemExit(f"--rounds {rounds} must be at least 2, to measure a spread.")
    torch.set_num_threads(threads)
    results: dict[str, list[Figure]] = {}
    for batch_size in batch_sizes:
        title = f"training loop: {MODEL} at {IMAGE_SIZE[0]}, batch {batch_size}"
        results[title] = compute_figures(measure(batch_size, rounds, title), PLAIN)
        report(title, results[title])
    if json is not None:
        settings = {title: [asdict(figure) for figure in figures] for title, figures in results.items()}
        write_json(json, {"torch": torch.__version__, "threads": threads, "rounds": rounds, "settings": settings})


def measure(batch_size: int, rounds: int, title: str) -> list[Seconds]:
    """Return for each round the mean seconds per step of each contestant. All start with the same weights."""
    torch.manual_seed(0)
    model, batches = build_network(num_classes=1000), build_batches(batch_size, num_classes=1000)
    others = {PLAIN: build_plain(deepcopy(model), None), CLIPPED: build_plain(deepcopy(model), OPTIM.max_grad_norm)}
    total_steps = WARM_UP_STEPS + rounds * ROUND_STEPS + 1  # one more: a step ends when the next batch is requested
    turns: list[Seconds] = []
    shown = track(islice(cycle(batches), total_steps), title, total_steps, console=Console(stderr=True), transient=True)
    run_fit(model, take_turns(iter(shown), others, turns), total_steps)
    starts = range(WARM_UP_STEPS, len(turns), ROUND_STEPS)
    return [
        {name: statistics.mean(turn[name] for turn in turns[start : start + ROUND_STEPS]) for name in (*others, FIT)}
        for start in starts
    ]


def take_turns(batches: Iterator[Batch], others: dict[str, PlainStep], turns: list[Seconds]) -> Iterator[Batch]:
    """Yield batches to `fit`, timed from one request to the next; before each, the other contestants step."""
    names = list(others)
    for batch in batches:
        names.reverse()  # what the previous one left in the caches matters
        seconds = {}
        for name in names:
            start = time.perf_counter()
            others[name](batch)
            seconds[name] = time.perf_counter() - start
        start = time.perf_counter()
        yield batch
        turns.append(seconds | {FIT: time.perf_counter() - start})


def build_network(num_classes: int, **changes: Any) -> Model[Any]:
    """Build the model with random weights everywhere: a zero head would give zero gradients to the encoder."""
    model = build_model(MODEL, image_size=IMAGE_SIZE, num_classes=num_classes, **changes)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    return model


def build_batches(batch_size: int, num_classes: int) -> list[Batch]:
    """Draw batches of random images and classes."""
    return [
        Batch(
            image=torch.randint(256, (batch_size, 3, *IMAGE_SIZE), dtype=torch.uint8),
            target=torch.randint(num_classes, (batch_size,)),
            index=torch.arange(batch_size),
            step=step,
        )
        for step in range(NUM_BATCHES)
    ]


def build_plain(model: nn.Module, max_grad_norm: float | None) -> PlainStep:
    """Return a training step written by hand; it normalises with the same function as `fit`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=OPTIM.learning_rate, weight_decay=OPTIM.weight_decay)
    model.train()

    def step(batch: Batch) -> None:
        F.cross_entropy(model(PREPROCESSING.normalise(batch.image)), batch.target).backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


class ReadEachRound:
    """Callback that reads the metrics once per round, as a run does for its log."""

    def after_step(self, state: TrainState, metrics: MetricAverager, lr: float) -> None:
        if state.step % ROUND_STEPS == 0:
            metrics.read()


def run_fit(model: Model[Any], batches: Iterator[Batch], total_steps: int) -> None:
    """Train by `fit` on one CPU process."""
    runtime = Runtime(torch.device("cpu"))
    objective = Supervised(model, PREPROCESSING, SupervisedConfig())
    parallel = Parallel(objective, MachineConfig(precision="float32"), runtime)
    state = TrainState(objective, build_optimizer(objective, OPTIM))
    fit(state, batches, total_steps=total_steps, optim=OPTIM, parallel=parallel, runtime=runtime, callback=ReadEachRound())


def report(title: str, figures: list[Figure]) -> None:
    """Print the table and the overhead of `fit`."""
    console = Console()
    console.print(build_table(title, figures, ratio="ratio"))
    overhead = next(figure.ratio for figure in figures if figure.name == FIT) - 1
    verdict = "met" if 1 + overhead < MAX_RATIO else "missed"
    console.print(f"fit costs {100 * overhead:+.1f} % (needs < {100 * (MAX_RATIO - 1):+.0f} %: {verdict})\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
