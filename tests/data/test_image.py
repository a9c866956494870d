"""Tests of data/image.py.

Decoding against Pillow's own conversions, EXIF's definition, closed forms, and files that are not what they say.
Images as they are stored: a box is a slice of the upright whole, whatever the file, and a JPEG may shrink on the way.
"""

import io
import itertools
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from vitrine.data.image import FORMATS, MAX_PIXELS, BadImage, LazyImage, convert_image, decode_image, fit_channels, read_image

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
    """By the PNG specification and not by Pillow, which cannot write all that it reads."""
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
def test_every_mode_is_what_convert_makes_of_it(mode: str, num_channels: int, wanted: str) -> None:
    original = Image.open(io.BytesIO(ENCODED[mode]))
    assert original.mode == mode.split()[0]
    image = decode_image(ENCODED[mode], mode, num_channels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of palettes with alpha; ours must give none, which pytest sees to
        expected = original.convert(wanted)
    assert (image.mode, image.size, image.info) == (wanted, (17, 11), {})
    assert image.tobytes() == expected.tobytes()


def test_alpha_is_dropped() -> None:
    clear = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert decode_image(encode(clear, "PNG"), "clear").getpixel((0, 0)) == (10, 20, 30)


def test_an_animation_is_its_first_frame() -> None:
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
def test_whole_numbers_of_an_unknown_range_cost_a_sentence(low: int, high: int) -> None:
    content = encode(Image.fromarray(np.array([[low, high]], dtype=np.int32)), "TIFF")
    with pytest.raises(ValueError, match=rf"wide\.tif has whole-number pixels from {low} to {high}, and 0 to 65535 was needed"):
        decode_image(content, "wide.tif")


def test_floating_point_pixels_are_taken_as_0_to_255() -> None:
    values = RANDOM.uniform(0, 255, (6, 7)).astype(np.float32)
    grey = decode_image(encode(Image.fromarray(values), "TIFF"), "floats", num_channels=1)
    np.testing.assert_array_equal(np.asarray(grey), np.floor(values))
    black = Image.fromarray(np.zeros((2, 2), dtype=np.float32))
    assert decode_image(encode(black, "TIFF"), "black").getextrema() == ((0, 0),) * 3


@pytest.mark.parametrize("values", [[0.0, 1.0], [-1.0, 200.0], [0.0, 256.0], [0.0, float("nan")], [5.0, float("inf")]])
def test_floating_point_pixels_of_another_range_cost_a_sentence(values: list[float]) -> None:
    content = encode(Image.fromarray(np.array([values], dtype=np.float32)), "TIFF")
    with pytest.raises(ValueError, match=r"hdr\.tif has floating-point pixels from .* and the scale 0 to 255 was needed"):
        decode_image(content, "hdr.tif")


# Where EXIF 2.3 says that row 0 and column 0 of what is stored are seen, told by the corner (top-left of the stored image).
CORNER_SEEN_AT = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_orientation_is_followed_once(orientation: int, format: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = encode(COLOURS, format, exif=exif)
    image = decode_image(content, "turned")
    assert image.tobytes() == ImageOps.exif_transpose(Image.open(io.BytesIO(content))).tobytes()
    assert image.size == ((17, 11) if orientation <= 4 else (11, 17))
    assert tuple(np.asarray(image)[CORNER_SEEN_AT[orientation]]) == COLOURS.getpixel((0, 0))
    assert ImageOps.exif_transpose(image).tobytes() == image.tobytes()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])  # on which Pillow warns, or raises one thing or another
@pytest.mark.parametrize("exif", [b"rubbish!", b"MM\0*\0\0", b"II*\0\x08\0\0\0\xff\0\x12\x01\x03\0"])
def test_spoilt_exif_does_not_spoil_the_picture(exif: bytes, format: str) -> None:
    spoilt, plain = encode(COLOURS, format, exif=b"Exif\0\0" + exif), encode(COLOURS, format)
    assert exif in spoilt
    assert decode_image(spoilt, "spoilt").tobytes() == decode_image(plain, "plain").tobytes()


