"""An image as a source has it: its size is known, its pixels are decoded when they are asked for, and only as many as needed.

Shapes: H x W pixels of C channels. Boxes are (top, left, height, width) in the upright image.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image

from vitrine.data.decode import MODES, BadImage, convert_image, explain_failure, find_turn, open_image, require_channels

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


class StoredImage:
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

    def image(self, num_channels: int = 3) -> Image.Image:
        """The whole of it for Pillow: upright, "RGB" or "L"."""
        require_channels(num_channels)
        if isinstance(self.content, np.ndarray):
            pixels = fit_channels(self.content, num_channels)
            return Image.fromarray(pixels[..., 0] if num_channels == 1 else pixels)
        with self.signed():
            return convert_image(self.open(), num_channels, self.name)

    def pixels(self, num_channels: int = 3, box: Box | None = None, at_least: tuple[int, int] | None = None) -> np.ndarray:
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
