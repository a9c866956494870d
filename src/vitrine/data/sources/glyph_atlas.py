"""Shapes of the characters that `glyphs` draws: signed distance fields of each class in each typeface, from matplotlib's fonts.

Every character is centred and scaled so that the longer side of its box is the same, so neither size nor position tells classes
apart. A field has the distance to the outline in its cells, positive inside, in steps of 1 / STEPS of a cell, as int8. All
fields together are the atlas. It is drawn in parts when they are first needed, and kept in the cache.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from vitrine.core.caches import cache_folder
from vitrine.core.checksums import load_arrays, save_arrays
from vitrine.core.console import progress_bar, summarise_error, warn_user
from vitrine.core.files import make_folder

SIDE, GLYPH_SIDE = 48, 32  # cells of a field, and of the longer side of a character in it
STEPS = 8  # of the distance, in a cell
OVERSAMPLING = 2  # pixels of the drawing by cells
PART = 100  # classes that are drawn and cached together
MEASURED_SIZE = 100  # of the font, to measure a character before it is scaled

# Faces whose characters are those of Unicode. The first twelve have every class; Computer Modern, which has an encoding of its
# own, is used for the letters A to Z alone.
DEJAVU = tuple(
    f"DejaVu{family}{style}"
    for family, styles in (
        ("Sans", ("", "-Bold", "-Oblique", "-BoldOblique")),
        ("SansMono", ("", "-Bold", "-Oblique", "-BoldOblique")),
        ("Serif", ("", "-Bold", "-Italic", "-BoldItalic")),
    )
    for style in styles
)
STIX = ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta")
COMPUTER_MODERN = ("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10")
FACES = (*DEJAVU, *STIX, *COMPUTER_MODERN)


@dataclass(frozen=True)
class GlyphAtlas:
    """Fields of all classes, one after another."""

    fields: np.ndarray
    """int8 (number of fields, SIDE, SIDE)."""
    starts: np.ndarray
    """int64 (K + 1): those of class k are fields[starts[k] : starts[k + 1]], one for each face that has the character."""


@cache
def read_characters() -> tuple[str, ...]:
    """Read the character of each class from glyphs.txt, which benchmarks/glyph_classes.py writes; look-alikes follow it."""
    lines = files("vitrine.data.sources").joinpath("glyphs.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line[0] for line in lines)


@cache
def load_atlas(num_classes: int) -> GlyphAtlas:
    """Return the atlas of the first classes, in parts from the cache; parts that are not there are drawn, two seconds each."""
    parts = [load_part(first) for first in range(0, num_classes, PART)]
    counts = np.concatenate([np.diff(part.starts) for part in parts])[:num_classes]
    starts = np.concatenate([[0], np.cumsum(counts)])
    return GlyphAtlas(np.concatenate([part.fields for part in parts])[: starts[-1]], starts)


def load_part(first: int) -> GlyphAtlas:
    """Return the atlas of PART classes from `first` on, from the cache if it is there."""
    path = cache_folder("glyphs") / f"{compute_atlas_key()}-{first:04}.npz"
    if path.is_file():
        try:
            return GlyphAtlas(**load_arrays(path))
        except (ValueError, OSError, TypeError) as error:
            warn_user(f"The cached characters in {path} are damaged ({summarise_error(error)}): drawing them again.")
    part = draw_atlas(read_characters()[first : first + PART])
    try:
        make_folder(path.parent)
        save_arrays(path, {"fields": part.fields, "starts": part.starts})
    except OSError as error:
        warn_user(f"The drawn characters could not be cached ({summarise_error(error)}).")
    return part


def compute_atlas_key() -> str:
    """Return the name of the cached atlas: a hash of what it is drawn from."""
    import matplotlib
    import PIL

    facts = (read_characters(), FACES, SIDE, GLYPH_SIDE, STEPS, OVERSAMPLING, matplotlib.__version__, PIL.__version__)
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def draw_atlas(characters: Sequence[str]) -> GlyphAtlas:
    """Draw the fields of characters in every face that has them."""
    pens = [GlyphPen(face) for face in FACES]
    fields, counts = [], []
    for character in progress_bar(characters, len(characters), "Drawing characters", is_delayed=True):
        found = [pen.draw(character) for pen in pens if pen.has(character)]
        drawn = [np.clip(np.rint(STEPS * each), -128, 127).astype(np.int8) for each in found if each is not None]
        fields += drawn
        counts.append(len(drawn))
    return GlyphAtlas(np.stack(fields), np.concatenate([[0], np.cumsum(counts)]))


class GlyphPen:
    """Draws characters in one face."""

    def __init__(self, face: str) -> None:
        import matplotlib
        from matplotlib.ft2font import FT2Font
        from PIL import ImageFont

        path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
        self.codes = set(FT2Font(str(path)).get_charmap())
        self.is_latin = face in COMPUTER_MODERN
        self.font = ImageFont.truetype(str(path), MEASURED_SIZE, layout_engine=ImageFont.Layout.BASIC)

    def has(self, character: str) -> bool:
        """Return whether the face has the character, and not another in its place."""
        return ord(character) in self.codes and (not self.is_latin or (character.isascii() and character.isalpha()))

    def draw(self, character: str) -> np.ndarray | None:
        """Return the distances to the outline, in cells, float64 (SIDE, SIDE); None if the character leaves no ink."""
        from scipy.ndimage import distance_transform_edt

        ink = self.draw_ink(character, MEASURED_SIZE)
        if ink.size == 0:
            return None
        ink = self.draw_ink(character, MEASURED_SIZE * GLYPH_SIDE * OVERSAMPLING / max(ink.shape))
        side = SIDE * OVERSAMPLING
        is_inside = np.zeros((side, side), dtype=bool)
        top, left = (side - ink.shape[0]) // 2, (side - ink.shape[1]) // 2
        is_inside[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
        inside, outside = (np.asarray(distance_transform_edt(mask)) for mask in (is_inside, ~is_inside))
        distance = inside - outside
        return distance.reshape(SIDE, OVERSAMPLING, SIDE, OVERSAMPLING).mean(axis=(1, 3)) / OVERSAMPLING

    def draw_ink(self, character: str, size: float) -> np.ndarray:
        """Return which pixels of the character are inked, bool (H, W), without a margin."""
        mask = self.font.font_variant(size=size).getmask(character)
        is_inked = np.array(mask, dtype=np.uint8).reshape(mask.size[1], mask.size[0]) >= 128
        rows, columns = np.flatnonzero(is_inked.any(axis=1)), np.flatnonzero(is_inked.any(axis=0))
        return is_inked[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] if len(rows) else is_inked[:0]
