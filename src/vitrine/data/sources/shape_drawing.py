"""The drawing of `shapes`: from the factors of images to their pixels, with soft edges and a little noise.

A shape is a signed distance from its rim, negative inside, in radii: `ahead` points along the hand, `aside` is 0 or more.
Other lengths are parts of the image's side, x to the right and y down. Shapes: B images of S x S pixels.
"""

import math
from collections.abc import Callable

import numpy as np

Factors = dict[str, np.ndarray]
"""What is drawn of each image (B, ...), by the names that `shapes.draw_factors` gives."""
Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]

DOT_RADIUS = 0.038

# Levels of brightness in 0..1. With the noise all stay within, so nothing has to be clipped.
HAND, DOT, NOISE = 0.95, 0.88, 0.035

# Pixels drawn at once: enough that numpy's calls cost little, few enough that some ten megabytes are all that is needed.
PIXELS_AT_ONCE = 2**17


def render(factors: Factors, image_size: int) -> np.ndarray:
    """The images (B, S, S, 3) of what `shapes.draw_factors` returned."""
    pixels = np.empty((len(factors["shape"]), image_size, image_size, 3), dtype=np.uint8)
    at_once = max(1, PIXELS_AT_ONCE // image_size**2)
    for kind, distance in enumerate(DISTANCES.values()):
        rows = np.flatnonzero(factors["shape"] == kind)
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            pixels[some] = render_alike(take(factors, some), distance, image_size)
    return pixels


def take(factors: Factors, indices: np.ndarray) -> Factors:
    return {name: values[indices] for name, values in factors.items()}


def render_alike(factors: Factors, distance: Distance, image_size: int) -> np.ndarray:
    """Images of one shape: layers with their shares of each pixel, times the colours of the layers, and noise."""
    num_images = len(factors["shape"])
    shares = compute_shares(factors, distance, image_size)  # (B, 5, S * S)
    ones = np.ones((num_images, 3))
    layers = [factors["background"], factors["tint"], factors["rgb"], HAND * ones, DOT * ones]
    colours = np.stack(layers, axis=1).astype(np.float32) * 255  # (B, 5, 3)
    picture = shares.transpose(0, 2, 1) @ colours  # (B, S * S, 3)
    picture += make_noise(factors["noise"], image_size**2)
    return picture.astype(np.uint8).reshape(num_images, image_size, image_size, 3)


def compute_shares(factors: Factors, distance: Distance, image_size: int) -> np.ndarray:
    """How much of each pixel is background, tint of the background, shape, hand and dots (B, 5, S * S)."""
    line = (np.arange(image_size, dtype=np.float32) + 0.5) / image_size
    x, y = line, line[:, None]
    centre_x, centre_y, radius, angle, slope = (
        values.astype(np.float32)[:, None, None]  # (B, 1, 1)
        for values in (*factors["centre"].T, factors["radius"], factors["angle"], factors["slope"])
    )
    # Towards the hand and aside from it, in radii. Angles count upwards, y down.
    cosine, sine = np.cos(angle) / radius, np.sin(angle) / radius
    ahead = (x - centre_x) * cosine - (y - centre_y) * sine  # (B, S, S)
    aside = np.abs((x - centre_x) * sine + (y - centre_y) * cosine)
    shape = cover(distance(ahead, aside), radius * image_size)
    hand = shape * cover(np.maximum(aside - 0.16, np.abs(ahead - 0.46) - 0.4), radius * image_size)
    dots = cover(measure_dots(factors["dots"].astype(np.float32), x, y), image_size)
    rest = 1 - shape - dots
    lean = (x - 0.5) * (math.sqrt(2) * np.cos(slope)) + (y - 0.5) * (math.sqrt(2) * np.sin(slope))  # from -1 to 1
    shares = [rest, rest * lean, shape - hand, hand, dots]
    return np.stack(shares, axis=1).reshape(len(shape), len(shares), -1)


def cover(distance: np.ndarray, scale: np.ndarray | int) -> np.ndarray:
    """How much of a pixel lies inside, from the signed distance of its middle; `scale` turns that into pixels."""
    return np.clip(0.5 - distance * scale, 0, 1)


def measure_dots(dots: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Signed distance (B, S, S) to the nearest of the dots (B, 5, 2)."""
    squares = np.square(dots[:, :, 0, None, None] - x), np.square(dots[:, :, 1, None, None] - y)  # (B, 5, 1, S), (B, 5, S, 1)
    nearest = squares[0][:, 0] + squares[1][:, 0]
    for index in range(1, dots.shape[1]):
        np.minimum(nearest, squares[0][:, index] + squares[1][:, index], out=nearest)
    return np.sqrt(nearest) - DOT_RADIUS


def make_noise(seeds: np.ndarray, num_pixels: int) -> np.ndarray:
    """What is added to the levels (B, P, 3): the bytes of a hash of image and pixel, so that no state is kept."""
    bits = seeds[:, None] + np.arange(num_pixels, dtype=np.uint32) * np.uint32(0x9E3779B1)  # (B, P)
    # Multiplication carries bits upwards only, the shifts bring them down again: two rounds mix all of them. The factors are
    # those of Wellons' public-domain hash "lowbias32".
    for factor in (0x7FEB352D, 0x846CA68B):
        bits ^= bits >> 16
        bits *= np.uint32(factor)
    bits ^= bits >> 16
    levels = bits.astype("<u4", copy=False).view(np.uint8).reshape(len(seeds), num_pixels, 4)[..., :3]
    return levels * np.float32(2 * NOISE) + np.float32(0.5 - 255 * NOISE)  # the half: what follows rounds down


# All shapes reach about as far as a circle of radius 1 and, but for the heart, have their centre of mass in its middle.


def measure_circle(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(ahead) + np.square(aside)) - 1


def measure_ring(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    return np.abs(measure_circle(ahead, aside) + 0.3) - 0.3


def measure_square(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(ahead), aside) - math.sqrt(0.5)


def measure_bar(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(ahead) - 0.91, aside - 0.4)


def measure_triangle(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    return np.maximum(-ahead, 0.5 * ahead + math.sqrt(0.75) * aside) - 0.5


def measure_star(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    """Its ten half points are folded onto one, between the hand and 36 degrees aside of it."""
    for degrees in (72, 36):
        sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
        beyond = np.maximum(aside * cosine - ahead * sine, 0)
        ahead, aside = ahead + 2 * sine * beyond, np.abs(aside - 2 * cosine * beyond)
    # The line from the tip, one radius ahead, to the nook: 0.42 radii from the centre, at 36 degrees.
    back, out = 1 - 0.42 * math.cos(math.pi / 5), 0.42 * math.sin(math.pi / 5)
    return ((ahead - 1) * out + aside * back) / math.hypot(back, out)


def measure_cross(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    ahead = np.abs(ahead)
    return np.maximum(np.maximum(ahead, aside) - 0.95, np.minimum(ahead, aside) - 0.3)


def measure_heart(ahead: np.ndarray, aside: np.ndarray) -> np.ndarray:
    """A square on its corner, which the hand points to, and a half disc on each of the two sides behind."""
    reach = 0.77  # from the middle of the square to its corners
    ahead = ahead - 0.13
    square = (np.abs(ahead) + aside - reach) * math.sqrt(0.5)
    discs = np.sqrt(np.square(ahead + reach / 2) + np.square(aside - reach / 2)) - reach * math.sqrt(0.5)
    return np.minimum(square, discs)


# In the order of the labels.
DISTANCES: dict[str, Distance] = {
    "circle": measure_circle,
    "ring": measure_ring,
    "square": measure_square,
    "bar": measure_bar,
    "triangle": measure_triangle,
    "star": measure_star,
    "cross": measure_cross,
    "heart": measure_heart,
}
