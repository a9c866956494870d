"""Foreign words in our sentences: names from a file, errors of a library, on one line and of readable length."""

from collections.abc import Sequence


def list_names(names: Sequence[str], limit: int = 8) -> str:
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def summarise(error: BaseException) -> str:
    """The first sentence of an error."""
    line = next(iter(str(error).strip().splitlines()), "")
    return (line.split(". ")[0].rstrip(". ") or type(error).__name__)[:200]
