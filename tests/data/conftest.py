"""What several tests of data need."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def torch_warns_always() -> Iterator[None]:
    """Of an array that cannot be written to torch warns once in a process, which another test may have used up."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)
