"""Decode a file to upright RGB or grey pixels, lazily.

From an image file to upright 8-bit pixels, or to one sentence that names the file and says what is wrong with it.
An image as a source has it: its size is known, its pixels are decoded when they are asked for, and only as many as needed.

Shapes: H x W pixels of C channels. Boxes are (top, left, height, width) in the upright image.
"""

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
EXIF_TRANSPOSE = {
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
    """Which one it is, where it had been opened: a `LazyImage`."""


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
        return EXIF_TRANSPOSE.get(image.getexif().get(ExifTags.Base.Orientation, 1))
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


Box = tuple[int, int, int, int]

# Turns that swap height and width.
QUARTER_TURNS = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)


# What precedes an orientation in a PNG file: a chunk of EXIF, the same as text, or XMP.
PNG_NOTES = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")


class LazyImage:
    """The bytes of an image file, or pixels (H, W) or (H, W, C) as bytes; `name` is what errors call it.

    What has been decoded is not kept: a batch of large photographs would not fit into memory.
    """

    def __init__(self, content: bytes | np.ndarray, name: str) -> None:
        self.content = content
        self.name = name
        self.opened: Image.Image | None = None
        if isinstance(content, np.ndarray):
            require_pixel_array(content, name)
            self.height, self.width = content.shape[:2]
            return
        self.opened = open_image(content, name)
        self.turn = find_turn_early(self.opened, content, name)
        self.width, self.height = self.opened.size
        if self.turn in QUARTER_TURNS:
            self.height, self.width = self.width, self.height

    def open(self) -> Image.Image:
        """With its header read; handed out once, since decoding fills it with pixels."""
        assert isinstance(self.content, bytes)
        image = open_image(self.content, self.name) if self.opened is None else self.opened
        self.opened = None
        return image

    def to_pil(self, num_channels: int = 3) -> Image.Image:
        """The whole of it for Pillow: upright, "RGB" or "L"."""
        require_channels(num_channels)
        if isinstance(self.content, np.ndarray):
            pixels = fit_channels(self.content, num_channels)
            return Image.fromarray(pixels[..., 0] if num_channels == 1 else pixels)
        with self.signed():
            return convert_image(self.open(), num_channels, self.name)

    def to_numpy(self, num_channels: int = 3, box: Box | None = None, at_least: tuple[int, int] | None = None) -> np.ndarray:
        """The pixels within the box (H, W, C).

        Where the box is going to be shrunk to `at_least` (height, width), a JPEG may be decoded at a half, a quarter or an
        eighth of its size, which costs a fraction of the time, as long as the box stays that large. Its edges then move by
        at most half a pixel of what is returned, or, in an image that has to be turned, one and a half.
        """
        require_channels(num_channels)
        box = (0, 0, self.height, self.width) if box is None else box
        if isinstance(self.content, np.ndarray):
            top, left, height, width = box
            return fit_channels(self.content[top : top + height, left : left + width], num_channels)
        with self.signed():
            image, scale = self.open(), 1
            if at_least is not None and image.format == "JPEG" and box[2] >= 2 * at_least[0] and box[3] >= 2 * at_least[1]:
                scale = self.shrink_decoding(image, box, at_least)
            return self.decode(image, num_channels, shrink_box(box, scale))

    @contextmanager
    def signed(self) -> Iterator[None]:
        """An error says which image of a batch it is about."""
        try:
            yield
        except BadImage as error:
            error.image = self
            raise

    def shrink_decoding(self, image: Image.Image, box: Box, at_least: tuple[int, int]) -> int:
        """Have the decoder shrink as far as `at_least` allows: how many pixels of each side become one."""
        # The size of the whole at which the box still has what it needs; Pillow takes its nearest scale that is not below.
        width, height = -(-self.width * at_least[1] // box[3]), -(-self.height * at_least[0] // box[2])
        stored_width = image.width
        with explain_failure(self.name):
            drafted = image.draft(image.mode, (height, width) if self.turn in QUARTER_TURNS else (width, height))
        return 1 if drafted is None else round(stored_width / drafted[1][2])

    def decode(self, image: Image.Image, num_channels: int, box: Box) -> np.ndarray:
        if image.mode == MODES[num_channels] and self.turn is None:  # nothing to convert: one copy less
            with explain_failure(self.name):
                image.load()
        else:
            image = convert_image(image, num_channels, self.name)
        top, left, height, width = box
        cut = image.crop((left, top, left + width, top + height))
        return np.asarray(cut).reshape(height, width, num_channels)


def find_turn_early(image: Image.Image, content: bytes, name: str) -> Image.Transpose | None:
    """What will bring the picture upright, known before it is decoded wherever that can be."""
    if image.format == "TIFF":  # Pillow turns these by itself when it decodes them, and tells their size so from the start
        return None
    if image.format == "PNG":  # the notes may stand behind the pixels
        if not any(mark in content for mark in PNG_NOTES):
            return None
        with explain_failure(name):
            image.load()
    return find_turn(image)


def shrink_box(box: Box, scale: int) -> Box:
    """Its edges in an image of which each pixel covers `scale` x `scale`, to the nearest, a half up."""
    top, left, bottom, right = ((2 * edge + scale) // (2 * scale) for edge in (*box[:2], box[0] + box[2], box[1] + box[3]))
    return top, left, bottom - top, right - left


def require_pixel_array(pixels: np.ndarray, name: str) -> None:
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in MODES)
    if pixels.dtype != np.uint8 or not is_image or 0 in pixels.shape:
        raise BadImage(
            f"{name} is an array of {pixels.dtype} with shape {pixels.shape}; bytes of (height, width) or of "
            "(height, width, 1 or 3) were needed: convert it."
        )


def fit_channels(pixels: np.ndarray, num_channels: int) -> np.ndarray:
    """(.., H, W) or (.., H, W, 1 or 3) as (.., H, W, C): grey is repeated, colour becomes Pillow's grey."""
    if pixels.shape[-1] not in MODES or pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.shape[-1] == num_channels:
        return pixels
    if num_channels == 3:
        return np.repeat(pixels, 3, axis=-1)
    # ITU-R 601-2 luma in Pillow's fixed point.
    red, green, blue = (pixels[..., index].astype(np.uint32) for index in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(np.uint8)[..., None]