def test_memory_an_open_file_and_a_path_agree(tmp_path: Path) -> None:
    path = tmp_path / "colours.webp"
    path.write_bytes(encode(COLOURS, "WEBP"))
    image = read_image(path)
    assert decode_image(path.read_bytes(), "memory").tobytes() == image.tobytes()
    with path.open("rb") as file:
        assert decode_image(file, "file").tobytes() == image.tobytes()
        assert not file.closed


def test_a_photograph(assets: Path) -> None:
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
def test_what_is_no_image_costs_a_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(NOT_IMAGES[name])
    message = f"{path} is not a readable image; one of {', '.join(FORMATS)} was needed: convert it"
    with pytest.raises(ValueError, match=re.escape(message)):
        read_image(path)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_a_truncated_file_costs_a_sentence(format: str) -> None:
    content = encode(COLOURS.resize((64, 64)), format)
    with pytest.raises(ValueError, match=r"^half is (broken or cut short \(.+\), and a whole image was needed|not an image)"):
        decode_image(content[: len(content) // 2], "half")
    with pytest.raises(ValueError, match=r"photo\.jpg is damaged or truncated \(OSError: .*truncated.*\), and a whole image"):
        decode_image(JPEG[:-100], "photo.jpg")


def test_a_missing_file_and_a_folder_cost_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"^{tmp_path}/cat\.jpg does not exist, and an image was to be read from it"):
        read_image(tmp_path / "cat.jpg")
    with pytest.raises(ValueError, match=rf"^{tmp_path} cannot be opened \(Is a directory\), and an image file was needed"):
        read_image(tmp_path)


@pytest.mark.parametrize("num_channels", [0, 2, 4])
def test_other_channels_cost_a_sentence(num_channels: int) -> None:
    with pytest.raises(ValueError, match=rf"num_channels={num_channels} must be 1 \(grey\) or 3"):
        decode_image(JPEG, "photo.jpg", num_channels)


def test_an_image_without_pixels_costs_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"The image is empty, 0 x 5; at least one pixel was needed"):
        convert_image(Image.new("RGB", (0, 5)))


BOMB = build_png(60_000, 60_000, 8, 2, b"")


@pytest.mark.parametrize("pillows_limit", [Image.MAX_IMAGE_PIXELS, None])
def test_a_bomb_is_refused_by_its_header(pillows_limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pillows_limit)
    found = "60000 x 60000 pixels" if pillows_limit is None else "Image size (3600000000 pixels)"
    with pytest.raises(ValueError, match=rf"^bomb\.png is too large to be decoded safely \({re.escape(found)}.*scale it down"):
        decode_image(BOMB, "bomb.png")
    assert pillows_limit == Image.MAX_IMAGE_PIXELS


def test_the_limit_is_pillows_and_itself_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * Image.MAX_IMAGE_PIXELS == MAX_PIXELS
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr("vitrine.data.image.MAX_PIXELS", 17 * 11)
    assert decode_image(ENCODED["RGB"], "as large as allowed").size == (17, 11)
    with pytest.raises(ValueError, match=r"18 x 11 pixels\); the limit is 187 pixels"):
        decode_image(encode(COLOURS.resize((18, 11)), "PNG"), "larger")


def test_what_pillow_only_warns_of_is_decoded_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 17 * 11 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(io.BytesIO(ENCODED["RGB"]))
    assert decode_image(ENCODED["RGB"], "colours").size == (17, 11)


def warn_as_pillow() -> None:
    warnings.warn_explicit("of something", UserWarning, "Image.py", 1, module="PIL.Image")


def test_threads_decode_side_by_side() -> None:
    content = ENCODED["P with an alpha for each colour"]  # of which Pillow warns, and warnings are errors here
    with ThreadPoolExecutor(8) as pool:
        images = list(pool.map(lambda _: decode_image(content, "palette").tobytes(), range(200)))
    assert set(images) == {decode_image(content, "palette").tobytes()}


