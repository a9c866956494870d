"""The plain forward pass compiles and exports: keep, edit and observe leave nothing in its graph."""

import shutil
from typing import Any

import pytest
import torch

from tests.filling import build_filled
from vitrine.models.model import Model

SMALL: dict[str, dict[str, Any]] = {
    "ViT-Ti/16": {"depth": 2, "image_size": (96, 112), "readout_layers": (0, 1), "readout": "both"},
    "R26+ViT-Ti/32": {"depth": 2, "image_size": (96, 64), "stem_stages": (1, 1), "stem_width_factor": 0.25},
}


@pytest.fixture(params=SMALL)
def model(request: pytest.FixtureRequest) -> Model[Any]:
    return build_filled(request.param, num_classes=5, **SMALL[request.param])


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on this device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # raised within torch's own compiler
@torch.no_grad()
def test_compiled_logits_are_the_same(model: Model[Any]) -> None:
    images = torch.randn(2, 3, *model.config.image_size)
    compiled = torch.compile(model, fullgraph=True)
    # The compiler sums in another order.
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # raised within torch's own exporter
@torch.no_grad()
def test_exported_logits_are_the_same_for_any_batch(model: Model[Any]) -> None:
    batch = torch.export.Dim("batch", min=1, max=64)
    example = torch.randn(2, 3, *model.config.image_size)
    exported = torch.export.export(model, (example,), dynamic_shapes=({0: batch},))
    for size in (1, 5):
        images = torch.randn(size, 3, *model.config.image_size)
        # Another batch size may take another kernel.
        torch.testing.assert_close(exported.module()(images), model(images), rtol=1e-4, atol=1e-5)
