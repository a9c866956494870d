"""study.html: the claims with their verdicts, the figure, what the paper reports, how it was run, runs and commands."""

from collections.abc import Sequence
from pathlib import Path

from vitrine.core.console import join_names
from vitrine.core.html_report import Page, Section, write_page
from vitrine.core.page_images import Chart
from vitrine.core.page_parts import Commands, Details, Note, Paragraph, Part, Row, Subheading, Table, Unavailable
from vitrine.recipe import join_command
from vitrine.studies.claims import SEEDS_TO_DECIDE, Outcome, Verdict
from vitrine.studies.page_claims import WORDS, Claims, describe_interval, format_value
from vitrine.studies.registry import find_study
from vitrine.studies.study import Study, StudyResult

FIGURE_HEIGHT = 3.6
TEXT_COLUMNS = ("model", "family", "images", "regularisation", "start", "pre-training has reached")
OTHERS = (
    "These verdicts are not the study's own: the rules are the same, and what is measured is not what the claims name. 5-shot "
    "accuracy is a mean over draws of the examples, so it has the interval over seeds alone."
)


def write_study_page(path: Path, study: Study, result: StudyResult, command: str | None) -> None:
    """Write the page of a finished study."""
    write_page(path, build_page(study, result, command))


def build_page(study: Study, result: StudyResult, command: str | None) -> Page:
    """Build the page of a study."""
    sections = [
        build_figure_section(study, result),
        *([build_others_section(result)] if result.others else []),
        build_paper_section(study, result),
        build_setup_section(study, result),
        build_next_section(study, result),
    ]
    return Page(
        kind=f"Study: {study.title.lower()}",
        title=describe_verdicts(result.verdicts),
        lede=f"{find_study(study.name).question} Scale {result.config.scale}: {result.plan.regime}",
        answer=Claims(result.verdicts),
        notes=list_notes(result),
        sections=sections,
        command=command,
        remarks=["numbers in study.json beside this page"],
    )


def describe_verdicts(verdicts: list[Verdict]) -> str:
    """Return how many claims hold as a sentence."""
    outcomes = [verdict.outcome for verdict in verdicts]
    words: dict[Outcome, str] = {"holds": "hold", "fails": "do not hold", "undecided": "are undecided"}
    single: dict[Outcome, str] = {"holds": "holds", "fails": "does not hold", "undecided": "is undecided"}
    parts = [
        f"{outcomes.count(each)} {(single if outcomes.count(each) == 1 else words)[each]}" for each in words if each in outcomes
    ]
    return f"Of {len(verdicts)} claims of the paper, {', '.join(parts)}"


def list_notes(result: StudyResult) -> list[str]:
    """Return how the verdicts are made, and what is missing, as sentences of caution."""
    rule = (
        "A claim is decided when each of its 95 % intervals lies on one side of its threshold: Student's t over seeds, paired "
        "because both models see the same images, and the bootstrap over test images. The rules are part of the program and "
        "were written before the runs."
    )
    failed = [outcome.run.label for outcome in result.failures]
    missing = [f"{len(failed)} of {len(result.plan.runs)} runs failed: {join_names(failed)}."] if failed else []
    return [*missing, rule]


def build_figure_section(study: Study, result: StudyResult) -> Section:
    """Build the section of the figures."""
    if not result.finished:
        return Section("No run has finished", "Figure", "", [Unavailable("There is nothing to draw: every run failed.")])
    figures = study.figures(result.plan, result.finished)
    if not figures:
        reason = "There is nothing to draw: every run that the figure shows failed."
        return Section("What was measured", "Figure", "", [Unavailable(reason)])
    parts: list[Part] = []
    for figure in figures:
        parts.append(Chart(figure.draw, alt=figure.alt, look=figure.look, caption=figure.caption, height=FIGURE_HEIGHT))
        parts += [Table(figure.columns, figure.rows, (0,))] if figure.columns else []
    return Section("What was measured", "Figure", "", parts)


