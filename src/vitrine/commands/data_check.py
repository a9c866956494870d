"""`vitrine data check`: find problems of a dataset before training on it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions, reject_unused_options
from vitrine.core.arguments import format_own_command
from vitrine.core.console import print_lines, print_table
from vitrine.core.files import check_output_files, write_json
from vitrine.data.subsets import write_exclude_list
from vitrine.evaluation.config import InferenceConfig

if TYPE_CHECKING:
    from vitrine.data.quality.check import DataCheck, Issue

MAX_NAMED, MAX_COPIES = 3, 6  # issues of a kind, and images of one, in the terminal


def data_check(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    model: str | None = None,
    page: Path | None = None,
    leave_out: Path | None = None,
    json: Path | None = None,
    no_cache: bool = False,
    device: str | None = None,
    *,
    inference: Annotated[InferenceConfig, arg(name="")],
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Find unreadable files, duplicates, images in both train and test or under two labels; show balance and sizes.

    Exits with status 1 if there are errors. What is only suspicious, e.g. a label that a model doubts, is not an error.
    A second call, or one after an interruption, reads only images that have changed.

    Args:
        data: Folder, file, hf://datasets/org/name, or built-in name.
        model: Checkpoint whose features are used to find labels that may be wrong.
        page: Write the issues, with thumbnails, to this HTML file.
        leave_out: Write the names of images to exclude to this file, for --data.exclude.
        json: Write all issues to this file.
        no_cache: Neither read nor write the feature cache.
        device: Device of the model, e.g. cuda (default: GPU if available).
    """
    check_output_files(page, leave_out, json)
    if model is None:
        reject_unused_options("--model", checkpoint, inference, no_cache=no_cache or None, device=device)

    from vitrine.core.runtime import start_runtime
    from vitrine.data.quality.check import check_data

    loaded = None if model is None else checkpoint.load(model)
    with start_runtime("cpu" if loaded is None else device) as runtime:
        check = check_data(data, runtime, show_progress=runtime.is_main)
        if not runtime.is_main:
            return
        if loaded is not None:
            from vitrine.evaluation.features import open_feature_cache
            from vitrine.evaluation.label_issues import find_label_issues
            from vitrine.evaluation.predictor import Predictor

            predictor = Predictor(loaded, runtime.device, inference, show_progress=True)
            check = check.with_issues(find_label_issues(check, predictor, None if no_cache else open_feature_cache()))
    print_check(check)
    write_results(check, data, page, leave_out, json)
    if not check.is_clean:
        sys.exit(1)


def print_check(check: "DataCheck") -> None:
    """Print splits and sizes, then for each kind of issue its number and the first few."""
    rows = [(split or "all", *format_split(check, split)) for split in check.sources]
    print_table(("split", "images", "classes", "smallest class", "largest class", "short side: min, median, max"), rows)
    kinds = dict.fromkeys(issue.kind for issue in check.issues)
    if not kinds:
        print_lines("No problems found.")
        return
    by_kind = {kind: [issue for issue in check.issues if issue.kind == kind] for kind in kinds}
    print_lines("")
    rows = [(kind, f"{len(issues):,}", "error" if issues[0].is_error else "worth a look") for kind, issues in by_kind.items()]
    print_table(("issue", "number", ""), rows)
    for kind, issues in by_kind.items():
        more = f", the first {MAX_NAMED} of {len(issues):,}" if len(issues) > MAX_NAMED else ""
        print_lines("", f"{kind}{more}:")
        for issue in issues[:MAX_NAMED]:
            print_lines("  " + ": ".join(part for part in (format_images(check, issue), issue.detail) if part))


def format_images(check: "DataCheck", issue: "Issue") -> str:
    """Join the names of the images of an issue; the message of an unreadable file names it itself."""
    if issue.kind == "unreadable":
        return ""
    names = [check.name(image) for image in issue.images]
    more = f" = .. and {len(names) - MAX_COPIES:,} more" if len(names) > MAX_COPIES else ""
    return " = ".join(names[:MAX_COPIES]) + more


def format_split(check: "DataCheck", split: str | None) -> tuple[str, ...]:
    """Return the table row of a split: images, classes, smallest and largest class, image sizes."""
    source, sizes = check.sources[split], check.stats[split].sizes
    counts = check.count_classes()[split]
    extremes = ("", "")
    if len(counts):
        largest = len(counts) - 1 - counts[::-1].argmax()  # the last of equal ones
        extremes = tuple(f"{counts[label]:,} ({source.class_names[label]})" for label in (counts.argmin(), largest))
    sides = sizes.min(axis=1)[sizes.min(axis=1) > 0]
    measured = f"{sides.min()}, {int(np.median(sides))}, {sides.max()}" if len(sides) else "none readable"
    return f"{len(source):,}", f"{len(source.class_names):,}", *extremes, measured


def write_results(check: "DataCheck", data: str, page: Path | None, leave_out: Path | None, json: Path | None) -> None:
    """Write the JSON, the page and the exclude list that were asked for."""
    from vitrine.data.quality.check import list_images_to_exclude
    from vitrine.data.quality.check_page import write_check_report

    if json is not None:
        write_json(json, check_to_json(check, data))
    if page is not None:
        write_check_report(check, page, data, format_own_command())
        print_lines("", f"Report: {page}")
    if leave_out is not None:
        names = list_images_to_exclude(check)
        write_exclude_list(leave_out, names, f"Images to leave out of training on {data}.")
        print_lines("", f"{len(names):,} training images to leave out: --data.exclude {leave_out}")


def check_to_json(check: "DataCheck", data: str) -> dict[str, Any]:
    """Return splits and issues for --json."""
    findings, splits = [], []
    for issue in check.issues:
        images = [{"name": check.name(image), "split": image.split, "classes": check.classes(image)} for image in issue.images]
        findings.append({"kind": issue.kind, "is_wrong": issue.is_error, "detail": issue.detail, "images": images})
    for split, counts in check.count_classes().items():
        classes = dict(zip(check.sources[split].class_names, counts.tolist(), strict=True))
        splits.append({"split": split, "num_images": len(check.sources[split]), "classes": classes})
    return {"data": data, "is_clean": check.is_clean, "splits": splits, "findings": findings}
