"""Overrides are checked when they are made, without importing torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.formats.config import Overrides


@pytest.mark.parametrize("preprocess", ["imagenet", "inception", Path("a.json"), build_imagenet_preprocessing((224, 224))])
def test_valid_overrides(preprocess: object) -> None:
    assert set(vars(Overrides()).values()) == {None}
    overrides = Overrides(gelu="erf", norm_eps=1e-5, num_heads=3, grid=(14, 21), pool="first", preprocess=preprocess)
    assert tuple(vars(overrides).values()) == ("erf", 1e-5, 3, (14, 21), "first", preprocess)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gelu", "fast"),
        ("pool", "class"),
        ("norm_eps", 0.0),
        ("norm_eps", float("nan")),
        ("norm_eps", "1e-6"),
        ("num_heads", 0),
        ("num_heads", 2.0),
        ("num_heads", True),
        ("grid", (0, 14)),
        ("grid", (14, -1)),
        ("grid", 14),
        ("grid", (14,)),
        ("grid", (2, 3, 4)),
        ("grid", (1.5, 2)),
        ("preprocess", 3),
    ],
)
def test_bad_values_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        Overrides(**{name: value})


def test_config_needs_no_torch() -> None:
    code = "import sys, vitrine.formats.config; assert not {'torch', 'numpy', 'PIL', 'safetensors'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
