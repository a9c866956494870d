"""Images per second on one core, from stored images to training batches: ours against a plain pipeline and torchvision.

    python benchmarks/loader.py [--data FOLDER] [--rounds 15] [--json FILE]

Without --data, generated JPEG files are used; photographs are more realistic. Everything runs in one process with one thread.
The plain pipeline: open, convert to RGB, resize with a box, float32 / 255, mean and std, transpose. Ours ends with uint8,
because normalisation is done on the device; a second row adds it on the CPU.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from PIL import Image
from rich.console import Console
from rich.table import Table

from measure import Figure, compute_figures, measure
from peers import OURS, describe_absence, load_module
from vitrine.core.files import write_json
from vitrine.data.augment.crops import draw_crop_boxes
from vitrine.data.augment.transforms import TrainTransform
from vitrine.data.config import AugmentConfig, LoaderConfig
from vitrine.data.loader import Loader
from vitrine.data.open_data import find_data, open_data
from vitrine.data.pack import pack_data
from vitrine.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing, build_imagenet_preprocessing
from vitrine.data.sampling import SampleRng
from vitrine.data.source import ArraySource, Labels, Source

NORMALISED, PLAIN, TORCHVISION = f"{OURS}, normalised", "plain", "torchvision v2"
MEAN, STD = (np.array(values, dtype=np.float32) for values in (IMAGENET_MEAN, IMAGENET_STD))


@dataclass(frozen=True)
class Setting:
    """A source with its augmentation, and the same images as a script would open them."""

    name: str
    source: Source
    augment: AugmentConfig
    side: int
    batch_size: int
    min_ratio: float
    """Required speed, as a multiple of the plain pipeline."""
    open_plain: Sequence[Callable[[], Image.Image]]
    """Functions that open the images with Pillow, for the other contestants."""


def main(
    data: Path | None = None,
    rounds: int = 15,
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Measure every setting; print and save the results."""
    if rounds < 2:
        raise SystemExit(f"--rounds {rounds} must be at least 2, to measure a spread.")
    torch.set_num_threads(1)
    torchvision, missing = find_torchvision()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for setting in build_settings(data, Path(folder)):
            steps = build_steps(setting, torchvision)
            seconds = measure(steps, rounds, setting.name)
            results[setting.name] = report(setting, compute_figures(seconds))
    if missing is not None:
        Console().print(f"missing: torchvision ({missing})", markup=False)
    if json is not None:
        figures = {name: [asdict(figure) for figure in row] for name, row in results.items()}
        write_json(json, {"torch": torch.__version__, "rounds": rounds, "missing": missing, "settings": figures})


def build_settings(data: Path | None, folder: Path) -> Iterator[Setting]:
    """Yield photographs as JPEG files and packed, and small images in memory with two kinds of crop."""
    jpeg_folder = write_photographs(folder / "jpeg") if data is None else data
    found = find_data(jpeg_folder)
    photographs = found.open_train()
    files = [partial(Image.open, file) for file in photographs.files()[: len(photographs)]]
    yield Setting("JPEG files to 224 px", photographs, AugmentConfig(), 224, 64, 1.3, files)
    pack_data(found, folder / "packed", 256, splits=found.splits[:1])
    packed = find_data(folder / "packed").open_train()
    yield Setting("packed at 256 px, to 224 px", packed, AugmentConfig(), 224, 64, 5.0, files)
    pixels = np.random.default_rng(0).integers(0, 256, (20_000, 32, 32, 3), dtype=np.uint8)
    small = ArraySource(pixels, Labels.one_each(np.zeros(len(pixels))), ("any",), "drawn")
    arrays = [partial(Image.fromarray, image) for image in pixels]
    yield Setting("32 px in memory, pad and flip", small, AugmentConfig(crop="pad"), 32, 512, 20.0, arrays)
    yield Setting("32 px in memory, inception crop and flip", small, AugmentConfig(), 32, 512, 2.0, arrays)