def test_only_pillow_is_silenced_and_nothing_is_forgotten() -> None:
    content = ENCODED["P with an alpha for each colour"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        decode_image(content, "palette")
        version = list(warnings.filters)
        for _ in range(3):
            decode_image(content, "palette")
        assert list(warnings.filters) == version  # another change would make Python show again what it has shown
        with pytest.warns(UserWarning, match="of others"):
            warnings.warn("of others", UserWarning, stacklevel=1)


WHOLE = [encode(COLOURS, format) for format in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")] + [ENCODED["PA"]]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(WHOLE), st.data())
def test_spoilt_bytes_give_a_picture_or_a_sentence(whole: bytes, data: st.DataObject) -> None:
    spoilt = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        if place < len(spoilt):
            spoilt[place] = data.draw(st.integers(0, 255))
    assert decode_or_complain(bytes(spoilt), "spoilt.bin").startswith(("RGB", "spoilt.bin "))


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
    """Adam7, of which Pillow reads files and writes none: passes of one row each, filter 0, from the PNG specification."""
    pixels = np.asarray(COLOURS)
    steps = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    passes = [pixels[top::down, left::across] for top, left, down, across in steps]
    rows = b"".join(b"\0" + row.tobytes() for part in passes for row in part if part.size)
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 1))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")


def build_16_bit_colour() -> bytes:
    rows = RANDOM.integers(0, 65536, (HEIGHT, WIDTH, 3), dtype=np.uint16)
    return build_png(WIDTH, HEIGHT, 16, 2, b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows))


