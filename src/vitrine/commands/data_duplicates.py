"""`vitrine data duplicates`: the images of one data set that occur in another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrine.commands.data_check import print_line, require_places
from vitrine.core.console import print_table
from vitrine.core.files import write_json
from vitrine.data.subsets import write_exclude_list

if TYPE_CHECKING:
    from vitrine.data.quality.duplicates import DuplicatePairs
    from vitrine.data.source import Source

MOST_NAMED = 5


def data_duplicates(
    pretrain: Annotated[Positional[str], arg(metavar="PRETRAIN")],
    test: Annotated[Positional[str], arg(metavar="TEST")],
    split: str | None = None,
    test_split: str | None = None,
    out: Path | None = None,
    json: Path | None = None,
) -> None:
    """The images to pre-train on that are in a test set: the same bytes, or the same picture changed a little.

    Both are looked at by several processes, and under torchrun by those of all machines, which then have to share the folder
    VITRINE_CACHE. What has been looked at is kept there, so that the same command goes on where it was stopped.

    Args:
        pretrain: Images to train on: a folder, file, hf://datasets/org/name, or a built-in name.
        test: Images to test on.
        split: Of the first; train, if you do not say and there is one.
        test_split: Of the second; test, else val, if you do not say.
        out: Write the names of the images to leave out to this file, for --data.exclude.
        json: Write all pairs to this file.
    """
    require_places(out, json)

    from vitrine.core.runtime import start_runtime
    from vitrine.data.open_data import find_data, open_test
    from vitrine.data.quality.duplicates import find_duplicates_between
    from vitrine.data.quality.image_stats import compute_image_stats

    found = find_data(pretrain)
    sources = found.open_train() if split is None else found.open(split), open_test(test, test_split)
    with start_runtime("cpu") as runtime:
        surveys = [
            compute_image_stats(source, f"looking at {name}", runtime, show_progress=runtime.is_main)
            for source, name in zip(sources, (pretrain, test), strict=True)
        ]
        if not runtime.is_main:
            return
    pairs = find_duplicates_between(surveys[0], sources[0], surveys[1], sources[1], show_progress=True)
    print_pairs(pairs, sources)
    for survey, name in zip(surveys, (pretrain, test), strict=True):
        if survey.unreadable:
            print(
                f"{len(survey.unreadable):,} images of {name} cannot be read, and were not compared: vitrine data check {name}"
            )
    names = [sources[0].name(number) for number in dict.fromkeys(pairs.numbers[:, 0].tolist())]
    if out is not None:
        write_exclude_list(out, names, f"Images of {pretrain} that are in {test}.")
        print(f"{len(names):,} images are better left out: --data.exclude {out}")
    if json is not None:
        write_json(json, {"pretrain": pretrain, "test": test, "pairs": describe_pairs(pairs, sources)})


def print_pairs(pairs: "DuplicatePairs", sources: "tuple[Source, Source]") -> None:
    num_exact = int(pairs.is_exact.sum())
    columns = ("", "images", "the same bytes", "the same picture", "in all")
    counts = [len(set(pairs.numbers[:, side].tolist())) for side in (0, 1)]
    rows = [
        ("pre-training", f"{len(sources[0]):,}", f"{num_exact:,} pairs", f"{len(pairs) - num_exact:,} pairs", f"{counts[0]:,}"),
        ("test", f"{len(sources[1]):,}", "", "", f"{counts[1]:,}"),
    ]
    print_table(columns, rows)
    for first, second in pairs.numbers[:MOST_NAMED].tolist():
        print_line(f"{sources[0].name(first)} = {sources[1].name(second)}", "")
    if len(pairs) > MOST_NAMED:
        print(f"  .. and {len(pairs) - MOST_NAMED:,} more pairs")


def describe_pairs(pairs: "DuplicatePairs", sources: "tuple[Source, Source]") -> list[dict[str, Any]]:
    return [
        {"image": sources[0].name(first), "test_image": sources[1].name(second), "likeness": likeness, "same_bytes": is_exact}
        for (first, second), likeness, is_exact in zip(
            pairs.numbers.tolist(), pairs.likeness.tolist(), pairs.is_exact.tolist(), strict=True
        )
    ]