def build_others_section(result: StudyResult) -> Section:
    """Build the section of the same claims measured in other ways."""
    rows = [
        (measure.name, verdict.claim.name, *describe_other(verdict))
        for measure in result.others
        for verdict in measure.verdicts
    ]
    table = Table(("measured", "claim", "value", "95 % interval over seeds", "outcome"), rows, (0, 1, 4))
    reasons = [
        Note(f"{measure.name}, {verdict.claim.name}: {verdict.reason}")
        for measure in result.others
        for verdict in measure.verdicts
        if verdict.reason
    ]
    return Section("The same claims, measured in other ways", "Other measures", OTHERS, [table, *reasons])


def describe_other(verdict: Verdict) -> tuple[str, str, str]:
    """Return value, interval and outcome of a verdict that is not the study's own."""
    estimate, unit = verdict.estimate, verdict.claim.unit
    if estimate is None:
        return "", "", WORDS[verdict.outcome].lower()
    return f"{format_value(estimate.value, unit)} {unit}", describe_interval(estimate, unit), WORDS[verdict.outcome].lower()


def build_paper_section(study: Study, result: StudyResult) -> Section:
    """Build the section of what the paper reports, claim by claim."""
    size = "This study is much smaller: a verdict is about its regime, named above, and nothing else."
    parts: list[Part] = [Row(claim.name, [Paragraph(claim.sentence)]) for claim in study.claims]
    if result.config.scale != "paper":
        parts.append(Note(size))
    return Section("What the paper reports", "The paper", study.paper, parts)


def build_setup_section(study: Study, result: StudyResult) -> Section:
    """Build the section of the settings and the runs; failed ones with their errors."""
    rows = study.rows(result.finished)
    text_columns = [index for index, name in enumerate(study.columns) if name in TEXT_COLUMNS]
    parts: list[Part] = [Note(result.plan.remark)] if result.plan.remark else []
    if result.plan.tried:
        tried = [(each.name, each.chosen, str(len(each.tried)), ", ".join(each.tried)) for each in result.plan.tried]
        parts.append(Table(("chosen on held-out images", "value", "tried", "values"), tried, (0, 1, 3)))
    if result.failures:
        parts += [Row(f"Failed: {outcome.run.label}", [Paragraph(str(outcome.error))]) for outcome in result.failures]
    parts.append(Details(f"All {len(rows)} runs", [Table(study.columns, rows, text_columns)]))
    return Section("How it was run", "Setup", f"{result.plan.regime} Every run has one thread.", parts)


def build_next_section(study: Study, result: StudyResult) -> Section:
    """Build the section of commands: more seeds for what is undecided, and the paper's own grid."""
    parts: list[Part] = []
    seeds = sorted({outcome.run.columns["seed"] for outcome in result.outcomes})
    is_open = any(verdict.outcome == "undecided" and verdict.estimate is not None for verdict in result.verdicts)
    title = "Continue from here"
    if is_open and len(seeds) < SEEDS_TO_DECIDE:
        title = "More seeds may decide what is open"
        more = [*seeds, *(seed for seed in range(SEEDS_TO_DECIDE + max(seeds, default=0)) if seed not in seeds)]
        parts.append(Commands([build_command(result, sorted(more[:SEEDS_TO_DECIDE]))]))
    if result.failures:  # with the seeds of the call: further ones were added to some runs alone
        parts += [Subheading("Try failed runs again"), Commands([build_command(result, result.config.seeds)])]
    if study.search is not None and result.config.scale != "paper":
        search = join_command(*begin_command(result), "--search")
        parts += [Subheading("Choose the settings again, on held-out images"), Commands([search])]
    paper = join_command("vitrine", "study", result.name, "--scale", "paper", "--dry-run")
    parts += [Subheading("The paper's own grid: what it costs"), Commands([paper])]
    return Section(title, "Continue", "Finished runs are only read.", parts)


def build_command(result: StudyResult, seeds: Sequence[int]) -> str:
    """Return the command that continues a study with these seeds, or with those of its scale."""
    words = ["--seeds", *seeds] if seeds else []
    return join_command(*begin_command(result), *words, "--jobs", result.config.jobs, "--out", result.out)


def begin_command(result: StudyResult) -> list[str]:
    """Return the words that name a study, its scale and its data."""
    data = [] if result.config.data is None else ["--data", result.config.data]
    return ["vitrine", "study", result.name, "--scale", result.config.scale, *data]
