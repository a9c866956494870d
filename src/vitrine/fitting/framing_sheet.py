"""A sheet of what a model sees of some images: the part of a crop stands out, a letterbox or squash is shown as it is."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from vitrine.core.figures import encode_photo
from vitrine.core.page_parts import format_short_percent
from vitrine.data.image import BadImage
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import Source
from vitrine.fitting.images import sample_evenly

NUM_FRAMES = 6
SIDE = 240  # pixels of a photograph's long side
DARKNESS = 0.35  # brightness of what is not seen
BORDER = 255


def build_frames(source: Source, preprocessing: Preprocessing) -> tuple[Sequence[tuple[bytes, str]], float]:
    """Return some images with their captions, and the mean fraction of their areas that the model sees."""
    frames, fractions = [], []
    for index in sample_evenly(source, NUM_FRAMES).tolist():
        try:
            image = source.read(index)[0].to_pil()
        except BadImage:
            continue
        left, top, right, bottom = preprocessing.compute_box(image.height, image.width)
        seen = min(1.0, (right - left) * (bottom - top) / (image.width * image.height))
        fractions.append(seen)
        size = f"{image.width} x {image.height} px"
        if preprocessing.framing != "crop" or seen >= 1:
            pixels = preprocessing.prepare(image).permute(1, 2, 0).numpy()  # (H, W, C)
            frames.append((encode_photo(pixels, SIDE), size))
            continue
        scale = min(1.0, SIDE / max(image.size))
        small = image.convert("RGB").resize([max(1, round(scale * side)) for side in image.size])
        box = [round(scale * end) for end in (left, top, right, bottom)]
        frames.append(
            (encode_photo(darken_outside(np.array(small), box), SIDE), f"{size}, {format_short_percent(seen, 0)} seen")
        )
    return frames, fmean(fractions) if fractions else 0.0


def darken_outside(pixels: np.ndarray, box: Sequence[int]) -> np.ndarray:
    """Return pixels uint8 (H, W, 3) that are dark outside of a box (left, top, right, bottom), with a line around it."""
    left, top, right, bottom = box
    rows, columns = slice(top, bottom), slice(left, right)
    dark = (DARKNESS * pixels).astype(np.uint8)
    dark[rows, columns] = pixels[rows, columns]
    for line in ((top, columns), (bottom - 1, columns), (rows, left), (rows, right - 1)):
        dark[line] = BORDER
    return dark
