"""Figures and images of pages: SVG and PNG drawn in the shared style, small JPEG photographs, and maps as tiny PNG files.

Colours of figures are the light values of tokens.css. In an SVG each is replaced by its token, so that one drawing serves the
light and the dark theme.
"""

import hashlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrine.core.console import escape_controls
from vitrine.core.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from PIL import Image

STATIC = Path(__file__).parent / "static"
MAX_LABEL_LENGTH = 28
PHOTO_SIDE, JPEG_QUALITY = 160, 78
MAX_LOSSLESS_SIDE = 48  # of images so small that JPEG would blur their pixels
MAX_DARKNESS = 0.85  # of an overlay, where a map is lowest

INK, INK_2, INK_3, EDGE, ACCENT = "#15191a", "#495254", "#667073", "#7f8a88", "#0a6b68"
VIT, RESNET, HYBRID, AXIAL, SCRATCH, PRETRAINED = "#2a7ad8", "#b04a10", "#65305c", "#23785f", "#848b8f", "#ab8529"
LESS, MORE = "#a8431f", "#1f5f9e"  # of the diverging map
WIDE, NARROW = 7.2, 3.5  # inches; an inch is 100 CSS pixels

Draw = Callable[["Figure"], None]
"""Draws on an empty figure."""


def shorten_label(name: str) -> str:
    """Cut a name to fit beside a figure."""
    name = escape_controls(name)
    return name if len(name) <= MAX_LABEL_LENGTH else f"{name[: MAX_LABEL_LENGTH - 1]}…"


def read_static(name: str) -> str:
    """Return the text of a file of the design."""
    return (STATIC / name).read_text(encoding="utf-8")


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw in the style of figures.mplstyle inside the block; the user's own settings are left unchanged."""
    import matplotlib

    with matplotlib.rc_context(fname=STATIC / "figures.mplstyle"):
        yield


def make_figure(width: float, height: float, dpi: float = 100) -> "Figure":
    """Make an empty figure; call it inside `figure_style`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def save_figure(figure: "Figure", path: Path) -> None:
    """Save a matplotlib figure as PNG atomically, on white unless it has a colour of its own."""
    # Not pyplot: it keeps figures and a display backend for the whole process, which may be a user's notebook.
    from matplotlib import colors as mcolors
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if mcolors.to_rgba(figure.get_facecolor())[3] == 0:
        figure.set_facecolor("white")
    with atomic_file(path) as partial, ignore_missing_glyphs():
        FigureCanvasAgg(figure).print_png(partial)


@contextmanager
def ignore_missing_glyphs() -> Iterator[None]:
    """Draw letters that the font lacks as boxes, which does not merit a warning during a run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def draw_png(draw: Draw, path: Path, width: float, height: float, dpi: float = 150) -> None:
    """Draw a figure in the shared style and save it as PNG."""
    with figure_style():
        figure = make_figure(width, height, dpi)
        draw(figure)
        save_figure(figure, path)


def draw_svg(draw: Draw, width: float, height: float) -> str:
    """Draw a figure in the shared style and return it as an <svg> element for a page."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    text = io.StringIO()
    with figure_style(), ignore_missing_glyphs():
        figure = make_figure(width, height)
        draw(figure)
        FigureCanvasSVG(figure).print_svg(text, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return embed_svg(text.getvalue(), width)


def embed_svg(text: str, width: float) -> str:
    """Turn matplotlib's SVG file into an element: tokens for colours, the page's font, ids of its own, no links."""
    body = text[text.index(">", text.index("<svg")) + 1 :]
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"(?<=\d)\.(\d{2})\d+", r".\1", body)  # hundredths of a point are not seen
    prefix = "f" + hashlib.sha256(f"{width}{body}".encode()).hexdigest()[:8]
    body = re.sub(r' id="(?!m[0-9a-f]{10}|p[0-9a-f]{10})[^"]*"', "", body)  # names of groups, which nothing refers to
    body = (
        body.replace(' id="', f' id="{prefix}').replace("url(#", f"url(#{prefix}").replace('xlink:href="#', f'href="#{prefix}')
    )
    body = re.sub(r"\s*\n\s*", " ", body)
    tokens = list_tokens()
    body = re.sub(r"#[0-9a-f]{6}\b", lambda match: f"var(--{tokens[match[0]]})" if match[0] in tokens else match[0], body)
    size = f'viewBox="{box[1]}" width="{100 * width:.0f}" style="stroke-linejoin:round"'
    return f'<svg {size} aria-hidden="true" focusable="false">{body.strip()}'


@cache
def list_tokens() -> dict[str, str]:
    """Return {light colour: name of its token} of tokens.css."""
    pairs = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), #[0-9a-f]{6}\)", read_static("tokens.css"))
    return {colour: name for name, colour in pairs}


def list_sequential_colours() -> list[str]:
    """Return the stops of the sequential map of tokens.css, dark to bright."""
    stops = re.search(r"--seq: ([^;]*);", read_static("tokens.css"))
    assert stops is not None
    return stops[1].split(", ")


def build_colormap(colours: Sequence[str]) -> "LinearSegmentedColormap":
    """Return matplotlib's colour map through some colours."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("vitrine", list(colours))


