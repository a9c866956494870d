"""The study `data-size`: with how much pre-training data do ViTs catch up with ResNets? (figures 3 and 4 of arXiv:2010.11929)

The regime is that of figure 4: same hyperparameters on every number of images, best weights by validation accuracy. The gap is
the accuracy of a ViT minus that of a ResNet of equal cost, with the same seed, on images that no run has trained on.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrine.core.figures import INK_2
from vitrine.core.page_parts import THIN_SPACE
from vitrine.data.open_data import choose_test_split, find_data
from vitrine.evaluation.few_shot import few_shot
from vitrine.evaluation.predictor import Predictor
from vitrine.models.cost import compute_cost
from vitrine.run.folder import RunFolder, RunSummary
from vitrine.studies.claims import Check, Claim, Unit, Verdict, bootstrap_images, compute_difference, judge, student_interval
from vitrine.studies.config import Scale
from vitrine.studies.data_size_grid import GRIDS, Grid, build_recipe, count_evaluated, find_facts, list_cells
from vitrine.studies.runner import RunOutcome, StudyRun
from vitrine.studies.study import Study, StudyFigure, StudyPlan
from vitrine.training.metrics_log import label_ends

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOR = 0.05  # above guessing: with less, both models of a pair have learnt nothing yet
REAL_SET, SHOTS = "digits", 5  # as in figure 4: linear 5-shot accuracy, here on handwritten digits

NARROWS = Claim(
    name="The gap narrows",
    sentence="With the smallest pre-training set ViTs are behind BiT ResNets; with more data they gain on them (section 4.3).",
    measured=(
        "Gap (ViT minus ResNet) on all images minus gap on the smallest number on which both are 5 points above guessing; "
        "above 0, in points and in logits"
    ),
    threshold=0.0,
    unit="points",
)
CATCHES_UP = Claim(
    name="ViTs catch up",
    sentence="With the largest sets ViTs are no worse than ResNets of equal cost (figures 3 and 4).",
    measured="Gap (ViT minus ResNet) on all images, above -1 point",
    threshold=-1.0,
    unit="points",
)
REVERSES = Claim(
    name="The order reverses",
    sentence="With the largest sets ViTs overtake ResNets (figures 3 and 4).",
    measured="Gap (ViT minus ResNet) on all images, above 0",
    threshold=0.0,
    unit="points",
)
PAPER = (
    "Figures 3 and 4 pre-train on ImageNet, ImageNet-21k and JFT-300M, and on random subsets of JFT of 9, 30 and 90 million "
    "images. On the smallest sets the BiT ResNets are ahead; on the largest, the ViTs are. ViT-B/32 is behind ResNet-50, which "
    "costs about as much, on 9 million images, and ahead on 90 million."
)


def build(scale: Scale, data: str | None, seeds: tuple[int, ...]) -> StudyPlan:
    """Build the runs: every model on every number of images with every seed."""
    grid = GRIDS[scale]
    facts = find_facts(grid, data)
    runs = []
    for model, num_images, seed in list_cells(grid, facts, seeds):
        recipe = build_recipe(grid, facts, model, num_images, seed)
        is_all = num_images == facts.num_images
        amount = ("fresh" if facts.is_fresh else "all") if is_all else f"{num_images:,}"
        label = f"{model.name}, {amount} images, seed {seed}"
        columns = {
            "model": model.name,
            "num_images": num_images,
            "amount": amount,
            "seed": seed,
            "macs": compute_cost(recipe.model.resolve(facts.num_classes)).macs,
            "num_evaluated": count_evaluated(grid, facts, num_images),
        }
        folder = f"{model.name.lower().replace(', ', '-').replace(' ', '-').replace('/', '-')}-{num_images}-seed-{seed}"
        runs.append(StudyRun(label=label, recipe=recipe, folder=folder, title=label, columns=columns))
    last = "fresh images in every step" if facts.is_fresh else f"all {facts.num_images:,} images"
    return StudyPlan(
        scale=scale,
        source=facts.source,
        runs=tuple(runs),
        num_classes=facts.num_classes,
        remark=grid.remark,
        regime=(
            f"{facts.source}: {facts.num_classes:,} classes, {runs[0].recipe.total_steps:,} steps of "
            f"{runs[0].recipe.loader.batch_size:,} images on every number of images, up to {last}."
        ),
    )


def read(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Measure which test images a finished model classifies correctly and, of glyphs, 5-shot accuracy on digits."""
    dataset = find_data(run.recipe.data.source)
    predictor = Predictor(RunFolder(folder).model, run.recipe.device)
    predictions = predictor.predict_source(dataset.open(choose_test_split(dataset)), top=1)
    hits = predictions.hits[predictions.index.argsort(), 0].numpy()
    reading: dict[str, Any] = {"accuracy": float(hits.mean()), "num_images": len(hits), "hits": pack_hits(hits)}
    if run.recipe.data.source.startswith("glyphs"):  # learning without a real set, so one shows what the features are worth
        (result,) = few_shot(RunFolder(folder).model, REAL_SET, (SHOTS,), device=run.recipe.device, use_cache=False)
        reading["few_shot"] = result.mean
    return reading


