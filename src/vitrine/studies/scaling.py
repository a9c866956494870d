"""The study `scaling`: for the same compute, do ViTs reach further than ResNets? (figure 5 of arXiv:2010.11929)

Every family has models over a range of compute, all trained alike, each at its own learning rate. Of each seed and family, the
runs that no cheaper run of the family matches are its frontier, and a line is fitted through them (frontier.py). The measure is
the compute of a ResNet divided by that of a ViT at equal accuracy: the middle of the logits that both frontiers cover. Seeds
without fitted frontiers are left out, and counted, if at least three others have them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitrine.core.console import format_number
from vitrine.evaluation.intervals import Estimate, count_draws, interval_of_draws
from vitrine.models.cost import compute_cost
from vitrine.run.folder import RunSummary
from vitrine.studies.answers import Reading, leave_open, read_answers
from vitrine.studies.claims import Check, Claim, Verdict, exponentiate, judge
from vitrine.studies.config import Scale
from vitrine.studies.data_size_grid import Cell, DataFacts, describe_choice, find_facts
from vitrine.studies.data_size_recipes import build_recipe, count_evaluated
from vitrine.studies.data_size_search import build_rate_choice, describe_tried_rates, name_rate
from vitrine.studies.frontier import MIN_POINTS, Frontier, compare_frontiers
from vitrine.studies.runner import RunOutcome, StudyRun
from vitrine.studies.scaling_figures import describe_frontiers
from vitrine.studies.scaling_grid import COMPARED, GRIDS, ScalingGrid, ScalingModel, list_cells
from vitrine.studies.scaling_readings import COMPUTE, TIME, FamilyRuns, Measure, collect_family, list_whole_seeds
from vitrine.studies.study import SearchPlan, Study, StudyFigure, StudyPlan, TriedSetting

NUM_DRAWS = 1000  # of the bootstrap over test images
MAX_UNDEFINED = 0.05  # of its draws; with more, there is no interval
MIN_SEEDS = 3  # with fitted frontiers, so that seeds without are left out; fixed before any run
RULE = f"seeds without a line are left out if {MIN_SEEDS} or more have both"

LESS_COMPUTE = Claim(
    name="ViTs need less compute",
    sentence="For the same accuracy, ViTs need two to four times less pre-training compute than BiT ResNets (section 4.4).",
    measured=(f"ExaFLOPs of a ResNet divided by those of a ViT at equal accuracy, from the fitted frontiers; above 1; {RULE}"),
    threshold=1.0,
    unit="times",
)
LESS_TIME = Claim(
    name="ViTs need less time",
    sentence="Large ViTs also took fewer TPUv3-core-days to pre-train than the best convolutional networks before (table 2).",
    measured=(
        "Seconds of training of a ResNet divided by those of a ViT at equal accuracy, from the fitted frontiers; above 1; "
        f"{RULE}"
    ),
    threshold=1.0,
    unit="times",
)
MEASURES: dict[Claim, Measure] = {LESS_COMPUTE: COMPUTE, LESS_TIME: TIME}
PAPER = (
    "Figure 5 and table 6 compare 7 ResNets, 6 ViTs and 5 hybrids, pre-trained on JFT-300M with 50 to 4,262 exaFLOPs, by "
    "their accuracy after fine-tuning. ViTs are ahead of ResNets of equal compute. Hybrids are slightly ahead of ViTs where "
    "compute is small, and no longer where it is large. ViTs do not seem to saturate within the range."
)
SECONDS = (
    "Seconds are those of each run on this machine beside the other runs of the study, with images and evaluation: another "
    "machine, or another number of jobs, gives other ones."
)


def build(scale: Scale, data: str | None, seeds: tuple[int, ...]) -> StudyPlan:
    """Build the runs: every model with every seed, on all images."""
    grid = GRIDS[scale]
    facts = find_facts(grid, data)
    runs = tuple(build_run(grid, facts, model, cell) for model, cell in list_cells(grid, facts, seeds))
    images = "fresh images in every step" if facts.is_fresh else f"{facts.num_images:,} images"
    steps = sorted({run.recipe.total_steps or 0 for run in runs})
    return StudyPlan(
        scale=scale,
        data=data,
        source=facts.source,
        runs=runs,
        num_classes=facts.num_classes,
        remark=f"{describe_choice(grid, facts)} {SECONDS}",
        regime=(
            f"{facts.source}: {facts.num_classes:,} classes, {' or '.join(f'{each:,}' for each in steps)} steps of "
            f"{runs[0].recipe.loader.batch_size:,} images, {images}."
        ),
        tried=list_tried(grid, facts),
    )


def list_tried(grid: ScalingGrid, facts: DataFacts) -> tuple[TriedSetting, ...]:
    """Return the learning rates that a search has chosen on the glyphs, with all values tried; none for other images."""
    models = grid.models if facts.is_fresh else ()
    tried = (describe_tried_rates(name_rate(model), model.learning_rate, model.rates_tried) for model in models)
    return tuple(each for some in tried for each in some)


def build_run(grid: ScalingGrid, facts: DataFacts, model: ScalingModel, cell: Cell) -> StudyRun:
    """Build the run of a model with a seed."""
    recipe = build_recipe(grid, facts, cell)
    label = f"{model.name}, seed {cell.seed}"
    columns = {
        "model": model.name,
        "family": model.family,
        "seed": cell.seed,
        "macs": compute_cost(recipe.model.resolve(facts.num_classes)).macs,
        "num_evaluated": count_evaluated(grid, facts, cell.num_images),
    }
    return StudyRun(label=label, recipe=recipe, folder=cell.folder, title=label, columns=columns)


def read(run: StudyRun, folder: Path, summary: RunSummary) -> Reading:
    """Measure which test images a finished model classifies correctly."""
    return read_answers(run, folder)


def judge_claims(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> list[Verdict]:
    """Return the verdicts on both claims, from the seeds with which all ViTs and ResNets are finished."""
    seeds = list_whole_seeds(plan, outcomes, COMPARED)
    if not seeds:
        return [leave_open(claim, "No seed has all runs of ViTs and ResNets.") for claim in MEASURES]
    return [
        judge_ratio(claim, *(collect_family(outcomes, family, seeds, measure) for family in COMPARED))
        for claim, measure in MEASURES.items()
    ]


def judge_ratio(claim: Claim, vits: FamilyRuns, resnets: FamilyRuns) -> Verdict:
    """Return the verdict on the cost of a ResNet divided by that of a ViT, over seeds and over test images.

    Seeds without fitted frontiers are left out if enough others have them.
    """
    is_fitted = vits.fit().is_fitted & resnets.fit().is_fitted  # (S,)
    is_kept = is_fitted if is_fitted.sum() >= MIN_SEEDS else np.ones_like(is_fitted)
    vits, resnets = vits.select(is_kept), resnets.select(is_kept)
    frontiers = vits.fit(), resnets.fit()
    logs = compare_frontiers(*frontiers)
    if np.isnan(logs).any():
        return leave_open(claim, explain_missing(*frontiers))
    verdict = judge(claim, [*np.exp(logs).tolist()], [check_images(claim, vits, resnets)])
    return replace(verdict, num_left_out=int((~is_kept).sum()))


def explain_missing(vits: Frontier, resnets: Frontier) -> str:
    """Return why the frontiers of a seed cannot be compared."""
    for family, frontier in zip(COMPARED, (vits, resnets), strict=True):
        if not frontier.is_fitted.all():
            return (
                f"The frontier of the {family}s has {frontier.num_points.min()} runs with one of the seeds; a line needs "
                f"{MIN_POINTS} or more."
            )
    return "With one of the seeds, the frontiers of ViTs and ResNets have no accuracy in common."


def check_images(claim: Claim, vits: FamilyRuns, resnets: FamilyRuns) -> Check:
    """Return the interval of the ratio over test images: frontiers are found and fitted anew for each draw."""
    draws = count_draws(vits.num_images, NUM_DRAWS)
    logs = compare_frontiers(vits.fit_draws(draws), resnets.fit_draws(draws)).mean(axis=1)  # (1 + draws,)
    estimate = exponentiate(interval_of_draws(logs, vits.num_images, is_fraction=False))
    words, undefined = f"over {vits.num_images:,} test images", float(np.isnan(logs).mean())
    if undefined > MAX_UNDEFINED:
        estimate = Estimate(estimate.value, None, None)
        words += f", in {100 * undefined:.0f} % of whose draws the frontiers cannot be compared"
    return Check(words=words, estimate=estimate, threshold=claim.threshold, unit=claim.unit)


def extend(
    plan: StudyPlan, outcomes: Sequence[RunOutcome], verdicts: Sequence[Verdict], seeds: tuple[int, ...]
) -> tuple[StudyRun, ...]:
    """Return the runs of all ViTs and ResNets with further seeds; none if more of them could not decide a claim."""
    if not any(verdict.outcome == "undecided" and verdict.estimate is not None for verdict in verdicts):
        return ()
    grid, there = GRIDS[plan.scale], {run.folder for run in plan.runs}
    facts = find_facts(grid, plan.data)
    cells = [(model, cell) for model, cell in list_cells(grid, facts, seeds) if model.family in COMPARED]
    runs = [build_run(grid, facts, model, cell) for model, cell in cells]
    return tuple(run for run in runs if run.folder not in there)


def build_search(scale: Scale, data: str | None) -> SearchPlan:
    """Build what `--search` chooses: the learning rate of each model, on all images."""
    grid = GRIDS[scale]
    facts = find_facts(grid, data)
    choices = tuple(build_rate_choice(grid, facts, model, [facts.num_images]) for model in grid.models)
    return SearchPlan(source=facts.source, num_classes=facts.num_classes, choices=choices)


COLUMNS = ("model", "family", "seed", "accuracy, %", "MMACs", "exaFLOPs", "learning rate", "seconds")


def list_rows(outcomes: Sequence[RunOutcome]) -> list[tuple[str, ...]]:
    """Return a row for each run."""
    return [format_run(outcome) for outcome in outcomes]


def format_run(outcome: RunOutcome) -> tuple[str, ...]:
    """Return a row of the table."""
    columns, reading, summary = outcome.run.columns, outcome.reading, outcome.summary
    assert reading is not None
    assert summary is not None
    return (
        columns["model"],
        columns["family"],
        str(columns["seed"]),
        f"{100 * reading['accuracy']:.1f}",
        f"{columns['macs'] / 1e6:,.3g}",
        format_number(summary.exaflops),
        f"{outcome.run.recipe.optim.learning_rate:g}",
        f"{3600 * summary.device_hours:.0f}",
    )


def describe_figures(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> list[StudyFigure]:
    """Return the figure like figure 5, accuracy by compute, and accuracy by time."""
    return [describe_frontiers(plan, outcomes, measure) for measure in MEASURES.values()]


SCALING = Study(
    name="scaling",
    title="Scaling",
    claims=(*MEASURES,),
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
