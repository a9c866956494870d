"""Drawing of `glyphs`: characters from the atlas, warped, thick or thin, sharp or blurred, more or less bright, with noise.

Everything is computed pixel by pixel and image by image, without sums whose order depends on the batch, so an image is the same
in every batch. Letters: B images of S x S pixels, G x G nodes of the warp. Positions in a field are in its cells.
"""

from dataclasses import dataclass

import numpy as np

from vitrine.data.sampling import hash_keys, to_uniforms
from vitrine.data.sources.glyph_atlas import SIDE, STEPS, GlyphAtlas
from vitrine.data.sources.shapes import hash_pixels

# The strongest warp, 1: each value is drawn uniformly from minus to plus.
TURN, SHEAR, STRETCH, SHIFT = 0.5, 0.4, 0.3, 4.0  # radians, a fraction, logarithm of the scale, cells
BEND = 4.0  # cells by which a node moves
NUM_NODES = 5
THICKNESS = (-0.6, 1.2)  # cells that are added to each side of a stroke
BLUR = (1.2, 4.0)  # cells in which the brightness rises
BACKGROUND, CONTRAST = (0.0, 0.25), (0.35, 0.7)
GRAIN = 0.25  # standard deviation of a noise of 1, as a fraction of the brightness

# Random numbers of an image: how many each part uses.
DRAWS = {"face": 1, "affine": 6, "nodes": 2 * NUM_NODES**2, "ink": 4, "noise": 1}

# Pixels drawn at once: enough to hide NumPy's call overhead, few enough for the processor's cache.
PIXELS_AT_ONCE = 2**16


@dataclass(frozen=True)
class GlyphStyle:
    """How hard the images are."""

    warp: float = 0.5
    """Turns, shears, stretches, shifts and bends, as a fraction of the strongest."""
    noise: float = 0.5
    """Noise, as a fraction of the strongest."""


def draw_glyphs(atlas: GlyphAtlas, classes: np.ndarray, keys: np.ndarray, image_size: int, style: GlyphStyle) -> np.ndarray:
    """Draw images (B, S, S, 1) of classes (B); all else about an image follows from its key, uint64 (B)."""
    pixels = np.empty((len(classes), image_size, image_size, 1), dtype=np.uint8)
    at_once = max(1, PIXELS_AT_ONCE // image_size**2)
    for start in range(0, len(classes), at_once):
        rows = slice(start, start + at_once)
        pixels[rows, ..., 0] = draw_block(atlas, classes[rows], keys[rows], image_size, style)
    return pixels


def draw_block(atlas: GlyphAtlas, classes: np.ndarray, keys: np.ndarray, image_size: int, style: GlyphStyle) -> np.ndarray:
    """Draw some images (B, S, S) at once."""
    draws = draw_numbers(keys)
    first, last = atlas.starts[classes], atlas.starts[classes + 1]
    fields = first + (draws["face"][:, 0] * (last - first)).astype(np.int64)
    x, y = (spread_nodes(nodes, image_size) for nodes in place_nodes(draws, style))
    distance = read_fields(atlas.fields, fields, x, y)
    ink = draws["ink"].astype(np.float32)[..., None, None]  # (B, 4, 1, 1)
    thickness, blur, dark, contrast = (
        low + (high - low) * ink[:, number] for number, (low, high) in enumerate((THICKNESS, BLUR, BACKGROUND, CONTRAST))
    )
    coverage = np.clip((distance + thickness) / blur + np.float32(0.5), 0, 1)
    levels = (dark + contrast * coverage) * np.float32(255)
    if style.noise:
        levels += make_noise(draws["noise"][:, 0], image_size) * np.float32(255 * GRAIN * style.noise)
    return np.clip(levels + np.float32(0.5), 0, 255).astype(np.uint8)


def draw_numbers(keys: np.ndarray) -> dict[str, np.ndarray]:
    """Draw the uniform numbers of each part of the images, (B, count) each."""
    numbers = to_uniforms(hash_keys(keys[:, None], np.arange(sum(DRAWS.values()))))
    return dict(zip(DRAWS, np.split(numbers, np.cumsum(list(DRAWS.values()))[:-1], axis=1), strict=True))


def place_nodes(draws: dict[str, np.ndarray], style: GlyphStyle) -> tuple[np.ndarray, np.ndarray]:
    """Return where the nodes of the warp read the field: x and y (B, G, G), float32."""
    turn, shear, stretch_x, stretch_y, shift_x, shift_y = style.warp * (2 * draws["affine"] - 1).T[..., None, None]
    bends = style.warp * BEND * (2 * draws["nodes"] - 1).reshape(-1, 2, NUM_NODES, NUM_NODES)
    across = np.linspace(-SIDE / 2, SIDE / 2, NUM_NODES)
    x, y = across[None, None, :], across[None, :, None]
    x, y = (x + SHEAR * shear * y) * np.exp(STRETCH * stretch_x), y * np.exp(STRETCH * stretch_y)
    cosine, sine = np.cos(TURN * turn), np.sin(TURN * turn)
    x, y = cosine * x - sine * y + SHIFT * shift_x, sine * x + cosine * y + SHIFT * shift_y
    middle = (SIDE - 1) / 2
    return (x + bends[:, 0] + middle).astype(np.float32), (y + bends[:, 1] + middle).astype(np.float32)


def spread_nodes(nodes: np.ndarray, image_size: int) -> np.ndarray:
    """Interpolate values at nodes (B, G, G), the outer ones at the border of the image, to its pixels (B, S, S)."""
    places = (np.arange(image_size) + 0.5) / image_size * (NUM_NODES - 1)
    before = np.minimum(places.astype(np.int64), NUM_NODES - 2)
    after = (places - before).astype(np.float32)
    steps = np.diff(nodes, axis=2)
    rows = nodes[:, :, before] + after * steps[:, :, before]  # (B, G, S)
    return rows[:, before] + after[:, None] * np.diff(rows, axis=1)[:, before]


def read_fields(fields: np.ndarray, which: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Read fields at positions x and y (B, S, S) by bilinear interpolation; return distances in cells, float32."""
    np.clip(x, 0, SIDE - 1.001, out=x)
    np.clip(y, 0, SIDE - 1.001, out=y)
    left, top = x.astype(np.int32), y.astype(np.int32)
    x -= left
    y -= top
    flat, index = fields.reshape(-1), which[:, None, None] * SIDE**2 + (top * SIDE + left)
    corners = [flat.take(index + offset).astype(np.float32) for offset in (0, 1, SIDE, SIDE + 1)]
    upper = corners[0] + x * (corners[1] - corners[0])
    lower = corners[2] + x * (corners[3] - corners[2])
    return (upper + y * (lower - upper)) / np.float32(STEPS)


def make_noise(draws: np.ndarray, image_size: int) -> np.ndarray:
    """Return noise (B, S, S) of mean 0 and standard deviation 1: sums of the four bytes of a hash of image and pixel."""
    seeds = (draws * 2**32).astype(np.uint32)
    bits = hash_pixels(seeds, image_size**2)
    sums = (bits & 0x00FF00FF) + ((bits >> 8) & 0x00FF00FF)
    sums = (sums + (sums >> 16)) & 0x7FF
    deviation = np.sqrt(4 * (256**2 - 1) / 12)
    return ((sums.astype(np.float32) - np.float32(510)) / np.float32(deviation)).reshape(-1, image_size, image_size)
