"""Configurations of data: every way to write a subset, every check, and that no torch is needed to make them."""

import re
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig, Subset

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

WRONG_SUBSETS = [
    *("", " ", "%", "/", "/class", "abc", "All", "all/class", "all%", "ten", "0x10", "5 images"),
    *("0", "0%", "0.0", "00", "0/class", "0%/class", "-1", "-0.1", "-10%", "-0", "1e-400"),
    *("101%", "1.1", "2.0", "1e3", "100.1%", "500%"),
    *("nan", "inf", "-inf", "nan%", "inf%", "infinity/class"),
    *("5/klass", "5/", "5/class/class", "5/ class", "5/Class", "5%%", "%5", "1,5", "1/2", "½", "²"),
]

# Not one of the forms in the sentence, and each was read as the share 1.0, all of the images, where a person means one image.
ONES = ["+1", "\uff11", "\u0661", "1 /class", "\uff11/class", "+1/class", "1_"]


@pytest.mark.parametrize("text", SUBSETS)
def test_subsets(text: str) -> None:
    amount, per_class = SUBSETS[text]
    subset = Subset.parse(text)
    assert (subset.amount, subset.per_class) == (amount, per_class)
    assert type(subset.amount) is type(amount)  # 1 is an image and 1.0 is all of them
    assert DataConfig(subset=text).subset == text


@pytest.mark.parametrize("text", WRONG_SUBSETS)
def test_what_is_no_subset_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"subset={text!r} must be a share, as 10% or 0.1, or a number")):
        Subset.parse(text)
    with pytest.raises(ValueError, match=re.escape(f"subset={text!r}")):
        DataConfig(subset=text)


@pytest.mark.parametrize("text", ONES)
def test_one_image_is_never_read_as_all(text: str) -> None:
    try:
        subset = Subset.parse(text)
    except ValueError as error:
        assert str(error).startswith(f"subset={text!r} must be")  # noqa: PT017 - either answer would be right
        return
    assert (subset.amount, type(subset.amount)) == (1, int)


@pytest.mark.parametrize("text", ["\uff11\uff10%", "\u0665\u0660%", "\uff10.\uff15", "1_0%", "0.1_5"])
def test_only_plain_digits_are_a_share(text: str) -> None:
    """As for numbers: fullwidth 500 and 1_000 are refused, so their like must not pass because Python's float is generous."""
    with pytest.raises(ValueError, match="must be a share"):
        Subset.parse(text)


def test_a_number_too_long_for_python_gets_our_sentence() -> None:
    with pytest.raises(ValueError, match=r"subset='9+' must be a share"):
        Subset.parse("9" * 5000)


@given(st.text(max_size=8))
@settings(deadline=None)
def test_any_text_is_a_subset_or_a_sentence(text: str) -> None:
    try:
        subset = Subset.parse(text)
    except ValueError as error:
        assert str(error).startswith(f"subset={text!r} must be a share")  # noqa: PT017
        return
    assert subset.amount >= 1 if isinstance(subset.amount, int) else 0 < subset.amount <= 1


@pytest.mark.parametrize("value", [0.1, 500, None, True])
def test_a_subset_that_is_not_text_is_said(value: object) -> None:
    with pytest.raises(ValueError, match=f"subset={value}"):
        DataConfig(subset=value)


