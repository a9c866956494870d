"""Decoding against Pillow's own conversions, EXIF's definition, closed forms, and files that are not what they say."""

import io
import re
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from vitrine.data.decode import FORMATS, MAX_PIXELS, convert_image, decode_image, read_image

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
    message = f"{path} is not an image that can be read; one of {', '.join(FORMATS)} was needed: convert it"
    with pytest.raises(ValueError, match=re.escape(message)):
        read_image(path)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_a_truncated_file_costs_a_sentence(format: str) -> None:
    content = encode(COLOURS.resize((64, 64)), format)
    with pytest.raises(ValueError, match=r"^half is (broken or cut short \(.+\), and a whole image was needed|not an image)"):
        decode_image(content[: len(content) // 2], "half")
    with pytest.raises(ValueError, match=r"photo\.jpg is broken or cut short \(OSError: .*truncated.*\), and a whole image"):
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
    monkeypatch.setattr("vitrine.data.decode.MAX_PIXELS", 17 * 11)
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
