"""What a check found, with thumbnails, on one page."""

import io
from collections.abc import Sequence
from pathlib import Path

from vitrine.core.page import Figure, Gallery, Part, Section, Table, write_page
from vitrine.data.check import Check, Finding, FindingKind, Place
from vitrine.data.decode import BadImage

THUMBNAIL = 150
MOST_SHOWN = 40  # findings of a kind; the others are in the JSON
MOST_COPIES = 12  # images of a group

CAPTIONS: dict[FindingKind, str] = {
    "unreadable": "No image comes out of these files.",
    "two labels": "The same picture under different labels: at most one of them can be right.",
    "in two splits": "What a model is tested on, it must not have seen in training.",
    "exact copies": "Stored more than once, byte for byte.",
    "near copies": "The same picture more than once: compressed, resized, made brighter or cut differently; or two that were "
    "taken at nearly the same moment.",
    "no training images": "Classes that are tested and never shown.",
    "suspicious": "These can be read, and are worth a look.",
    "label suspect": "Their neighbours in the model's feature space have another label. Some are mistakes of labelling, others "
    "only images that look like another class.",
}


def write_check(check: Check, path: Path, title: str) -> None:
    """A section for each kind of finding, the numbers of images, and their sizes."""
    sections = []
    for kind, caption in CAPTIONS.items():
        found = [finding for finding in check.findings if finding.kind == kind]
        if found:
            more = f" The first {MOST_SHOWN} of {len(found)}." if len(found) > MOST_SHOWN else ""
            parts = show_all(check, found[:MOST_SHOWN])
            sections.append(Section(f"{kind.capitalize()}: {len(found)}", caption + more, parts))
    sections.append(Section("Images of each class", "By split.", [build_class_table(check)]))
    total = sum(map(len, check.sources.values()))
    verdict = "Nothing is wrong." if check.is_clean else "Something is wrong."
    write_page(path, f"Check of {title}", f"{total:,} images. {verdict}", sections)


def show_all(check: Check, findings: Sequence[Finding]) -> list[Part]:
    if all(len(finding.places) == 1 for finding in findings):  # side by side
        return [Gallery([show(check, finding.places[0], finding.detail) for finding in findings])]
    if not any(finding.places for finding in findings):
        return [Table(("what",), [(finding.detail,) for finding in findings])]
    return [show_group(check, finding) for finding in findings]


def show_group(check: Check, finding: Finding) -> Gallery:
    figures = [
        show(check, place, "" if number else finding.detail) for number, place in enumerate(finding.places[:MOST_COPIES])
    ]
    more = len(finding.places) - MOST_COPIES
    return Gallery(figures if more <= 0 else [*figures, Figure(None, f"and {more:,} more")])


def show(check: Check, place: Place, detail: str) -> Figure:
    words = [check.name(place), " and ".join(check.classes(place)), detail]
    return Figure(draw_thumbnail(check, place), " · ".join(word for word in words if word))


def draw_thumbnail(check: Check, place: Place) -> bytes | None:
    """JPEG; None of what cannot be read."""
    try:
        image = check.sources[place.split].read(place.number)[0].image()
    except BadImage:
        return None
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return content.getvalue()


def build_class_table(check: Check) -> Table:
    counts = check.count_classes()
    names = sorted({name for source in check.sources.values() for name in source.class_names})
    by_name = {
        split: dict(zip(source.class_names, counts[split].tolist(), strict=True)) for split, source in check.sources.items()
    }
    rows = [(name, *(f"{by_name[split].get(name, 0):,}" for split in counts)) for name in names]
    return Table(("class", *(split or "images" for split in counts)), rows)
