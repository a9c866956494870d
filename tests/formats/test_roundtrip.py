"""Model -> file -> model, for every format: the same bits where the layout is one-to-one, the same logits where it folds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.formats import cases
from tests.formats.cases import ENDINGS, assert_same_weights, forget, load_quietly, make_checkpoint, run, save_quietly
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.config import FORMAT_NAMES, FormatName, Overrides
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig

# What each format must be able to hold without any change; tests of the formats themselves look closer.
HELD: dict[FormatName, list[ModelConfig]] = {
    "vitrine": [cases.VIT, cases.OBLONG, cases.HYBRID, cases.ROOT_HYBRID, cases.BIT],
    "google-2020": [cases.VIT, cases.OBLONG, cases.HYBRID, cases.ROOT_HYBRID],
    "google-linen": [cases.VIT, cases.OBLONG, cases.HYBRID, cases.ROOT_HYBRID],
    "big-vision": [
        replace(cases.VIT, pool="mean"),
        replace(cases.OBLONG, pool="map"),
        replace(cases.VIT, class_position=False),
        replace(cases.OBLONG, pool="mean", position="sincos-2d"),
    ],
    "bit": [cases.BIT],
    "timm": [cases.VIT, cases.OBLONG, cases.HYBRID, cases.ROOT_HYBRID, cases.BIT],
    "hf": [cases.VIT, cases.OBLONG, cases.BIT],
    "torchvision": [cases.VIT, cases.OBLONG],
}


@pytest.mark.parametrize(("form", "config"), [(form, config) for form, held in HELD.items() for config in held])
def test_held_as_it_is(form: FormatName, config: ModelConfig, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(config)
    path = tmp_path / f"out{ENDINGS[form]}"
    save_quietly(checkpoint, path, form)
    again = load_quietly(path)
    assert again.model.config == config
    assert_same_weights(again.model, checkpoint.model)
    assert again.preprocessing == checkpoint.preprocessing
    assert again.class_names == checkpoint.class_names
    assert again.provenance["trained"] == "for a test"


ANY = st.one_of(cases.vits(), cases.hybrids(), cases.resnets())
# Half of what is drawn is of a kind that the format is made for, so that not everything is refused.
DRAWN: dict[FormatName, st.SearchStrategy[ModelConfig]] = {
    "vitrine": ANY,
    "google-2020": st.one_of(cases.plain_vits(("class", "mean")), cases.hybrids(), ANY),
    "google-linen": st.one_of(cases.plain_vits(("class", "mean")), cases.hybrids(), ANY),
    "big-vision": st.one_of(cases.plain_vits(("class", "mean", "map")), cases.vits()),
    "bit": cases.resnets(),
    "timm": ANY,
    "hf": st.one_of(cases.plain_vits(), cases.resnets()),
    "torchvision": cases.plain_vits(),
}
SETTINGS = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("form", FORMAT_NAMES)
def test_any_shape(form: FormatName, tmp_path: Path) -> None:
    path = tmp_path / f"out{ENDINGS[form]}"
    num_held = 0

    @SETTINGS
    @given(config=DRAWN[form])
    def check(config: ModelConfig) -> None:
        nonlocal num_held
        checkpoint = make_checkpoint(config)
        if is_held(checkpoint, path, form):
            num_held += 1
            assert_same(load_quietly(path), checkpoint)

    check()
    assert num_held >= 8  # a format that refuses everything proves nothing


def assert_same(again: Checkpoint, checkpoint: Checkpoint) -> None:
    assert again.preprocessing == checkpoint.preprocessing
    if again.model.config == checkpoint.model.config:
        event("the same bits")
        assert_same_weights(again.model, checkpoint.model)
    else:
        event("folded")
        torch.testing.assert_close(run(again.model), run(checkpoint.model), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", [form for form in FORMAT_NAMES if form != "vitrine"])
def test_any_shape_without_our_description(form: FormatName, tmp_path: Path) -> None:
    """From the tensors alone, as of a stranger's file, and the user's word on what they do not tell."""
    path = tmp_path / f"out{ENDINGS[form]}"
    num_held = 0

    @SETTINGS
    @given(config=DRAWN[form])
    def check(config: ModelConfig) -> None:
        nonlocal num_held
        checkpoint = make_checkpoint(config)
        if has_unusual_groups(config) or not is_held(checkpoint, path, form):
            return
        num_held += 1
        again = load_quietly(forget(path), tell(config, form), image_size=config.image_size)
        # Ported ResNets compute with an epsilon of 1e-8 where the original has 1e-10.
        tolerance = 1e-4 if isinstance(config, ResNetConfig) else 1e-6
        torch.testing.assert_close(run(again.model), run(checkpoint.model), rtol=tolerance, atol=tolerance)

    check()
    assert num_held >= 4


def tell(config: ModelConfig, form: FormatName) -> Overrides:
    """What its tensors do not show: the files of Google show their heads, a folder of Hugging Face says it all."""
    if not isinstance(config, ViTConfig) or form == "hf":
        return Overrides()
    gelu = config.gelu if config.mlp == "gelu" else None
    num_heads = config.num_heads if form in ("timm", "torchvision") else None
    return Overrides(gelu=gelu, norm_eps=config.norm_eps, num_heads=num_heads, grid=config.grid)


def has_unusual_groups(config: ModelConfig) -> bool:
    """The number of groups of a norm is in no tensor, and 32 in every released file."""
    return any(getattr(config, name, 32) != 32 for name in ("num_groups", "stem_num_groups"))


def is_held(checkpoint: Checkpoint, path: Path, form: FormatName) -> bool:
    try:
        save_quietly(checkpoint, path, form)
    except ValueError as error:
        if form == "vitrine" or not str(error).startswith(f"The format {form} cannot hold "):
            raise
        event("refused")
        return False
    return True
