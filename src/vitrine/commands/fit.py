"""`vitrine fit`: the best classifier of your images in the minutes you have."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import format_estimate
from vitrine.core.arguments import format_own_command
from vitrine.core.console import print_lines, print_table
from vitrine.core.files import check_output_files, write_json
from vitrine.fitting.config import FitConfig

if TYPE_CHECKING:
    from vitrine.fitting.result import FitResult


def fit(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    model: str | None = None,
    out: Path | None = None,
    json: Path | None = None,
    *,
    config: Annotated[FitConfig, arg(name="")],
) -> None:
    """Fit the best classifier of labelled images in the time there is.

    The first model, a linear head on frozen features, is there after about a minute; better ones replace it while time lasts.
    Interrupt it at any moment: the best model so far stays, and the same command continues.

    Args:
        data: Labelled images: class folders, a CSV file, or any other known dataset.
        model: Checkpoint to start from: a folder or file in any known format, or hf://org/name[@revision] (default: one of
            `vitrine models --pretrained` that suits machine and time).
        out: Folder for the model and its report (default: runs/NAME-fit).
        json: Write all figures to this JSON file.
    """
    started = time.monotonic()
    check_output_files(json)

    from vitrine.fitting.fit import fit as fit_classifier
    from vitrine.fitting.report import fit_to_json

    result = fit_classifier(data, model, out, config, command=format_own_command(), started=started)
    print_result(result)
    if json is not None:
        write_json(json, fit_to_json(result))
    if result.interrupted_by is not None:
        sys.exit(128 + result.interrupted_by)


def print_result(result: "FitResult") -> None:
    """Print the ladder, the accuracy, and where model and report are."""
    from vitrine.fitting.findings import describe_measured

    rows = [
        (format_time(step.seconds), f"{step.name}, {step.detail}", *format_estimate(step.accuracy, "%"), step.outcome)
        for step in result.steps
    ]
    print_table(("time", "model", "accuracy", "95 % interval", ""), rows)
    report = result.result.report
    measured = f"on {report.num_images:,} {describe_measured(result, 'images')}"
    if result.labels is not None:
        precision, f1 = result.labels.report.mean_average_precision, result.labels.report.macro_f1
        value, interval = format_estimate(precision, "%")
        f1_value, _ = format_estimate(f1, "%")
        print_lines("", f"Mean average precision {measured}: {value} (95 % interval {interval}); macro F1 {f1_value}.")
    else:
        value, interval = format_estimate(report.top1, "%")
        print_lines("", f"Accuracy {measured}: {value} (95 % interval {interval}).")
        if report.macro_top1 is not None and result.images.is_uneven:
            value, interval = format_estimate(report.macro_top1, "%")
            print_lines(f"Mean accuracy over classes: {value} (95 % interval {interval}).")
    if result.is_tested and result.labels is None:
        print_lines(f"Expected from the training images alone: {format_estimate(result.expected, '%')[1]}.")
    print_lines(f"The model is in {result.out / 'model'}, its report in {result.out / 'report.html'}.")
    print_lines("", f"    vitrine predict {result.out / 'model'} IMAGE ...")


def format_time(seconds: float) -> str:
    """Format seconds as minutes and seconds, e.g. 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
