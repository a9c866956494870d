"""`vitrine fit` on difficult sets of images: `python benchmarks/fit_sets.py MODEL --pets P --flowers F --cifar C --many M`.

Each folder has train and test folders of classes, M may be any dataset. A set is made for each that is given:
- few (P): five classes of four photos, one minute;
- mosaics (P): 2 x 2 mosaics of photos, each with up to four labels, one minute; mean average precision beside scikit-learn's,
  and beside that of plain softmax scores: of the same logits, and of a fit to the single photos;
- framed (P): tall images with the photo at one end, one minute: which framing is chosen;
- thinned (F): training images of each class by a power law, with `--balance` on and off, one minute each;
- uneven (C): all classes but the last as one, 10,000 images, against 20 of the last, three minutes;
- small (C): as it is, three minutes;
- many (M): as it is, three minutes.
`--json FILE` saves the results.
"""

import csv
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from PIL import Image
from tyro.conf import Positional

from fit_folder import run_fit
from vitrine.core.console import print_table
from vitrine.core.files import write_json
from vitrine.evaluation.multi_label import evaluate_multi_label
from vitrine.evaluation.predictor import Predictor
from vitrine.formats.load import load_checkpoint

FEW_CLASSES, FEW_PHOTOS = 5, 4
NUM_LARGE, NUM_SMALL = 10_000, 20
POWER = 0.35  # of the thinned set: the class of rank r keeps its first r ** -POWER of its images, at least two
TILE, NUM_TILES = 128, 4
COLUMNS = ("set", "train", "test", "accuracy", "macro", "95 % interval", "framing", "seconds", "of")


def main(
    model: Annotated[Positional[str], tyro.conf.arg(metavar="MODEL")],
    pets: Path | None = None,
    flowers: Path | None = None,
    cifar: Path | None = None,
    many: Path | None = None,
    seeds: tuple[int, ...] = (0,),
    json: Path | None = None,
) -> None:
    """Make each set, fit to it, print and save the results."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, data, minutes, options in make_sets(Path(temporary), pets, flowers, cifar, many):
            for seed in seeds:
                out = Path(temporary) / "fits" / f"{name}-{seed}"
                results.append({"set": name, "seed": seed, **measure_fit(model, data, minutes, seed, options, out)})
                if name == "mosaics":
                    assert pets is not None
                    results[-1] |= measure_mosaics(model, data, pets, out)
                print(results[-1], flush=True)
                shutil.rmtree(out)
    print_table(COLUMNS, [format_row(each) for each in results])
    if json is not None:
        write_json(json, {"model": Path(model).parent.name, "seeds": list(seeds), "results": results})


def make_sets(
    folder: Path, pets: Path | None, flowers: Path | None, cifar: Path | None, many: Path | None
) -> Iterator[tuple[str, Path, float, list[str]]]:
    """Yield name, data, minutes and options of each set."""
    if pets is not None:
        yield "few", link_few(pets, folder / "few"), 1.0, []
        yield "mosaics", write_mosaics(pets, folder / "mosaics"), 1.0, []
        yield "framed", write_framed(pets, folder / "framed"), 1.0, []
    if flowers is not None:
        thinned = link_thinned(flowers, folder / "thinned")
        for balance in ("off", "on"):
            yield f"thinned, balance {balance}", thinned, 1.0, ["--balance", balance]
    if cifar is not None:
        yield "uneven", link_uneven(cifar, folder / "uneven"), 3.0, []
        yield "small", cifar, 3.0, []
    if many is not None:
        yield "many", many, 3.0, []


def measure_fit(model: str, data: Path, minutes: float, seed: int, options: list[str], out: Path) -> dict[str, Any]:
    """Run one fit; return its figures and its time."""
    content, seconds = run_fit(model, data, minutes, seed, options, out)
    return {
        "num_train": content["images"]["train"],
        "num_test": content["images"]["test"],
        "available": content["images"]["available"],
        "accuracy": content["report"]["top1"]["value"],
        "macro": content["report"].get("macro_top1"),
        "mean_average_precision": None if content["labels"] is None else content["labels"]["mean_average_precision"],
        "framing": content["framing"],
        "steps": [f"{step['name']}, {step['detail']}: {step['outcome']}" for step in content["steps"]],
        "notes": content["notes"],
        "seconds": seconds,
        "minutes": minutes,
    }


def format_row(result: dict[str, Any]) -> tuple[str, ...]:
    """Format the result of one fit."""
    macro = result["macro"] or result["mean_average_precision"]
    interval = f"{100 * macro['low']:.2f} .. {100 * macro['high']:.2f}"
    images = f"{result['num_train']:,}", f"{result['num_test'] or 0:,}"
    accuracies = f"{100 * result['accuracy']:.2f} %", f"{100 * macro['value']:.2f} %"
    return (
        result["set"],
        *images,
        *accuracies,
        interval,
        result["framing"],
        f"{result['seconds']:.1f}",
        f"{result['minutes']:g}",
    )


def link(path: Path, target: Path) -> None:
    """Make a link to a photo, with the folders that it is in."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(path.resolve())


