"""`vitrine few-shot`: what a linear classifier makes of frozen features, from a few images of each class."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions, FeatureOptions, format_percent
from vitrine.core.console import print_table, warn_user
from vitrine.core.files import check_output_file, write_json
from vitrine.evaluation.config import L2

if TYPE_CHECKING:
    from vitrine.evaluation.features import FeatureSplit
    from vitrine.evaluation.few_shot import FewShot


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
    """Few-shot accuracy as in the paper: regularised least squares on frozen features, in closed form.

    Args:
        model: A folder or file in any known format, or hf://org/name[@revision].
        data: Images with labels, divided into train and test, else val; of what is not divided, a part is held out.
        shots: Images of each class to learn from, as 1 5 10 25, or all.
        seeds: Each draws other images.
        l2: Strength of the penalty.
        mean_rank: Choose l2 instead, for each number of shots the one that ranks best on average over all DATA. It looks at
            the test images, as the first version of the paper's code did.
        json: Write all figures to this file.
    """
    if json is not None:
        check_output_file(json)
    if not data:
        raise ValueError("vitrine few-shot MODEL DATA: no DATA was given, and one or more were needed.")
    if mean_rank and l2 != L2:
        raise ValueError("--l2 and --mean-rank were both given: leave one of them out.")
    if not shots:
        raise ValueError("--shots was given without numbers, as 1 5 10 25, or all: add some, or leave it out.")
    if not 0 < l2 < math.inf:
        raise ValueError(f"--l2 {l2:g} must be a finite number above 0, as 1024.")
    counts = [parse_shots(text) for text in shots]

    from vitrine.evaluation.few_shot import require_seeds

    require_seeds(seeds)
    loaded = checkpoint.load(model)
    splits = {name: features.compute(loaded, name) for name in data}
    results = [
        few_shot_to_json(name, len(splits[name].test), found)
        for count in counts
        for name, found in measure(splits, count, seeds, l2, mean_rank).items()
    ]
    if not results:
        raise ValueError(f"No class has as many as {' or '.join(shots)} training images: give lower --shots, or all.")
    print_table(("data", "shots", "l2", "top-1", "95 % interval", "by seed"), map(format_row, results))
    if json is not None:
        write_json(json, {"model": model, "seeds": seeds, "results": results})


def parse_shots(text: str) -> int | None:
    """None for all."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--shots {text} must be a whole number of at least 1, or all.")
    return int(text)


def measure(
    splits: "dict[str, FeatureSplit]", shots: int | None, seeds: Sequence[int], l2: float, mean_rank: bool
) -> "dict[str, FewShot]":
    from vitrine.evaluation.few_shot import L2_GRID, choose_by_mean_rank, sweep_few_shot

    possible = {name: split for name, split in splits.items() if has_enough(name, split, shots)}
    grid = L2_GRID if mean_rank else (l2,)
    sweeps = {name: sweep_few_shot(split, shots, seeds, grid) for name, split in possible.items()}
    place = choose_by_mean_rank(list(sweeps.values())) if sweeps else 0
    return {name: sweep[place] for name, sweep in sweeps.items()}


def has_enough(name: str, split: "FeatureSplit", shots: int | None) -> bool:
    largest = int(split.train.labels.bincount().max())
    if shots is not None and shots > largest:
        warn_user(f"{name} has at most {largest} training images of a class: {shots} shots are left out.")
        return False
    return True


def few_shot_to_json(data: str, num_test_images: int, found: "FewShot") -> dict[str, Any]:
    from vitrine.evaluation.intervals import wilson_interval

    interval = wilson_interval(found.mean, num_test_images)
    return {"data": data, "num_test_images": num_test_images, **asdict(found), "low": interval.low, "high": interval.high}


def format_row(result: dict[str, Any]) -> tuple[str, ...]:
    shots = "all" if result["shots"] is None else str(result["shots"])
    spread = "" if result["std"] is None else f" ± {100 * result['std']:.2f}"
    return (
        Path(result["data"]).name or result["data"],
        shots,
        f"{result['l2']:g}",
        f"{100 * result['mean']:.2f}{spread} %",
        f"{100 * result['low']:.2f} .. {100 * result['high']:.2f} %",
        ", ".join(map(format_percent, result["accuracies"])),
    )
