"""Decoding of image files to upright 8-bit RGB or grey pixels, and LazyImage, which decodes on demand.

Every problem of a file is a BadImage whose message names the file. Shapes: H x W pixels, C channels. Boxes are
(top, left, height, width) in the upright image.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

# Pillow's default limit. Ours also holds if someone has raised Pillow's, which is one number for the whole process.
MAX_PIXELS = 178_956_970

# Formats that may be opened. Pillow knows more, but files are untrusted: e.g. its EPS reader starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "HEIF")

# Endings of file names that images are recognised by in folders and archives; HEIF needs pillow-heif.
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2"}
HEIF_SUFFIXES = {".heic", ".heif"}
HEIF_ADVICE = "pip install 'vitrine[heif]'"

# First bytes of HEIF files (ISO 23008-12): the size of a box, its type, and its brand. AVIF files may have the general brands
# mif1 and msf1 too, and then name their own brand among the compatible ones.
HEIF_START = re.compile(rb"....ftyp(hei[cmsx]|hev[cmsx]|(mif1|msf1)(?!.*avi[fs]))", re.DOTALL)
NUM_START_BYTES = 64

MODES = {1: "L", 3: "RGB"}  # number of channels -> Pillow's mode

PILLOW = re.compile(r"PIL\.")  # Pillow's modules, as warning filters match them

# EXIF orientation (EXIF 2.3, section 4.6.4, tag 274) -> what makes the image upright; 1 is upright already.
EXIF_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SWAPS_SIDES = tuple(EXIF_TRANSPOSE[orientation] for orientation in (5, 6, 7, 8))

# What comes before an orientation in a PNG file: a chunk of EXIF, the same as text, or XMP.
PNG_METADATA = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")

Box = tuple[int, int, int, int]
"""Top, left, height, width."""


class BadImage(ValueError):
    """Error of an image that cannot be used, e.g. a truncated file; runs may skip such images."""

    image: object = None
    """The `LazyImage`, if it had been opened."""


def read_image(path: Path, num_channels: int = 3) -> Image.Image:
    """Read an image file, or the first frame of an animation: upright, mode "RGB" for three channels, "L" for one."""
    try:
        with open(path, "rb") as file:
            return decode_image(file, str(path), num_channels)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; expected an image file: check the path.") from None
    except OSError as error:  # e.g. a folder, or no permission; decoding errors are BadImage by now
        raise ValueError(f"{path} cannot be opened ({error.strerror}); expected an image file.") from None


def decode_image(content: bytes | BinaryIO, name: str, num_channels: int = 3) -> Image.Image:
    """Decode an image like `read_image`, from bytes or an open file, which stays open; `name` is used in errors."""
    pil_mode(num_channels)
    return convert_image(open_image(content, name), num_channels, name)


def open_image(content: bytes | BinaryIO, name: str) -> Image.Image:
    """Read the header of an image, without decoding pixels."""
    Image.init()  # loads Pillow's plugins once: only then is it known which formats this build can open
    if HEIF_START.match(read_start(content)) and not register_heif():
        raise BadImage(f"{name} is a HEIF image, which needs pillow-heif: {HEIF_ADVICE}, or convert it to JPEG.")
    formats = [known for known in FORMATS if known in Image.OPEN]
    with pillow_errors_as_bad_image(name):
        image = Image.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=formats)
    if image.width * image.height > MAX_PIXELS:
        raise BadImage(too_large_message(name, f"{image.width} x {image.height} pixels"))
    require_pixels(image, name)
    return image


def read_start(content: bytes | BinaryIO) -> bytes:
    """Return the first bytes of a file, which stays at its position."""
    if isinstance(content, bytes):
        return content[:NUM_START_BYTES]
    position = content.tell()
    start = content.read(NUM_START_BYTES)
    content.seek(position)
    return start


@cache
def register_heif() -> bool:
    """Teach Pillow to open HEIF (HEIC) files, once; return False if pillow-heif is not installed."""
    try:
        import pillow_heif  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def convert_image(image: Image.Image, num_channels: int = 3, name: str = "The image") -> Image.Image:
    """Return a copy of a PIL image of any mode: upright, "RGB" or "L", without metadata."""
    mode = pil_mode(num_channels)
    require_pixels(image, name)
    with pillow_errors_as_bad_image(name):
        image.load()
        transpose = find_exif_transpose(image)
    if image.mode.startswith("I"):
        image = convert_16_to_8_bit(image, name)
    if image.mode == "F":
        require_byte_range(image, name)
    with pillow_errors_as_bad_image(name):
        # Alpha is dropped, not blended with white, as in timm, torchvision and Hugging Face, and as released models were
        # trained: the colours of transparent pixels become visible.
        pixels = image.convert(mode)
        if transpose is not None:
            pixels = pixels.transpose(transpose)
    pixels.info = {}  # the orientation has been applied: another reader would apply it again
    return pixels


def require_pixels(image: Image.Image, name: str) -> None:
    if 0 in image.size:
        raise BadImage(f"{name} is empty ({image.width} x {image.height} pixels): remove it.")


def pil_mode(num_channels: int) -> str:
    """Return Pillow's mode for a number of channels, or raise ValueError if it is neither 1 nor 3."""
    if num_channels not in MODES:
        raise ValueError(f"num_channels={num_channels!r} must be 1 (grey) or 3 (RGB).")
    return MODES[num_channels]


