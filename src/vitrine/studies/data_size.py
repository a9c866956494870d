"""The study `data-size`: with how much pre-training data do ViTs catch up with ResNets? (figures 3 and 4 of arXiv:2010.11929)

The gap is the accuracy of a ViT minus that of a ResNet of equal cost, with the same seed, on images that no run has trained on.
The verdicts are on the regime of figure 4: same hyperparameters on every number of images, best weights by validation accuracy.
The same claims are then measured with the regularisation of figure 3, after fine-tuning on a real set, and by few-shot
accuracy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.evaluation.few_shot import few_shot
from vitrine.models.cost import compute_cost
from vitrine.run.folder import RunFolder, RunSummary
from vitrine.studies.answers import Reading, Readings, build_pair, judge_change, judge_gap, leave_open, read_answers
from vitrine.studies.claims import Claim, Verdict
from vitrine.studies.config import Scale
from vitrine.studies.data_size_figures import describe_accuracies, describe_gaps
from vitrine.studies.data_size_grid import (
    GRIDS,
    PLAIN,
    REAL_SET,
    Cell,
    DataFacts,
    Grid,
    describe_choice,
    find_facts,
    list_cells,
)
from vitrine.studies.data_size_readings import MAIN, Measure, collect, list_measures
from vitrine.studies.data_size_recipes import build_finetune_recipe, build_recipe, count_evaluated
from vitrine.studies.data_size_search import build_search, list_tried
from vitrine.studies.runner import RunOutcome, StudyRun
from vitrine.studies.study import OtherMeasure, Study, StudyFigure, StudyPlan

FLOOR = 0.05  # above guessing: with less, both models of a pair have learnt nothing yet
SHOTS = 5  # as in figure 4: linear 5-shot accuracy, here on handwritten digits

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
CLAIMS = (NARROWS, CATCHES_UP, REVERSES)
PAPER = (
    "Figures 3 and 4 pre-train on ImageNet, ImageNet-21k and JFT-300M, and on random subsets of JFT of 9, 30 and 90 million "
    "images. On the smallest sets the BiT ResNets are ahead; on the largest, the ViTs are. ViT-B/32 is behind ResNet-50, which "
    "costs about as much, on 9 million images, and ahead on 90 million."
)


def build(scale: Scale, data: str | None, seeds: tuple[int, ...]) -> StudyPlan:
    """Build the runs: every model on every number of images with every seed."""
    grid = GRIDS[scale]
    facts = find_facts(grid, data)
    runs = tuple(run for cell in list_cells(grid, facts, seeds) for run in build_runs(grid, facts, cell))
    last = "fresh images in every step" if facts.is_fresh else f"all {facts.num_images:,} images"
    return StudyPlan(
        scale=scale,
        data=data,
        source=facts.source,
        runs=runs,
        num_classes=facts.num_classes,
        remark=describe_choice(grid, facts),
        regime=(
            f"{facts.source}: {facts.num_classes:,} classes, {runs[0].recipe.total_steps:,} steps of "
            f"{runs[0].recipe.loader.batch_size:,} images on every number of images, up to {last}."
        ),
        tried=list_tried(grid, facts),
    )


def build_runs(grid: Grid, facts: DataFacts, cell: Cell) -> list[StudyRun]:
    """Build the run of a cell and, for the settings of figure 4 on generated images, its fine-tuning on a real set."""
    recipe = build_recipe(grid, facts, cell)
    is_all = cell.num_images == facts.num_images
    amount = ("fresh" if facts.is_fresh else "all") if is_all else f"{cell.num_images:,}"
    words = "" if cell.regularisation == PLAIN else f", regularisation {cell.regularisation}"
    label = f"{cell.model.name}, {amount} images{words}, seed {cell.seed}"
    columns: dict[str, Any] = {
        "kind": "pre-training",
        "model": cell.model.name,
        "num_images": cell.num_images,
        "amount": amount,
        "regularisation": cell.regularisation,
        "seed": cell.seed,
        "macs": compute_cost(recipe.model.resolve(facts.num_classes)).macs,
        "num_evaluated": count_evaluated(grid, facts, cell.num_images),
    }
    run = StudyRun(label=label, recipe=recipe, folder=cell.folder, title=label, columns=columns)
    if grid.finetune_steps == 0 or not facts.is_fresh or cell.regularisation != PLAIN:
        return [run]
    tuned = StudyRun(
        label=f"{label}, on {REAL_SET}",
        recipe=build_finetune_recipe(grid, cell),
        folder=f"{cell.folder}-on-{REAL_SET}",
        title=f"{label}, on {REAL_SET}",
        start=cell.folder,
        columns={**columns, "kind": "fine-tuning", "num_evaluated": 0},
    )
    return [run, tuned]


def read(run: StudyRun, folder: Path, summary: RunSummary) -> Reading:
    """Measure which test images a finished model classifies correctly and, of glyphs, 5-shot accuracy on digits."""
    reading = read_answers(run, folder)
    if run.recipe.data.source.startswith("glyphs"):  # learning without a real set, so one shows what the features are worth
        (result,) = few_shot(RunFolder(folder).model, REAL_SET, (SHOTS,), device=run.recipe.device, use_cache=False)
        reading["few_shot"] = result.mean
    return reading


def judge_claims(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> list[Verdict]:
    """Return the verdicts on the three claims, in the regime of figure 4."""
    return judge_measure(plan, outcomes, MAIN)


def judge_others(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> list[OtherMeasure]:
    """Return the three claims in the regime of figure 3, after fine-tuning and by few-shot accuracy, if there are such runs."""
    return [
        OtherMeasure(name=measure.name, verdicts=judge_measure(plan, outcomes, measure))
        for measure in list_measures(plan, outcomes)[1:]
    ]


def judge_measure(plan: StudyPlan, outcomes: Sequence[RunOutcome], measure: Measure) -> list[Verdict]:
    """Return the verdicts on the three claims from one kind of readings."""
    compared, readings = GRIDS[plan.scale].compared, collect(outcomes, measure)
    sizes = list_planned_sizes(plan)
    last = build_pair(readings, compared, sizes[-1:])
    if last is None:
        return [leave_open(claim, "No seed has the runs of ViT and ResNet.") for claim in CLAIMS]
    verdicts = [judge_gap(CATCHES_UP, last), judge_gap(REVERSES, last)]
    return [judge_narrowing(readings, compared, sizes, 1 / measure.count_classes(plan)), *verdicts]


def judge_narrowing(readings: Readings, compared: tuple[str, str], sizes: Sequence[int], guessing: float) -> Verdict:
    """Return the verdict on how the gap changes from the first number of images that counts to the last."""
    if build_pair(readings, compared, sizes) is None:
        return leave_open(NARROWS, "No seed has all runs of ViT and ResNet.")
    first = find_first_size(readings, compared, sizes, guessing)
    if first is None:
        reason = f"On no number of images but the last are both models {100 * FLOOR:.0f} points above guessing."
        return leave_open(NARROWS, reason)
    before, after = (build_pair(readings, compared, [first, sizes[-1]], size) for size in (first, sizes[-1]))
    assert before is not None
    assert after is not None
    return judge_change(NARROWS, before, after, f"from {first:,} to {sizes[-1]:,} images")


def list_planned_sizes(plan: StudyPlan) -> list[int]:
    """Return the numbers of images of a plan; the last stays all images when every run on it has failed."""
    return sorted({run.columns["num_images"] for run in plan.runs})


def find_first_size(readings: Readings, compared: tuple[str, str], sizes: Sequence[int], guessing: float) -> int | None:
    """Return the smallest number of images, but the last, on which both models have learnt something.

    Only seeds with all numbers of images count: further seeds of some must not move the first.
    """
    for size in sizes[:-1]:
        pair = build_pair(readings, compared, sizes, size)
        sides = () if pair is None else (pair.first, pair.second)
        if sides and all(np.mean([each["accuracy"] for each in side]) >= guessing + FLOOR for side in sides):
            return size
    return None


def extend(
    plan: StudyPlan, outcomes: Sequence[RunOutcome], verdicts: Sequence[Verdict], seeds: tuple[int, ...]
) -> tuple[StudyRun, ...]:
    """Return the runs of ViT and ResNet with further seeds that undecided claims rest on; none if they could not decide one."""
    undecided = [verdict.claim for verdict in verdicts if verdict.outcome == "undecided" and verdict.estimate is not None]
    if not undecided:
        return ()
    grid, there = GRIDS[plan.scale], {run.folder for run in plan.runs}
    facts = find_facts(grid, plan.data)
    sizes = list_planned_sizes(plan)
    needed = sizes[-1:]  # every claim rests on all images
    if NARROWS in undecided:
        first = find_first_size(collect(outcomes, MAIN), grid.compared, sizes, 1 / plan.num_classes)
        needed += [] if first is None else [first]
    models = [model for model in grid.models if model.name in grid.compared]
    cells = [Cell(model=model, num_images=size, seed=seed) for seed in seeds for size in sorted(needed) for model in models]
    runs = [build_runs(grid, facts, cell)[0] for cell in cells]
    return tuple(run for run in runs if run.folder not in there)


COLUMNS = (
    *(
        "model",
        "images",
        "regularisation",
        "seed",
        "accuracy, %",
        f"fine-tuned on {REAL_SET}, %",
        f"{SHOTS}-shot on {REAL_SET}, %",
    ),
    *("MMACs", "learning rate", "seconds"),
)


def list_rows(outcomes: Sequence[RunOutcome]) -> list[tuple[str, ...]]:
    """Return a row for each run of pre-training, with what its fine-tuning has reached."""
    tuned = {each.run.start: each.reading for each in outcomes if each.run.start is not None}
    return [format_run(each, tuned.get(each.run.folder)) for each in outcomes if each.run.start is None]


def format_run(outcome: RunOutcome, tuned: Reading | None) -> tuple[str, ...]:
    """Return a row of the table."""
    columns, reading, summary = outcome.run.columns, outcome.reading, outcome.summary
    assert reading is not None
    assert summary is not None
    return (
        columns["model"],
        columns["amount"],
        columns["regularisation"],
        str(columns["seed"]),
        f"{100 * reading['accuracy']:.1f}",
        "" if tuned is None else f"{100 * tuned['accuracy']:.1f}",
        f"{100 * reading['few_shot']:.1f}" if "few_shot" in reading else "",
        f"{columns['macs'] / 1e6:,.3g}",
        f"{outcome.run.recipe.optim.learning_rate:g}",
        f"{3600 * summary.device_hours:.0f}",
    )


def describe_figures(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> list[StudyFigure]:
    """Return the figure like figure 4, accuracy by number of images, and the gap by number of images in all measures."""
    grid = GRIDS[plan.scale]
    measures = list_measures(plan, outcomes)
    figures = [describe_accuracies(plan, grid, outcomes)]
    gaps = [(measure.name, list_gaps(grid, collect(outcomes, measure))) for measure in measures]
    return figures if not any(points for _, points in gaps) else [*figures, describe_gaps(gaps, outcomes)]


def list_gaps(grid: Grid, readings: Readings) -> list[tuple[int, float]]:
    """Return the mean gap in points by number of images."""
    pairs = {size: build_pair(readings, grid.compared, [size]) for size in sorted({size for _, size, _ in readings})}
    return [(size, float(np.mean(pair.list_gaps("points")))) for size, pair in pairs.items() if pair is not None]


DATA_SIZE = Study(
    name="data-size",
    title="Data size",
    claims=CLAIMS,
    paper=PAPER,
    build=build,
    read=read,
    judge=judge_claims,
    columns=COLUMNS,
    rows=list_rows,
    figures=describe_figures,
    extend=extend,
    search=build_search,
    others=judge_others,
)
