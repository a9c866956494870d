"""Time the ridge regression of few-shot evaluation against scikit-learn's Ridge: `python benchmarks/few_shot.py`.

10,000 images, 768 features, 1000 classes, float64: one penalty, and a sweep of eight. Both start from raw features; for
scikit-learn, which chooses its own solver, NumPy standardises them once and appends the constant feature. A third timing is
scikit-learn with that work done before. All must give the same weights. Takes a minute on two cores; `--json FILE` writes the
results.
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import tyro
from rich.console import Console
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn import functional as F

from measure import Figure, Step, build_table, compute_figures, measure
from peers import OURS
from vitrine.core.files import write_json
from vitrine.evaluation.linear_heads import CONSTANT_FEATURE, MIN_STD, RidgeProblem

PEER, PREPARED = "scikit-learn", "scikit-learn, prepared"
SWEEP = tuple(4.0**power for power in range(8))
NEEDED = {1: 2.0, len(SWEEP): 5.0}  # required speedup by number of penalties
TOLERANCE = 1e-6


def main(
    rounds: int = 5,
    num_images: int = 10_000,
    num_features: int = 768,
    num_classes: int = 1000,
    threads: int = 2,
    json: Path | None = None,
) -> None:
    """Measure one penalty and the sweep; print and save the results."""
    if rounds < 2:
        raise SystemExit(f"--rounds {rounds} must be at least 2, to measure a spread.")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    features = torch.randn(num_images, num_features) * torch.rand(num_features) + torch.randn(num_features)
    labels = torch.randint(num_classes, (num_images,))
    results = {}
    for l2s in ((1024.0,), SWEEP):
        title = f"{num_images} x {num_features}, {num_classes} classes, {len(l2s)} l2"
        steps = build_steps(features, labels, num_classes, l2s)
        difference = compute_difference(steps)
        results[title] = compute_figures(measure(steps, rounds, title))
        print_results(title, results[title], NEEDED[len(l2s)], difference)
    if json is not None:
        settings = {title: [asdict(figure) for figure in figures] for title, figures in results.items()}
        write_json(json, {"torch": torch.__version__, "threads": threads, "rounds": rounds, "settings": settings})


def build_steps(features: Tensor, labels: Tensor, num_classes: int, l2s: tuple[float, ...]) -> dict[str, Step]:
    """Return the functions to time, by contestant."""
    targets = 2.0 * F.one_hot(labels, num_classes).double().numpy() - 1
    prepared = standardise(features)

    def ours() -> list[np.ndarray]:
        problem = RidgeProblem(features, labels, num_classes)
        if len(l2s) > 1:
            problem.decompose()
        return [problem.solve(l2)[0].numpy() for l2 in l2s]

    def solve_prepared(z: np.ndarray = prepared) -> list[np.ndarray]:
        return [Ridge(alpha=l2, fit_intercept=False).fit(z, targets).coef_.T[:-1] for l2 in l2s]

    return {OURS: ours, PREPARED: solve_prepared, PEER: lambda: solve_prepared(standardise(features))}


def standardise(features: Tensor) -> np.ndarray:
    """Standardise as the released code does and append the constant feature."""
    values = features.numpy().astype(np.float64)
    standardised = (values - values.mean(axis=0)) / (values.std(axis=0) + MIN_STD)
    return np.column_stack([standardised, np.full(len(values), CONSTANT_FEATURE)])


def compute_difference(steps: dict[str, Step]) -> float:
    """Return the largest relative difference of weights; exit if it is above TOLERANCE."""
    ours, *others = (np.array(step()) for step in steps.values())
    difference = max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for theirs in others)
    if difference > TOLERANCE:
        raise SystemExit(f"The weights differ by {difference:.1e} of the largest; expected at most {TOLERANCE:g}.")
    return difference


def print_results(title: str, figures: list[Figure], needed: float, difference: float) -> None:
    """Print the table and whether the required speed is reached."""
    console = Console()
    console.print(build_table(title, figures))
    ratio = figures[-1].ratio
    console.print(f"{ratio:.1f} times the speed of {PEER} (needs >= {needed:g}: {'met' if ratio >= needed else 'missed'})")
    console.print(f"largest difference of weights: {difference:.1e} of the largest weight\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
