"""Decoding against Pillow, the EXIF definition and damaged files; boxes of LazyImage against slices of the whole image."""

import io
import itertools
import re
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, features
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from vitrine.data import image as image_module
from vitrine.data.image import (
    HEIF_START,
    MAX_PIXELS,
    BadImage,
    LazyImage,
    convert_image,
    decode_image,
    fit_channels,
    read_image,
)

RANDOM = np.random.default_rng(0)
COLOURS = Image.fromarray(RANDOM.integers(0, 256, (11, 17, 3), dtype=np.uint8))
GREY_16 = np.arange(65536, dtype=np.uint16).reshape(256, 256)
ORIENTATION = 0x0112  # the tag's number in EXIF 2.3


def encode(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def build_png(width: int, height: int, bit_depth: int, colour_type: int, rows: bytes) -> bytes:
    """Written by the PNG specification: Pillow cannot write everything that it reads."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")


def build_palette_image(transparency: object) -> bytes:
    return encode(COLOURS.quantize(16), "PNG", **({} if transparency is None else {"transparency": transparency}))


ENCODED = {
    "1": encode(COLOURS.convert("1"), "PNG"),
    "L": encode(COLOURS.convert("L"), "PNG"),
    "LA": encode(COLOURS.convert("LA"), "PNG"),
    "P": build_palette_image(None),
    "P with one transparent colour": build_palette_image(3),
    "P with an alpha for each colour": build_palette_image(bytes(range(0, 256, 16))),
    "PA": encode(COLOURS.quantize(16).convert("PA"), "TIFF"),
    "RGB": encode(COLOURS, "PNG"),
    "RGB with one transparent colour": encode(COLOURS, "PNG", transparency=(1, 2, 3)),
    "RGBA": encode(COLOURS.convert("RGBA"), "PNG"),
    "CMYK": encode(COLOURS.convert("CMYK"), "TIFF"),
    "CMYK of a JPEG": encode(COLOURS.convert("CMYK"), "JPEG"),
    "YCbCr": encode(COLOURS.convert("YCbCr"), "TIFF"),
}


@pytest.mark.parametrize("mode", ENCODED)
@pytest.mark.parametrize(("num_channels", "wanted"), [(3, "RGB"), (1, "L")])
def test_every_mode_equals_pillows_convert(mode: str, num_channels: int, wanted: str) -> None:
    original = Image.open(io.BytesIO(ENCODED[mode]))
    assert original.mode == mode.split()[0]
    image = decode_image(ENCODED[mode], mode, num_channels)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # Pillow warns of palettes with alpha; decode_image must not, and warnings are errors in tests
        expected = original.convert(wanted)
    assert (image.mode, image.size, image.info) == (wanted, (17, 11), {})
    assert image.tobytes() == expected.tobytes()


def test_alpha_is_dropped() -> None:
    clear = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert decode_image(encode(clear, "PNG"), "clear").getpixel((0, 0)) == (10, 20, 30)


def test_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "lime", "blue")]
    for format, options in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        content = encode(frames[0], format, save_all=True, append_images=frames[1:], **options)
        assert Image.open(io.BytesIO(content)).n_frames == 3
        assert decode_image(content, format).tobytes() == frames[0].tobytes()


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])  # modes I;16, I;16 and I
def test_16_bit_grey_keeps_its_high_byte(format: str) -> None:
    content = encode(Image.fromarray(GREY_16), format)
    assert Image.open(io.BytesIO(content)).mode == ("I" if format == "PPM" else "I;16")
    grey = np.asarray(decode_image(content, format, num_channels=1))
    np.testing.assert_array_equal(grey, np.arange(65536).reshape(256, 256) // 256)
    colour = np.asarray(decode_image(content, format))
    np.testing.assert_array_equal(colour, np.repeat(grey[..., None], 3, axis=2))


def test_16_bit_grey_of_the_other_byte_order() -> None:
    big_endian = Image.frombytes("I;16B", (256, 256), GREY_16.astype(">u2").tobytes())
    content = encode(big_endian, "TIFF")
    assert content[:2] == b"MM"
    np.testing.assert_array_equal(np.asarray(decode_image(content, "MM", num_channels=1)), GREY_16 // 256)


def test_16_bit_grey_is_as_bright_as_pillow_makes_16_bit_colour() -> None:
    values = GREY_16[::16]
    grey_rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    colour_rows = b"".join(b"\0" + np.repeat(row, 3).astype(">u2").tobytes() for row in values)
    grey = decode_image(build_png(256, 16, 16, 0, grey_rows), "grey")
    colour = Image.open(io.BytesIO(build_png(256, 16, 16, 2, colour_rows)))
    assert grey.tobytes() == colour.tobytes()


@pytest.mark.parametrize(("low", "high"), [(-1, 100), (0, 65536)])
def test_integers_of_unknown_range_are_bad(low: int, high: int) -> None:
    content = encode(Image.fromarray(np.array([[low, high]], dtype=np.int32)), "TIFF")
    with pytest.raises(ValueError, match=rf"wide\.tif .* {low} to {high}"):
        decode_image(content, "wide.tif")


def test_floating_point_pixels_are_taken_as_0_to_255() -> None:
    values = RANDOM.uniform(0, 255, (6, 7)).astype(np.float32)
    grey = decode_image(encode(Image.fromarray(values), "TIFF"), "floats", num_channels=1)
    np.testing.assert_array_equal(np.asarray(grey), np.floor(values))
    black = Image.fromarray(np.zeros((2, 2), dtype=np.float32))
    assert decode_image(encode(black, "TIFF"), "black").getextrema() == ((0, 0),) * 3


@pytest.mark.parametrize("values", [[0.0, 1.0], [-1.0, 200.0], [0.0, 256.0], [0.0, float("nan")], [5.0, float("inf")]])
def test_floating_point_pixels_of_another_range_are_bad(values: list[float]) -> None:
    content = encode(Image.fromarray(np.array([values], dtype=np.float32)), "TIFF")
    with pytest.raises(ValueError, match=r"hdr\.tif .*floating-point"):
        decode_image(content, "hdr.tif")


# Corner of the upright image at which EXIF 2.3 shows the top-left pixel of the stored image.
CORNER_SEEN_AT = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_orientation_is_applied_once(orientation: int, format: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = encode(COLOURS, format, exif=exif)
    image = decode_image(content, "turned")
    assert image.tobytes() == ImageOps.exif_transpose(Image.open(io.BytesIO(content))).tobytes()
    assert image.size == ((17, 11) if orientation <= 4 else (11, 17))
    assert tuple(np.asarray(image)[CORNER_SEEN_AT[orientation]]) == COLOURS.getpixel((0, 0))
    assert ImageOps.exif_transpose(image).tobytes() == image.tobytes()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])  # Pillow warns or raises various errors
@pytest.mark.parametrize("exif", [b"rubbish!", b"MM\0*\0\0", b"II*\0\x08\0\0\0\xff\0\x12\x01\x03\0"])
def test_damaged_exif_does_not_matter(exif: bytes, format: str) -> None:
    damaged, plain = encode(COLOURS, format, exif=b"Exif\0\0" + exif), encode(COLOURS, format)
    assert exif in damaged
    assert decode_image(damaged, "damaged").tobytes() == decode_image(plain, "plain").tobytes()


def test_bytes_open_file_and_path_agree(tmp_path: Path) -> None:
    path = tmp_path / "colours.webp"
    path.write_bytes(encode(COLOURS, "WEBP"))
    image = read_image(path)
    assert decode_image(path.read_bytes(), "memory").tobytes() == image.tobytes()
    with path.open("rb") as file:
        assert decode_image(file, "file").tobytes() == image.tobytes()
        assert not file.closed


def test_photograph(assets: Path) -> None:
    path = sorted((assets / "imagenet-val-1000" / "207").iterdir())[0]
    with Image.open(path) as image:
        assert read_image(path).tobytes() == image.convert("RGB").tobytes()


JPEG = encode(COLOURS.resize((64, 64)), "JPEG")
NOT_IMAGES = {
    "notes.txt": b"not a picture at all\n",
    "empty.jpg": b"",
    "figure.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
}


@pytest.mark.parametrize("name", NOT_IMAGES)
def test_file_that_is_not_an_image_is_bad(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(NOT_IMAGES[name])
    with pytest.raises(BadImage, match=re.escape(str(path))):
        read_image(path)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_truncated_file_is_bad(format: str) -> None:
    content = encode(COLOURS.resize((64, 64)), format)
    with pytest.raises(ValueError, match=r"^half is (damaged|not a readable)"):
        decode_image(content[: len(content) // 2], "half")
    with pytest.raises(ValueError, match=r"photo\.jpg .*OSError"):
        decode_image(JPEG[:-100], "photo.jpg")


def test_missing_file_and_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cat\.jpg"):
        read_image(tmp_path / "cat.jpg")
    with pytest.raises(ValueError, match="Is a directory"):
        read_image(tmp_path)


def test_image_without_pixels_is_bad() -> None:
    with pytest.raises(ValueError, match="0 x 5"):
        convert_image(Image.new("RGB", (0, 5)))


BOMB = build_png(60_000, 60_000, 8, 2, b"")


@pytest.mark.parametrize("pillow_limit", [Image.MAX_IMAGE_PIXELS, None])
def test_decompression_bomb_is_rejected_by_its_header(pillow_limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pillow_limit)
    size = "60000 x 60000 pixels" if pillow_limit is None else "Image size (3600000000 pixels)"
    with pytest.raises(ValueError, match=rf"bomb\.png is too large .*{re.escape(size)}"):
        decode_image(BOMB, "bomb.png")
    assert pillow_limit == Image.MAX_IMAGE_PIXELS


def test_limit_of_pixels_is_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * Image.MAX_IMAGE_PIXELS == MAX_PIXELS
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr("vitrine.data.image.MAX_PIXELS", 17 * 11)
    assert decode_image(ENCODED["RGB"], "as large as allowed").size == (17, 11)
    with pytest.raises(ValueError, match="18 x 11"):
        decode_image(encode(COLOURS.resize((18, 11)), "PNG"), "larger")


def test_large_image_below_the_limit_gives_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 17 * 11 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(io.BytesIO(ENCODED["RGB"]))
    assert decode_image(ENCODED["RGB"], "colours").size == (17, 11)


def test_threads_decode_in_parallel() -> None:
    content = ENCODED["P with an alpha for each colour"]  # Pillow warns of it, and warnings are errors in tests
    with ThreadPoolExecutor(8) as pool:
        images = list(pool.map(lambda _: decode_image(content, "palette").tobytes(), range(200)))
    assert set(images) == {decode_image(content, "palette").tobytes()}


def test_only_pillow_is_silenced() -> None:
    content = ENCODED["P with an alpha for each colour"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        decode_image(content, "palette")
        filters = list(warnings.filters)
        for _ in range(3):
            decode_image(content, "palette")
        assert list(warnings.filters) == filters  # any change would make Python repeat warnings
        with pytest.warns(UserWarning, match="by others"):
            warnings.warn("by others", UserWarning, stacklevel=1)


WHOLE = [encode(COLOURS, format) for format in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")] + [ENCODED["PA"]]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(WHOLE), st.data())
def test_damaged_bytes_give_an_image_or_an_error_with_the_name(whole: bytes, data: st.DataObject) -> None:
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for position in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        if position < len(damaged):
            damaged[position] = data.draw(st.integers(0, 255))
    assert decode_or_complain(bytes(damaged), "damaged.bin").startswith(("RGB", "damaged.bin "))


def decode_or_complain(content: bytes, name: str) -> str:
    try:
        return decode_image(content, name).mode
    except ValueError as error:
        return str(error)


HEIGHT, WIDTH = 11, 17
BOXES = [(0, 0, 11, 17), (2, 3, 5, 7), (10, 16, 1, 1), (0, 5, 11, 1), (4, 0, 1, 17)]
GREY_16_STORED = RANDOM.integers(0, 65536, (HEIGHT, WIDTH), dtype=np.uint16)
FRAMES = [COLOURS.quantize(16), COLOURS.transpose(Image.Transpose.ROTATE_180).quantize(16)]


def build_interlaced_png() -> bytes:
    """Adam7 interlacing, which Pillow reads but cannot write, with filter 0, by the PNG specification."""
    pixels = np.asarray(COLOURS)
    steps = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    passes = [pixels[top::down, left::across] for top, left, down, across in steps]
    rows = b"".join(b"\0" + row.tobytes() for part in passes for row in part if part.size)
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 1))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")


def build_16_bit_colour() -> bytes:
    rows = RANDOM.integers(0, 65536, (HEIGHT, WIDTH, 3), dtype=np.uint16)
    return build_png(WIDTH, HEIGHT, 16, 2, b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows))


VARIANTS = ENCODED | {
    "I;16 of a PNG": encode(Image.fromarray(GREY_16_STORED), "PNG"),
    "I;16 of a TIFF": encode(Image.fromarray(GREY_16_STORED), "TIFF"),
    "I;16B": encode(Image.frombytes("I;16B", (WIDTH, HEIGHT), GREY_16_STORED.astype(">u2").tobytes()), "TIFF"),
    "I of a PPM": encode(Image.fromarray(GREY_16_STORED), "PPM"),
    "F": encode(Image.fromarray(RANDOM.uniform(2, 255, (HEIGHT, WIDTH)).astype(np.float32)), "TIFF"),
    "16-bit colour": build_16_bit_colour(),
    "interlaced": build_interlaced_png(),
    "animated GIF": encode(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
    "animated WebP": encode(COLOURS, "WEBP", save_all=True, append_images=[FRAMES[1].convert("RGB")], lossless=True),
    "animated PNG": encode(COLOURS, "PNG", save_all=True, append_images=[FRAMES[1].convert("RGB")]),
    "grey GIF with a clear colour": encode(COLOURS.convert("L"), "GIF", transparency=7),
    "WebP with alpha": encode(COLOURS.convert("RGBA"), "WEBP"),
    "BMP": encode(COLOURS, "BMP"),
    "palette BMP": encode(COLOURS.quantize(16), "BMP"),
    "progressive": encode(COLOURS, "JPEG", progressive=True),
    "grey JPEG": encode(COLOURS.convert("L"), "JPEG"),
    "several pages": encode(COLOURS, "TIFF", save_all=True, append_images=[FRAMES[1].convert("RGB")], compression="tiff_lzw"),
    "two pictures in a JPEG": encode(COLOURS, "MPO", save_all=True, append_images=[FRAMES[1].convert("RGB")]),
}


@pytest.mark.parametrize("num_channels", [3, 1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_box_is_a_slice_of_the_whole_image(variant: str, num_channels: int) -> None:
    whole = np.asarray(decode_image(VARIANTS[variant], variant, num_channels)).reshape(HEIGHT, WIDTH, num_channels)
    image = LazyImage(VARIANTS[variant], variant)
    assert (image.height, image.width) == (HEIGHT, WIDTH)
    for top, left, height, width in BOXES:
        expected = whole[top : top + height, left : left + width]
        for one in (image, LazyImage(VARIANTS[variant], variant)):  # decoded before, and only for this box
            box = one.to_numpy(num_channels, (top, left, height, width))
            assert box.dtype == np.uint8
            np.testing.assert_array_equal(box, expected)
            np.testing.assert_array_equal(one.to_numpy(num_channels, (top, left, height, width), (height, width)), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_calls_do_not_depend_on_earlier_calls(variant: str) -> None:
    content = VARIANTS[variant]
    colour, grey = (np.asarray(decode_image(content, variant, channels)) for channels in (3, 1))
    calls = {
        "image": (lambda image: np.asarray(image.to_pil()), colour),
        "grey image": (lambda image: np.asarray(image.to_pil(1)), grey),
        "pixels": (lambda image: image.to_numpy(), colour),
        "grey pixels": (lambda image: image.to_numpy(1)[..., 0], grey),
        "box": (lambda image: image.to_numpy(3, (2, 3, 5, 7)), colour[2:7, 3:10]),
    }
    for names in itertools.permutations(calls, 2):
        image = LazyImage(content, variant)
        for name in names:
            call, expected = calls[name]
            np.testing.assert_array_equal(call(image), expected, err_msg=" after ".join(reversed(names)))
    assert (LazyImage(content, variant).to_pil().mode, LazyImage(content, variant).to_pil(1).mode) == ("RGB", "L")


def build_rotated(format: str, orientation: int, mode: str = "RGB") -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encode(COLOURS.convert(mode), format, exif=exif)


def build_png_with_exif_at_its_end(orientation: int) -> bytes:
    """The EXIF chunk may also come after the pixels (PNG specification, third edition, table 7)."""
    content = build_rotated("PNG", orientation)
    start = content.index(b"eXIf") - 4
    stop = start + 12 + struct.unpack(">I", content[start : start + 4])[0]
    end = len(content) - 12
    return content[:start] + content[stop:end] + content[start:stop] + content[end:]


ROTATED = {
    "PNG": lambda turn: build_rotated("PNG", turn),
    "PNG with EXIF at its end": build_png_with_exif_at_its_end,
    "palette PNG": lambda turn: build_rotated("PNG", turn, "P"),
    "JPEG": lambda turn: build_rotated("JPEG", turn),
    "grey JPEG": lambda turn: build_rotated("JPEG", turn, "L"),
    "CMYK JPEG": lambda turn: build_rotated("JPEG", turn, "CMYK"),
    "WebP": lambda turn: build_rotated("WEBP", turn),
    "TIFF": lambda turn: build_rotated("TIFF", turn),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ROTATED)
def test_boxes_of_a_rotated_image_refer_to_the_upright_one(kind: str, orientation: int) -> None:
    content = ROTATED[kind](orientation)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
    assert upright.shape[:2] == ((11, 17) if orientation <= 4 else (17, 11))
    image = LazyImage(content, kind)
    assert (image.height, image.width) == upright.shape[:2]
    np.testing.assert_array_equal(image.to_numpy(), upright)
    for top, left, height, width in [(2, 3, 5, 7), (0, 0, 1, 11), (10, 10, 1, 1)]:
        expected = upright[top : top + height, left : left + width]
        np.testing.assert_array_equal(LazyImage(content, kind).to_numpy(3, (top, left, height, width)), expected)
    np.testing.assert_array_equal(np.asarray(image.to_pil()), upright)


@pytest.mark.parametrize("exif", [b"rubbish!", b"MM\0*\0\0", b"II*\0\x08\0\0\0\xff\0\x12\x01\x03\0"])
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_does_not_matter_for_lazy_images(format: str, exif: bytes) -> None:
    image = LazyImage(encode(COLOURS, format, exif=b"Exif\0\0" + exif), "damaged")
    np.testing.assert_array_equal(image.to_numpy(), np.asarray(decode_image(encode(COLOURS, format), "plain")))


def build_smooth(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Slow waves, different in each channel, which decoding at a smaller scale only rounds."""
    across, down = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    waves = [across + 0 * down, down + 0 * across, 0.5 + 0.5 * np.sin(3 * across + 4 * down)]
    return Image.fromarray(np.stack([255 * wave for wave in waves], axis=2).astype(np.uint8)).convert(mode)


SMOOTH = {mode: encode(build_smooth(96, 64, mode), "JPEG", quality=95) for mode in ("RGB", "L", "CMYK")}
SHRUNK = {
    (64, 96): (64, 96),
    (33, 48): (64, 96),  # not half in both directions
    (32, 49): (64, 96),
    (32, 48): (32, 48),
    (17, 20): (32, 48),
    (16, 24): (16, 24),
    (8, 12): (8, 12),
    (1, 1): (8, 12),  # an eighth is the smallest scale of JPEG
}


@pytest.mark.parametrize("num_channels", [3, 1])
@pytest.mark.parametrize("at_least", SHRUNK)
@pytest.mark.parametrize("mode", SMOOTH)
def test_jpeg_is_decoded_at_a_smaller_scale(mode: str, at_least: tuple[int, int], num_channels: int) -> None:
    shrunk = LazyImage(SMOOTH[mode], mode).to_numpy(num_channels, at_least=at_least)
    assert shrunk.shape == (*SHRUNK[at_least], num_channels)
    whole = decode_image(SMOOTH[mode], mode, num_channels)
    averaged = np.asarray(whole.resize(shrunk.shape[1::-1], Image.Resampling.BOX)).reshape(shrunk.shape)
    # Scaling within the DCT is close to averaging blocks; JPEG adds its own losses.
    assert np.abs(shrunk.astype(int) - averaged).max() <= (0 if shrunk.shape[:2] == (64, 96) else 6)


@pytest.mark.parametrize("at_least", [None, (64, 96), (16, 24)])
@pytest.mark.parametrize("mode", SMOOTH)
def test_luma_of_a_jpeg_is_the_one_it_stores(mode: str, at_least: tuple[int, int] | None) -> None:
    image, luma = (LazyImage(SMOOTH[mode], mode) for _ in range(2))
    grey = image.to_numpy(1, at_least=at_least).astype(int)
    stored = luma.to_numpy(1, at_least=at_least, stored_luma=True).astype(int)
    if mode == "RGB" and at_least is None:
        with Image.open(io.BytesIO(SMOOTH[mode])) as opened:
            opened.draft("YCbCr", None)
            np.testing.assert_array_equal(stored[..., 0], np.asarray(opened)[..., 0])
    assert np.abs(stored - grey).max() <= (3 if mode == "RGB" else 0)  # colours are clipped and rounded


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_other_formats_are_decoded_at_full_size(format: str) -> None:
    content = encode(build_smooth(96, 64), format)
    image = LazyImage(content, format)
    np.testing.assert_array_equal(image.to_numpy(at_least=(1, 1)), np.asarray(decode_image(content, format)))


def test_jpeg_is_decoded_at_full_size_by_default() -> None:
    image = LazyImage(SMOOTH["RGB"], "jpeg")
    assert image.to_numpy().shape == (64, 96, 3)
    assert LazyImage(SMOOTH["RGB"], "jpeg").to_numpy(3, (4, 4, 32, 32)).shape == (32, 32, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotated_jpeg_is_upright_at_a_smaller_scale(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = encode(build_smooth(96, 64), "JPEG", quality=95, exif=exif)
    shrunk = Image.fromarray(LazyImage(content, "turned").to_numpy(at_least=(8, 8)))
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    small = (12, 8) if orientation <= 4 else (8, 12)
    difference = np.asarray(shrunk.resize(small), dtype=int) - np.asarray(upright.resize(small))
    assert np.abs(difference).max() <= 8


def test_smaller_box_shows_the_same_part() -> None:
    whole = decode_image(SMOOTH["RGB"], "whole")
    for box in [(0, 0, 32, 48), (32, 48, 32, 48), (8, 16, 40, 64), (3, 5, 50, 77), (13, 31, 51, 65)]:
        top, left, height, width = box
        part = LazyImage(SMOOTH["RGB"], "box").to_numpy(3, box, (8, 8))
        small = np.asarray(Image.fromarray(part).resize((8, 8), Image.Resampling.BOX), dtype=int)
        expected = np.asarray(whole.crop((left, top, left + width, top + height)).resize((8, 8), Image.Resampling.BOX))
        # Half a decoded pixel, in which the steepest wave rises by 32 levels, with losses of JPEG and averaging.
        assert np.abs(small - expected).max() <= 32, box


def test_smaller_scale_does_not_affect_later_calls() -> None:
    whole = np.asarray(decode_image(SMOOTH["RGB"], "whole"))
    image = LazyImage(SMOOTH["RGB"], "jpeg")
    assert image.to_numpy(at_least=(8, 12)).shape == (8, 12, 3)
    assert image.to_numpy(at_least=(32, 48)).shape == (32, 48, 3)
    np.testing.assert_array_equal(image.to_numpy(), whole)
    np.testing.assert_array_equal(image.to_numpy(3, (40, 50, 10, 20)), whole[40:50, 50:70])
    image = LazyImage(SMOOTH["RGB"], "jpeg")
    image.to_numpy(at_least=(8, 12))
    assert image.to_pil().size == (96, 64)


SIZES = [(16, 16), (17, 33), (40, 90), (97, 61), (800, 801), (1001, 799), (1792, 1792)]
BLANK = {size: encode(Image.new("L", size[::-1]), "JPEG") for size in SIZES}


@st.composite
def draw_scaling(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int, int, int], tuple[int, int]]:
    size = draw(st.sampled_from(SIZES))
    sides = [draw(st.integers(2, side)) for side in size]
    starts = [draw(st.integers(0, side - part)) for side, part in zip(size, sides, strict=True)]
    wanted = [draw(st.integers(1, part // 2)) for part in sides]
    return size, (starts[0], starts[1], sides[0], sides[1]), (wanted[0], wanted[1])


@settings(deadline=None, max_examples=100)
@given(draw_scaling())
@example(((1792, 1792), (0, 0, 1785, 1785), (224, 224)))
@example(((16, 16), (0, 0, 16, 11), (2, 2)))
@example(((40, 90), (0, 0, 37, 37), (10, 10)))
def test_smaller_box_is_at_least_as_large_as_requested(drawn: tuple) -> None:
    size, box, at_least = drawn
    height, width, _ = LazyImage(BLANK[size], "blank").to_numpy(1, box, at_least).shape
    assert height >= at_least[0]
    assert width >= at_least[1]
    assert height <= box[2]
    assert width <= box[3]


@settings(deadline=None, max_examples=100)
@given(draw_scaling())
@example(((1001, 799), (0, 0, 1000, 798), (120, 90)))
def test_edges_of_a_smaller_box_move_by_at_most_half_a_pixel(drawn: tuple) -> None:
    """A pixel of a JPEG decoded at scale 1/s covers exactly s pixels, even if the last one is incomplete."""
    size, box, at_least = drawn
    with pytest.MonkeyPatch.context() as patch:
        scales, crops = record_pillow(patch)
        LazyImage(BLANK[size], "blank").to_numpy(1, box, at_least)
    (scale,), ((left, top, right, bottom),) = scales or [1], crops
    for edge, original in ((top, box[0]), (left, box[1]), (bottom, box[0] + box[2]), (right, box[1] + box[3])):
        assert abs(edge - original / scale) <= 0.5


def record_pillow(patch: pytest.MonkeyPatch) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """Record the scales at which JPEGs are decoded, and the boxes cropped from them."""
    scales, crops = [], []
    draft, crop = JpegImageFile.draft, Image.Image.crop

    def record_draft(image: JpegImageFile, mode: str, size: tuple[int, int]) -> object:
        answer = draft(image, mode, size)
        scales.append(image.decoderconfig[0])
        return answer

    def record_crop(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
        assert (box[0] >= 0, box[1] >= 0, box[2] <= image.width, box[3] <= image.height) == (True,) * 4
        crops.append(box)
        return crop(image, box)

    patch.setattr(JpegImageFile, "draft", record_draft)
    patch.setattr(Image.Image, "crop", record_crop)
    return scales, crops


GREY = RANDOM.integers(0, 256, (HEIGHT, WIDTH), dtype=np.uint8)
COLOUR = np.asarray(COLOURS)
ARRAYS = {
    "grey": GREY,
    "grey with a channel": GREY[..., None],
    "colour": COLOUR,
    "read only": np.frombuffer(COLOUR.tobytes(), np.uint8).reshape(COLOUR.shape),
    "every other pixel": np.repeat(np.repeat(COLOUR, 2, axis=0), 2, axis=1)[::2, ::2],
    "upside down": COLOUR[::-1],
    "one pixel": COLOUR[:1, :1],
    "three wide and grey": GREY[:, :3],
    "one wide and grey": GREY[:, :1],
    "three wide": COLOUR[:, :3],
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_array_is_converted_like_by_pillow(kind: str) -> None:
    array = ARRAYS[kind]
    pillow = Image.fromarray(array.squeeze(2) if array.shape[2:] == (1,) else array)
    height, width = array.shape[:2]
    image = LazyImage(array, kind)
    assert (image.height, image.width) == (height, width)
    for num_channels, mode in ((3, "RGB"), (1, "L")):
        expected = np.asarray(pillow.convert(mode)).reshape(height, width, num_channels)
        np.testing.assert_array_equal(image.to_numpy(num_channels), expected)
        np.testing.assert_array_equal(image.to_numpy(num_channels, at_least=(1, 1)), expected)
        box = (height // 2, width // 3, height - height // 2, width - width // 3)
        np.testing.assert_array_equal(image.to_numpy(num_channels, box), expected[box[0] :, box[1] :])
        assert image.to_pil(num_channels).mode == mode
        np.testing.assert_array_equal(np.asarray(image.to_pil(num_channels)), np.asarray(pillow.convert(mode)))


def test_pil_image_is_a_copy_of_the_array() -> None:
    array = COLOUR.copy()
    LazyImage(array, "array").to_pil().paste((1, 2, 3), (0, 0, 5, 5))
    np.testing.assert_array_equal(array, COLOUR)


@pytest.mark.parametrize(
    "array",
    [
        GREY.astype(np.float32),
        GREY.astype(bool),
        GREY.astype(np.int8),
        GREY.astype(np.uint16),
        GREY.reshape(-1),
        np.zeros((), np.uint8),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((3, 4, 4), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 0), np.uint8),
        np.zeros((4, 4, 0), np.uint8),
        np.array([["a"]]),
        np.array([[None]]),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_other_arrays_are_bad(array: np.ndarray) -> None:
    with pytest.raises(BadImage, match=r"^odd\[7\] is an array"):
        LazyImage(array, "odd[7]")


@pytest.mark.parametrize("content", [COLOUR, ENCODED["RGB"]], ids=["array", "file"])
@pytest.mark.parametrize("num_channels", [0, 2, 4])
def test_other_numbers_of_channels_are_errors(content: bytes | np.ndarray, num_channels: int) -> None:
    for call in (LazyImage.to_numpy, LazyImage.to_pil):
        with pytest.raises(ValueError, match=f"num_channels={num_channels}"):
            call(LazyImage(content, "any"), num_channels)


def to_grey(colours: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(colours).convert("L"))[..., None]


def test_grey_equals_pillows_grey() -> None:
    corners = np.array(list(itertools.product([0, 1, 2, 127, 128, 253, 254, 255], repeat=3)), dtype=np.uint8)[None]
    np.testing.assert_array_equal(fit_channels(corners, 1), to_grey(corners))
    colours = np.random.default_rng(1).integers(0, 256, (700, 700, 3), dtype=np.uint8)
    np.testing.assert_array_equal(fit_channels(colours, 1), to_grey(colours))


@pytest.mark.full
def test_grey_equals_pillows_grey_for_every_colour() -> None:
    green, blue = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    for red in range(256):
        colours = np.stack([np.full_like(green, red), green, blue], axis=2)
        np.testing.assert_array_equal(fit_channels(colours, 1), to_grey(colours))


def test_channels_of_blocks_are_converted_like_images() -> None:
    block = RANDOM.integers(0, 256, (5, 4, 3, 3), dtype=np.uint8)
    np.testing.assert_array_equal(fit_channels(block, 1), np.stack([to_grey(image) for image in block]))
    np.testing.assert_array_equal(fit_channels(block[..., :1], 3), np.repeat(block[..., :1], 3, axis=3))
    assert fit_channels(block[:0], 1).shape == (0, 4, 3, 1)
    assert fit_channels(block, 3) is block


NOT_IMAGES_STORED = {
    "empty": b"",
    "text": b"hello",
    "zeros": bytes(1000),
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\nshowpage\n",
    "bomb": BOMB,
}


@pytest.mark.parametrize("kind", NOT_IMAGES_STORED)
def test_lazy_image_rejects_bad_headers(kind: str) -> None:
    with pytest.raises(BadImage, match=r"^a/b\.jpg is (not a readable|too large)"):
        LazyImage(NOT_IMAGES_STORED[kind], "a/b.jpg")


def decode_to_hex(decode: Callable[[], bytes]) -> str:
    try:
        return decode().hex()
    except BadImage as error:
        return "bad" if str(error).startswith("cut.bin is ") else str(error)


@pytest.mark.parametrize("variant", VARIANTS)
def test_truncated_file_is_never_taken_for_whole(variant: str) -> None:
    """LazyImage agrees with decode_image; what failed once fails again, instead of showing the part that is there."""
    content = VARIANTS[variant]
    for length in range(0, len(content), max(1, len(content) // 20)):
        cut = content[:length]
        expected = decode_to_hex(lambda cut=cut: decode_image(cut, "cut.bin").tobytes())
        assert decode_to_hex(lambda cut=cut: LazyImage(cut, "cut.bin").to_numpy().tobytes()) == expected, length
        if expected == "bad":  # also if only the first pixel is requested, and on the second call
            assert decode_to_hex(lambda cut=cut: LazyImage(cut, "cut.bin").to_numpy(3, (0, 0, 1, 1)).tobytes()) == "bad", length
            assert decode_to_hex(lambda cut=cut: decode_twice(cut)) == "bad", length


def decode_twice(content: bytes) -> bytes:
    image = LazyImage(content, "cut.bin")
    with suppress(BadImage):
        image.to_numpy()
    return image.to_pil().tobytes()


HEIF_HEAD = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


@pytest.mark.skipif(not features.check("avif"), reason="this build of Pillow has no AVIF")
def test_avif_is_read() -> None:
    shades = np.linspace(0, 255, 64, dtype=np.uint8)
    image = Image.fromarray(np.broadcast_to(shades[None, :, None], (48, 64, 3)).copy())
    read = np.asarray(decode_image(encode(image, "AVIF", quality=95), "a.avif"), dtype=int)
    assert np.abs(read - np.asarray(image)).max() < 12  # lossy


def test_brands_of_heif_and_avif_are_told_apart() -> None:
    assert HEIF_START.match(HEIF_HEAD)
    assert HEIF_START.match(HEIF_HEAD.replace(b"ftypheic", b"ftypmif1"))
    assert not HEIF_START.match(b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf")
    assert not HEIF_START.match(encode(Image.new("RGB", (4, 4)), "PNG"))


@pytest.fixture
def no_heif(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget, before and after the test, whether pillow-heif is installed and what Pillow opens HEIF files with."""
    monkeypatch.setattr(Image, "OPEN", {name: opener for name, opener in Image.OPEN.items() if name != "HEIF"})
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name != "HEIF"])
    image_module.register_heif.cache_clear()
    yield
    image_module.register_heif.cache_clear()


@pytest.mark.usefixtures("no_heif")
@pytest.mark.parametrize("as_file", [False, True])
def test_heif_without_its_reader_names_the_extra(as_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # an import raises ImportError
    with pytest.raises(BadImage, match=r"photo.heic .*pip install 'vitrine\[heif\]'"):
        decode_image(io.BytesIO(HEIF_HEAD) if as_file else HEIF_HEAD, "photo.heic")


@pytest.mark.usefixtures("no_heif")
def test_heif_is_opened_by_what_pillow_heif_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for pillow-heif, whose files are a HEIF header with a PNG behind it."""

    def open_png(file: io.BytesIO, name: str) -> PngImageFile:
        return PngImageFile(io.BytesIO(file.read()[len(HEIF_HEAD) :]))

    def register() -> None:
        Image.register_open("HEIF", open_png, lambda start: start.startswith(HEIF_HEAD[:12]))

    monkeypatch.setitem(sys.modules, "pillow_heif", SimpleNamespace(register_heif_opener=register))
    content = HEIF_HEAD + encode(Image.new("RGB", (4, 3), (1, 2, 3)), "PNG")
    assert decode_image(content, "photo.heic").getpixel((0, 0)) == (1, 2, 3)
    assert LazyImage(content, "photo.heic").to_numpy().shape == (3, 4, 3)


@pytest.mark.usefixtures("no_heif")
def test_heif_of_pillow_heif_is_upright() -> None:
    pillow_heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed (extra heif)")
    image = Image.new("RGB", (64, 32), (200, 30, 30))
    exif = Image.Exif()
    exif[274] = 6
    content = io.BytesIO()
    pillow_heif.register_heif_opener()
    image.save(content, "HEIF", quality=90, exif=exif.tobytes())
    read = LazyImage(content.getvalue(), "photo.heic")
    assert (read.height, read.width) == read.to_pil().size[::-1] == (64, 32)
    assert np.abs(read.to_numpy().astype(int) - (200, 30, 30)).max() < 12  # lossy
