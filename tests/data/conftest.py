"""Fixtures of several tests of data."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def torch_warns_always() -> Iterator[None]:
    """Let torch warn of read-only arrays every time, not once per process, which another test may have used up."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)