def find_exif_transpose(image: Image.Image) -> Image.Transpose | None:
    """Return the operation that makes an image upright, or None if there is nothing to do."""
    try:
        return EXIF_TRANSPOSE.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # parsers of metadata raise all kinds of errors; the pixels may still be good
        return None


def convert_16_to_8_bit(image: Image.Image, name: str) -> Image.Image:
    """Keep the high byte of 16-bit grey, as Pillow does for 16-bit colour; its own conversion of grey clips at 255."""
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    # Mode "I" has 32 bits, but files of this mode hold 16-bit values; the range of others is unknown.
    if low < 0 or high > 65_535:
        raise BadImage(f"{name} has integer pixels from {low} to {high}; expected 0 to 65535: save it with 8 or 16 bits.")
    return Image.fromarray((values >> 8).astype(np.uint8))


def require_byte_range(image: Image.Image, name: str) -> None:
    """Reject floating-point pixels outside of 0..255: Pillow clips them, and an image in 0..1 would become black."""
    values = np.asarray(image)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and 1 < high <= 255) and (low, high) != (0, 0):
        raise BadImage(f"{name} has floating-point pixels from {low:g} to {high:g}; expected 0 to 255: save it with 8 bits.")


def too_large_message(name: str, size: str) -> str:
    return f"{name} is too large to decode safely ({size}); the limit is {MAX_PIXELS} pixels: scale it down."


@contextmanager
def pillow_errors_as_bad_image(name: str) -> Iterator[None]:
    """Turn whatever Pillow raises into a BadImage that names the file, and silence Pillow's warnings."""
    # Not by `warnings.catch_warnings` around each image: it is not thread-safe, and makes Python forget what it has shown.
    if not any(entry[3] == PILLOW for entry in warnings.filters):
        warnings.filterwarnings("ignore", module=PILLOW.pattern)
    try:
        yield
    except Image.DecompressionBombError as error:
        raise BadImage(too_large_message(name, str(error).rstrip("."))) from error
    except UnidentifiedImageError as error:
        raise BadImage(f"{name} is not a readable image; expected {', '.join(FORMATS)}: convert or remove it.") from error
    except Exception as error:  # Pillow's readers raise anything: OSError, SyntaxError, struct.error, ...
        reason = f"{type(error).__name__}: {error}".rstrip(". ")
        raise BadImage(f"{name} is damaged or truncated ({reason}): restore or remove it.") from error


