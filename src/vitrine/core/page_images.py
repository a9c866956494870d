"""Components of pages that show images: galleries, confusion pairs, figures and maps. Each renders itself as HTML."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.core.figures import LESS, MORE, NARROW, WIDE, Draw, draw_svg, list_sequential_colours
from vitrine.core.page_parts import Link, escape

# File signature -> image type.
SIGNATURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg"}


def embed_image(content: bytes, alt: str, kind: str = "") -> str:
    """Return an <img> element with a PNG or JPEG file in it; browsers smooth only JPEG, because maps are PNG."""
    image_type = next(name for signature, name in SIGNATURES.items() if content.startswith(signature))
    encoded = base64.b64encode(content).decode("ascii")
    style = f' class="{kind}"' if kind else ""
    return f'<img{style} alt="{escape(alt)}" src="data:image/{image_type};base64,{encoded}">'


def embed_optional(content: bytes | None, alt: str) -> str:
    """Return an <img> element, or a dashed frame for an image that cannot be shown."""
    return '<div class="missing">not readable</div>' if content is None else embed_image(content, alt)


@dataclass(frozen=True)
class Exhibit:
    """An image of a gallery: what the model says, e.g. "beagle" and "97 % sure", further lines, and the file."""

    image: bytes | None
    title: str = ""
    after: str = ""
    lines: Sequence[str] = ()
    name: str = ""
    url: str | None = None
    overlay: bytes | None = None
    """A PNG that is stretched over the image."""

    def render(self) -> str:
        """Return the image with its caption."""
        alt = ", ".join(part for part in (self.title, self.after, *self.lines, self.name) if part)
        picture = embed_optional(self.image, alt)
        if self.overlay is not None:
            picture = f'<div class="lens" tabindex="0">{picture}{embed_image(self.overlay, "", "over")}</div>'
        first = f"<b>{escape(self.title)}</b>" if self.title else ""
        first += (f", {escape(self.after)}" if first else escape(self.after)) if self.after else ""
        name = f"<code>{Link(self.name, self.url).render()}</code>" if self.name else ""
        caption = "<br>".join(line for line in (first, *map(escape, self.lines), name) if line)
        return f"<li><figure>{picture}<figcaption>{caption}</figcaption></figure></li>"


@dataclass(frozen=True)
class Gallery:
    """Images side by side; with `overlay_label`, a checkbox of that name shows or hides their overlays."""

    exhibits: Sequence[Exhibit]
    overlay_label: str = ""
    is_large: bool = False

    def render(self) -> str:
        """Return a list of figures."""
        kind = "gallery large" if self.is_large else "gallery"
        items = f'<ul class="{kind}">{"".join(exhibit.render() for exhibit in self.exhibits)}</ul>'
        if not self.overlay_label:
            return items
        box = f'<label><input type="checkbox" checked> {escape(self.overlay_label)}</label>'
        return f'<div class="peek">{box}{items}</div>'


@dataclass(frozen=True)
class Pair:
    """Two classes that are taken for each other: how often each way, and a photograph of each."""

    first: str
    second: str
    num_forward: int
    """Images of the first class that were taken for the second."""
    num_backward: int
    first_image: bytes | None = None
    second_image: bytes | None = None

    def render(self) -> str:
        """Return both photographs with an arrow each way between them."""
        forward, backward = (
            f"<span{'' if count else ' class=none'}><b>{count}</b>{arrow}</span>"
            for count, arrow in ((self.num_forward, "⟶"), (self.num_backward, "⟵"))
        )
        photos = [
            f"<figure>{embed_optional(image, name)}<figcaption>{escape(name)}</figcaption></figure>"
            for image, name in ((self.first_image, self.first), (self.second_image, self.second))
        ]
        counts = f"{self.num_forward} taken for {self.second}, {self.num_backward} the other way"
        label = escape(f"{self.first}: {counts}")
        return f'<li aria-label="{label}">{photos[0]}<div class="arrows">{forward}{backward}</div>{photos[1]}</li>'


@dataclass(frozen=True)
class ConfusionPairs:
    """The pairs of classes that are most often taken for each other."""

    pairs: Sequence[Pair]

    def render(self) -> str:
        """Return a list of pairs."""
        return f'<ul class="pairs">{"".join(pair.render() for pair in self.pairs)}</ul>'


def render_caption(look: str, rest: str) -> str:
    """Return a caption: what to look at, in bold, then why."""
    first = f"<b>{escape(look)}</b> " if look else ""
    return f"<figcaption>{first}{escape(rest)}</figcaption>" if look or rest else ""


@dataclass(frozen=True)
class Chart:
    """A figure, drawn twice: for wide and for narrow windows."""

    draw: Draw
    alt: str
    look: str = ""
    caption: str = ""
    height: float = 3.2
    narrow_height: float = 2.8

    def render(self) -> str:
        """Return both drawings."""
        wide, narrow = draw_svg(self.draw, WIDE, self.height), draw_svg(self.draw, NARROW, self.narrow_height)
        both = f'<div class="wide-only">{wide}</div><div class="narrow-only">{narrow}</div>'
        figure = f'<div role="img" aria-label="{escape(self.alt)}">{both}</div>'
        return f'<figure class="chart">{figure}{render_caption(self.look, self.caption)}</figure>'


@dataclass(frozen=True)
class Picture:
    """One PNG or JPEG; with `is_pixelated`, each of its pixels is a square of the page."""

    image: bytes
    alt: str
    look: str = ""
    caption: str = ""
    is_pixelated: bool = False

    def render(self) -> str:
        """Return the image with its caption."""
        kind = "picture pixels" if self.is_pixelated else "picture"
        return f'<figure class="{kind}">{embed_image(self.image, self.alt)}{render_caption(self.look, self.caption)}</figure>'


@dataclass(frozen=True)
class MapGrid:
    """Maps by row and column, e.g. attention by layer and head, with the name of each row and column."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[bytes]]]
    photo: bytes
    """The image that the maps are of."""

    def render(self) -> str:
        """Return a grid that scrolls sideways where it is too wide."""
        cells = embed_image(self.photo, "") + "".join(f"<span>{escape(name)}</span>" for name in self.columns)
        for label, images in self.rows:
            maps = (embed_image(image, f"{label}, {column}") for image, column in zip(images, self.columns, strict=True))
            cells += f"<span>{escape(label)}</span>{''.join(maps)}"
        return f'<div class="scroll" tabindex="0"><div class="maps" style="--columns:{len(self.columns)}">{cells}</div></div>'


