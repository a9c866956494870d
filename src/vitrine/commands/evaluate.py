"""`vitrine evaluate`: metrics of a classifier on labelled images, and a comparison of two classifiers."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions, format_estimate, format_percent
from vitrine.core.arguments import format_own_command
from vitrine.core.console import print_lines, print_table
from vitrine.core.files import check_output_files, make_folder, write_json
from vitrine.evaluation.config import InferenceConfig

if TYPE_CHECKING:
    from vitrine.evaluation.classification_report import ClassificationReport, Comparison, EvaluationResult
    from vitrine.evaluation.multi_label import MultiLabelReport
    from vitrine.formats.checkpoint import Checkpoint

NUM_CLASSES_SHOWN = 10
NUM_DIFFERENCES_SHOWN = 10


def evaluate(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[str], arg(metavar="DATA")],
    split: str | None = None,
    mapping: Path | None = None,
    against: str | None = None,
    out: Path | None = None,
    json: Path | None = None,
    device: str | None = None,
    *,
    inference: Annotated[InferenceConfig, arg(name="")],
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Measure top-1, top-5, loss and calibration of a classifier with 95 % intervals, and list its worst classes.

    Images may have several labels, e.g. ReaL's (--split real of ImageNet with its real.json): predicting one of them counts as
    correct, and images without a label do not count. A model with thresholds for several labels per image is measured by mean
    average precision and F1 instead.

    Args:
        model: Checkpoint folder or file in any known format, or hf://org/name[@revision].
        data: Labelled images; their classes are matched with the model's by name or by number.
        split: Split to evaluate on (default: test, else val).
        mapping: JSON file that maps classes of the data to classes of the model, e.g. for ObjectNet.
        against: Second model to compare with, on the same images.
        out: Folder for report.html, the table of classes, the confusion matrix and the most confident mistakes.
        json: Write all metrics to this JSON file.
        device: Device, e.g. cuda (default: GPU if available).
    """
    check_output_files(json)
    if out is not None:
        make_folder(out)
    loaded, other = checkpoint.load(model), None if against is None else checkpoint.load(against)
    if other is not None and (loaded.calibration.has_several_labels or other.calibration.has_several_labels):
        raise ValueError(
            "--against compares models of one class per image; one of these has thresholds for several labels: leave it out."
        )
    if loaded.calibration.has_several_labels:
        evaluate_several_labels(loaded, model, data, split, mapping, out, json, device, inference)
        return

    from vitrine.evaluation.classification_report import evaluate as evaluate_model
    from vitrine.evaluation.classification_report import write_report
    from vitrine.evaluation.evaluation_page import EvaluationContext, write_evaluation_page

    start_s = time.monotonic()
    evaluation = evaluate_model(loaded, data, split, mapping=mapping, against=other, device=device, inference=inference)
    seconds = time.monotonic() - start_s
    results: dict[str, Any] = {"model": model, "data": data, "split": split, **asdict(evaluation.report)}
    print_report(evaluation.result)
    if evaluation.against is not None and evaluation.comparison is not None:
        print_lines("", f"{against}:", "")
        print_report(evaluation.against)
        print_comparison(evaluation.comparison)
        results["against"] = {"model": against, **asdict(evaluation.against.report)}
        paired, differences = evaluation.comparison.paired, evaluation.comparison.differences
        results["paired"] = {**asdict(paired), "differences": [asdict(each) for each in differences]}
    if out is not None:
        context = EvaluationContext(
            model=model, data=data, split=split, against=against, command=format_own_command(), seconds=seconds
        )
        write_evaluation_page(evaluation, out / "report.html", context)
        print_lines("", f"Written to {out}: {', '.join(['report.html', *write_report(evaluation, out)])}.")
    if json is not None:
        write_json(json, results)