class LazyImage:
    """Image of a source, decoded on demand; pixels are not kept, because a batch of photographs would not fit into memory."""

    def __init__(self, content: bytes | np.ndarray, name: str) -> None:
        """Read the header of a file's bytes, or take uint8 pixels (H, W) or (H, W, C); `name` is used in errors."""
        self.content = content
        self.name = name
        self.opened: Image.Image | None = None
        if isinstance(content, np.ndarray):
            check_pixel_array(content, name)
            self.height, self.width = content.shape[:2]
            return
        self.opened = open_image(content, name)
        self.transpose = find_transpose_before_decoding(self.opened, content, name)
        self.width, self.height = self.opened.size
        if self.transpose in SWAPS_SIDES:
            self.height, self.width = self.width, self.height

    def to_pil(self, num_channels: int = 3) -> Image.Image:
        """Decode the whole image for Pillow: upright, "RGB" or "L"."""
        pil_mode(num_channels)
        if isinstance(self.content, np.ndarray):
            pixels = fit_channels(self.content, num_channels)
            return Image.fromarray(pixels[..., 0] if num_channels == 1 else pixels)
        with self.attached_to_errors():
            return convert_image(self.take_opened(), num_channels, self.name)

    def to_numpy(
        self,
        num_channels: int = 3,
        box: Box | None = None,
        at_least: tuple[int, int] | None = None,
        stored_luma: bool = False,
    ) -> np.ndarray:
        """Decode the pixels inside the box, uint8 (H, W, C).

        If the box will be resized to `at_least` (height, width), a JPEG may be decoded at a half, a quarter or an eighth of
        its size, as long as the box stays at least that large: this takes a fraction of the time. Edges of the box then move
        by at most half a pixel of the result, or one and a half if the image has an EXIF orientation.

        With `stored_luma`, one channel of a colour JPEG is the luma that the file stores: decoding takes two thirds of the
        time, and values differ by a few levels from those of the colours.
        """
        pil_mode(num_channels)
        box = (0, 0, self.height, self.width) if box is None else box
        if isinstance(self.content, np.ndarray):
            top, left, height, width = box
            return fit_channels(self.content[top : top + height, left : left + width], num_channels)
        with self.attached_to_errors():
            image, scale = self.take_opened(), 1
            mode = "L" if stored_luma and num_channels == 1 else image.mode
            if at_least is not None and image.format == "JPEG" and box[2] >= 2 * at_least[0] and box[3] >= 2 * at_least[1]:
                scale = self.reduce_decoding_scale(image, mode, box, at_least)
            elif mode != image.mode:
                image.draft(mode, None)  # has an effect on JPEGs only
            return self.decode_box(image, num_channels, box, scale)

    def take_opened(self) -> Image.Image:
        """Return the image with its header read. Decoding fills it with pixels, so it is handed out only once."""
        assert isinstance(self.content, bytes)
        image = open_image(self.content, self.name) if self.opened is None else self.opened
        self.opened = None
        return image

    @contextmanager
    def attached_to_errors(self) -> Iterator[None]:
        """Attach this image to a BadImage error, so that a batch can replace it."""
        try:
            yield
        except BadImage as error:
            error.image = self
            raise

    def reduce_decoding_scale(self, image: Image.Image, mode: str, box: Box, at_least: tuple[int, int]) -> int:
        """Let the JPEG decoder scale down as far as `at_least` allows, in a mode, and return the factor: 1, 2, 4 or 8."""
        # Size of the whole image at which the box is just large enough; Pillow uses the next scale that is not smaller.
        width, height = -(-self.width * at_least[1] // box[3]), -(-self.height * at_least[0] // box[2])
        stored_width = image.width
        with pillow_errors_as_bad_image(self.name):
            drafted = image.draft(mode, (height, width) if self.transpose in SWAPS_SIDES else (width, height))
        return 1 if drafted is None else round(stored_width / drafted[1][2])

    def decode_box(self, image: Image.Image, num_channels: int, box: Box, scale: int) -> np.ndarray:
        """Decode an opened image, which was reduced by `scale`, and cut out the box (H, W, C)."""
        if image.mode == MODES[num_channels] and self.transpose is None:  # nothing to convert: saves a copy
            with pillow_errors_as_bad_image(self.name):
                image.load()
        else:
            image = convert_image(image, num_channels, self.name)
        edges = *box[:2], box[0] + box[2], box[1] + box[3]
        top, left, bottom, right = ((2 * edge + scale) // (2 * scale) for edge in edges)  # nearest pixel, half up
        return np.asarray(image.crop((left, top, right, bottom))).reshape(bottom - top, right - left, num_channels)


def find_transpose_before_decoding(image: Image.Image, content: bytes, name: str) -> Image.Transpose | None:
    """Return what will make the image upright, decoding it only if its orientation can be stored after the pixels."""
    if image.format == "TIFF":  # Pillow transposes these itself, and reports the upright size from the start
        return None
    if image.format == "PNG":  # metadata may come after the pixels
        if not any(mark in content for mark in PNG_METADATA):
            return None
        with pillow_errors_as_bad_image(name):
            image.load()
    return find_exif_transpose(image)


def check_pixel_array(pixels: np.ndarray, name: str) -> None:
    """Raise BadImage unless the array is a non-empty uint8 image."""
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in MODES)
    if pixels.dtype != np.uint8 or not is_image or 0 in pixels.shape:
        raise BadImage(f"{name} is an array of {pixels.dtype} {pixels.shape}; expected uint8 (height, width[, 1 or 3]).")


def fit_channels(pixels: np.ndarray, num_channels: int) -> np.ndarray:
    """Convert (.., H, W) or (.., H, W, 1 or 3) to (.., H, W, C): grey is repeated, colour becomes Pillow's grey."""
    if pixels.shape[-1] not in MODES or pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.shape[-1] == num_channels:
        return pixels
    if num_channels == 3:
        return np.repeat(pixels, 3, axis=-1)
    # ITU-R 601-2 luma in Pillow's fixed point.
    red, green, blue = (pixels[..., index].astype(np.uint32) for index in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(np.uint8)[..., None]
