"""Where real weights and real images are found, outside the project."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def assets() -> Path:
    """`VITRINE_ASSETS`, or `shared/assets` beside the checkout; tests that need it are skipped where it is absent."""
    beside = Path(__file__).parent.parent.parent / "shared" / "assets"
    folder = Path(os.environ.get("VITRINE_ASSETS", beside))
    if not folder.is_dir():
        pytest.skip(f"real weights and images are not at {folder}: set VITRINE_ASSETS to their folder")
    return folder