def sequential_colormap() -> "LinearSegmentedColormap":
    """Return the colours of maps without a sign, dark to bright."""
    return build_colormap(list_sequential_colours())


def diverging_colormap() -> "LinearSegmentedColormap":
    """Return the colours of signed maps on white paper."""
    return build_colormap((LESS, "#ffffff", MORE))


def encode_photo(image: "Image.Image | np.ndarray", side: int = PHOTO_SIDE) -> bytes:
    """Return a small JPEG of an image or of pixels uint8 (H, W, C), at most `side` long; of a tiny image, a PNG."""
    small = (build_image(image) if isinstance(image, np.ndarray) else image).convert("RGB")
    if max(small.size) <= MAX_LOSSLESS_SIDE:
        return encode_png(small)
    small.thumbnail((side, side))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=JPEG_QUALITY)
    return content.getvalue()


def encode_overlay(heat: np.ndarray) -> bytes:
    """Return a PNG of darkness for a map (rows, columns) over a photograph: linear, clear where the map is highest."""
    from PIL import Image

    alpha = 255 * MAX_DARKNESS * (1 - scale_to_unit(heat))
    pixels = np.stack([np.zeros_like(alpha), alpha], axis=-1).round().astype(np.uint8)
    return encode_png(Image.fromarray(pixels, "LA"))


def encode_map(values: np.ndarray) -> bytes:
    """Return a PNG of a map (rows, columns) of values in 0..1, a pixel for each, in the sequential colours."""
    colours = np.asarray(sequential_colormap()(np.linspace(0, 1, 256), bytes=True))  # (256, 4)
    return encode_palette((255 * np.clip(values, 0, 1)).round().astype(np.uint8), colours)


def encode_signed_map(values: np.ndarray) -> bytes:
    """Return a PNG of a map (rows, columns) of values in -1..1 in the diverging colours; 0 and NaN are transparent."""
    more, less = ([int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in (MORE, LESS))
    colours = np.array([[*(less if level < 127 else more), 2 * abs(level - 127)] for level in range(255)], np.uint8)
    return encode_palette((127 + 127 * np.clip(np.nan_to_num(values), -1, 1)).round().astype(np.uint8), colours)


def encode_palette(indices: np.ndarray, colours: np.ndarray) -> bytes:
    """Return a PNG of indices uint8 (rows, columns) into colours uint8 (K, 4): red, green, blue and opacity."""
    from PIL import Image

    image = Image.fromarray(indices)
    image.putpalette(colours[:, :3].tobytes())
    content = io.BytesIO()
    opacity = colours[:, 3]
    transparency = {} if (opacity == 255).all() else {"transparency": opacity.tobytes()}
    image.save(content, "PNG", optimize=True, **transparency)
    return content.getvalue()


def build_image(pixels: np.ndarray) -> "Image.Image":
    """Return pixels uint8 (H, W, C), grey or colour, as an image."""
    from PIL import Image

    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])


def encode_png(image: "Image.Image") -> bytes:
    """Return an image as the bytes of a small PNG file."""
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


def scale_to_unit(values: np.ndarray) -> np.ndarray:
    """Scale values linearly to 0..1, from their minimum to their maximum; 0 if they are all equal."""
    span = float(values.max() - values.min())
    return (values - values.min()) / (span if span > 0 else 1.0)
