"""Model to file to model for every format: equal weights, or equal logits where class positions are folded."""

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

# Models that each format must hold without any change.
HELD: dict[FormatName, list[ModelConfig]] = {
    "vitrine": [cases.OBLONG, cases.HYBRID, cases.BIT],
    "google-2020": [cases.OBLONG, cases.HYBRID, cases.ROOT_HYBRID],
    "google-linen": [cases.OBLONG, cases.HYBRID],
    "big-vision": [
        replace(cases.VIT, pool="mean"),
        replace(cases.OBLONG, pool="map"),
        replace(cases.VIT, class_position=False),
        replace(cases.OBLONG, pool="mean", position="sincos-2d"),
    ],
    "bit": [cases.BIT],
    "timm": [cases.OBLONG, cases.HYBRID, cases.ROOT_HYBRID, cases.BIT],
    "hf": [cases.OBLONG, cases.BIT],
    "torchvision": [cases.OBLONG],
}


@pytest.mark.parametrize(("fmt", "config"), [(fmt, config) for fmt, held in HELD.items() for config in held])
def test_supported_models_are_read_back_equal(fmt: FormatName, config: ModelConfig, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(config)
    path = tmp_path / f"out{ENDINGS[fmt]}"
    save_quietly(checkpoint, path, fmt)
    again = load_quietly(path)
    assert again.model.config == config
    assert_same_weights(again.model, checkpoint.model)
    assert again.preprocessing == checkpoint.preprocessing
    assert again.class_names == checkpoint.class_names
    assert again.provenance["trained"] == "for a test"


ANY = st.one_of(cases.vits(), cases.hybrids(), cases.resnets())
# Half of the drawn models are of a kind that the format is made for, so that not all are unsupported.
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
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
def test_any_model(fmt: FormatName, tmp_path: Path) -> None:
    path = tmp_path / f"out{ENDINGS[fmt]}"
    num_held = 0

    @SETTINGS
    @given(config=DRAWN[fmt])
    def check(config: ModelConfig) -> None:
        nonlocal num_held
        checkpoint = make_checkpoint(config)
        if not is_saved(checkpoint, path, fmt):
            return
        num_held += 1
        assert_same(load_quietly(path), checkpoint)
        if fmt == "vitrine" or has_unusual_groups(config):
            return
        # From the tensors alone, with overrides for what they do not show.
        again = load_quietly(forget(path), list_overrides(config, fmt), image_size=config.image_size)
        # Ported ResNets have an epsilon of 1e-8 where the original has 1e-10.
        tolerance = 1e-4 if isinstance(config, ResNetConfig) else 1e-6
        torch.testing.assert_close(run(again.model), run(checkpoint.model), rtol=tolerance, atol=tolerance)

    check()
    assert num_held >= 5  # a format that supports nothing would pass otherwise


def assert_same(again: Checkpoint, checkpoint: Checkpoint) -> None:
    assert again.preprocessing == checkpoint.preprocessing
    if again.model.config == checkpoint.model.config:
        event("equal weights")
        assert_same_weights(again.model, checkpoint.model)
    else:
        event("folded")
        torch.testing.assert_close(run(again.model), run(checkpoint.model), rtol=1e-6, atol=1e-6)


def list_overrides(config: ModelConfig, fmt: FormatName) -> Overrides:
    """Return what tensors do not show: Google's files show the heads, Hugging Face's folders state everything."""
    if not isinstance(config, ViTConfig) or fmt == "hf":
        return Overrides()
    gelu = config.gelu if config.mlp == "gelu" else None
    num_heads = config.num_heads if fmt in ("timm", "torchvision") else None
    return Overrides(gelu=gelu, norm_eps=config.norm_eps, num_heads=num_heads, grid=config.grid)


def has_unusual_groups(config: ModelConfig) -> bool:
    """Return whether group norms have other than 32 groups, which no tensor shows."""
    return any(getattr(config, name, 32) != 32 for name in ("num_groups", "stem_num_groups"))


def is_saved(checkpoint: Checkpoint, path: Path, fmt: FormatName) -> bool:
    try:
        save_quietly(checkpoint, path, fmt)
    except ValueError as error:
        if fmt == "vitrine" or not str(error).startswith(f"The format {fmt} cannot hold "):
            raise
        event("unsupported")
        return False
    return True
