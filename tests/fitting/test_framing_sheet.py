"""The sheet of framings: what is dark against the crop of the preprocessing, and images that cannot be read."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data.open_data import open_data
from vitrine.data.preprocessing import Framing, Preprocessing
from vitrine.data.source import ArraySource, Labels
from vitrine.fitting.framing_sheet import NUM_FRAMES, build_frames, darken_outside

CROP = Preprocessing(resize=32, crop=(32, 32))


def make_source(height: int, width: int, count: int = 9) -> ArraySource:
    return ArraySource(np.full((count, height, width, 3), 200, np.uint8), Labels.one_each([0] * count), ("a",), "data.npz")


def test_a_crop_is_bright_and_the_rest_dark() -> None:
    frames, seen = build_frames(make_source(60, 120), CROP)
    assert (len(frames), seen) == (NUM_FRAMES, 0.5)
    content, caption = frames[0]
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("L"))
    assert pixels.shape == (60, 120)
    assert caption.startswith("120 x 60 px, 50")
    assert pixels[30, 10] < 100 < pixels[30, 60]
    assert [bool(pixels[30, column] > 150) for column in (20, 40, 80, 100)] == [False, True, True, False]


@pytest.mark.parametrize("framing", ["letterbox", "squash"])
def test_whole_images_are_shown_as_the_model_sees_them(framing: Framing) -> None:
    frames, seen = build_frames(make_source(60, 120), CROP.with_framing(framing))
    content, caption = frames[0]
    assert Image.open(io.BytesIO(content)).size == (32, 32)
    assert (caption, seen) == ("120 x 60 px", 1)


def test_images_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(b"not an image")
    assert build_frames(open_data(tmp_path), CROP) == ([], 0.0)


def test_the_line_lies_inside_of_the_box() -> None:
    dark = darken_outside(np.full((10, 20, 3), 100, np.uint8), (5, 0, 15, 10))
    assert dark[5, [0, 5, 14, 15, 10], 0].tolist() == [35, 255, 255, 35, 100]
