"""`vitrine data check`: what is wrong with a data set before anything is trained on it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions
from vitrine.core.console import join_names, print_table
from vitrine.core.files import check_output_file, write_json
from vitrine.data.subsets import write_exclude_list
from vitrine.evaluation.config import InferenceConfig

if TYPE_CHECKING:
    from vitrine.data.quality.check import DataCheck, Issue

MOST_NAMED, MOST_COPIES = 3, 6  # findings of a kind, and images of one, in the terminal


def data_check(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    model: str | None = None,
    page: Path | None = None,
    leave_out: Path | None = None,
    json: Path | None = None,
    no_cache: bool = False,
    device: str | None = None,
    *,
    reading: Annotated[InferenceConfig, arg(name="")],
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Files that cannot be read, copies, images in train and test or under two labels, balance and sizes.

    Ends with status 1 when something is wrong. What is only suspicious, as labels that a model doubts, is worth a look and does
    not count as wrong. A second call, or one after an interruption, looks only at images that have changed.

    Args:
        data: A folder, file, hf://datasets/org/name, or a built-in name.
        model: A checkpoint whose features tell which labels to doubt.
        page: Write what was found, with thumbnails, to this HTML file.
        leave_out: Write the names of the images that are better left out to this file, for --data.exclude.
        json: Write all findings to this file.
        no_cache: Compute the features anew, and do not keep them.
        device: Where the model computes, as cuda; a GPU where there is one, if you do not say.
    """
    require_places(page, leave_out, json)

    from vitrine.core.runtime import start_runtime
    from vitrine.data.open_data import find_data
    from vitrine.data.quality.check import check_data

    found = find_data(data)
    loaded = None if model is None else checkpoint.load(model)
    with start_runtime("cpu" if loaded is None else device) as runtime:
        check = check_data(found, runtime, show_progress=runtime.is_main)
        if not runtime.is_main:
            return
        if loaded is not None:
            from vitrine.evaluation.features import open_feature_cache
            from vitrine.evaluation.label_issues import doubt_labels

            doubt_labels(check, loaded, reading, runtime.device, None if no_cache else open_feature_cache())
    print_check(check)
    write_files(check, data, page, leave_out, json)
    if not check.is_clean:
        sys.exit(1)


def require_places(*paths: Path | None) -> None:
    """Where files are to be written at the end, each another one."""
    given = [path for path in paths if path is not None]
    for path in given:
        check_output_file(path)
    if len({path.resolve() for path in given}) < len(given):
        names = join_names([str(path) for path in given])
        raise ValueError(f"{names} are to be written, and some of them are the same file: give each its own.")


def print_check(check: "DataCheck") -> None:
    """Splits and sizes, then what was found, a line for each kind with the first of them."""
    rows = [(split or "all", *describe_split(check, split)) for split in check.sources]
    print_table(("split", "images", "classes", "smallest class", "largest class", "short side: least, median, most"), rows)
    kinds = dict.fromkeys(finding.kind for finding in check.findings)
    if not kinds:
        print("Nothing was found.")
        return
    by_kind = {kind: [finding for finding in check.findings if finding.kind == kind] for kind in kinds}
    print()
    print_table(("found", "number", ""), [(kind, f"{len(each):,}", judge(each[0])) for kind, each in by_kind.items()])
    for kind, found in by_kind.items():
        more = f", the first {MOST_NAMED} of {len(found):,}" if len(found) > MOST_NAMED else ""
        print(f"\n{kind}{more}:")
        for finding in found[:MOST_NAMED]:
            print_line(name_images(check, finding), finding.detail)


def judge(finding: "Issue") -> str:
    return "wrong" if finding.is_wrong else "worth a look"


def name_images(check: "DataCheck", finding: "Issue") -> str:
    if finding.kind == "unreadable":
        return ""  # which says it itself
    names = [check.name(place) for place in finding.places]
    more = f" = .. and {len(names) - MOST_COPIES:,} more" if len(names) > MOST_COPIES else ""
    return " = ".join(names[:MOST_COPIES]) + more


def print_line(names: str, detail: str) -> None:
    """Indented; what cannot be printed of a name as backslashes."""
    line = ": ".join(part for part in (names, detail) if part)
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    print(f"  {shown}")


def describe_split(check: "DataCheck", split: str | None) -> tuple[str, ...]:
    source, sizes = check.sources[split], check.surveys[split].sizes
    counts = check.count_classes()[split]
    extremes = ("", "")
    if len(counts):
        largest = len(counts) - 1 - counts[::-1].argmax()  # the last, where all are alike
        extremes = tuple(f"{counts[place]:,} ({source.class_names[place]})" for place in (counts.argmin(), largest))
    sides = sizes.min(axis=1)[sizes.min(axis=1) > 0]
    measured = f"{sides.min()}, {int(np.median(sides))}, {sides.max()}" if len(sides) else "none can be read"
    return f"{len(source):,}", f"{len(source.class_names):,}", *extremes, measured


def write_files(check: "DataCheck", data: str, page: Path | None, leave_out: Path | None, json: Path | None) -> None:
    from vitrine.data.quality.check import list_to_leave_out, write_check

    if json is not None:
        write_json(json, describe_check(check, data))
    if page is not None:
        write_check(check, page, data)
        print(f"\nThe page is {page}.")
    if leave_out is not None:
        names = list_to_leave_out(check)
        write_exclude_list(leave_out, names, f"Better left out of training on {data}.")
        print(f"\n{len(names):,} of the images to train on are better left out: --data.exclude {leave_out}")


def describe_check(check: "DataCheck", data: str) -> dict[str, Any]:
    findings = [
        {
            "kind": finding.kind,
            "is_wrong": finding.is_wrong,
            "detail": finding.detail,
            "images": [
                {"name": check.name(place), "split": place.split, "classes": check.classes(place)} for place in finding.places
            ],
        }
        for finding in check.findings
    ]
    counts = check.count_classes()
    splits = [
        {
            "split": split,
            "num_images": len(source),
            "classes": dict(zip(source.class_names, counts[split].tolist(), strict=True)),
        }
        for split, source in check.sources.items()
    ]
    return {"data": data, "is_clean": check.is_clean, "splits": splits, "findings": findings}
