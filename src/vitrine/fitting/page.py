"""report.html of a fit: the answer, the ladder, more photos, errors, confidence, framing, time and commands."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vitrine.core.html_report import Page, Section
from vitrine.core.page_images import Chart, Exhibit, Frames, Gallery
from vitrine.core.page_parts import (
    Commands,
    Headline,
    Interval,
    Ladder,
    Paragraph,
    Part,
    Rung,
    Subheading,
    Table,
    Unavailable,
    format_short_percent,
)
from vitrine.core.page_times import TimeStrip, format_clock, format_span
from vitrine.evaluation.calibration import WANTED_ACCURACY
from vitrine.evaluation.classification_report import EvaluationResult
from vitrine.evaluation.evaluation_page import (
    build_result_sections,
    link_image,
    name_image,
    name_model,
    read_photo,
    signed,
)
from vitrine.evaluation.label_issues import LabelIssue
from vitrine.evaluation.multi_label_page import build_label_headline, build_label_sections
from vitrine.fitting.config import FitConfig
from vitrine.fitting.findings import (
    compute_macro_accuracy,
    describe_framing,
    describe_readout,
    find_coverage,
    find_measured,
    find_rejection,
    has_several_labels,
    list_cautions,
)
from vitrine.fitting.finetune import MIN_HELD_OUT, NUM_PARTS
from vitrine.fitting.folder import FREE_SETTINGS, FitFolder
from vitrine.fitting.framing_sheet import build_frames
from vitrine.fitting.learning_curve import MIN_IMAGES, MIN_PER_CLASS
from vitrine.fitting.page_figures import draw_coverage, draw_learning_curve, format_per_class, list_ends
from vitrine.fitting.result import FitResult
from vitrine.recipe import join_command

NUM_SUSPECTS, NUM_LISTED = 8, 50
LONGER = 6  # times as many minutes for the next fit
DEFAULT_LONGER_MINUTES = 10


def build_page(result: FitResult, folder: FitFolder, command: str | None) -> Page:
    """Build the page of a fit."""
    settings = folder.read_settings() if folder.settings.is_file() else {}
    sections = [build_ladder_section(result), build_curve_section(result), *build_error_sections(result, folder.report)]
    sections += [*build_suspect_section(result, folder.report), *build_trust_section(result, folder)]
    sections += [*build_framing_section(result), build_time_section(result), build_command_section(result, folder, settings)]
    seed = [f"seed {settings['seed']}"] if "seed" in settings else []
    return Page(
        kind="Fit report",
        title=describe_answer(result),
        lede=describe_fit(result),
        answer=build_headline(result),
        facts=list_facts(result),
        notes=list_cautions(result.images, result.notes),
        sections=sections,
        command=command,
        remarks=[*seed, "numbers in report.json beside this page"],
    )


# The answer.


def describe_answer(result: FitResult) -> str:
    """Return the accuracy to expect as a sentence: the interval of the test, or of cross-validation."""
    if result.labels is not None:
        mean = result.labels.report.mean_average_precision.value
        return f"Labels are found with a mean average precision of {format_short_percent(mean)}"
    low, high = (round(100 * end) for end in list_ends(find_measured(result).accuracy))
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"Of 100 new photos like these, expect {number} right"


def describe_fit(result: FitResult) -> str:
    """Return what was fitted, how long it took, and whether fine-tuning helped."""
    images, kept = result.images, [step for step in result.steps if step.outcome == "kept"]
    ready = f", ready after {format_clock(kept[-1].seconds)}" if kept else ""
    labels = ", several for each photo" if has_several_labels(result) else ""
    start = f"A classifier of {images.num_classes:,} classes{labels} from {len(images.train):,} photos{ready}."
    return f"{start} {describe_finetuning(result)}"


def describe_finetuning(result: FitResult) -> str:
    """Return whether fine-tuning helped as a sentence."""
    if result.interrupted_by is not None:
        return "The fit was interrupted; the same command continues it."
    if result.contest is None:
        is_small = len(result.images.train) < NUM_PARTS * MIN_HELD_OUT
        few = "there are too few photos to tell whether it helps" if is_small else result.why_not_tuned or "it needs more time"
        return f"Fine-tuning was not tried: {(few if result.minutes else 'no time was given for it').rstrip('.')}."
    if result.is_tuned:
        return "Fine-tuning improved it."
    return "Fine-tuning did not surely improve it."


def build_headline(result: FitResult) -> Headline:
    """Build the accuracy in large digits, with its interval and the accuracy of guessing."""
    if result.labels is not None:
        return build_label_headline(result.labels.report, result.images.num_classes)
    measured = find_measured(result)
    accuracy, guessing = measured.accuracy, 1 / result.images.num_classes
    return Headline(
        value=f"{100 * accuracy.value:.1f}",
        unit="%",
        count=f"{measured.num_hits:,} of {measured.num_images:,} {measured.images} right",
        interval=Interval(accuracy.value, accuracy.low, accuracy.high, baseline=guessing),
        baseline_label=f"{format_short_percent(guessing)} guessing",
    )


def list_facts(result: FitResult) -> list[tuple[str, str]]:
    """List model, readout, further metrics and time."""
    checkpoint, macro = result.checkpoint, compute_macro_accuracy(result)
    num_parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    facts = [
        ("Model", f"{name_model(result.model)}, {num_parameters / 1e6:.3g} M parameters"),
        ("Reads", f"{describe_readout(checkpoint)}, {describe_framing(checkpoint)}"),
    ]
    if macro is not None:
        error, uncalibrated = result.result.report.calibration_error.value, result.uncalibrated_error
        facts.append(("Macro accuracy", format_short_percent(macro)))
        words = f"{format_short_percent(error)}, uncalibrated {format_short_percent(uncalibrated)}"
        facts.append(("Calibration error", words))
    limit = f" of {format_clock(60 * result.minutes)}" if result.minutes else ""
    return [*facts, ("Time", f"{format_clock(result.seconds)}{limit}")]


# Sections.


def build_ladder_section(result: FitResult) -> Section:
    """Build the section of the steps, what each reached and what became of it."""
    rungs = [
        Rung(
            format_clock(step.seconds),
            step.name,
            step.detail,
            Interval(step.accuracy.value, step.accuracy.low, step.accuracy.high),
            is_kept=step.outcome == "kept",
            outcome=step.outcome,
        )
        for step in result.steps
    ]
    decisions = " (of all decisions, one for each class)" if has_several_labels(result) else ""
    text = (
        f"Cheap models come first. Accuracy{decisions} is measured on training photos that a model was not fitted to. A head "
        "replaces another if its log loss is lower; fine-tuning must win a paired test on photos held out from both."
    )
    parts: list[Part] = [Ladder(rungs, is_zoomed=True), Paragraph(describe_overlap(result), is_small=True)]
    return Section(describe_ladder(result), "The ladder", text, parts)


def describe_ladder(result: FitResult) -> str:
    """Return which model is kept, and whether fine-tuning beat it."""
    kept = next((step for step in reversed(result.steps) if step.outcome == "kept"), result.steps[-1])
    if result.contest is not None:
        verb = "beat the linear heads" if result.is_tuned else f"did not surely beat the model of {format_clock(kept.seconds)}"
        return f"Fine-tuning {verb}"
    if len(result.steps) == 1:
        return f"{kept.name} reached {format_short_percent(kept.accuracy.value)} after {format_clock(kept.seconds)}"
    best = f"{kept.name.lower()}, ready after {format_clock(kept.seconds)}"
    return f"The best of {len(result.steps)} models is a {best}"


def describe_overlap(result: FitResult) -> str:
    """Return how uncertain the accuracies are, and whether the intervals overlap."""
    kept = next((step for step in reversed(result.steps) if step.outcome == "kept"), result.steps[-1])
    low, high = list_ends(kept.accuracy)
    others = [list_ends(step.accuracy) for step in result.steps if step is not kept]
    points = 50 * (high - low)
    start = (
        f"The line is the 95 % interval: the accuracy of the kept model is uncertain by about {points:.1f} points either way."
    )
    if not others:
        return start
    num_overlapping = sum(other_low <= high and low <= other_high for other_low, other_high in others)
    if num_overlapping == 0:
        return f"{start} No other interval overlaps with its own."
    verb = "overlaps" if num_overlapping == 1 else "overlap"
    count = f"The other interval {verb}" if len(others) == 1 else f"{num_overlapping} of {len(others)} others {verb}"
    return f"{start} {count} with its own, so accuracy alone does not tell these apart; log loss is finer."


def build_curve_section(result: FitResult) -> Section:
    """Build the section about more photos; without a curve, it says why."""
    curve = result.curve
    if curve is None:
        note = Unavailable(f"The learning curve was not measured: {explain_missing_curve(result)}.")
        return Section("Whether more photos would help is not known", "More photos", "", [note])
    now, doubled = curve.doubled_images_per_class / 2, format_short_percent(curve.doubled.value)
    low, high = (100 * end for end in list_ends(curve.gain))
    gain = f"{signed(100 * curve.gain.value)} points ({signed(low)} to {signed(high)})"
    helps = round(low, 1) > 0
    title = f"Twice as many photos would bring about {gain}" if helps else "More photos would hardly help"
    tuned = " The curve is that of the linear head before fine-tuning." if result.is_tuned else ""
    rise = "The curve still rises" if helps else f"Twice as many would bring {gain}"
    counts = f"{format_per_class(now)} photos per class now, {format_per_class(2 * now)} then"
    text = f"{rise}: {counts}, and an accuracy of {doubled}.{tuned}"
    chart = Chart(
        lambda figure: draw_learning_curve(figure, curve),
        alt=f"Accuracy by training photos per class. {title}.",
        look="Look at the slope at “now”.",
        caption="Dots are heads fitted to a part of your photos and measured on others, with their 95 % intervals. The dotted "
        "line continues them by a power law; the band joins the interval of the last dot to that of twice as many.",
    )
    return Section(title, "More photos", text, [chart])


def explain_missing_curve(result: FitResult) -> str:
    """Return why there is no learning curve."""
    counts = result.images.class_counts
    if has_several_labels(result):
        return "it needs one label for each photo"
    if len(result.images.train) < MIN_IMAGES or counts.min() < MIN_PER_CLASS:
        least = f"{MIN_IMAGES} training photos, and {MIN_PER_CLASS} of each class"
        return f"it needs at least {least} (there are {len(result.images.train)}, and {counts.min()} of the smallest)"
    return "there was no time for it"


def build_error_sections(result: FitResult, page: Path) -> list[Section]:
    """Build the sections of classes, confusions and mistakes, each saying which model and photos it is about."""
    if result.labels is not None:
        return build_label_sections(result.labels, page)
    if result.is_tested:
        return build_result_sections(result.result, page)
    about = "These are training photos, and the model that answers was fitted without them."
    return [replace(each, text=f"{each.text} {about}") for each in build_result_sections(result.result, page)]


def build_suspect_section(result: FitResult, page: Path) -> list[Section]:
    """Build the section of training labels worth checking; none if there are none."""
    suspects, train = result.suspects, result.images.train
    if not suspects:
        return []
    # Without a test, these are among the surest mistakes, whose images are above.
    num_shown = NUM_SUSPECTS if result.is_tested else 0
    shown, listed = suspects[:num_shown], suspects[num_shown : num_shown + NUM_LISTED]
    view = replace(result.result, source=train)
    parts: list[Part] = [Gallery([build_suspect(view, each, page) for each in shown])] if shown else []
    if listed:
        rows = [
            (name_image(train, each.index), train.class_names[each.label], train.class_names[each.suggested]) for each in listed
        ]
        parts.append(Table(("image", "label", "looks like"), rows, text_columns=(0, 1, 2)))
    more = len(suspects) - len(shown) - len(listed)
    if more:
        parts.append(Paragraph(f"And {more:,} more, in report.json.", is_small=True))
    noun = "1 training label is" if len(suspects) == 1 else f"{len(suspects):,} training labels are"
    text = "A model that was fitted without these training photos finds their label unlikely and another one likely."
    return [Section(f"{noun} worth checking", "Labels to check", text, parts)]


def build_suspect(view: EvaluationResult, issue: LabelIssue, page: Path) -> Exhibit:
    """Build a suspect label for the gallery."""
    names = view.source.class_names
    return Exhibit(
        read_photo(view, issue.index),
        title=names[issue.label],
        after="by its label",
        lines=[f"looks like {names[issue.suggested]}, {format_short_percent(issue.fraction, 0)}"],
        name=name_image(view.source, issue.index),
        url=link_image(view.source, issue.index, page),
    )


def build_trust_section(result: FitResult, folder: FitFolder) -> list[Section]:
    """Build the section about confidence and the threshold below which the model is unsure; none for several labels."""
    coverage, rejection = find_coverage(result), find_rejection(result)
    if coverage is None:
        return []
    calibrated = "Confidence was calibrated on training photos that the head was not fitted to, and is stored with the model."
    accuracy, num_images = result.result.report.top1.value, result.result.report.num_images
    parts: list[Part] = []
    if rejection is None:
        wanted, is_sure = f"{100 * WANTED_ACCURACY:.0f} %", result.expected.value >= WANTED_ACCURACY
        title = f"It always answers: {format_short_percent(accuracy)} are right" if is_sure else "It is never “unsure”"
        text = (
            f"It needs no threshold: {wanted} or more of all answers for training photos were right."
            if is_sure
            else f"It has no threshold: none leaves enough answers for training photos of which {wanted} are right."
        )
        point, words = None, ""
    else:
        answered, right = format_short_percent(rejection.coverage, 0), format_short_percent(rejection.accuracy.value)
        low, high = (f"{100 * end:.1f}" for end in list_ends(rejection.accuracy))
        title = f"Below {rejection.threshold:.2f} it says “unsure”: {answered} are answered, {right} of them right"
        text = (
            f"The threshold was chosen on training photos so that {100 * WANTED_ACCURACY:.0f} % of the answers are right. Here "
            f"they are {right} (95 % interval {low} to {high}), against {format_short_percent(accuracy)} of all answers."
        )
        point = (rejection.coverage, rejection.accuracy.value)
        words = f"unsure below {rejection.threshold:.2f}:\nanswers {answered}, of these\n{right} right"
    chart = Chart(
        lambda figure: draw_coverage(figure, coverage, num_images, point, words),
        alt=f"Accuracy by the fraction of photos that get an answer. {title}.",
        look="Look at the marked point." if rejection is not None else "Look at the right end.",
        caption=f"Leaving unsure photos to a person makes the other answers more accurate. {calibrated}",
    )
    parts.append(chart)
    if rejection is not None:
        threshold = f"{rejection.threshold:.2f}"
        image = find_example(result)
        parts.append(Commands([join_command("vitrine", "predict", folder.model, image, "--reject-below", threshold)]))
    return [Section(title, "When to trust it", text, parts)]


def build_framing_section(result: FitResult) -> list[Section]:
    """Build the section that shows what the model sees of some training photos; none if none can be read."""
    frames, seen = build_frames(result.images.train, result.checkpoint.preprocessing)
    if not frames:
        return []
    framing = result.checkpoint.preprocessing.framing
    title = {
        "crop": f"The model sees {format_short_percent(seen, 0)} of a photo: its centre",
        "letterbox": "The model sees whole photos between bars",
        "squash": "The model sees whole photos, squeezed into its shape",
    }[framing]
    text = f"Some training photos. Framing: {describe_framing(result.checkpoint)}."
    if framing == "crop" and seen < 1:
        text += " What lies in the dark is never seen."
    return [Section(title, "Framing", text, [Frames(frames, "A training photo")])]


def build_time_section(result: FitResult) -> Section:
    """Build the section of the time that each part took."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for part in result.parts:
        spans.setdefault(part.name, []).append((part.start_s, part.end_s))
    totals = {name: sum(end - start for start, end in each) for name, each in spans.items()}
    most = max(totals, key=lambda name: totals[name], default=None)
    title = "Where the time went" if most is None else f"{most.capitalize()} took {format_span(totals[most])}, the longest part"
    limit_s = 60 * result.minutes or result.seconds
    text = "The axis ends with the time there was." if result.minutes else "There was no time limit."
    rows = [(name.capitalize(), each) for name, each in spans.items()]
    return Section(title, "Time", f"{text} This report comes last and is not counted.", [TimeStrip(rows, max(limit_s, 1e-3))])


