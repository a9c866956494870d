"""Data that cannot be opened."""

from pathlib import Path

import pytest

from vitrine.data.dataset_format import DatasetFormat


def fail_to_open(kind: DatasetFormat, path: Path, split: str | None) -> str:
    """The one sentence that it costs."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        kind.open(path, split)
    text = str(caught.value)
    assert "\n" not in text
    assert type(caught.value) in (ValueError, FileNotFoundError)
    return text
