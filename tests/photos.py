"""Folders of small random images for tests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def draw_images(folder: Path, num_images: int, seed: int = 0, size: tuple[int, int] = (30, 28)) -> list[Path]:
    """Write PNG files 0.png, 1.png, ... of noise, each with its own tint."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    files = [folder / f"{number}.png" for number in range(num_images)]
    for file in files:
        pixels = generator.integers(0, 60, (*size, 3)) + generator.integers(0, 196, 3)
        Image.fromarray(pixels.astype(np.uint8)).save(file)
    return files


def draw_classes(folder: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """Write a class folder with this many images for each name."""
    for number, (name, count) in enumerate(counts.items()):
        draw_images(folder / name, count, seed=100 * seed + number)
    return folder


def draw_divided(folder: Path, classes: Sequence[str], num_train: int, num_test: int, test: str = "test") -> Path:
    """Write class folders below train/ and test/, with this many images per class."""
    draw_classes(folder / "train", dict.fromkeys(classes, num_train), seed=1)
    draw_classes(folder / test, dict.fromkeys(classes, num_test), seed=2)
    return folder
