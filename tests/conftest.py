"""What tests of several parts need: real weights and images, which are outside the project, and quick training.

No test may fail by chance. Hypothesis draws the same examples each time and sets no limit on their seconds, and torch draws
the same numbers in a test whatever ran before it: which files share a process depends on how long others took.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the fixtures; tests that do without torch are not made to import it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def assets() -> Path:
    """`VITRINE_ASSETS`, or `shared/assets` beside the checkout; tests that need it are skipped where it is absent."""
    beside = Path(__file__).parent.parent.parent / "shared" / "assets"
    folder = Path(os.environ.get("VITRINE_ASSETS", beside))
    if not folder.is_dir():
        pytest.skip(f"real weights and images are not at {folder}: set VITRINE_ASSETS to their folder")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test keeps features, and not in the user's own cache."""
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def short_runs() -> Iterator[None]:
    """For tests that train: a generator of their own, and no curves, which take as long to draw as such a run."""
    import torch

    from vitrine.run import run

    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setattr(run, "plot_curves", lambda records, path, title: None)
        yield
