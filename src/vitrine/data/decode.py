"""From an image file to upright 8-bit pixels, or to one sentence that names the file and says what is wrong with it."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

# The bound above which Pillow refuses by default. Ours also holds where someone has lifted Pillow's, and we never touch
# that: it is one number for the whole process.
MAX_PIXELS = 178_956_970

# What may be opened. Pillow knows more, but files come from strangers: its EPS reader, for one, starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")

MODES = {1: "L", 3: "RGB"}

PILLOW = re.compile(r"PIL\.")  # its modules, as Python's filters of warnings have them

# What stands in the file for "turn me like this" (EXIF 2.3, section 4.6.4, tag 274); 1 is upright.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadImage(ValueError):
    """An image that cannot be used, told in a sentence that names it; a run may be asked to leave such ones out."""

    image: object = None
    """Which one it is, where it had been opened: a `StoredImage`."""


def read_image(path: Path, num_channels: int = 3) -> Image.Image:
    """The picture in the file, of an animation the first, upright: "RGB" for three channels, "L" for one."""
    try:
        with open(path, "rb") as file:
            return decode_image(file, str(path), num_channels)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist, and an image was to be read from it: check the name.") from None
    except OSError as error:  # a folder, say, or no permission; what goes wrong while decoding is a ValueError by now
        raise ValueError(f"{path} cannot be opened ({error.strerror}), and an image file was needed: give another.") from None


def decode_image(content: bytes | BinaryIO, name: str, num_channels: int = 3) -> Image.Image:
    """As `read_image`, from memory or from an open file, which stays open; `name` is what errors call it."""
    require_channels(num_channels)
    return convert_image(open_image(content, name), num_channels, name)


def open_image(content: bytes | BinaryIO, name: str) -> Image.Image:
    """The image with its header read and no pixel decoded yet."""
    Image.init()  # loads Pillow's plugins once: only then is it known which formats this build of it can open
    formats = [known for known in FORMATS if known in Image.OPEN]
    with explain_failure(name):
        image = Image.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=formats)
    if image.width * image.height > MAX_PIXELS:
        raise BadImage(describe_bomb(name, f"{image.width} x {image.height} pixels"))
    require_pixels(image, name)
    return image


def convert_image(image: Image.Image, num_channels: int = 3, name: str = "The image") -> Image.Image:
    """A copy of an image that Pillow opened: upright, "RGB" or "L", and nothing but pixels."""
    mode = require_channels(num_channels)
    require_pixels(image, name)
    with explain_failure(name):
        image.load()
        turn = find_turn(image)
    if image.mode.startswith("I"):
        image = compress_to_bytes(image, name)
    if image.mode == "F":
        require_byte_range(image, name)
    with explain_failure(name):
        # Alpha is dropped, not laid on white: that is what timm, torchvision and Hugging Face have, and what released
        # models were trained on. The colours beneath transparent pixels come to light.
        pixels = image.convert(mode)
        if turn is not None:
            pixels = pixels.transpose(turn)
    pixels.info = {}  # the orientation has been followed: whoever finds it again would turn the picture twice
    return pixels


def require_pixels(image: Image.Image, name: str) -> None:
    if 0 in image.size:
        raise BadImage(f"{name} is empty, {image.width} x {image.height}; at least one pixel was needed: remove it.")


def require_channels(num_channels: int) -> str:
    """Pillow's name for images of so many channels."""
    if num_channels not in MODES:
        raise ValueError(f"num_channels={num_channels!r} must be 1 (grey) or 3 (red, green, blue): images have no other.")
    return MODES[num_channels]


def find_turn(image: Image.Image) -> Image.Transpose | None:
    """What brings the picture upright, or None if it is, or does not say."""
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # whatever a parser trips over: a picture whose notes are spoilt is still a picture
        return None


def compress_to_bytes(image: Image.Image, name: str) -> Image.Image:
    """16-bit grey to 8-bit, by the high byte as Pillow does for 16-bit colour; its own conversion of grey clips at 255."""
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    # Mode "I" is 32 bits wide, but what files of it hold is 16-bit: of anything else the range is not known.
    if low < 0 or high > 65_535:
        raise BadImage(
            f"{name} has whole-number pixels from {low} to {high}, and 0 to 65535 was needed: save it with 8 or 16 bits."
        )
    return Image.fromarray((values >> 8).astype(np.uint8))


def require_byte_range(image: Image.Image, name: str) -> None:
    """Pillow takes floating-point pixels as 0..255 and clips; a picture in 0..1 would quietly be black."""
    values = np.asarray(image)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and 1 < high <= 255) and (low, high) != (0, 0):
        raise BadImage(
            f"{name} has floating-point pixels from {low:g} to {high:g}, and the scale 0 to 255 was needed: "
            "save it with 8 bits."
        )


def describe_bomb(name: str, found: str) -> str:
    return f"{name} is too large to be decoded safely ({found}); the limit is {MAX_PIXELS} pixels: scale it down first."


def silence_pillow() -> None:
    """Its warnings are about files that we judge ourselves.

    Once for the process, not around each image: `warnings.catch_warnings` is not made for threads, and makes Python forget
    which warnings it has shown already.
    """
    if not any(entry[3] == PILLOW for entry in warnings.filters):
        warnings.filterwarnings("ignore", module=PILLOW.pattern)


@contextmanager
def explain_failure(name: str) -> Iterator[None]:
    """Whatever Pillow raises becomes a sentence about the file; its warnings are not shown."""
    silence_pillow()
    try:
        yield
    except Image.DecompressionBombError as error:
        raise BadImage(describe_bomb(name, str(error).rstrip("."))) from error
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise BadImage(
            f"{name} is not an image that can be read; one of {known} was needed: convert it to one of these, or remove it."
        ) from error
    except Exception as error:  # Pillow's readers let out whatever they trip over: OSError, SyntaxError, struct.error, ...
        reason = f"{type(error).__name__}: {error}".rstrip(". ")
        raise BadImage(
            f"{name} is broken or cut short ({reason}), and a whole image was needed: fetch the file again, or remove it."
        ) from error