def evaluate_several_labels(
    loaded: "Checkpoint",
    model: str,
    data: str,
    split: str | None,
    mapping: Path | None,
    out: Path | None,
    json: Path | None,
    device: str | None,
    inference: InferenceConfig,
) -> None:
    """Evaluate a model for several labels per image."""
    from vitrine.evaluation.evaluation_page import EvaluationContext
    from vitrine.evaluation.multi_label import evaluate_multi_label, write_label_report
    from vitrine.evaluation.multi_label_page import write_multi_label_page

    start_s = time.monotonic()
    result = evaluate_multi_label(loaded, data, split, mapping=mapping, device=device, inference=inference)
    seconds = time.monotonic() - start_s
    print_label_report(result.report)
    if out is not None:
        context = EvaluationContext(model=model, data=data, split=split, command=format_own_command(), seconds=seconds)
        write_multi_label_page(result, out / "report.html", context)
        print_lines("", f"Written to {out}: {', '.join(['report.html', *write_label_report(result, out)])}.")
    if json is not None:
        write_json(json, {"model": model, "data": data, "split": split, **asdict(result.report)})


def print_label_report(report: "MultiLabelReport") -> None:
    """Print a table of metrics, and a table of the classes with the lowest average precision."""
    metrics = {
        "mean average precision": report.mean_average_precision,
        "macro F1": report.macro_f1,
        "micro F1": report.micro_f1,
        "all labels right": report.exact_match,
    }
    title = f"{report.num_images:,} images, {report.num_labels:,} labels"
    print_table((title, "", "95 % interval"), [(name, *format_estimate(each, "%")) for name, each in metrics.items()])
    if len(report.classes) > 1:
        worst = sorted(report.classes, key=lambda each: each.average_precision.value)[:NUM_CLASSES_SHOWN]
        title = "class" if len(worst) == len(report.classes) else f"worst of {len(report.classes)} classes"
        print_lines("")
        rows = [(c.name, str(c.num_images), *format_estimate(c.average_precision, "%"), format_percent(c.f1)) for c in worst]
        print_table((title, "images", "average precision", "95 % interval", "F1"), rows)


def print_report(result: "EvaluationResult") -> None:
    """Print a table of metrics, without top-5 if that is always 100 %, and a table of the worst classes."""
    from vitrine.evaluation.evaluation_page import shows_top5

    report = result.report
    loss = [] if report.loss is None else [("loss", *format_estimate(report.loss))]
    top5 = [("top-5", *format_estimate(report.top5, "%"))] if shows_top5(len(result.source.class_names)) else []
    macro = [("macro top-1", *format_estimate(report.macro_top1, "%"))] if report.macro_top1 and is_uneven(report) else []
    rows = [("top-1", *format_estimate(report.top1, "%")), *macro, *top5, *loss]
    rows.append(("calibration error", *format_estimate(report.calibration_error, "%")))
    left_out = f", {report.num_left_out:,} without a label left out" if report.num_left_out else ""
    print_table((f"{report.num_images:,} images{left_out}", "", "95 % interval"), rows)
    if len(report.classes) > 1:
        worst = sorted(report.classes, key=lambda each: each.top1.value)[:NUM_CLASSES_SHOWN]
        title = "class" if len(worst) == len(report.classes) else f"worst of {len(report.classes)} classes"
        print_lines("")
        rows = [(c.name, str(c.num_images), *format_estimate(c.top1, "%"), c.mistaken_for or "") for c in worst]
        print_table((title, "images", "top-1", "95 % interval", "most often mistaken for"), rows)


def is_uneven(report: "ClassificationReport") -> bool:
    """Return whether classes have so different numbers of images that the mean over classes says something else."""
    counts = [each.num_images for each in report.classes]
    return max(counts) > 2 * min(counts)


def print_comparison(comparison: "Comparison") -> None:
    """Print the difference in accuracy of two models and the images where they differ."""
    paired, differences = comparison.paired, comparison.differences
    value, interval = format_estimate(paired.difference, "points")
    print_lines(
        "",
        f"First model minus second: {value} (95 % interval {interval}) on {paired.num_images:,} images; only the first is "
        f"correct on {paired.only_first}, only the second on {paired.only_second}; p = {paired.p_value:.2g} (McNemar's exact "
        "test).",
    )
    if differences:
        shown = f" (first {NUM_DIFFERENCES_SHOWN})" if len(differences) > NUM_DIFFERENCES_SHOWN else ""
        print_lines("", f"Images where they differ{shown}:", "")
        rows = [(each.image, each.label, each.first, each.second) for each in differences[:NUM_DIFFERENCES_SHOWN]]
        print_table(("image", "label", "first", "second"), rows)