def build_command_section(result: FitResult, folder: FitFolder, settings: dict[str, Any]) -> Section:
    """Build the section of commands that use the model and go on from here."""
    commands = [join_command("vitrine", "predict", folder.model, find_example(result))]
    if result.images.test is not None:
        out = f"{folder.path}-evaluation"
        commands.append(join_command("vitrine", "evaluate", folder.model, result.data, "--out", out))
    if not getattr(result.checkpoint.model.config, "readout_layers", ()):  # other formats hold no head of several layers
        commands.append(join_command("vitrine", "convert", folder.model, f"{folder.path}.safetensors", "--format", "timm"))
    minutes = LONGER * result.minutes if result.minutes else DEFAULT_LONGER_MINUTES
    longer = ["vitrine", "fit", result.data, "--model", result.model, "--minutes", f"{minutes:g}", "--out", folder.path]
    again = join_command(*longer, *list_options(settings))
    parts: list[Part] = [Commands(commands), Subheading("Give it more time"), Commands([again])]
    return Section("Continue from here", "Continue", "The model is a normal checkpoint; every command takes it.", parts)


def find_example(result: FitResult) -> Path | str:
    """Return the file of a measured photo; a placeholder if it is not a file."""
    return result.result.source.image_path(int(result.result.predictions.index[0])) or "IMAGES"


def list_options(settings: dict[str, Any]) -> list[str]:
    """List the options of the settings that another call must repeat, as far as they are not the default."""
    known = [each for each in fields(FitConfig) if each.name not in FREE_SETTINGS and each.name in settings]
    changed = [each for each in known if settings[each.name] != each.default]
    return [word for each in changed for word in (f"--{each.name.replace('_', '-')}", str(settings[each.name]))]
