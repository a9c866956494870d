"""The page of `vitrine data check`: every kind of issue with thumbnails, and the images of each class."""

from collections.abc import Sequence
from pathlib import Path

from vitrine.core.console import join_names
from vitrine.core.figures import encode_photo
from vitrine.core.html_report import Page, Section, write_page
from vitrine.core.page_images import Exhibit, Gallery
from vitrine.core.page_parts import Details, Paragraph, Part, Row, Table, link_file
from vitrine.data.image import BadImage
from vitrine.data.quality.check import DataCheck, ImageRef, Issue, IssueKind

MAX_SHOWN = 20  # issues of a kind; the others are in the JSON
MAX_COPIES = 6  # images of a group
MAX_OPEN_CLASSES = 20  # more are folded away

CAPTIONS: dict[IssueKind, str] = {
    "unreadable": "These files cannot be decoded.",
    "two labels": "The same picture under different labels: at most one of them can be right.",
    "in two splits": "A model must not be tested on images that it was trained on.",
    "exact copies": "The same file more than once, byte for byte.",
    "near copies": "The same picture more than once: compressed, resized, brightened or cropped differently; or two "
    "photographs taken at nearly the same moment.",
    "no training images": "Classes with test images and no training images.",
    "empty class folder": "Folders without images beside class folders: they do not become classes.",
    "single image": "The only training image of its class: a second one is needed to hold one out, and more to learn from.",
    "suspicious": "These can be read, and are worth a look.",
    "label suspect": "Their nearest neighbours in the model's feature space have another label. Some are labelling mistakes, "
    "others only look like another class.",
}


def write_check_report(check: DataCheck, path: Path, title: str, command: str | None = None) -> None:
    """Write a page with a section for each kind of issue and a table of classes; `command` is shown below."""
    sections = []
    for kind, caption in CAPTIONS.items():
        issues = [issue for issue in check.issues if issue.kind == kind]
        if issues:
            more = f" The first {MAX_SHOWN} of {len(issues):,}." if len(issues) > MAX_SHOWN else ""
            parts = build_issues(check, issues[:MAX_SHOWN], path)
            sections.append(Section(f"{kind.capitalize()}: {len(issues):,}", kind.capitalize(), caption + more, parts))
    sections.append(build_class_section(check))
    page = Page(
        kind="Data check",
        title=describe_result(check, title),
        lede=describe_kinds(check),
        facts=[("Data", title), *((split or "All", f"{len(source):,} images") for split, source in check.sources.items())][:6],
        sections=sections,
        command=command,
        remarks=["all issues with --json, images to leave out with --leave-out"],
    )
    write_page(path, page)


def describe_result(check: DataCheck, title: str) -> str:
    """Return the number of errors as a sentence."""
    total = sum(map(len, check.sources.values()))
    num_errors = sum(issue.is_error for issue in check.issues)
    found = "No errors" if num_errors == 0 else "1 error" if num_errors == 1 else f"{num_errors:,} errors"
    return f"{found} in the {total:,} images of {Path(title).name or title}"


def describe_kinds(check: DataCheck) -> str:
    """Return the number of issues of each kind."""
    counts = {kind: sum(issue.kind == kind for issue in check.issues) for kind in CAPTIONS}
    found = [f"{count:,} {kind}" for kind, count in counts.items() if count]
    return f"Found: {join_names(found)}." if found else "Every image can be read, and none is a copy of another."


def build_issues(check: DataCheck, issues: Sequence[Issue], page: Path) -> list[Part]:
    """Show issues of one kind: single images side by side, groups below each other, classes as a table."""
    if all(len(issue.images) == 1 for issue in issues):
        return [Gallery([build_exhibit(check, issue.images[0], issue.detail, page) for issue in issues])]
    if not any(issue.images for issue in issues):
        return [Table(("what",), [(issue.detail,) for issue in issues])]
    return [build_group(check, issue, page) for issue in issues]


def build_group(check: DataCheck, issue: Issue, page: Path) -> Row:
    """Show the copies of a group below what they have in common."""
    parts: list[Part] = [Gallery([build_exhibit(check, image, "", page) for image in issue.images[:MAX_COPIES]])]
    more = len(issue.images) - MAX_COPIES
    if more > 0:
        parts.append(Paragraph(f"and {more:,} more", is_small=True))
    return Row(issue.detail, parts)


def build_exhibit(check: DataCheck, image: ImageRef, detail: str, page: Path) -> Exhibit:
    """Show one image as a thumbnail with its labels, a detail and its name, which leads to the file."""
    file = check.sources[image.split].image_path(image.index)
    return Exhibit(
        draw_thumbnail(check, image),
        title=" and ".join(check.classes(image)),
        after=image.split or "",
        lines=[detail] if detail else [],
        name=check.name(image),
        url=None if file is None else link_file(file, page),
    )


def draw_thumbnail(check: DataCheck, image: ImageRef) -> bytes | None:
    """Return a small photograph; None for an unreadable image."""
    try:
        return encode_photo(check.sources[image.split].read(image.index)[0].to_pil())
    except BadImage:
        return None


def build_class_section(check: DataCheck) -> Section:
    """Build the table of the images of each class by split."""
    counts = check.count_classes()
    names = sorted({name for source in check.sources.values() for name in source.class_names})
    by_name = {
        split: dict(zip(source.class_names, counts[split].tolist(), strict=True)) for split, source in check.sources.items()
    }
    rows = [(name, *(f"{by_name[split].get(name, 0):,}" for split in counts)) for name in names]
    columns = ("class", *(split or "images" for split in counts))
    parts: list[Part] = [Table(columns, rows[:MAX_OPEN_CLASSES])]
    if len(rows) > MAX_OPEN_CLASSES:
        parts.append(Details(f"{len(rows) - MAX_OPEN_CLASSES:,} more classes", [Table(columns, rows[MAX_OPEN_CLASSES:])]))
    return Section(f"Images of each of {len(names):,} classes", "Classes", "By split.", parts)
