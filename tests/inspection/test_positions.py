"""Similarity of position embeddings against scikit-learn's cosine similarity, and known cases."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from tests.inspection.networks import build
from vitrine.inspection.positions import compute_similarities


@pytest.mark.parametrize("changes", [{}, {"class_position": False}, {"pool": "mean"}, {"distillation_token": True}])
def test_learned_positions_equal_sklearn_cosine(changes: dict[str, Any]) -> None:
    model = build("oblong", **changes)
    (result,) = compute_similarities(model)
    table = model.get_parameter("positions.0.table").detach().numpy().astype(np.float64)
    expected = cosine_similarity(table)
    num_rows = model.config.num_position_rows
    assert result.patches is not None
    np.testing.assert_allclose(result.patches.reshape(18, 18), expected[num_rows:, num_rows:], atol=1e-6)
    np.testing.assert_allclose(np.einsum("rsrs->rs", result.patches), 1, atol=1e-6)
    if num_rows == 0:
        assert result.readout is None
    else:
        assert result.readout is not None
        np.testing.assert_allclose(result.readout.reshape(num_rows, 18), expected[:num_rows, num_rows:], atol=1e-6)


def test_2d_positions_are_the_mean_of_both_axes() -> None:
    """If row and column embeddings have the same norm, the cosine is the mean of those along the axes."""
    model = build("oblong", position="learned-2d")
    for name in ("x_table", "y_table"):
        table = model.get_parameter(f"positions.0.{name}")
        table.data /= table.data.norm(dim=1, keepdim=True)
    (result,) = compute_similarities(model)
    down = cosine_similarity(model.get_parameter("positions.0.y_table").detach().numpy())
    across = cosine_similarity(model.get_parameter("positions.0.x_table").detach().numpy())
    assert result.patches is not None
    expected = (down[:, None, :, None] + across[None, :, None, :]) / 2
    np.testing.assert_allclose(result.patches, expected, atol=1e-6)


def test_fixed_positions_have_no_class_token_row() -> None:
    (result,) = compute_similarities(build("oblong", position="sincos-2d"))
    assert result.readout is None
    assert result.patches is not None
    assert result.patches.shape == (3, 6, 3, 6)


def test_one_table_per_layer() -> None:
    result = compute_similarities(build("oblong", position_insertion="every-layer"))
    assert [each.title for each in result] == ["layer 0", "layer 1", "layer 2"]
    shared = compute_similarities(build("oblong", position_insertion="shared"))
    assert [each.title for each in shared] == ["all layers"]


def test_relative_positions_are_compared_by_offset() -> None:
    model = build("relative")
    result = compute_similarities(model)
    assert len(result) == 3
    for layer, each in enumerate(result):
        assert each.patches is None
        names = [name for name, _ in model.named_parameters() if name.startswith(f"blocks.{layer}.") and "offsets" in name]
        offsets = model.get_parameter(names[0]).detach().numpy().astype(np.float64)
        assert len(offsets) == 2 * 17 - 1
        np.testing.assert_allclose(each.offsets, cosine_similarity(offsets[1:-1]), atol=1e-6)


def test_model_without_positions() -> None:
    assert compute_similarities(build("oblong", position="none")) == []
