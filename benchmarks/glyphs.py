"""Time the drawing of `glyphs`: `python benchmarks/glyphs.py`.

Images per second on one core at several sizes, median of rounds, and the seconds to draw the characters of all classes. The
goal is 20,000 images a second at 28 pixels. `--json FILE` saves the results. Takes half a minute.
"""

import os
import statistics
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import tyro

from vitrine.core.console import print_table
from vitrine.core.files import write_json
from vitrine.data.sources.glyph_atlas import draw_atlas, read_characters
from vitrine.data.sources.glyph_drawing import GlyphStyle, draw_glyphs
from vitrine.data.sources.glyphs import GlyphSettings

SIZES, BATCH = (8, 28, 64), 4096


def main(rounds: int = 9, json: Path | None = None) -> None:
    """Measure; print and save the results."""
    characters = read_characters()
    start = time.perf_counter()
    atlas = draw_atlas(characters)
    atlas_s = time.perf_counter() - start
    style = GlyphStyle(GlyphSettings.warp, GlyphSettings.noise)
    classes = np.arange(BATCH) % len(characters)
    speeds: dict[int, list[float]] = {size: [] for size in SIZES}
    for number in range(rounds):
        keys = np.random.default_rng(number).integers(0, 2**63, BATCH).astype(np.uint64)
        for size, measured in speeds.items():
            start = time.perf_counter()
            draw_glyphs(atlas, classes, keys, size, style)
            measured.append(BATCH / (time.perf_counter() - start))
    medians = {size: statistics.median(measured) for size, measured in speeds.items()}
    rows = [(f"{size} px", f"{median:,.0f}") for size, median in medians.items()]
    print_table(("size", "images a second"), rows)
    print(f"{len(atlas.fields):,} characters of {len(characters):,} classes were drawn in {atlas_s:.1f} s.")
    if json is not None:
        write_json(json, {"images_per_s": medians, "atlas_s": atlas_s, "num_fields": len(atlas.fields)})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
