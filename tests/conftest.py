"""Fixtures of several packages: real weights and images, which are outside the project, a cache folder, and short runs.

No test may fail by chance. Hypothesis draws the same examples each time without a time limit, and torch is seeded before each
test, because which files share a process depends on how long others took.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed torch before the fixtures are made, if it is imported."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def assets() -> Path:
    """Folder of real weights and images: `VITRINE_ASSETS`, else `shared/assets` beside the checkout; skips without it."""
    beside = Path(__file__).parent.parent.parent / "shared" / "assets"
    folder = Path(os.environ.get("VITRINE_ASSETS", beside))
    if not folder.is_dir():
        pytest.skip(f"real weights and images are not at {folder}: set VITRINE_ASSETS to their folder")
    return folder


@pytest.fixture(scope="session", autouse=True)
def no_user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests out of the user's cache, where data opened once is remembered as verified."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """Undo `nohup`, whose effect the tests of signals would inherit: runs go on after a SIGHUP that their parent ignores."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test, in place of the user's."""
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def short_runs() -> Iterator[None]:
    """Train without drawing curves, which takes as long as a short run, and without advancing the global generator."""
    import torch

    from vitrine.run import run

    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setattr(run, "write_run_report", lambda *arguments: None)
        yield
