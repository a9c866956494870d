"""Planted defects found by `vitrine data check`: `python benchmarks/planted_defects.py FOLDER`.

FOLDER has train and test splits in class folders. In a copy of it, some files are truncated; some training images get a changed
copy in their class (recompressed, half size, cropped, brightened); some test images get a copy in train; some images get a copy
under another label; and some are moved to another class, which only `--model` can find. `--json FILE` saves the results.
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

Planted = dict[str, str]  # file name -> what is wrong with it


def main(
    folder: tyro.conf.Positional[Path], model: str | None = None, each: int = 20, seed: int = 0, json: Path | None = None
) -> None:
    """Plant `each` defects of every kind, check the data; print and save how many were found."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "data"
        shutil.copytree(folder, copy)
        before = check_data(find_data(folder))
        planted = plant_defects(copy, each, np.random.default_rng(seed))
        check = check_data(find_data(copy))
        if model is not None:
            check = check.with_issues(find_label_issues(check, Predictor(model)))
        results = count_found(check, planted, set(issues_by_file(before)))
    rows = [(kind, str(result["planted"]), str(result["found"]), result["as"]) for kind, result in results.items()]
    print_table(("planted", "number", "found", "as"), rows)
    if json is not None:
        write_json(json, results)


def plant_defects(data: Path, each: int, generator: np.random.Generator) -> Planted:
    """Damage, copy and move images in a folder, none of them twice, and return what was done."""
    train, test = (shuffle(sorted((data / split).rglob("*.jpg")), generator) for split in ("train", "test"))
    planted: Planted = {}
    classes = sorted(path.name for path in (data / "train").iterdir())

    def draw_other_class(path: Path) -> str:
        offset = 1 + int(generator.integers(len(classes) - 1))
        return classes[(classes.index(path.parent.name) + offset) % len(classes)]

    def record(path: Path, kind: str) -> None:
        planted[str(path.relative_to(data))] = kind

    for path in take(train, each):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        record(path, "cut short")
    changes: dict[str, Callable[..., Image.Image]] = {
        "recompressed": recompress, "half size": halve, "cut at each edge": cut_each_edge, "brightened": brighten
    }  # fmt: skip
    for kind, change in changes.items():
        for path in take(train, each):
            target = path.with_name(f"{path.stem}-{kind.replace(' ', '-')}.jpg")
            change(Image.open(path).convert("RGB"), generator).save(target, quality=50 if kind == "recompressed" else 95)
            record(target, kind)
    for path in take(test, each):
        target = data / "train" / path.parent.name / f"{path.stem}-leaked.jpg"
        shutil.copy(path, target)
        record(target, "test image in train")
    for path in take(train, each):
        target = data / "train" / draw_other_class(path) / f"{path.stem}-again.jpg"
        shutil.copy(path, target)
        record(target, "copy under another label")
    for path in take(train, each):
        target = data / "train" / draw_other_class(path) / f"{path.stem}-moved.jpg"
        shutil.move(path, target)
        record(target, "moved to another label")
    return planted


def shuffle(paths: list[Path], generator: np.random.Generator) -> list[Path]:
    return [paths[index] for index in generator.permutation(len(paths)).tolist()]


def take(paths: list[Path], count: int) -> list[Path]:
    return [paths.pop() for _ in range(count)]


def issues_by_file(check: DataCheck) -> dict[str, str]:
    """Return the kind of every file's first issue: planted copies are found before labels are checked by a model."""
    return {check.name(image): issue.kind for issue in reversed(check.issues) for image in issue.images}


def count_found(check: DataCheck, planted: Planted, known: set[str]) -> dict[str, dict]:
    """Count planted defects that were found, and issues that were neither planted nor known before."""
    found = issues_by_file(check)
    results = {}
    for kind in dict.fromkeys(planted.values()):
        files = [file for file, planted_kind in planted.items() if planted_kind == kind]
        kinds = sorted({found[file] for file in files if file in found})
        results[kind] = {"planted": len(files), "found": sum(file in found for file in files), "as": ", ".join(kinds)}
    explained = known | set(planted)
    for issue in check.issues:
        files = {check.name(image) for image in issue.images}
        if files & planted.keys():  # the originals of planted copies
            explained |= files
    others = [kind for file, kind in found.items() if file not in explained]
    for kind in dict.fromkeys(others):
        results[f"not planted, {kind}"] = {"planted": 0, "found": others.count(kind), "as": kind}
    return results


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
