"""Patch features as colours against scikit-learn's principal components, and outliers that were put there."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from tests.inspection.networks import NETWORKS, RESNET, build, draw_images
from vitrine.inspection.patch_features import compute_patch_features, describe_patches, encode_patches
from vitrine.models.registry import build_model


@pytest.mark.parametrize("kind", NETWORKS)
def test_features_are_those_of_the_patches(kind: str) -> None:
    model = build(kind)
    images = draw_images(model)
    features, norms = encode_patches(model, images)
    with torch.no_grad():
        encoded = model.encode(images, keep="blocks.2.output")
    assert torch.equal(features.flatten(1, 2), encoded.patches)
    patches = encoded.kept["blocks.2.output"][:, model.config.num_prefix_tokens :]
    torch.testing.assert_close(norms.flatten(1), patches.square().sum(dim=2).sqrt())
    assert norms.shape[1:] == model.config.grid


def test_colours_are_the_first_components() -> None:
    features = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.1, 8)
    found = describe_patches(features, features.norm(dim=3))
    reference = PCA(3, svd_solver="full").fit(features.reshape(-1, 8).double())
    np.testing.assert_allclose(found.shares, reference.explained_variance_ratio_, rtol=1e-6)
    projected = reference.transform(features.reshape(-1, 8).double())
    for component in range(3):
        colours = found.colours.reshape(-1, 3)[:, component]
        inside = (colours > 0) & (colours < 1)
        assert abs(np.corrcoef(colours[inside], projected[inside, component])[0, 1]) == pytest.approx(1, abs=1e-6)
    assert found.colours.min() >= 0
    assert found.colours.max() <= 1


def test_outliers_are_found_and_nothing_else() -> None:
    features = torch.randn(2, 4, 4, 32, generator=torch.Generator().manual_seed(0))
    features[0, 1, 2] *= 5
    features[1, 3, 3] *= 8
    found = describe_patches(features, features.norm(dim=3))
    assert np.argwhere(found.outliers).tolist() == [[0, 1, 2], [1, 3, 3]]


def test_few_dimensions_leave_colours_grey() -> None:
    features = torch.randn(1, 1, 2, 4)
    found = describe_patches(features, features.norm(dim=3))
    assert found.colours.shape == (1, 1, 2, 3)
    assert np.isfinite(found.colours).all()
    same = describe_patches(torch.ones(1, 2, 2, 4), torch.ones(1, 2, 2))
    assert np.isfinite(same.colours).all()


def test_networks_without_attention_have_features_too() -> None:
    resnet = build_model("R50x1", num_classes=0, **RESNET).eval()
    axial = build_model("Axial-ViT-Ti/8", width=16, depth=1, num_heads=2, mlp_dim=32, image_size=16, num_classes=0).eval()
    for model in (resnet, axial):
        found = compute_patch_features(model, draw_images(model))
        assert found.colours.shape == (2, *model.config.grid, 3)
        assert found.norms.shape == (2, *model.config.grid)
