"""Bug: a fault to be planted in a copy of the project, as the lists of `planted_bugs.py` have them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str
    package: str
    """Folder whose tests, under tests/, are stage 2: that of the changed file, or one above it; empty for a module in none."""
    what: str
    """The fault: which function does what wrong."""
    file: str
    """Relative to src/vitrine."""
    old: str
    """Occurs exactly once in the file."""
    new: str
