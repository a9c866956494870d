"""Devices that are there, and that are not."""

import pytest

from vitrine.core.device import require_device


def test_the_processor_is_always_there() -> None:
    require_device("cpu")


@pytest.mark.parametrize("name", ["toaster", "cuda:99"])
def test_another_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(ValueError, match=f"--device {name} is not on this machine: take cpu"):
        require_device(name)
