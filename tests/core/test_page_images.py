"""Components with images: embedded bytes, captions, overlays, both sizes of a figure."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from tests.core.test_page_parts import HOSTILE
from tests.pages import Element, parse
from vitrine.core.figures import encode_map, encode_overlay, encode_photo, list_sequential_colours
from vitrine.core.page_images import (
    Chart,
    ColourScale,
    ConfusionPairs,
    Exhibit,
    Frames,
    Gallery,
    MapGrid,
    Pair,
    Picture,
    Strip,
    Tiles,
)
from vitrine.core.page_parts import Part

PHOTO = encode_photo(Image.new("RGB", (64, 64), "red"))
MAP = encode_map(np.eye(2))


def read_source(image: Element) -> bytes:
    return base64.b64decode(image.attributes["src"].partition("base64,")[2])


@pytest.mark.parametrize(
    "part",
    [
        Gallery([Exhibit(PHOTO, HOSTILE, HOSTILE, [HOSTILE], HOSTILE, "a.jpg"), Exhibit(None, HOSTILE)], HOSTILE),
        ConfusionPairs([Pair(HOSTILE, HOSTILE, 1, 0, PHOTO)]),
        Chart(lambda figure: figure.text(0, 0, HOSTILE.partition("\x1b")[0]) and None, HOSTILE, HOSTILE, HOSTILE),
        Picture(PHOTO, HOSTILE, HOSTILE, HOSTILE),
        MapGrid([HOSTILE], [(HOSTILE, [MAP])], PHOTO),
        Strip([(PHOTO, HOSTILE)]),
        Tiles([(PHOTO, HOSTILE)], HOSTILE),
        Frames([(PHOTO, HOSTILE)], HOSTILE),
        ColourScale(HOSTILE, HOSTILE, is_signed=True),
    ],
    ids=lambda part: type(part).__name__,
)
def test_hostile_names_are_text(part: Part) -> None:
    root = parse(part.render())
    assert root.find("script") == []
    assert "</p><script>alert('1')</script>" in root.text


def test_exhibits_have_image_caption_and_link() -> None:
    exhibit = Exhibit(PHOTO, "beagle", "97 % sure", ["true: basset hound"], "test/a.jpg", "../test/a.jpg")
    figure = parse(Gallery([exhibit]).render()).one("figure")
    assert read_source(figure.one("img")) == PHOTO
    assert figure.one("figcaption").text == "beagle, 97 % sure true: basset hound test/a.jpg"
    assert figure.one("a").attributes["href"] == "../test/a.jpg"
    assert figure.find(kind="lens") == []


def test_an_image_that_cannot_be_read_has_a_frame() -> None:
    root = parse(Gallery([Exhibit(None, name="a.jpg")]).render())
    assert root.find("img") == root.find("a") == []
    assert root.one(kind="missing")


def test_overlays_can_be_switched_off() -> None:
    overlay = encode_overlay(np.eye(3))
    root = parse(Gallery([Exhibit(PHOTO, overlay=overlay)], overlay_label="Show rollout").render())
    bare, over = root.one(kind="lens").find("img")
    assert read_source(bare) == PHOTO
    assert read_source(over) == overlay
    assert over.attributes["class"] == "over"
    assert root.one("input").attributes == {"type": "checkbox", "checked": ""}
    assert root.one(kind="lens").attributes["tabindex"] == "0"  # focus shows the bare photograph


def test_pairs_have_a_count_each_way() -> None:
    pair = parse(ConfusionPairs([Pair("cat", "dog", 3, 0, PHOTO, PHOTO)]).render()).one("li")
    assert [count.text for count in pair.find("b")] == ["3", "0"]
    assert [caption.text for caption in pair.find("figcaption")] == ["cat", "dog"]
    assert pair.attributes["aria-label"] == "cat: 3 taken for dog, 0 the other way"


def test_charts_are_drawn_wide_and_narrow() -> None:
    widths = []
    chart = Chart(lambda figure: widths.append(figure.get_figwidth()), "alt", "Look.", "Why.", height=3.0, narrow_height=2.0)
    root = parse(chart.render())
    assert widths == [7.2, 3.5]
    assert [root.one(kind=kind).one("svg").attributes["width"] for kind in ("wide-only", "narrow-only")] == ["720", "350"]
    assert root.one("figcaption").text == "Look. Why."
    assert [each.attributes["aria-label"] for each in root.walk() if each.attributes.get("role") == "img"] == ["alt"]


def test_map_grids_have_a_map_for_each_row_and_column() -> None:
    grid = MapGrid(["head 0", "head 2"], [("layer 0", [MAP, MAP]), ("layer 3", [MAP, MAP])], PHOTO)
    root = parse(grid.render())
    alts = [image.attributes["alt"] for image in root.find("img")]
    assert alts == ["", "layer 0, head 0", "layer 0, head 2", "layer 3, head 0", "layer 3, head 2"]
    assert root.one(kind="maps").attributes["style"] == "--columns:2"


def test_pictures_are_the_given_file() -> None:
    content = io.BytesIO()
    Image.new("L", (3, 3)).save(content, "PNG")
    assert read_source(parse(Picture(content.getvalue(), "x").render()).one("img")) == content.getvalue()


def test_colour_scales_have_the_colours_of_maps() -> None:
    style = parse(ColourScale("0", "1").render()).one("i").attributes["style"]
    assert ", ".join(list_sequential_colours()) in style
    assert [end.text for end in parse(ColourScale("-1", "1", is_signed=True).render()).find("b")] == ["-1", "0", "1"]
