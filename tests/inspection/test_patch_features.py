"""Patch features: colours against scikit-learn's principal components, and planted outliers."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from tests.inspection.networks import NETWORKS, RESNET, build, draw_images
from vitrine.inspection.patch_features import compute_patch_features, encode_patches, summarise_patches
from vitrine.models.model import PatchSubset
from vitrine.models.registry import build_model


@pytest.mark.parametrize("kind", NETWORKS)
def test_encode_patches_returns_patch_tokens_and_norms(kind: str) -> None:
    model = build(kind)
    images = draw_images(model)
    features, norms = encode_patches(model, images)
    with torch.no_grad():
        encoded = model.encode(images, keep="blocks.2.output")
    assert torch.equal(features.flatten(1, 2), encoded.patches)
    patches = encoded.kept["blocks.2.output"][:, model.config.num_prefix_tokens :]
    torch.testing.assert_close(norms.flatten(1), patches.square().sum(dim=2).sqrt())
    assert norms.shape[1:] == model.config.grid


def test_colours_equal_sklearn_pca() -> None:
    features = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.1, 8)
    result = summarise_patches(features, features.norm(dim=3))
    reference = PCA(3, svd_solver="full").fit(features.reshape(-1, 8).double())
    np.testing.assert_allclose(result.explained_variance, reference.explained_variance_ratio_, rtol=1e-6)
    projected = reference.transform(features.reshape(-1, 8).double())
    for component in range(3):
        colours = result.colours.reshape(-1, 3)[:, component]
        inside = (colours > 0) & (colours < 1)
        assert abs(np.corrcoef(colours[inside], projected[inside, component])[0, 1]) == pytest.approx(1, abs=1e-6)
    assert result.colours.min() >= 0
    assert result.colours.max() <= 1


def test_only_planted_outliers_are_found() -> None:
    features = torch.randn(2, 4, 4, 32, generator=torch.Generator().manual_seed(0))
    features[0, 1, 2] *= 5
    features[1, 3, 3] *= 8
    result = summarise_patches(features, features.norm(dim=3))
    assert np.argwhere(result.outliers).tolist() == [[0, 1, 2], [1, 3, 3]]


def test_missing_components_are_grey() -> None:
    features = torch.randn(1, 1, 2, 4)
    result = summarise_patches(features, features.norm(dim=3))
    assert result.colours.shape == (1, 1, 2, 3)
    assert np.isfinite(result.colours).all()
    same = summarise_patches(torch.ones(1, 2, 2, 4), torch.ones(1, 2, 2))
    assert np.isfinite(same.colours).all()


def test_resnet_has_patch_features() -> None:
    resnet = build_model("R50x1", num_classes=0, **RESNET).eval()
    axial = build_model("Axial-ViT-Ti/8", width=16, depth=1, num_heads=2, mlp_dim=32, image_size=16, num_classes=0).eval()
    for model in (resnet, axial):
        result = compute_patch_features(model, draw_images(model))
        assert result.colours.shape == (2, *model.config.grid, 3)
        assert result.norms.shape == (2, *model.config.grid)


def test_dropped_patches_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("vit")
    images = draw_images(model, 1)
    encode = model.encode

    def drop(tokens: Tensor) -> PatchSubset:
        indices = torch.arange(0, tokens.shape[1], 2)[None]
        return PatchSubset(tokens[:, ::2], indices)

    monkeypatch.setattr(model, "encode", lambda images, **options: encode(images, edit=drop, **options))
    with pytest.raises(ValueError, match="4 x 4"):
        encode_patches(model, images)