def list_classes(folder: Path) -> list[list[Path]]:
    """List the photos of each class of a split."""
    return [sorted(path.iterdir()) for path in sorted(folder.iterdir())]


def link_few(data: Path, out: Path) -> Path:
    """Link a few photos of a few classes, and all of their test photos."""
    for split, count in (("train", FEW_PHOTOS), ("test", None)):
        for photos in list_classes(data / split)[:FEW_CLASSES]:
            for path in photos[:count]:
                link(path, out / split / path.parent.name / path.name)
    return out


def link_thinned(data: Path, out: Path) -> Path:
    """Link fewer training photos of each further class, by a power law, and all test photos."""
    for rank, photos in enumerate(list_classes(data / "train"), start=1):
        for path in photos[: max(2, round(len(photos) * rank**-POWER))]:
            link(path, out / "train" / path.parent.name / path.name)
    (out / "test").symlink_to((data / "test").resolve())
    return out


def link_uneven(data: Path, out: Path) -> Path:
    """Link the images of all classes but the last as one class, and a few of the last; the test images are left out of it."""
    *others, last = (
        train + test for train, test in zip(*(list_classes(data / each) for each in ("train", "test")), strict=True)
    )
    paths = [path for photos in others for path in photos]
    order = np.random.default_rng(0).permutation(len(paths))
    parts = {
        "train/other": [paths[index] for index in order[:NUM_LARGE]],
        "test/other": [paths[index] for index in order[NUM_LARGE:]],
        "train/rare": last[:NUM_SMALL],
        "test/rare": last[NUM_SMALL : NUM_SMALL + len(order) - NUM_LARGE],
    }
    for name, photos in parts.items():
        for number, path in enumerate(photos):
            link(path, out / name / f"{number:05}{path.suffix}")
    return out


def write_mosaics(data: Path, out: Path) -> Path:
    """Write mosaics of 2 x 2 photos, as many as there are photos, and the list of their labels."""
    generator, rows = np.random.default_rng(0), [("path", "label", "split")]
    for split in ("train", "test"):
        paths = [path for photos in list_classes(data / split) for path in photos]
        (out / split).mkdir(parents=True)
        for number in range(len(paths)):
            chosen = [paths[index] for index in generator.choice(len(paths), NUM_TILES, replace=False)]
            mosaic = Image.new("RGB", (2 * TILE, 2 * TILE))
            for tile, path in enumerate(chosen):
                mosaic.paste(crop_square(path), (TILE * (tile % 2), TILE * (tile // 2)))
            mosaic.save(out / split / f"{number:05}.jpg", quality=92)
            rows.append((f"{split}/{number:05}.jpg", ";".join(sorted({path.parent.name for path in chosen})), split))
    with (out / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return out / "labels.csv"


def write_framed(data: Path, out: Path) -> Path:
    """Write tall images, three times as high as wide, with the photo at the top or at the bottom and noise elsewhere."""
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        for path in (path for photos in list_classes(data / split) for path in photos):
            pixels = generator.integers(0, 256, (3 * TILE, TILE, 3), dtype=np.uint8)
            top = 0 if generator.random() < 0.5 else 2 * TILE
            pixels[top : top + TILE] = np.asarray(crop_square(path))
            target = out / split / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(target, quality=92)
    return out


def crop_square(path: Path) -> Image.Image:
    """Return the centre of a photo at the size of a tile."""
    image = Image.open(path).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((TILE, TILE), Image.Resampling.BICUBIC, (left, top, left + side, top + side))


def measure_mosaics(model: str, data: Path, pets: Path, out: Path) -> dict[str, float]:
    """Return the mean average precision of a fit to mosaics by scikit-learn, and of plain softmax scores."""
    import torch
    from sklearn.metrics import average_precision_score

    result = evaluate_multi_label(out / "model", data)
    labels, logits = result.labels, torch.from_numpy(result.probabilities).double().logit(1e-12)
    single = out / "single"
    run_fit(model, pets, 1.0, 0, [], single)
    scores = Predictor(load_checkpoint(single / "model")).predict_logits(result.source)
    order = [load_checkpoint(single / "model").class_names.index(name) for name in result.source.class_names]  # type: ignore[union-attr]
    plain = scores.values.softmax(dim=1)[:, order].numpy()
    return {
        "by_scikit_learn": float(average_precision_score(labels, result.probabilities, average="macro")),
        "of_softmax": float(average_precision_score(labels, logits.softmax(dim=1).numpy(), average="macro")),
        "of_single_photos": float(average_precision_score(labels, plain, average="macro")),
    }


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
