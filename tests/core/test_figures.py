"""Figures: saved atomically without pyplot, as SVG with tokens for colours; photographs and maps decoded by Pillow."""

import io
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib import figure as matplotlib_figure
from matplotlib import rcParams
from matplotlib.artist import Artist
from PIL import Image

from tests.pages import parse
from vitrine.core import figures
from vitrine.core.figures import (
    MAX_DARKNESS,
    VIT,
    draw_png,
    draw_svg,
    encode_map,
    encode_overlay,
    encode_photo,
    encode_signed_map,
    figure_style,
    list_sequential_colours,
    list_tokens,
    make_figure,
    save_figure,
    shorten_label,
)


class Broken(Artist):
    def draw(self, renderer: object) -> None:
        raise RuntimeError("cannot be drawn")


class Doubtful(Artist):
    def draw(self, renderer: object) -> None:
        warnings.warn("something else", UserWarning, stacklevel=1)


def make_red(text: str = "", artist: Artist | None = None) -> matplotlib_figure.Figure:
    figure = matplotlib_figure.Figure(figsize=(2, 1), dpi=50, facecolor="#ff0000")
    figure.text(0.1, 0.5, text)
    if artist is not None:
        figure.add_artist(artist)
    return figure


def test_a_figure_is_written_as_png(tmp_path: Path) -> None:
    save_figure(make_red(), tmp_path / "größer.png")
    assert [path.name for path in tmp_path.iterdir()] == ["größer.png"]
    with Image.open(tmp_path / "größer.png") as image:
        assert (image.format, image.size) == ("PNG", (100, 50))
        assert image.convert("RGB").getpixel((99, 49)) == (255, 0, 0)


def test_a_figure_is_png_whatever_its_name(tmp_path: Path) -> None:
    save_figure(make_red(), tmp_path / "curves")
    with Image.open(tmp_path / "curves") as image:
        assert image.format == "PNG"


