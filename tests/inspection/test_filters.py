"""Embedding filters against scikit-learn's principal components, and the weights of a convolution."""

import numpy as np
import torch
from sklearn.decomposition import PCA

from tests.inspection.networks import RESNET, build
from vitrine.inspection.filters import compute_filters
from vitrine.models.registry import build_model


def test_components_equal_sklearn_pca() -> None:
    model = build("vit", width=64)
    result = compute_filters(model, 10)
    kernel = model.get_parameter("patches.projection.weight").detach().numpy().astype(np.float64)
    reference = PCA(10, svd_solver="full").fit(kernel)
    assert result.explained_variance is not None
    np.testing.assert_allclose(result.explained_variance, reference.explained_variance_ratio_, rtol=1e-6)
    flat = result.values.transpose(0, 3, 1, 2).reshape(10, -1)
    np.testing.assert_allclose(np.abs((flat * reference.components_).sum(axis=1)), 1, atol=1e-5)


def test_common_pattern_is_the_first_component() -> None:
    model = build("vit", width=64)
    pattern = torch.zeros(3, 8, 8)
    pattern[1, 2:6, 2:6] = 1.0  # a green square
    strength = torch.linspace(-1, 1, 64)[:, None]
    noise = 1e-3 * torch.randn(64, 192, generator=torch.Generator().manual_seed(0))
    model.get_parameter("patches.projection.weight").data = strength * pattern.flatten() + noise
    result = compute_filters(model, 3)
    assert result.explained_variance is not None
    assert result.explained_variance[0] > 0.99
    filter_image = result.scaled[0]
    assert filter_image[2:6, 2:6, 1].min() > 0.95
    assert np.delete(filter_image, 1, axis=2).max() < 0.05


def test_no_more_components_than_filters() -> None:
    assert len(compute_filters(build("vit")).values) == 16
    grey = compute_filters(build("vit", num_channels=1))
    assert grey.values.shape[1:] == (8, 8, 1)
    assert grey.scaled.min() == 0
    assert grey.scaled.max() == 1


def test_first_convolution_is_returned_unchanged() -> None:
    for model, name in (
        (build("hybrid"), "stem.root.conv.weight"),
        (build_model("R50x1", num_classes=0, **RESNET), "root.conv.weight"),
    ):
        result = compute_filters(model)
        assert result.explained_variance is None
        np.testing.assert_array_equal(result.values, model.get_parameter(name).detach().permute(0, 2, 3, 1))


def test_constant_filters_are_finite() -> None:
    model = build("vit")
    model.get_parameter("patches.projection.weight").data.zero_()
    result = compute_filters(model)
    assert np.isfinite(result.scaled).all()
