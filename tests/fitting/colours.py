"""Folders of images whose class is their colour, and a small model, for tests of fits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tests.filling import build_filled
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.config import ViTConfig

COLOURS = {
    "red": (200, 60, 60),
    "green": (60, 200, 60),
    "blue": (60, 60, 200),
    "grey": (120, 120, 120),
    "white": (220, 220, 220),
}
TINY = ViTConfig(width=24, depth=3, num_heads=2, mlp_dim=48, patch_size=8, image_size=(16, 16), num_classes=7)


def draw_colour(
    name: str, generator: np.random.Generator, noise: float = 40.0, size: tuple[int, int] = (20, 20)
) -> Image.Image:
    """Draw an image of about this colour, its own shade, with noise."""
    pixels = np.array(COLOURS[name]) + generator.normal(0, noise, 3) + generator.normal(0, noise, (*size, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_colours(
    folder: Path, counts: dict[str, int], seed: int = 0, noise: float = 40.0, size: tuple[int, int] = (20, 20)
) -> Path:
    """Write class folders with this many images of each colour."""
    generator = np.random.default_rng(seed)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            draw_colour(name, generator, noise, size).save(folder / name / f"{number:03}.png")
    return folder


def write_divided(folder: Path, num_train: int = 30, num_test: int = 10, names: Sequence[str] = tuple(COLOURS)[:3]) -> Path:
    """Write class folders below train/ and test/."""
    write_colours(folder / "train", dict.fromkeys(names, num_train), seed=1)
    write_colours(folder / "test", dict.fromkeys(names, num_test), seed=2)
    return folder


def save_tiny(path: Path) -> str:
    """Write a small model with random weights, and return its path."""
    names = tuple(f"old {number}" for number in range(TINY.num_classes))
    save_checkpoint(Checkpoint(build_filled(TINY), build_inception_preprocessing(TINY.image_size), names), path)
    return str(path)