def pack_hits(hits: np.ndarray) -> str:
    """Return bool (N) as text, a bit for each image."""
    return base64.b64encode(np.packbits(hits).tobytes()).decode("ascii")


def unpack_hits(reading: dict[str, Any]) -> np.ndarray:
    """Return which images were classified correctly, bool (N)."""
    packed = np.frombuffer(base64.b64decode(reading["hits"]), dtype=np.uint8)
    return np.unpackbits(packed, count=reading["num_images"]).astype(bool)


@dataclass(frozen=True)
class Pair:
    """The readings of ViT and ResNet on one number of images, seed by seed."""

    num_images: int
    vit: list[dict[str, Any]]
    resnet: list[dict[str, Any]]

    @property
    def num_test_images(self) -> int:
        return self.vit[0]["num_images"]

    def list_gaps(self, unit: Unit) -> list[float]:
        """Return the accuracy of the ViT minus that of the ResNet, for each seed."""
        return [
            compute_difference(vit["accuracy"], resnet["accuracy"], self.num_test_images, unit)
            for vit, resnet in zip(self.vit, self.resnet, strict=True)
        ]

    def stack_hits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the right answers of ViT and ResNet, bool (N, seeds) each."""
        vit, resnet = (np.stack([unpack_hits(each) for each in side], axis=1) for side in (self.vit, self.resnet))
        return vit, resnet

    def is_off_the_floor(self, guessing: float) -> bool:
        """Return whether both models have learnt something."""
        return all(np.mean([each["accuracy"] for each in side]) >= guessing + FLOOR for side in (self.vit, self.resnet))


def list_pairs(grid: Grid, outcomes: Sequence[RunOutcome]) -> list[Pair]:
    """Return the pairs of all numbers of images, with the seeds for which all of them are there."""
    readings = {
        (each.run.columns["model"], each.run.columns["num_images"], each.run.columns["seed"]): each.reading
        for each in outcomes
        if each.is_finished and each.reading is not None
    }
    sizes = sorted({each.run.columns["num_images"] for each in outcomes})
    seeds = sorted({each.run.columns["seed"] for each in outcomes})
    whole = [seed for seed in seeds if all((model, size, seed) in readings for model in grid.compared for size in sizes)]
    vit, resnet = ([[readings[model, size, seed] for seed in whole] for size in sizes] for model in grid.compared)
    return [Pair(size, *sides) for size, *sides in zip(sizes, vit, resnet, strict=True)] if whole else []


def judge_claims(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> list[Verdict]:
    """Return the verdicts on the three claims."""
    pairs = list_pairs(GRIDS[plan.scale], outcomes)
    if not pairs:
        return [undecided(claim, "No seed has all runs of ViT and ResNet.") for claim in (NARROWS, CATCHES_UP, REVERSES)]
    last = pairs[-1]
    gaps, over_images = last.list_gaps("points"), check_images(CATCHES_UP, last)
    verdicts = [judge(CATCHES_UP, gaps, [over_images]), judge(REVERSES, gaps, [check_images(REVERSES, last)])]
    first = next((pair for pair in pairs[:-1] if pair.is_off_the_floor(1 / plan.num_classes)), None)
    if first is None:
        reason = f"On no number of images but the last are both models {100 * FLOOR:.0f} points above guessing."
        return [undecided(NARROWS, reason), *verdicts]
    return [judge_narrowing(first, last), *verdicts]


def judge_narrowing(first: Pair, last: Pair) -> Verdict:
    """Return the verdict on the change of the gap, in points over seeds and over test images, and in logits over seeds."""
    points, logits = (
        [late - early for early, late in zip(first.list_gaps(unit), last.list_gaps(unit), strict=True)]
        for unit in ("points", "logits")
    )
    over_images = bootstrap_images(
        lambda late_vit, late_resnet, vit, resnet: gap(late_vit, late_resnet) - gap(vit, resnet),
        *last.stack_hits(),
        *first.stack_hits(),
    )
    words = f"from {first.num_images:,} to {last.num_images:,} images"
    checks = (
        Check(words=f"in logits, {words}", estimate=student_interval(logits), threshold=0.0, unit="logits"),
        Check(words=f"over {last.num_test_images:,} test images", estimate=over_images, threshold=0.0, unit="points"),
    )
    return judge(NARROWS, points, checks)


def check_images(claim: Claim, pair: Pair) -> Check:
    """Return the interval of a gap over test images."""
    words = f"over {pair.num_test_images:,} test images"
    return Check(words=words, estimate=bootstrap_images(gap, *pair.stack_hits()), threshold=claim.threshold, unit="points")


def gap(vit: np.ndarray, resnet: np.ndarray) -> float:
    """Return the difference of accuracies in points from right answers, bool (N, seeds)."""
    return 100 * (float(vit.mean()) - float(resnet.mean()))


def undecided(claim: Claim, reason: str) -> Verdict:
    """Return the verdict on a claim whose runs are missing."""
    return Verdict(claim=claim, outcome="undecided", estimate=None, num_seeds=0, reason=reason)


def format_run(outcome: RunOutcome) -> tuple[str, ...]:
    """Return a finished run's row of the table."""
    columns, reading, summary = outcome.run.columns, outcome.reading, outcome.summary
    assert reading is not None
    assert summary is not None
    few = f"{100 * reading['few_shot']:.1f}" if "few_shot" in reading else ""
    return (
        columns["model"],
        columns["amount"],
        str(columns["seed"]),
        f"{100 * reading['accuracy']:.1f}",
        few,
        f"{columns['macs'] / 1e6:,.3g}",
        f"{outcome.run.recipe.optim.learning_rate:g}",
        f"{3600 * summary.device_hours:.0f}",
    )