@dataclass(frozen=True)
class Strip:
    """Images side by side at any width, each with a short caption."""

    images: Sequence[tuple[bytes, str]]

    def render(self) -> str:
        """Return one row of figures."""
        figures = (
            f"<figure>{embed_image(image, name)}<figcaption>{escape(name)}</figcaption></figure>" for image, name in self.images
        )
        return f'<div class="strip" style="--columns:{len(self.images)}">{"".join(figures)}</div>'


@dataclass(frozen=True)
class Frames:
    """Photographs of one height at their own aspect ratio, each with a short caption."""

    images: Sequence[tuple[bytes, str]]
    alt: str

    def render(self) -> str:
        """Return a list of figures."""
        figures = (
            f"<figure>{embed_image(image, f'{self.alt}, {caption}')}<figcaption>{escape(caption)}</figcaption></figure>"
            for image, caption in self.images
        )
        return f'<ul class="frames">{"".join(f"<li>{figure}</li>" for figure in figures)}</ul>'


@dataclass(frozen=True)
class Tiles:
    """Many small images, each with a short caption."""

    images: Sequence[tuple[bytes, str]]
    alt: str

    def render(self) -> str:
        """Return a grid of figures."""
        figures = (
            f"<figure>{embed_image(image, f'{self.alt} {number}')}<figcaption>{escape(caption)}</figcaption></figure>"
            for number, (image, caption) in enumerate(self.images)
        )
        return f'<div class="tiles">{"".join(figures)}</div>'


@dataclass(frozen=True)
class ColourScale:
    """The colours of maps, with the values at both ends; a signed scale is clear in the middle."""

    low: str
    high: str
    is_signed: bool = False

    def render(self) -> str:
        """Return a bar of colours above the values."""
        colours = f"{LESS}, transparent, {MORE}" if self.is_signed else ", ".join(list_sequential_colours())
        ends = "".join(f"<b>{escape(end)}</b>" for end in (self.low, *(("0",) if self.is_signed else ()), self.high))
        return f'<div class="colours"><i style="background:linear-gradient(90deg, {colours})"></i><span>{ends}</span></div>'
