"""Small fits for tests: a random model, photographs of a few classes, with and without a test split and with several labels."""

from pathlib import Path

import numpy as np
from PIL import Image

from tests.formats import cases
from vitrine.data.open_data import DatasetHandle
from vitrine.data.source import ArraySource, Labels
from vitrine.fitting.config import FitConfig
from vitrine.fitting.fit import fit
from vitrine.fitting.result import FitResult
from vitrine.formats.save import save_checkpoint

NAMES = ('<img src=x onerror=alert(1)> & "a"', "b", "c")
NUM_TRAIN, NUM_TEST = 16, 8
COMMAND = "vitrine fit photos --model <b>"


def write_photos(folder: Path, splits: dict[str, int]) -> Path:
    """Write oblong photographs of three shades that overlap; a split named "" is the folder itself."""
    random = np.random.default_rng(0)
    for split, count in splits.items():
        for number, name in enumerate(NAMES):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = np.clip(random.normal(70 + 45 * number, 45) + random.normal(0, 40, (26, 40, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / name / f"{index}.png")
    return folder


def write_model(folder: Path) -> Path:
    save_checkpoint(cases.make_checkpoint(cases.VIT), folder)
    return folder


def make_fit(folder: Path, *, has_test: bool = True) -> FitResult:
    """Fit a head to photographs without a time limit, so without fine-tuning."""
    data = write_photos(folder / "photos", {"train": NUM_TRAIN, "test": NUM_TEST} if has_test else {"": NUM_TRAIN})
    return run_fit(str(data), folder)


def make_fit_with_several_labels(folder: Path) -> FitResult:
    """Fit a head to images with up to three labels: dark, of one hue, of another."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (60, 24, 24, 3), dtype=np.uint8)
    labels = [[label for label in range(3) if random.random() < 0.5] for _ in images]
    for image, present in zip(images, labels, strict=True):
        for channel in present:
            image[..., channel] //= 3
    source = ArraySource(images, Labels.several_each(labels), ("red", "green", "blue"), "data.npz")
    return run_fit(DatasetHandle("several", "arrays", ("train",), lambda split: source), folder)


def run_fit(data: str | DatasetHandle, folder: Path) -> FitResult:
    model = write_model(folder / "start")
    config = FitConfig(minutes=0, num_workers=0, seed=3)
    return fit(data, model, folder / "out", config, command=COMMAND, show_progress=False)
