"""`vitrine evaluate`: how good a classifier is, and where it errs."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions, format_estimate
from vitrine.core.console import print_table
from vitrine.core.files import check_output_file, make_folder, write_json
from vitrine.evaluation.config import InferenceConfig

if TYPE_CHECKING:
    from vitrine.evaluation.classification_report import ClassificationReport, ClassReport, Difference
    from vitrine.evaluation.intervals import Paired

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
    reading: Annotated[InferenceConfig, arg(name="")],
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Top-1, top-5, loss and calibration of a classifier, each with a 95 % interval, and the classes that it knows worst.

    Images may have several labels, as ReaL's (--split real of ImageNet with its real.json): one of them is enough, and images
    without any do not count.

    Args:
        model: A folder or file in any known format, or hf://org/name[@revision].
        data: Images with labels, whose classes are the model's by name or by number.
        split: Which part of the data; test, or val, if you do not say.
        mapping: A file of JSON that says which of the model's classes each class of the data stands for, as ObjectNet has it.
        against: Another model, to be compared with on the same images.
        out: A folder for the table of classes, the confusion matrix and the surest mistakes.
        json: Write all figures to this file.
        device: Where to compute, as cuda; a GPU where there is one, if you do not say.
    """
    if json is not None:
        check_output_file(json)
    if out is not None:
        make_folder(out)

    from vitrine.core.runtime import choose_device
    from vitrine.data.open_data import open_test
    from vitrine.evaluation.classification_report import (
        compare_classifiers,
        evaluate_classifier,
        write_differences,
        write_findings,
    )

    source, chosen = open_test(data, split), choose_device(device)
    loaded = checkpoint.load(model)
    other = None if against is None else checkpoint.load(against)  # before the work, which a mistake in it would cost
    first = evaluate_classifier(loaded, source, reading, chosen, mapping)
    print_report(first.report)
    results: dict[str, Any] = {"model": model, "data": data, "split": split, **asdict(first.report)}
    if out is not None:
        print(f"\nIn {out}: {', '.join(write_findings(first, out)) or 'nothing, for there is no mistake'}.")
    if other is not None:
        second = evaluate_classifier(other, source, reading, chosen, mapping)
        paired, differences = compare_classifiers(first, second)
        print(f"\n{against}:\n")
        print_report(second.report)
        print_comparison(paired, differences)
        results["against"] = {"model": against, **asdict(second.report)}
        results["paired"] = {**asdict(paired), "differences": list(map(asdict, differences))}
        if out is not None:
            write_differences(differences, out / "differences.csv")
    if json is not None:
        write_json(json, results)


def print_report(report: "ClassificationReport") -> None:
    rows = [("top-1", *format_estimate(report.top1, "%")), ("top-5", *format_estimate(report.top5, "%"))]
    if report.loss is not None:
        rows.append(("loss", *format_estimate(report.loss)))
    rows.append(("calibration error", *format_estimate(report.calibration_error, "%")))
    left_out = f", {report.num_left_out:,} without a label left out" if report.num_left_out else ""
    print_table((f"{report.num_images:,} images{left_out}", "", "95 % interval"), rows)
    if len(report.classes) > 1:
        worst = sorted(report.classes, key=lambda each: each.top1.value)[:NUM_CLASSES_SHOWN]
        title = "class" if len(worst) == len(report.classes) else f"worst of {len(report.classes)} classes"
        print()
        print_table((title, "images", "top-1", "95 % interval", "most often taken for"), map(format_class, worst))


def format_class(each: "ClassReport") -> tuple[str, ...]:
    return each.name, str(each.num_images), *format_estimate(each.top1, "%"), each.mistaken_for or ""


def print_comparison(paired: "Paired", differences: "Sequence[Difference]") -> None:
    value, interval = format_estimate(paired.difference, "points")
    print(
        f"\nThe first less the second: {value} (95 %: {interval}) on {paired.num_images:,} images; {paired.only_first} only "
        f"the first has right, {paired.only_second} only the second; p = {paired.p_value:.2g} (McNemar's exact test)."
    )
    if differences:
        print(f"\nImages where they differ{', the first of them' if len(differences) > NUM_DIFFERENCES_SHOWN else ''}:\n")
        rows = [(each.image, each.label, each.first, each.second) for each in differences[:NUM_DIFFERENCES_SHOWN]]
        print_table(("image", "label", "first", "second"), rows)
