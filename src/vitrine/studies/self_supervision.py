"""The study `self-supervision`: does masked patch prediction help? (section 4.6, appendix B.1.2 of arXiv:2010.11929)

A ViT is fine-tuned on few labelled images, from fresh weights, after pre-training by masked patches, and after pre-training by
labels on the same images. Both kinds of pre-training have the same number of steps, except at scale paper.
Accuracies are compared with the same seed, on the same labelled images, on average over three numbers of them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrine.run.folder import RunSummary
from vitrine.studies.answers import Reading, Readings, build_pair, collect_readings, judge_mean, leave_open, read_answers
from vitrine.studies.claims import Claim, Verdict
from vitrine.studies.config import Scale
from vitrine.studies.runner import RunOutcome, StudyRun
from vitrine.studies.self_supervision_figures import describe_starts
from vitrine.studies.self_supervision_grid import (
    GRIDS,
    LABELS,
    MASKED,
    SCRATCH,
    Cell,
    Grid,
    LabelledFacts,
    describe_choice,
    find_facts,
    list_cells,
)
from vitrine.studies.self_supervision_recipes import build_finetune_recipe, build_pretrain_recipe, count_evaluated
from vitrine.studies.self_supervision_search import build_search, list_tried
from vitrine.studies.study import Study, StudyFigure, StudyPlan

HELPS = Claim(
    name="Masked patches help",
    sentence="Masked patch prediction improves a ViT-B/16 on ImageNet by 2 % over training from scratch (section 4.6).",
    measured=(
        "Test accuracy after masked patches minus from scratch, on average over the numbers of labelled images; above 0, in "
        "points and in logits"
    ),
    threshold=0.0,
    unit="points",
)
LABELS_HELP_MORE = Claim(
    name="Labels help more",
    sentence="Masked patch prediction is still 4 % behind supervised pre-training (section 4.6).",
    measured=(
        "Test accuracy after pre-training by labels minus after masked patches, on average over the numbers of labelled "
        "images; above 0, in points and in logits"
    ),
    threshold=0.0,
    unit="points",
)
CLAIMS = (HELPS, LABELS_HELP_MORE)
COMPARED: dict[str, tuple[str, str]] = {HELPS.name: (MASKED, SCRATCH), LABELS_HELP_MORE.name: (LABELS, MASKED)}
PAPER = (
    "ViT-B/16, pre-trained on JFT-300M by masked patches and fine-tuned, has 79.9 % on ImageNet: 2 points more than from "
    "scratch (77.91 %), and 4 fewer than after supervised pre-training (83.97 % with ImageNet-21k). Half of the patches are "
    "corrupted, and their mean colours predicted, of 3 bits for each channel."
)


def build(scale: Scale, data: str | None, seeds: tuple[int, ...]) -> StudyPlan:
    """Build the runs: every start on every number of labelled images with every seed, and the pre-training they begin with."""
    grid = GRIDS[scale]
    facts = find_facts(grid, data)
    runs = [run for cell in list_cells(grid, facts, seeds) for run in build_runs(grid, facts, cell)]
    return StudyPlan(
        scale=scale,
        data=data,
        source=facts.source,
        runs=tuple({run.folder: run for run in runs}.values()),
        num_classes=facts.num_classes,
        remark=describe_choice(grid, facts),
        regime=describe_regime(grid, facts, runs),
        tried=list_tried(grid, facts),
    )


def describe_regime(grid: Grid, facts: LabelledFacts, runs: Sequence[StudyRun]) -> str:
    """Return what the claims are tested on as a sentence."""
    amounts = [f"{facts.count(size):,}" for size in grid.sizes]
    recipes = {run.columns["start"]: run.recipe for run in runs if run.columns["kind"] == "pre-training"}
    masked, labels = recipes[MASKED], recipes[LABELS]
    return (
        f"{', '.join(amounts[:-1])} and {amounts[-1]} labelled images of {facts.source}, {runs[-1].recipe.total_steps:,} steps "
        f"of fine-tuning. Pre-training on {masked.data.source}: {masked.total_steps:,} steps by masked patches, "
        f"{labels.total_steps:,} by labels."
    )


def build_runs(grid: Grid, facts: LabelledFacts, cell: Cell) -> list[StudyRun]:
    """Build the fine-tuning of a cell, and before it the run that it starts from, if there is one."""
    columns = {"start": cell.start.name, "num_images": cell.num_images, "amount": f"{cell.num_images:,}", "seed": cell.seed}
    label = f"{cell.start.name}, {cell.num_images:,} labelled images, seed {cell.seed}"
    recipe = build_finetune_recipe(grid, facts, cell)
    tuned = StudyRun(
        label=label,
        recipe=recipe,
        folder=cell.folder,
        title=label,
        start=cell.pretrain_folder,
        columns={
            **columns,
            "kind": "fine-tuning",
            "model": cell.start.name if cell.start.recipe else "fine-tuning",  # whose speed a dry run measures
            "num_evaluated": count_evaluated(facts, recipe),
        },
    )
    return [tuned] if cell.pretrain_folder is None else [build_pretraining(grid, facts, cell, cell.pretrain_folder), tuned]


def build_pretraining(grid: Grid, facts: LabelledFacts, cell: Cell, folder: str) -> StudyRun:
    """Build the run that a cell starts from; cells that differ in their labelled images alone share it."""
    recipe = build_pretrain_recipe(grid, facts, cell)
    is_shared = cell.start.name != SCRATCH
    words = "" if is_shared else f", {cell.num_images:,} labelled images"
    label = f"pre-training, {cell.start.name}{words}, seed {cell.seed}"
    columns: dict[str, Any] = {
        "kind": "pre-training",
        "model": cell.start.name,
        "start": cell.start.name,
        "num_images": None if is_shared else cell.num_images,
        "amount": "pre-training",
        "seed": cell.seed,
        "num_evaluated": count_evaluated(facts, recipe),
    }
    return StudyRun(label=label, recipe=recipe, folder=folder, title=label, columns=columns)


def read(run: StudyRun, folder: Path, summary: RunSummary) -> Reading:
    """Measure which test images a fine-tuned model classifies correctly; of pre-training, return what it has reached."""
    if run.columns["kind"] == "fine-tuning":
        return read_answers(run, folder)
    return {"accuracy": summary.best}


def collect(outcomes: Sequence[RunOutcome]) -> Readings:
    """Return the readings of all fine-tuned models by start, number of images and seed."""
    return collect_readings(outcomes, "start", lambda columns, reading: reading if columns["kind"] == "fine-tuning" else None)


def judge_claims(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> list[Verdict]:
    """Return the verdicts on both claims."""
    readings = collect(outcomes)
    sizes = sorted({run.columns["num_images"] for run in plan.runs if run.columns["kind"] == "fine-tuning"})
    return [judge_claim(claim, readings, sizes) for claim in CLAIMS]


def judge_claim(claim: Claim, readings: Readings, sizes: Sequence[int]) -> Verdict:
    """Return the verdict on a claim, from the seeds that have both starts on all numbers of images."""
    compared = COMPARED[claim.name]
    pairs = [build_pair(readings, compared, sizes, size) for size in sizes]
    whole = [pair for pair in pairs if pair is not None]
    if not whole:
        return leave_open(claim, f"No seed has all runs of {compared[0]} and {compared[1]}.")
    return judge_mean(claim, whole, f"mean over {len(sizes)} numbers of labelled images")


def extend(
    plan: StudyPlan, outcomes: Sequence[RunOutcome], verdicts: Sequence[Verdict], seeds: tuple[int, ...]
) -> tuple[StudyRun, ...]:
    """Return all runs with further seeds if a claim is undecided: the two claims share most of them."""
    if all(verdict.outcome != "undecided" for verdict in verdicts):
        return ()
    there = {run.folder for run in plan.runs}
    return tuple(run for run in build(plan.scale, plan.data, seeds).runs if run.folder not in there)


COLUMNS = ("start", "labelled images", "seed", "accuracy, %", "pre-training has reached", "learning rate", "seconds")


def list_rows(outcomes: Sequence[RunOutcome]) -> list[tuple[str, ...]]:
    """Return a row for each run; pre-training has what it has reached instead of an accuracy on test images."""
    return [format_run(each) for each in outcomes]


def format_run(outcome: RunOutcome) -> tuple[str, ...]:
    """Return a row of the table."""
    columns, reading, summary = outcome.run.columns, outcome.reading, outcome.summary
    assert reading is not None
    assert summary is not None
    is_tuned, percent = columns["kind"] == "fine-tuning", f"{100 * reading['accuracy']:.1f}"
    return (
        columns["start"],
        columns["amount"],
        str(columns["seed"]),
        percent if is_tuned else "",
        "" if is_tuned else f"{percent} % of {name_predicted(outcome.run)}",
        f"{outcome.run.recipe.optim.learning_rate:g}",
        f"{3600 * summary.device_hours:.0f}",
    )


def name_predicted(run: StudyRun) -> str:
    """Return what pre-training predicts, of which it is right in some percent."""
    if run.recipe.objective == "supervised":
        return "labels"
    return "the variance of pixels" if run.recipe.masked_patches.target == "pixels" else "patch colours"


def describe_figures(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> list[StudyFigure]:
    """Return the figure of accuracy by number of labelled images; none if no fine-tuning has finished."""
    readings = collect(outcomes)
    return [describe_starts(plan, outcomes, readings)] if readings else []


SELF_SUPERVISION = Study(
    name="self-supervision",
    title="Self-supervision",
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
)