def describe_figure(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> StudyFigure:
    """Return the figure like figure 4: accuracy by number of images."""
    means = compute_means(GRIDS[plan.scale], outcomes)
    words = "; ".join(
        f"{name}: {', '.join(f'{100 * mean:.0f}' for _, mean in points)} percent" for name, points in means.items()
    )
    amounts = ", ".join(list_amounts(outcomes).values())
    return StudyFigure(
        draw=lambda figure: draw_accuracies(figure, plan, outcomes),
        alt=f"Accuracy on test images. {words}, at {amounts} images.",
        look="Look at how the distance between ViT and ResNet changes from left to right.",
        caption="Each dot is one run on images that it has not trained on; lines join the means over seeds.",
    )


def compute_means(grid: Grid, outcomes: Sequence[RunOutcome]) -> dict[str, list[tuple[int, float]]]:
    """Return the mean accuracy of each model over the seeds, by number of images."""
    found: dict[str, dict[int, list[float]]] = {model.name: {} for model in grid.models}
    for outcome in outcomes:
        assert outcome.reading is not None
        columns = outcome.run.columns
        found[columns["model"]].setdefault(columns["num_images"], []).append(outcome.reading["accuracy"])
    return {
        name: [(size, float(np.mean(values))) for size, values in sorted(by_size.items())]
        for name, by_size in found.items()
        if by_size
    }


def list_amounts(outcomes: Sequence[RunOutcome]) -> dict[int, str]:
    """Return the numbers of images in words: the last may be fresh ones."""
    return dict(sorted({each.run.columns["num_images"]: each.run.columns["amount"] for each in outcomes}.items()))


def draw_accuracies(figure: "Figure", plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> None:
    """Draw every run as a dot, and the means of each model as a line with its name at the end."""
    panel, grid = figure.add_subplot(), GRIDS[plan.scale]
    means, ends = compute_means(grid, outcomes), []
    for model in grid.models:
        if model.name not in means:
            continue
        sizes, values = zip(*means[model.name], strict=True)
        accuracies = [100 * value for value in values]
        panel.plot(sizes, accuracies, color=model.colour, linewidth=model.line_width)
        ends.append((accuracies[-1], model.name, model.colour))
        dots = [each for each in outcomes if each.run.columns["model"] == model.name]
        x = [each.run.columns["num_images"] for each in dots]
        y = [100 * each.reading["accuracy"] for each in dots if each.reading is not None]
        panel.plot(x, y, color=model.colour, linestyle="", marker="o", markersize=4)
    panel.axhline(100 / plan.num_classes, color=INK_2, linewidth=0.8, linestyle=":")
    amounts = list_amounts(outcomes)
    panel.set_title("Accuracy on test images")
    panel.set_xscale("log")
    panel.set_xticks([*amounts], [*amounts.values()])
    panel.minorticks_off()
    panel.set_xlabel("images to train on (log scale)")
    panel.set_ylim(0, 100)
    panel.set_yticks(range(0, 101, 25), ["0", "25", "50", "75", f"100{THIN_SPACE}%"])
    label_ends(panel, ends)


DATA_SIZE = Study(
    name="data-size",
    title="Data size",
    claims=(NARROWS, CATCHES_UP, REVERSES),
    paper=PAPER,
    build=build,
    read=read,
    judge=judge_claims,
    columns=("model", "images", "seed", "accuracy, %", f"{SHOTS}-shot on {REAL_SET}, %", "MMACs", "learning rate", "seconds"),
    row=format_run,
    figure=describe_figure,
)