def write_photographs(folder: Path) -> Path:
    """Write generated images as JPEG files."""
    shapes = open_data("shapes:shape@256", "val")
    (folder / "drawn").mkdir(parents=True)
    for index in range(256):
        shapes.read(index)[0].to_pil().save(folder / "drawn" / f"{index}.jpg", quality=90)
    return folder


def build_steps(setting: Setting, torchvision: Any) -> dict[str, Callable[[], object]]:
    """Return the contestants; one call is one batch."""
    preprocessing = build_imagenet_preprocessing((setting.side, setting.side))
    ours, normalised = build_ours(setting, preprocessing), build_ours(setting, preprocessing)
    steps: dict[str, Callable[[], object]] = {
        OURS: lambda: next(ours),
        NORMALISED: lambda: preprocessing.normalise(next(normalised).image),
    }
    plain = cycle(zip(setting.open_plain, draw_boxes(setting.open_plain), strict=True))
    steps[PLAIN] = lambda: [run_plain(load(), box, setting.side) for load, box in islice(plain, setting.batch_size)]
    if torchvision is not None:
        transform = build_torchvision(torchvision, setting)
        theirs = cycle(setting.open_plain)
        steps[TORCHVISION] = lambda: torch.stack(
            [transform(load().convert("RGB")) for load in islice(theirs, setting.batch_size)]
        )
    return steps


def build_ours(setting: Setting, preprocessing: Preprocessing) -> Iterator[Any]:
    config = LoaderConfig(batch_size=setting.batch_size, num_workers=0)
    return Loader(setting.source, TrainTransform(setting.augment, preprocessing), config).read()


def draw_boxes(images: Sequence[Callable[[], Image.Image]]) -> list[tuple[int, int, int, int]]:
    """Draw boxes for Pillow beforehand, so that this does not count as time of the plain pipeline."""
    indices = np.arange(len(images))
    sizes = np.array([load().size[::-1] for load in images])
    boxes = draw_crop_boxes(sizes, SampleRng(0, np.zeros_like(indices), indices))
    return [(left, top, left + width, top + height) for top, left, height, width in boxes.tolist()]


def run_plain(image: Image.Image, box: tuple[int, int, int, int], side: int) -> np.ndarray:
    """Crop, resize and normalise one image with Pillow and NumPy."""
    resized = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box=box)
    values = np.asarray(resized, dtype=np.float32) / 255
    return ((values - MEAN) / STD).transpose(2, 0, 1)


def find_torchvision() -> tuple[Any, str | None]:
    """Return torchvision's transforms, or None and why they are missing."""
    try:
        return load_module("torchvision.transforms.v2"), None
    except Exception as error:  # a peer that cannot be imported is named, and the others are measured
        return None, describe_absence(error)


def build_torchvision(v2: Any, setting: Setting) -> Callable[[Image.Image], torch.Tensor]:
    crop = v2.RandomResizedCrop(setting.side, scale=(0.05, 1.0), antialias=True)
    if setting.augment.crop == "pad":
        crop = v2.RandomCrop(setting.side, padding=4)
    steps = [v2.ToImage(), crop, v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose([*steps, v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)])


def report(setting: Setting, figures: list[Figure]) -> list[Figure]:
    """Print the table of a setting and whether the required speed is reached."""
    table = Table(title=setting.name, title_justify="left")
    table.add_column("contestant")
    for column in ("images per second", "ratio to us", "middle half of rounds"):
        table.add_column(column, justify="right")
    for figure in figures:
        lower, upper = figure.ratio_quartiles
        speed = f"{1000 * setting.batch_size / figure.median_ms:,.0f}"
        table.add_row(figure.name, speed, f"{figure.ratio:.2f}", f"{lower:.2f} .. {upper:.2f}")
    console = Console()
    console.print(table)
    plain = next(figure for figure in figures if figure.name == PLAIN)
    verdict = "met" if plain.ratio >= setting.min_ratio else "missed"
    console.print(f"{plain.ratio:.2f} times the plain pipeline (needs >= {setting.min_ratio:g}: {verdict})\n")
    return figures


if __name__ == "__main__":
    tyro.cli(main)
