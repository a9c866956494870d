"""The built-in dataset `glyphs`: characters in many typefaces, warped and noisy, any number of images, without a download.

Classes are letters, signs and punctuation that all faces of DejaVu have, without look-alikes and without what looks like a
digit, so that handwritten digits are new to a model that has learnt them. `glyphs:classes=200,images=32000,warp=0.3@28` are
32,000 training images of the first 200 classes at 28 pixels. An image is a function of seed, split and index alone.
"""

import difflib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names
from vitrine.data.sampling import hash_keys
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.glyph_atlas import load_atlas, read_characters
from vitrine.data.sources.glyph_drawing import GlyphStyle, draw_glyphs

SPLITS = ("train", "val", "test")
NUM_HELD_OUT = 5000  # images of val and of test
MIN_SIZE, MAX_SIZE, MAX_IMAGES = 8, 64, 20_000_000
MAX_BYTES_IN_MEMORY = 32 * 2**20  # larger sets are drawn as they are read
EXAMPLE = "glyphs:classes=200,images=32000,warp=0.3,noise=0.5,seed=1@28"


@dataclass(frozen=True, kw_only=True)
class GlyphSettings:
    """A variant of the dataset; `name=value` pairs behind the colon set the fields, and "@" the image size."""

    classes: int = 200
    images: int = 100_000
    """Training images."""
    warp: float = 0.5
    """Turns, shears, stretches, shifts and bends, as a fraction of the strongest."""
    noise: float = 0.5
    """Noise, as a fraction of the strongest."""
    seed: int = 0
    """Another seed gives other images of the same kind."""
    image_size: int = 28


def list_limits() -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest value of each setting."""
    return {
        "classes": (2, len(read_characters())),
        "images": (1, MAX_IMAGES),
        "warp": (0, 1),
        "noise": (0, 1),
        "seed": (0, 2**32 - 1),
        "image_size": (MIN_SIZE, MAX_SIZE),
    }


def parse_settings(name: str) -> GlyphSettings:
    """Parse the name of a variant; raise ValueError with what is expected."""
    before, at, side = name.partition("@")
    pairs = [pair.partition("=") for pair in before.removeprefix("glyphs").removeprefix(":").split(",") if pair]
    kinds = {field.name: type(field.default) for field in fields(GlyphSettings)}
    values: dict[str, int | float] = {}
    limits = list_limits()
    for key, equals, text in [*pairs, *([("image_size", "=", side)] if at else [])]:
        if key not in kinds or (key == "image_size" and not at):
            near = difflib.get_close_matches(key, kinds, n=1) or list(kinds)[:-1]
            raise ValueError(f"{name} has an unknown setting {key!r}: use {join_names(near)}, e.g. {EXAMPLE}.")
        low, high = limits[key]
        value = parse_number(text, kinds[key]) if equals else None
        if value is None or not low <= value <= high:
            kind = "a whole number" if kinds[key] is int else "a number"
            raise ValueError(f"{name} has {key}={text!r}; expected {kind} from {low:,} to {high:,}, e.g. {EXAMPLE}.")
        if key in values:
            raise ValueError(f"{name} sets {key} more than once: remove one of them.")
        values[key] = value
    return GlyphSettings(**values)  # type: ignore[arg-type]


def parse_number(text: str, kind: type) -> int | float | None:
    """Return a number in digits, with a point for a float; None if it is something else."""
    digits = text.replace(".", "", 1) if kind is float else text
    return kind(text) if digits.isascii() and digits.isdecimal() and len(text) <= 12 else None


def open_glyphs(settings: GlyphSettings, split: str | None) -> Source:
    """Open one split; small ones are drawn at once."""
    assert split is not None
    count = settings.images if split == "train" else NUM_HELD_OUT
    source = GlyphsSource(settings, SPLITS.index(split), count)
    if count * settings.image_size**2 > MAX_BYTES_IN_MEMORY:
        return source
    return ArraySource(source.read_block(np.arange(count)), source.labels, source.class_names, source.title)


class GlyphsSource(Source):
    """Characters that are drawn as they are read. Image i is of class i modulo the number of classes."""

    def __init__(self, settings: GlyphSettings, split: int, num_images: int) -> None:
        self.settings = settings
        self.split = split
        self.labels = Labels.one_each(np.arange(num_images) % settings.classes)
        self.class_names = read_characters()[: settings.classes]
        self.title = f"glyphs/{SPLITS[split]}"

    def fetch(self, index: int) -> np.ndarray:
        return self.read_block(np.array([index]))[0]

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def files(self) -> list[Path]:
        return []

    def read_block(self, indices: np.ndarray) -> np.ndarray:
        """Draw images (B, S, S, 1)."""
        settings = self.settings
        keys = hash_keys(settings.seed, self.split, indices)
        style = GlyphStyle(settings.warp, settings.noise)
        return draw_glyphs(load_atlas(settings.classes), indices % settings.classes, keys, settings.image_size, style)
