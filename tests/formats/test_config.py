"""What a user may say of a checkpoint is checked when it is said, and costs no import of torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.formats.config import Overrides


def test_nothing_need_be_said() -> None:
    assert set(vars(Overrides()).values()) == {None}


@pytest.mark.parametrize("preprocess", ["imagenet", "inception", Path("a.json"), build_imagenet_preprocessing((224, 224))])
def test_what_may_be_said(preprocess: object) -> None:
    overrides = Overrides(gelu="erf", norm_eps=1e-5, num_heads=3, grid=(14, 21), preprocess=preprocess)
    assert (overrides.gelu, overrides.norm_eps, overrides.num_heads, overrides.grid, overrides.preprocess) == ("erf", 1e-5, 3, (14, 21), preprocess)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gelu", "quick", "gelu='quick' must be one of tanh, erf."),
        ("norm_eps", 0.0, "norm_eps=0.0 must be above 0."),
        ("norm_eps", float("nan"), "norm_eps=nan must be a number."),
        ("norm_eps", "1e-6", "norm_eps='1e-6' must be a number."),
        ("num_heads", 0, "num_heads=0 must be above 0."),
        ("num_heads", 2.0, "num_heads=2.0 must be a whole number."),
        ("num_heads", True, "num_heads=True must be a whole number."),
        ("grid", (0, 14), "grid=(0, 14) must be a tuple of whole numbers of at least 1: rows and columns, as (14, 14)."),
        ("grid", (14, -1), "grid=(14, -1) must be a tuple of whole numbers of at least 1: rows and columns, as (14, 14)."),
        ("grid", 14, "grid=14"),
        ("grid", (14,), "grid=(14,)"),
        ("grid", (2, 3, 4), "grid=(2, 3, 4)"),
        ("grid", (1.5, 2), "grid=(1.5, 2)"),
    ],
)
def test_mistakes_cost_a_sentence(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Overrides(**{name: value})


def test_configuration_needs_no_torch() -> None:
    code = "import sys, vitrine.formats.config; assert not {'torch', 'numpy', 'PIL', 'safetensors'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
