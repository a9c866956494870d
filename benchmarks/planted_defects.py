"""What `vitrine data check` finds of defects in a copy of a folder: `python benchmarks/planted_defects.py FOLDER`.

FOLDER has train and test in folders by class. In a copy of it, some files are cut short, some training images get a copy in
their class (recompressed, half as large, cut, brightened), some test images a copy in train, some images a copy under another
label, and some are moved to another class, which only `--model` can find. `--json FILE` keeps the figures.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tyro
from PIL import Image

from planted_copies import brighten, cut_each_edge, halve, recompress
from vitrine.core.console import print_table
from vitrine.core.files import write_json
from vitrine.data.open_data import find_data
from vitrine.data.quality.check import DataCheck, check_data
from vitrine.evaluation.label_issues import find_label_issues
from vitrine.evaluation.predictor import Predictor

Planted = dict[str, str]  # the file that is wrong, to what is wrong with it


def main(
    folder: tyro.conf.Positional[Path], model: str | None = None, each: int = 20, seed: int = 0, json: Path | None = None
) -> None:
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "data"
        shutil.copytree(folder, copy)
        before = check_data(find_data(folder))
        planted = plant(copy, each, np.random.default_rng(seed))
        check = check_data(find_data(copy))
        if model is not None:
            check = check.with_issues(find_label_issues(check, Predictor(model)))
        results = judge(check, planted, {str(path) for path in name_found(before)})
    rows = [(kind, str(result["planted"]), str(result["found"]), result["as"]) for kind, result in results.items()]
    print_table(("planted", "number", "found", "as"), rows)
    if json is not None:
        write_json(json, results)


def plant(data: Path, each: int, generator: np.random.Generator) -> Planted:
    """No image is touched twice."""
    train, test = (shuffle(sorted((data / split).rglob("*.jpg")), generator) for split in ("train", "test"))
    planted: Planted = {}
    classes = sorted(path.name for path in (data / "train").iterdir())

    def other(path: Path) -> str:
        return classes[(classes.index(path.parent.name) + 1 + int(generator.integers(len(classes) - 1))) % len(classes)]

    for path in take(train, each):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        planted[name(path, data)] = "cut short"
    changes: dict[str, Callable[..., Image.Image]] = {
        "recompressed": recompress, "half size": halve, "cut at each edge": cut_each_edge, "brightened": brighten
    }  # fmt: skip
    for kind, change in changes.items():
        for path in take(train, each):
            target = path.with_name(f"{path.stem}-{kind.replace(' ', '-')}.jpg")
            change(Image.open(path).convert("RGB"), generator).save(target, quality=50 if kind == "recompressed" else 95)
            planted[name(target, data)] = kind
    for path in take(test, each):
        target = data / "train" / path.parent.name / f"{path.stem}-leaked.jpg"
        shutil.copy(path, target)
        planted[name(target, data)] = "test image in train"
    for path in take(train, each):
        target = data / "train" / other(path) / f"{path.stem}-again.jpg"
        shutil.copy(path, target)
        planted[name(target, data)] = "copy under another label"
    for path in take(train, each):
        target = data / "train" / other(path) / f"{path.stem}-moved.jpg"
        shutil.move(path, target)
        planted[name(target, data)] = "moved to another label"
    return planted


def shuffle(paths: list[Path], generator: np.random.Generator) -> list[Path]:
    return [paths[place] for place in generator.permutation(len(paths)).tolist()]


def take(paths: list[Path], count: int) -> list[Path]:
    return [paths.pop() for _ in range(count)]


def name(path: Path, data: Path) -> str:
    return str(path.relative_to(data))


def name_found(check: DataCheck) -> dict[str, str]:
    """Every image that something was found about, and what."""
    return {check.name(place): finding.kind for finding in check.issues for place in finding.images}


def judge(check: DataCheck, planted: Planted, known: set[str]) -> dict[str, dict]:
    found = name_found(check)
    results = {}
    for kind in dict.fromkeys(planted.values()):
        names = [path for path, what in planted.items() if what == kind]
        kinds = sorted({found[path] for path in names if path in found})
        results[kind] = {"planted": len(names), "found": sum(path in found for path in names), "as": ", ".join(kinds)}
    partners = {path for finding in check.issues for path in (check.name(place) for place in finding.images)
                if any(check.name(place) in planted for place in finding.images)}  # fmt: skip
    others = {path: kind for path, kind in found.items() if path not in planted and path not in partners and path not in known}
    for kind in dict.fromkeys(others.values()):
        results[f"not planted, {kind}"] = {"planted": 0, "found": sum(value == kind for value in others.values()), "as": kind}
    return results


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