@pytest.mark.parametrize(
    ("config", "settings", "sentence"),
    [
        (DataConfig, {"held_out": 1}, "held_out=1 must be at least 0 and below 1, as 0.1 for a tenth."),
        (DataConfig, {"held_out": -0.1}, "held_out=-0.1 must be at least 0 and below 1, as 0.1 for a tenth."),
        (DataConfig, {"held_out": float("nan")}, "held_out=nan must be a number."),
        (DataConfig, {"held_out": "0.1"}, "held_out='0.1' must be a number."),
        (DataConfig, {"bad_images": "ignore"}, "bad_images='ignore' must be one of error, skip."),
        (DataConfig, {"in_memory": 1}, "in_memory=1 must be True or False."),
        (DataConfig, {"subset_seed": 0.5}, "subset_seed=0.5 must be a whole number."),
        (AugmentConfig, {"crop": "centre"}, "crop='centre' must be one of inception, random, pad, none."),
        (AugmentConfig, {"crop_area": (0.0, 1.0)}, "crop_area=(0.0, 1.0) must be two shares, the smaller first, above 0"),
        (AugmentConfig, {"crop_area": (0.5, 1.01)}, "crop_area=(0.5, 1.01) must be two shares"),
        (AugmentConfig, {"crop_area": (0.6, 0.5)}, "crop_area=(0.6, 0.5) must be two shares"),
        (AugmentConfig, {"crop_area": (0.5,)}, "crop_area=(0.5,) must be two shares"),
        (AugmentConfig, {"crop_area": [0.5, 1.0]}, "crop_area=[0.5, 1.0] must be two shares"),
        (AugmentConfig, {"crop_area": 0.5}, "crop_area=0.5 must be two shares"),
        (AugmentConfig, {"crop_area": ("a", "b")}, "crop_area=('a', 'b') must be two shares"),
        (AugmentConfig, {"crop_area": (float("nan"), 1.0)}, "crop_area=(nan, 1.0) must be two shares"),
        (AugmentConfig, {"crop_ratio": (0.0, 1.0)}, "crop_ratio=(0.0, 1.0) must be two numbers above 0, the smaller first."),
        (AugmentConfig, {"crop_ratio": (-1.0, 1.0)}, "crop_ratio=(-1.0, 1.0) must be two numbers above 0"),
        (AugmentConfig, {"crop_ratio": (2.0, 1.0)}, "crop_ratio=(2.0, 1.0) must be two numbers above 0"),
        (AugmentConfig, {"crop_ratio": (1.0, float("inf"))}, "crop_ratio=(1.0, inf) must be two numbers above 0"),
        (AugmentConfig, {"crop_ratio": (1, 10**400)}, "must be two numbers above 0"),
        (AugmentConfig, {"crop": "random", "resize": 0}, "resize=0 must be at least 1."),
        (AugmentConfig, {"resize": 256}, "resize=256 belongs to crop='random', and crop is 'inception': leave it out."),
        (AugmentConfig, {"crop": "random", "resize": 2.5}, "resize=2.5 must be a whole number."),
        (AugmentConfig, {"padding": -1}, "padding=-1 must be at least 0."),
        (AugmentConfig, {"interpolation": "lanczos"}, "interpolation='lanczos' must be one of bilinear, bicubic."),
        (AugmentConfig, {"flip": "yes"}, "flip='yes' must be True or False."),
        (AugmentConfig, {"rand_augment_ops": -1}, "rand_augment_ops=-1 must be at least 0."),
        (AugmentConfig, {"rand_augment_magnitude": -0.5}, "rand_augment_magnitude=-0.5 must be"),
        (AugmentConfig, {"rand_augment_magnitude": float("inf")}, "rand_augment_magnitude=inf must be a number."),
        # RandAugment takes up to 100: a run must fail here, not when its transform is built.
        (AugmentConfig, {"rand_augment_ops": 2, "rand_augment_magnitude": 101.0}, "rand_augment_magnitude=101.0 must be"),
        (AugmentConfig, {"erase_rate": 1.5}, "erase_rate=1.5 must be between 0 and 1."),
        (AugmentConfig, {"erase_rate": -0.5}, "erase_rate=-0.5 must be between 0 and 1."),
        (AugmentConfig, {"erase_fill": "black"}, "erase_fill='black' must be one of noise, grey."),
        (LoaderConfig, {"batch_size": 0}, "batch_size=0 must be at least 1."),
        (LoaderConfig, {"batch_size": 2.0}, "batch_size=2.0 must be a whole number."),
        (LoaderConfig, {"batch_size": True}, "batch_size=True must be a whole number."),
        (LoaderConfig, {"last": "pad"}, "last='pad' must be one of wrap, drop, keep."),
        (LoaderConfig, {"num_workers": -1}, "num_workers=-1 must be at least 0."),
        (LoaderConfig, {"num_workers": 1.5}, "num_workers=1.5 must be a whole number."),
        (LoaderConfig, {"prefetch": 0}, "prefetch=0 must be at least 1."),
    ],
)
def test_what_cannot_be_is_said(config: type, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        config(**settings)


def test_limits_themselves_are_allowed() -> None:
    AugmentConfig(crop_area=(1.0, 1.0), crop_ratio=(1, 1), padding=0, rand_augment_magnitude=0, erase_rate=1)
    AugmentConfig(crop="random", resize=1)
    AugmentConfig(rand_augment_ops=2, rand_augment_magnitude=20.0)
    DataConfig(held_out=0, subset_seed=-5)
    LoaderConfig(batch_size=1, num_workers=0, prefetch=1)


@pytest.mark.parametrize("config", [DataConfig, AugmentConfig, LoaderConfig])
def test_a_config_is_frozen_and_takes_names_only(config: type) -> None:
    made = config()
    assert made == config()
    with pytest.raises(FrozenInstanceError):
        made.seed = 1
    with pytest.raises(TypeError):
        config("shapes")


def test_no_torch_is_needed() -> None:
    code = "import sys; from vitrine.data.config import *; AugmentConfig(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
