"""Checks of the errors of datasets that cannot be opened."""

from pathlib import Path

import pytest

from vitrine.data.dataset_format import DatasetFormat


def fail_to_open(dataset_format: DatasetFormat, path: Path, split: str | None) -> str:
    """Return the message of the error, which must be one line and of a documented type, not e.g. a JSONDecodeError."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        dataset_format.open(path, split)
    text = str(caught.value)
    assert "\n" not in text
    assert type(caught.value) in (ValueError, FileNotFoundError)
    return text
