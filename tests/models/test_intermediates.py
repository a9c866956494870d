"""Names of intermediates: wildcards, a single name as a string, and suggestions for a misspelt one."""

import pytest
import torch

from tests.filling import build_filled


@torch.no_grad()
def test_keep_takes_names_and_wildcards() -> None:
    model = build_filled("ViT-Ti/16", depth=12, image_size=32)
    image = torch.randn(1, 3, 32, 32)
    assert list(model.encode(image, keep="blocks.3.attention").kept) == ["blocks.3.attention"]
    assert list(model.encode(image, keep=("blocks.1*.output",)).kept) == [f"blocks.{i}.output" for i in (1, 10, 11)]
    assert list(model.encode(image, keep=["*"]).kept) == list(model.intermediates)


def test_a_misspelt_name_offers_the_nearest() -> None:
    model = build_filled("ViT-Ti/16", depth=2, image_size=32)
    with pytest.raises(ValueError, match=r"blocks\.2\.attention.*nearest.*blocks\.1\.attention"):
        model.encode(torch.randn(1, 3, 32, 32), keep=("blocks.2.attention",))


@torch.no_grad()
def test_observed_intermediates_are_not_kept() -> None:
    model = build_filled("ViT-Ti/16", depth=2, image_size=32)
    seen: dict[str, torch.Size] = {}
    encoded = model.encode(torch.randn(2, 3, 32, 32), observe=lambda name, tensor: seen.update({name: tensor.shape}))
    assert encoded.kept == {}
    assert seen["blocks.1.attention"] == (2, 3, 5, 5)
    assert seen["blocks.1.output"] == (2, 5, 192)
