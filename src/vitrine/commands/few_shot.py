"""`vitrine few-shot`: accuracy of a linear classifier fitted to frozen features of a few images per class."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions, FeatureOptions, format_percent
from vitrine.core.console import print_table
from vitrine.core.files import check_output_files, write_json
from vitrine.evaluation.config import L2

if TYPE_CHECKING:
    from vitrine.evaluation.few_shot import FewShotResult


def few_shot(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[tuple[str, ...]], arg(metavar="DATA [DATA ...]")],
    shots: tuple[str, ...] = ("1", "5", "10", "25"),
    seeds: tuple[int, ...] = (0, 1, 2),
    l2: float = L2,
    mean_rank: bool = False,
    json: Path | None = None,
    *,
    features: Annotated[FeatureOptions, arg(name="")],
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Measure few-shot accuracy as in the paper: ridge regression on frozen features, in closed form.

    Args:
        model: Checkpoint folder or file in any known format, or hf://org/name[@revision].
        data: Labelled images with the splits train and test (or val); a part of undivided data is held out for testing.
        shots: Training images per class, e.g. 1 5 10 25, or all.
        seeds: Random seeds; each draws other training images.
        l2: Ridge penalty.
        mean_rank: Choose the penalty that ranks best over all DATA, for each number of shots. It is chosen on the test images,
            as in the first version of the paper's code.
        json: Write all results to this JSON file.
    """
    check_output_files(json)
    if not data:
        raise ValueError("vitrine few-shot MODEL DATA: no DATA given; expected one or more.")
    if mean_rank and l2 != L2:
        raise ValueError("--l2 and --mean-rank cannot be combined: leave one out.")
    if not shots:
        raise ValueError("--shots needs one or more numbers, e.g. 1 5 10 25, or all.")
    if not 0 < l2 < math.inf:
        raise ValueError(f"--l2 {l2:g} must be a finite number above 0, e.g. 1024.")
    counts = [parse_shots(text) for text in shots]
    loaded = checkpoint.load(model)

    from vitrine.evaluation.few_shot import few_shot as measure_few_shot

    results = measure_few_shot(loaded, data, counts, seeds, l2, mean_rank, **features.arguments)
    if not results:
        raise ValueError(f"No class has {' or '.join(shots)} training images: lower --shots, or use --shots all.")
    print_table(("data", "shots", "l2", "top-1", "95 % interval", "by seed"), map(format_row, results))
    if json is not None:
        write_json(json, {"model": model, "seeds": seeds, "results": [asdict(each) for each in results]})


def parse_shots(text: str) -> int | None:
    """Return a number of shots; None for `all`."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--shots {text} must be a whole number of at least 1, or all.")
    return int(text)


def format_row(result: "FewShotResult") -> tuple[str, ...]:
    """Return the table row of one dataset and number of shots."""
    assert result.low is not None
    assert result.high is not None
    std = "" if result.std is None else f" ± {100 * result.std:.2f}"
    return (
        Path(result.data).name or result.data,
        "all" if result.shots is None else str(result.shots),
        f"{result.l2:g}",
        f"{100 * result.mean:.2f}{std} %",
        f"{100 * result.low:.2f} .. {100 * result.high:.2f} %",
        ", ".join(map(format_percent, result.accuracies)),
    )
