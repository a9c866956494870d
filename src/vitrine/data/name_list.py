"""Text files with the name of an image on each line: those to leave out (`data.exclude`)."""

from collections.abc import Iterable
from pathlib import Path

from vitrine.core.files import whole_file


def read_names(path: Path) -> set[str]:
    """Bytes of a name that are no UTF-8 come back as they are in the names of files."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
        if "\0" in text:
            raise OSError("it holds bytes that are no text")
    except OSError as error:
        raise ValueError(f"exclude={path} must be a text file with the name of an image on each line: {error}.") from None
    lines = text.splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("# ")}


def write_names(path: Path, names: Iterable[str], title: str) -> None:
    """In UTF-8; a name that a line cannot hold would not be found again, and is refused."""
    lines = [f"# {title}", *names]
    for name in lines[1:]:
        if name != name.strip() or name.startswith("# ") or len(name.splitlines()) != 1:
            raise ValueError(f"{name!r} cannot stand on a line of {path}: rename the file, and check again.")
    with whole_file(path) as partial:
        partial.write_text("\n".join([*lines, ""]), encoding="utf-8", errors="surrogateescape")