ODDITIES = ENCODED | {
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
@pytest.mark.parametrize("oddity", ODDITIES)
def test_a_box_is_a_slice_of_the_converted_whole(oddity: str, num_channels: int) -> None:
    whole = np.asarray(decode_image(ODDITIES[oddity], oddity, num_channels)).reshape(HEIGHT, WIDTH, num_channels)
    image = LazyImage(ODDITIES[oddity], oddity)
    assert (image.height, image.width) == (HEIGHT, WIDTH)
    for top, left, height, width in BOXES:
        expected = whole[top : top + height, left : left + width]
        for one in (image, LazyImage(ODDITIES[oddity], oddity)):  # decoded before, and for this box alone
            box = one.to_numpy(num_channels, (top, left, height, width))
            assert box.dtype == np.uint8
            np.testing.assert_array_equal(box, expected)
            np.testing.assert_array_equal(one.to_numpy(num_channels, (top, left, height, width), (height, width)), expected)


@pytest.mark.parametrize("oddity", ODDITIES)
def test_one_object_gives_the_same_in_any_order(oddity: str) -> None:
    content = ODDITIES[oddity]
    colour, grey = (np.asarray(decode_image(content, oddity, channels)) for channels in (3, 1))
    calls = {
        "image": (lambda image: np.asarray(image.to_pil()), colour),
        "grey image": (lambda image: np.asarray(image.to_pil(1)), grey),
        "pixels": (lambda image: image.to_numpy(), colour),
        "grey pixels": (lambda image: image.to_numpy(1)[..., 0], grey),
        "box": (lambda image: image.to_numpy(3, (2, 3, 5, 7)), colour[2:7, 3:10]),
    }
    for names in itertools.permutations(calls, 2):
        image = LazyImage(content, oddity)
        for name in names:
            call, expected = calls[name]
            np.testing.assert_array_equal(call(image), expected, err_msg=" after ".join(reversed(names)))
    assert (LazyImage(content, oddity).to_pil().mode, LazyImage(content, oddity).to_pil(1).mode) == ("RGB", "L")


def build_turned(format: str, orientation: int, mode: str = "RGB") -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encode(COLOURS.convert(mode), format, exif=exif)


def build_png_turned_at_its_end(orientation: int) -> bytes:
    """The EXIF chunk may also stand behind the pixels (PNG specification, third edition, table 7)."""
    content = build_turned("PNG", orientation)
    start = content.index(b"eXIf") - 4
    stop = start + 12 + struct.unpack(">I", content[start : start + 4])[0]
    end = len(content) - 12
    return content[:start] + content[stop:end] + content[start:stop] + content[end:]


TURNED = {
    "PNG": lambda turn: build_turned("PNG", turn),
    "PNG that says so at its end": build_png_turned_at_its_end,
    "palette PNG": lambda turn: build_turned("PNG", turn, "P"),
    "JPEG": lambda turn: build_turned("JPEG", turn),
    "grey JPEG": lambda turn: build_turned("JPEG", turn, "L"),
    "CMYK JPEG": lambda turn: build_turned("JPEG", turn, "CMYK"),
    "WebP": lambda turn: build_turned("WEBP", turn),
    "TIFF": lambda turn: build_turned("TIFF", turn),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", TURNED)
def test_boxes_of_a_turned_image_lie_in_the_upright_one(kind: str, orientation: int) -> None:
    content = TURNED[kind](orientation)
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
def test_spoilt_notes_leave_the_picture(format: str, exif: bytes) -> None:
    image = LazyImage(encode(COLOURS, format, exif=b"Exif\0\0" + exif), "spoilt")
    np.testing.assert_array_equal(image.to_numpy(), np.asarray(decode_image(encode(COLOURS, format), "plain")))


def build_smooth(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Slow waves, different in each channel and direction, of which a scaled decoding loses nothing but rounding."""
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
    (1, 1): (8, 12),  # an eighth is all that JPEG can do
}


@pytest.mark.parametrize("num_channels", [3, 1])
@pytest.mark.parametrize("at_least", SHRUNK)
@pytest.mark.parametrize("mode", SMOOTH)
def test_a_jpeg_shrinks_by_2_4_or_8_while_it_is_decoded(mode: str, at_least: tuple[int, int], num_channels: int) -> None:
    shrunk = LazyImage(SMOOTH[mode], mode).to_numpy(num_channels, at_least=at_least)
    assert shrunk.shape == (*SHRUNK[at_least], num_channels)
    whole = decode_image(SMOOTH[mode], mode, num_channels)
    averaged = np.asarray(whole.resize(shrunk.shape[1::-1], Image.Resampling.BOX)).reshape(shrunk.shape)
    # Scaling within the DCT is close to averaging blocks; JPEG's own losses come on top.
    assert np.abs(shrunk.astype(int) - averaged).max() <= (0 if shrunk.shape[:2] == (64, 96) else 6)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_nothing_else_shrinks(format: str) -> None:
    content = encode(build_smooth(96, 64), format)
    image = LazyImage(content, format)
    np.testing.assert_array_equal(image.to_numpy(at_least=(1, 1)), np.asarray(decode_image(content, format)))


def test_without_a_word_of_shrinking_nothing_shrinks() -> None:
    image = LazyImage(SMOOTH["RGB"], "jpeg")
    assert image.to_numpy().shape == (64, 96, 3)
    assert LazyImage(SMOOTH["RGB"], "jpeg").to_numpy(3, (4, 4, 32, 32)).shape == (32, 32, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_jpeg_is_upright_when_it_is_to_be_shrunk(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = encode(build_smooth(96, 64), "JPEG", quality=95, exif=exif)
    shrunk = Image.fromarray(LazyImage(content, "turned").to_numpy(at_least=(8, 8)))
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    small = (12, 8) if orientation <= 4 else (8, 12)
    difference = np.asarray(shrunk.resize(small), dtype=int) - np.asarray(upright.resize(small))
    assert np.abs(difference).max() <= 8  # whichever way it was made smaller


def test_a_shrunk_box_shows_what_the_box_shows() -> None:
    whole = decode_image(SMOOTH["RGB"], "whole")
    for box in [(0, 0, 32, 48), (32, 48, 32, 48), (8, 16, 40, 64), (3, 5, 50, 77), (13, 31, 51, 65)]:
        top, left, height, width = box
        part = LazyImage(SMOOTH["RGB"], "box").to_numpy(3, box, (8, 8))
        small = np.asarray(Image.fromarray(part).resize((8, 8), Image.Resampling.BOX), dtype=int)
        expected = np.asarray(whole.crop((left, top, left + width, top + height)).resize((8, 8), Image.Resampling.BOX))
        # Half a pixel of what is decoded, in which the steepest wave climbs by 32 levels, and the losses of JPEG and averaging.
        assert np.abs(small - expected).max() <= 32, box


def test_the_whole_is_still_there_after_a_part_was_shrunk() -> None:
    """One object is asked for a small part first, then for all of it: it must not answer with what it shrank."""
    whole = np.asarray(decode_image(SMOOTH["RGB"], "whole"))
    image = LazyImage(SMOOTH["RGB"], "jpeg")
    assert image.to_numpy(at_least=(8, 12)).shape == (8, 12, 3)
    np.testing.assert_array_equal(image.to_numpy(), whole)
    np.testing.assert_array_equal(image.to_numpy(3, (40, 50, 10, 20)), whole[40:50, 50:70])


def test_the_picture_for_pillow_is_whole_after_a_part_was_shrunk() -> None:
    image = LazyImage(SMOOTH["RGB"], "jpeg")
    image.to_numpy(at_least=(8, 12))
    assert image.to_pil().size == (96, 64)


def test_a_larger_part_can_be_asked_for_after_a_smaller_one() -> None:
    image = LazyImage(SMOOTH["RGB"], "jpeg")
    assert image.to_numpy(at_least=(8, 12)).shape == (8, 12, 3)
    assert image.to_numpy(at_least=(32, 48)).shape == (32, 48, 3)


SIZES = [(16, 16), (17, 33), (40, 90), (97, 61), (800, 801), (1001, 799), (1792, 1792)]
BLANK = {size: encode(Image.new("L", size[::-1]), "JPEG") for size in SIZES}


@st.composite
def draw_shrinking(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int, int, int], tuple[int, int]]:
    size = draw(st.sampled_from(SIZES))
    sides = [draw(st.integers(2, side)) for side in size]
    starts = [draw(st.integers(0, side - part)) for side, part in zip(size, sides, strict=True)]
    wanted = [draw(st.integers(1, part // 2)) for part in sides]
    return size, (starts[0], starts[1], sides[0], sides[1]), (wanted[0], wanted[1])


@settings(deadline=None, max_examples=100)
@given(draw_shrinking())
@example(((1792, 1792), (0, 0, 1785, 1785), (224, 224)))
@example(((16, 16), (0, 0, 16, 11), (2, 2)))
def test_a_shrunk_box_is_as_large_as_was_asked_for(drawn: tuple) -> None:
    size, box, at_least = drawn
    height, width, _ = LazyImage(BLANK[size], "blank").to_numpy(1, box, at_least).shape
    assert height >= at_least[0]
    assert width >= at_least[1]
    assert height <= box[2]
    assert width <= box[3]


@settings(deadline=None, max_examples=100)
@given(draw_shrinking())
@example(((1001, 799), (0, 0, 1000, 798), (120, 90)))
def test_a_shrunk_boxs_edges_move_by_half_a_pixel_at_most(drawn: tuple) -> None:
    """As `pixels` promises. A pixel of a JPEG shrunk by s covers exactly s of it, also where the last one is not full."""
    size, box, at_least = drawn
    with pytest.MonkeyPatch.context() as patch:
        scales, crops = watch_pillow(patch)
        LazyImage(BLANK[size], "blank").to_numpy(1, box, at_least)
    (scale,), ((left, top, right, bottom),) = scales or [1], crops
    for edge, original in ((top, box[0]), (left, box[1]), (bottom, box[0] + box[2]), (right, box[1] + box[3])):
        assert abs(edge - original / scale) <= 0.5


def watch_pillow(patch: pytest.MonkeyPatch) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """The scales at which JPEGs are going to be decoded, and what is cut out of them."""
    scales, crops = [], []
    draft, crop = JpegImageFile.draft, Image.Image.crop

    def draft_and_tell(image: JpegImageFile, mode: str, size: tuple[int, int]) -> object:
        answer = draft(image, mode, size)
        scales.append(image.decoderconfig[0])
        return answer

    def crop_and_tell(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
        assert (box[0] >= 0, box[1] >= 0, box[2] <= image.width, box[3] <= image.height) == (True,) * 4
        crops.append(box)
        return crop(image, box)

    patch.setattr(JpegImageFile, "draft", draft_and_tell)
    patch.setattr(Image.Image, "crop", crop_and_tell)
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
def test_an_array_is_itself(kind: str) -> None:
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


def test_drawing_on_the_picture_leaves_the_array() -> None:
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
def test_any_other_array_costs_a_sentence(array: np.ndarray) -> None:
    with pytest.raises(
        BadImage, match=r"^odd\[7\] is an array of \S+ with shape \(.*\); bytes of \(height, width\) or of"
    ) as error:
        LazyImage(array, "odd[7]")
    assert str(error.value).endswith(": convert it.")


@pytest.mark.parametrize("content", [COLOUR, ENCODED["RGB"]], ids=["array", "file"])
@pytest.mark.parametrize("num_channels", [0, 2, 4])
def test_other_channels_cost_a_sentence_stored(content: bytes | np.ndarray, num_channels: int) -> None:
    for call in (LazyImage.to_numpy, LazyImage.to_pil):
        with pytest.raises(ValueError, match=rf"num_channels={num_channels} must be 1 \(grey\) or 3"):
            call(LazyImage(content, "any"), num_channels)


def to_grey(colours: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(colours).convert("L"))[..., None]


def test_grey_is_pillows_grey() -> None:
    corners = np.array(list(itertools.product([0, 1, 2, 127, 128, 253, 254, 255], repeat=3)), dtype=np.uint8)[None]
    np.testing.assert_array_equal(fit_channels(corners, 1), to_grey(corners))
    colours = np.random.default_rng(1).integers(0, 256, (700, 700, 3), dtype=np.uint8)
    np.testing.assert_array_equal(fit_channels(colours, 1), to_grey(colours))


@pytest.mark.full
def test_grey_is_pillows_grey_for_every_colour() -> None:
    green, blue = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    for red in range(256):
        colours = np.stack([np.full_like(green, red), green, blue], axis=2)
        np.testing.assert_array_equal(fit_channels(colours, 1), to_grey(colours))


def test_blocks_fit_as_their_images_do() -> None:
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
def test_what_is_no_image_is_refused_at_its_header(kind: str) -> None:
    with pytest.raises(BadImage, match=r"^a/b\.jpg is (not a readable image|too large to be decoded safely)"):
        LazyImage(NOT_IMAGES_STORED[kind], "a/b.jpg")


def judge(decode: Callable[[], bytes]) -> str:
    try:
        return decode().hex()
    except BadImage as error:
        return "bad" if str(error).startswith("cut.bin is ") else str(error)


@pytest.mark.parametrize("oddity", ODDITIES)
def test_wherever_a_file_is_cut_it_is_never_taken_for_whole(oddity: str) -> None:
    """As `decode_image` judges it; and what failed once fails again, instead of showing the part that was there."""
    content = ODDITIES[oddity]
    for length in range(0, len(content), max(1, len(content) // 20)):
        cut = content[:length]
        expected = judge(lambda cut=cut: decode_image(cut, "cut.bin").tobytes())
        assert judge(lambda cut=cut: LazyImage(cut, "cut.bin").to_numpy().tobytes()) == expected, length
        if expected == "bad":  # also where only the first pixel is wanted, or a second time
            assert judge(lambda cut=cut: LazyImage(cut, "cut.bin").to_numpy(3, (0, 0, 1, 1)).tobytes()) == "bad", length
            assert judge(lambda cut=cut: decode_twice(cut)) == "bad", length


def decode_twice(content: bytes) -> bytes:
    image = LazyImage(content, "cut.bin")
    with suppress(BadImage):
        image.to_numpy()
    return image.to_pil().tobytes()
