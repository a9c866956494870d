"""`vitrine data duplicates`: find the images of one dataset that are in another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrine.core.console import print_lines, print_table
from vitrine.core.files import check_output_files, write_json
from vitrine.data.subsets import write_exclude_list

if TYPE_CHECKING:
    from vitrine.data.quality.duplicates import Duplicates

MAX_NAMED = 5


def data_duplicates(
    pretrain: Annotated[Positional[str], arg(metavar="PRETRAIN")],
    test: Annotated[Positional[str], arg(metavar="TEST")],
    split: str | None = None,
    test_split: str | None = None,
    out: Path | None = None,
    json: Path | None = None,
) -> None:
    """Find pre-training images that are in a test set: identical bytes, or the same picture slightly changed.

    Images are read by several processes, and under torchrun by all ranks, which must share the folder VITRINE_CACHE. Results
    are kept there, so that the same command continues where it was stopped.

    Args:
        pretrain: Training images: folder, file, hf://datasets/org/name, or built-in name.
        test: Test images.
        split: Split of the training images (default: train, if there is one).
        test_split: Split of the test images (default: test, else val).
        out: Write the names of the images to exclude to this file, for --data.exclude.
        json: Write all pairs to this file.
    """
    check_output_files(out, json)

    from vitrine.core.runtime import start_runtime
    from vitrine.data.quality.duplicates import find_duplicates

    with start_runtime("cpu") as runtime:
        duplicates = find_duplicates(pretrain, test, split, test_split, runtime)
        if not runtime.is_main:
            return
    print_duplicates(duplicates)
    for num_unreadable, name in zip(duplicates.num_unreadable, (pretrain, test), strict=True):
        if num_unreadable:
            print_lines(f"{num_unreadable:,} images of {name} are unreadable and were not compared: vitrine data check {name}")
    if out is not None:
        names = duplicates.names_to_exclude()
        write_exclude_list(out, names, f"Images of {pretrain} that are in {test}.")
        print_lines(f"{len(names):,} images to leave out: --data.exclude {out}")
    if json is not None:
        write_json(json, {"pretrain": pretrain, "test": test, "pairs": pairs_to_json(duplicates)})


def print_duplicates(duplicates: "Duplicates") -> None:
    """Print how many images have duplicates, and the first few pairs."""
    pairs, sources = duplicates.pairs, duplicates.sources
    num_exact = int(pairs.is_exact.sum())
    counts = [len(set(pairs.indices[:, side].tolist())) for side in (0, 1)]
    rows = [
        ("pre-training", f"{len(sources[0]):,}", f"{num_exact:,} pairs", f"{len(pairs) - num_exact:,} pairs", f"{counts[0]:,}"),
        ("test", f"{len(sources[1]):,}", "", "", f"{counts[1]:,}"),
    ]
    print_table(("", "images", "identical bytes", "same picture", "images with duplicates"), rows)
    for first, second in pairs.indices[:MAX_NAMED].tolist():
        print_lines(f"  {sources[0].name(first)} = {sources[1].name(second)}")
    if len(pairs) > MAX_NAMED:
        print_lines(f"  .. and {len(pairs) - MAX_NAMED:,} more pairs")


def pairs_to_json(duplicates: "Duplicates") -> list[dict[str, Any]]:
    """Return the pairs for --json."""
    pairs, (source, test_source) = duplicates.pairs, duplicates.sources
    rows = zip(pairs.indices.tolist(), pairs.similarity.tolist(), pairs.is_exact.tolist(), strict=True)
    return [
        {"image": source.name(index), "test_image": test_source.name(other), "similarity": similarity, "same_bytes": is_exact}
        for (index, other), similarity, is_exact in rows
    ]
