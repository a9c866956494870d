"""Configs of the data: notations of a subset, checks of every field, and imports without torch."""

import re
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig, MixupConfig, Subset

SUBSETS = {
    "all": (1.0, False),
    "10%": (0.1, False),
    "0.1": (0.1, False),
    ".5": (0.5, False),
    "1e-3": (0.001, False),
    "0.5%": (0.005, False),
    "100%": (1.0, False),
    "1.0": (1.0, False),
    "1": (1, False),
    "500": (500, False),
    "007": (7, False),
    " 5 ": (5, False),
    "5/class": (5, True),
    "1/class": (1, True),
    "10%/class": (0.1, True),
    "0.25/class": (0.25, True),
    "100%/class": (1.0, True),
    "1000000000000": (10**12, False),
}

INVALID_SUBSETS = [
    *("", " ", "%", "/", "/class", "abc", "All", "all/class", "all%", "ten", "0x10", "5 images"),
    *("0", "0%", "0.0", "00", "0/class", "0%/class", "-1", "-0.1", "-10%", "-0", "1e-400"),
    *("101%", "1.1", "2.0", "1e3", "100.1%", "500%", "9" * 5000),
    *("nan", "inf", "-inf", "nan%", "inf%", "infinity/class"),
    *("5/klass", "5/", "5/class/class", "5/ class", "5/Class", "5%%", "%5", "1,5", "1/2", "½", "²"),
    # Python's float would accept other digits and underscores.
    *("\uff11\uff10%", "\u0665\u0660%", "\uff10.\uff15", "1_0%", "0.1_5"),
]

# A person means one image; read as the fraction 1.0, they would be all images.
ONES = ["+1", "\uff11", "\u0661", "1 /class", "\uff11/class", "+1/class", "1_"]


@pytest.mark.parametrize("text", SUBSETS)
def test_subsets(text: str) -> None:
    amount, per_class = SUBSETS[text]
    subset = Subset.parse(text)
    assert (subset.amount, subset.per_class) == (amount, per_class)
    assert type(subset.amount) is type(amount)  # 1 is one image, 1.0 is all of them
    assert DataConfig(subset=text).subset == text


@pytest.mark.parametrize("text", INVALID_SUBSETS)
def test_invalid_subsets(text: str) -> None:
    for call in (Subset.parse, lambda text: DataConfig(subset=text)):
        with pytest.raises(ValueError, match=re.escape(f"subset={text!r}")):
            call(text)


@pytest.mark.parametrize("text", ONES)
def test_one_image_is_never_read_as_all(text: str) -> None:
    try:
        subset = Subset.parse(text)
    except ValueError:
        return
    assert (subset.amount, type(subset.amount)) == (1, int)


@given(st.text(max_size=8))
@settings(deadline=None)
def test_any_text_is_a_subset_or_an_error_that_quotes_it(text: str) -> None:
    try:
        subset = Subset.parse(text)
    except ValueError as error:
        assert str(error).startswith(f"subset={text!r} ")  # noqa: PT017
        return
    assert subset.amount >= 1 if isinstance(subset.amount, int) else 0 < subset.amount <= 1


@pytest.mark.parametrize("value", [0.1, 500, None, True])
def test_subset_must_be_text(value: object) -> None:
    with pytest.raises(ValueError, match=f"subset={value}"):
        DataConfig(subset=value)


INVALID: dict[type, list[tuple[str, object]]] = {
    DataConfig: [
        ("held_out", 1),
        ("held_out", -0.1),
        ("held_out", float("nan")),
        ("held_out", "0.1"),
        ("bad_images", "ignore"),
        ("in_memory", 1),
        ("subset_seed", 0.5),
        ("exclude", "names.txt"),
    ],
    AugmentConfig: [
        ("crop", "centre"),
        *(("crop_area", value) for value in [(0.0, 1.0), (0.5, 1.01), (0.6, 0.5), (0.5,), [0.5, 1.0], 0.5, ("a", "b")]),
        ("crop_area", (float("nan"), 1.0)),
        *(("crop_ratio", value) for value in [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (1.0, float("inf")), (1, 10**400)]),
        ("padding", -1),
        ("interpolation", "lanczos"),
        ("flip", "yes"),
        ("rand_augment_ops", -1),
        ("rand_augment_magnitude", -0.5),
        ("rand_augment_magnitude", float("inf")),
        ("rand_augment_magnitude", 101.0),
        ("erase_rate", 1.5),
        ("erase_rate", -0.5),
        ("erase_fill", "black"),
    ],
    MixupConfig: [
        (name, alpha) for name in ("mixup", "cutmix") for alpha in (-0.1, 1e-4, 1001.0, float("nan"), float("inf"), "0.2")
    ],
    LoaderConfig: [
        ("batch_size", 0),
        ("batch_size", 2.0),
        ("batch_size", True),
        ("last", "pad"),
        ("num_workers", -1),
        ("num_workers", 1.5),
        ("prefetch", 0),
    ],
}


@pytest.mark.parametrize(("config", "name", "value"), [(config, *each) for config, cases in INVALID.items() for each in cases])
def test_invalid_values_are_named_in_the_error(config: type, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r} ")):
        config(**{name: value})


@pytest.mark.parametrize("resize", [0, 2.5])
def test_invalid_resize_of_a_random_crop(resize: object) -> None:
    with pytest.raises(ValueError, match=f"resize={resize}"):
        AugmentConfig(crop="random", resize=resize)


def test_limits_are_inclusive() -> None:
    AugmentConfig(crop_area=(1.0, 1.0), crop_ratio=(1, 1), padding=0, rand_augment_magnitude=0, erase_rate=1)
    AugmentConfig(crop="random", resize=1)
    AugmentConfig(rand_augment_ops=2, rand_augment_magnitude=20.0)
    DataConfig(held_out=0, subset_seed=-5)
    LoaderConfig(batch_size=1, num_workers=0, prefetch=1)
    MixupConfig(mixup=1e-3, cutmix=1e3)


@pytest.mark.parametrize("config", [DataConfig, AugmentConfig, LoaderConfig, MixupConfig])
def test_configs_are_frozen_and_keyword_only(config: type) -> None:
    made = config()
    assert made == config()
    with pytest.raises(FrozenInstanceError):
        made.seed = 1
    with pytest.raises(TypeError):
        config("shapes")


def test_configs_need_no_torch() -> None:
    code = "import sys; from vitrine.data.config import *; AugmentConfig(); MixupConfig(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