def test_a_failed_drawing_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("old")
    with pytest.raises(RuntimeError, match="cannot be drawn"):
        save_figure(make_red(artist=Broken()), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    save_figure(make_red(), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        image.load()


def test_letters_that_the_font_lacks_are_not_warned_about(tmp_path: Path) -> None:
    save_figure(make_red("猫 🐈 \u0600"), tmp_path / "a.png")
    draw_svg(lambda figure: figure.text(0, 0, "猫 🐈 \u0600") and None, 2, 1)


def test_other_warnings_are_shown(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="something else"):
        save_figure(make_red(artist=Doubtful()), tmp_path / "a.png")


UNTOUCHED = """
import sys
from pathlib import Path
from vitrine.core.figures import draw_png, draw_svg
assert "matplotlib" not in sys.modules
import matplotlib
before = matplotlib.rcParams.copy()
draw_png(lambda figure: None, Path(sys.argv[1]), 2, 1)
draw_svg(lambda figure: None, 2, 1)
assert dict.__eq__(matplotlib.rcParams, before)  # its own __eq__ asks for the backend, and so chooses one
assert "matplotlib.pyplot" not in sys.modules
"""


def test_drawing_leaves_settings_and_does_not_import_pyplot(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", UNTOUCHED, str(tmp_path / "a.png")], check=True)


def test_figures_in_the_style_are_on_white(tmp_path: Path) -> None:
    draw_png(lambda figure: None, tmp_path / "a.png", 2, 1, dpi=50)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (100, 50)
        assert image.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)


def test_long_names_are_cut() -> None:
    assert shorten_label("x" * 28) == "x" * 28
    assert shorten_label("x" * 29) == "x" * 27 + "…"
    assert shorten_label("") == ""


def draw_line(figure: matplotlib_figure.Figure) -> None:
    panel = figure.add_subplot()
    panel.plot([0, 1, 2], [1, 3, 2], "o", color=VIT)
    panel.set_title("<a & b> http://example.com")


def test_svg_is_an_element_with_tokens_for_colours() -> None:
    svg = parse(draw_svg(draw_line, 7.2, 3.0)).one("svg")
    assert svg.attributes["width"] == "720"
    assert [float(number) for number in svg.attributes["viewbox"].split()] == pytest.approx([0, 0, 518.4, 216])
    styles = " ".join(element.attributes.get("style", "") for element in svg.walk())
    assert "var(--vit)" in styles
    assert "var(--ink-2)" in styles
    assert not set(re.findall("#[0-9a-f]{6}", styles)) & set(list_tokens())
    assert "font-family" not in styles
    assert "<a & b> http://example.com" in [text.text for text in svg.find("text")]


def test_ids_of_two_figures_differ() -> None:
    first, second = (parse(draw_svg(draw_line, width, 3.0)) for width in (7.2, 3.5))
    ids = [{each.attributes["id"] for each in svg.walk() if "id" in each.attributes} for svg in (first, second)]
    assert ids[0]
    assert ids[1]
    assert not ids[0] & ids[1]
    for svg, own in zip((first, second), ids, strict=True):
        used = {each.attributes["href"].removeprefix("#") for each in svg.find("use")}
        used |= {match for each in svg.walk() for match in re.findall(r"url\(#(\w+)\)", each.attributes.get("clip-path", ""))}
        assert used == own


def test_the_same_figure_gives_the_same_text() -> None:
    assert draw_svg(draw_line, 3.5, 2.0) == draw_svg(draw_line, 3.5, 2.0)


def test_the_style_s_colours_are_light_tokens() -> None:
    """Or a figure would keep a colour of the light theme in the dark one."""
    with figure_style():
        names = ("text.color", "axes.labelcolor", "axes.edgecolor", "grid.color", "xtick.color", "ytick.labelcolor")
        used = {str(rcParams[name]) for name in names} | {each["color"] for each in rcParams["axes.prop_cycle"]}
        assert make_figure(2, 1).get_facecolor()[3] == 0
    assert {f"#{colour.removeprefix('#')}" for colour in used} <= set(list_tokens())
    constants = [getattr(figures, name) for name in ("INK", "INK_2", "INK_3", "EDGE", "ACCENT", "VIT", "RESNET", "HYBRID")]
    assert {*constants, figures.AXIAL, figures.SCRATCH, figures.PRETRAINED, figures.LESS, figures.MORE} <= set(list_tokens())


@pytest.mark.parametrize(("size", "expected"), [((300, 200), (160, 106)), ((100, 90), (100, 90))])
def test_photographs_are_small_jpeg_files(size: tuple[int, int], expected: tuple[int, int]) -> None:
    with Image.open(io.BytesIO(encode_photo(Image.new("RGBA", size, "red")))) as image:
        assert (image.format, image.mode) == ("JPEG", "RGB")
        assert image.size == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("num_channels", [1, 3])
def test_tiny_images_are_kept_exactly(num_channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, num_channels), dtype=np.uint8)
    with Image.open(io.BytesIO(encode_photo(pixels))) as image:
        assert image.format == "PNG"
        np.testing.assert_array_equal(np.asarray(image), np.broadcast_to(pixels, (8, 9, 3)))


def read(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGBA"))


def test_overlay_is_clear_at_the_maximum_and_dark_at_the_minimum() -> None:
    pixels = read(encode_overlay(np.array([[0.2, 0.7], [0.45, 0.2]])))
    assert (pixels[..., :3] == 0).all()
    np.testing.assert_allclose(pixels[..., 3] / 255, MAX_DARKNESS * np.array([[1, 0], [0.5, 1]]), atol=0.003)
    assert np.ptp(read(encode_overlay(np.full((2, 2), 0.25)))) == read(encode_overlay(np.full((2, 2), 0.25)))[..., 3].max()


def test_maps_have_the_ends_of_the_sequential_colours() -> None:
    pixels = read(encode_map(np.array([[0.0, 0.5, 1.0, 2.0]])))
    stops = [tuple(int(colour[start : start + 2], 16) for start in (1, 3, 5)) for colour in list_sequential_colours()]
    np.testing.assert_allclose(pixels[0, :, :3], [stops[0], stops[4], stops[-1], stops[-1]], atol=2)
    assert (pixels[..., 3] == 255).all()


def test_signed_maps_are_clear_at_zero() -> None:
    pixels = read(encode_signed_map(np.array([[-1.0, -0.5, 0.0, np.nan, 0.5, 1.0]])))
    np.testing.assert_allclose(pixels[0, :, 3], [254, 127, 0, 0, 127, 254], atol=1)
    assert pixels[0, 0, 0] > pixels[0, 0, 2]  # less is orange
    assert pixels[0, 5, 2] > pixels[0, 5, 0]  # more is blue
