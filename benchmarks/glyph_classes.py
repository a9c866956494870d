"""Choose the classes of the built-in dataset `glyphs`: `python benchmarks/glyph_classes.py` writes glyphs.txt.

Candidates are the letters, punctuation and signs (Unicode categories L, P and S) that all faces of DejaVu have. Their shapes,
all of one size, are compared in four upright faces: similarity is 2 a.b / (a.a + b.b) of their softened coverage. A candidate
is left out if it is similar to a digit in any two of these faces. One that is similar to a class before it, on average over the
faces, is merged with it: only the first is drawn. The order of the classes is random, so that the first N are like the rest.
"""

import unicodedata
from pathlib import Path

import numpy as np

from vitrine.data.sampling import hash_keys
from vitrine.data.sources.glyph_atlas import DEJAVU, SIDE, GlyphPen

FACES = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono")
CATEGORIES, DIGITS = "LPS", "0123456789"
SOFTNESS = 4.0  # cells in which coverage rises at the outline
LIKE_A_DIGIT, LIKE_A_CLASS = 0.85, 0.91
TARGET = Path(__file__).parent.parent / "src" / "vitrine" / "data" / "sources" / "glyphs.txt"


def main() -> None:
    """Compare all candidates, and write the classes with their look-alikes, one class on a line."""
    common = set.intersection(*(GlyphPen(face).codes for face in DEJAVU))
    candidates = [chr(code) for code in sorted(common) if unicodedata.category(chr(code))[0] in CATEGORIES]
    pens = [GlyphPen(face) for face in FACES]
    candidates = [each for each in candidates if all(pen.draw(each) is not None for pen in pens)]
    shapes = np.stack(
        [[draw_coverage(pen, each) for each in (*candidates, *DIGITS)] for pen in pens]
    )  # (faces, N, SIDE * SIDE)
    letters, digits = shapes[:, : len(candidates)], shapes[:, len(candidates) :]
    to_digits = np.max([compare(one, other).max(axis=1) for one in letters for other in digits], axis=0)
    to_others = np.mean([compare(each, each) for each in letters], axis=0)
    classes = merge(np.flatnonzero(to_digits < LIKE_A_DIGIT).tolist(), to_others)
    lines = ["".join(candidates[index] for index in group) for group in classes]
    order = np.argsort(hash_keys(np.array([ord(line[0]) for line in lines])))
    TARGET.write_text("".join(f"{lines[index]}\n" for index in order), encoding="utf-8")
    num_like_digits = len(candidates) - sum(map(len, classes))
    print(f"{len(candidates):,} candidates, {num_like_digits} like digits, {len(classes):,} classes.")


def draw_coverage(pen: GlyphPen, character: str) -> np.ndarray:
    """Return how much of each cell is covered, flat, with soft borders."""
    field = pen.draw(character)
    assert field is not None
    return np.clip(0.5 + field / SOFTNESS, 0, 1).reshape(SIDE**2).astype(np.float32)


def compare(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the similarities (N, M) of shapes (N, D) and (M, D), 1 for equal ones."""
    squares = np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1)
    return 2 * (one @ other.T) / squares


def merge(candidates: list[int], similarity: np.ndarray) -> list[list[int]]:
    """Merge each candidate with the most similar class before it, if that is similar enough."""
    groups: dict[int, list[int]] = {}
    for index in candidates:
        nearest = max(groups, key=lambda first: similarity[index, first], default=None)
        if nearest is not None and similarity[index, nearest] >= LIKE_A_CLASS:
            groups[nearest].append(index)
        else:
            groups[index] = [index]
    return list(groups.values())


if __name__ == "__main__":
    main()
