"""Attention distances of known maps: to itself, to the right neighbour, uniform; on grids that are not square."""

import math

import numpy as np
import pytest
import torch

from tests.inspection.networks import NETWORKS, build, draw_images
from vitrine.engines.engine import stream_attention
from vitrine.inspection.distance import DistanceMeter, compute_grid_distances, measure_distances

GRID = (3, 6)  # of "oblong", with patches of 8 pixels and a class token


def meter_of(patches: torch.Tensor, to_class: float = 0.0) -> DistanceMeter:
    """Feed a meter one layer with attention (N, N) among patches, except for the fraction `to_class` to the class token."""
    maps = torch.zeros(1, 2, 19, 19)
    maps[..., 1:, 1:] = patches * (1 - to_class)
    maps[..., 1:, 0] = to_class
    maps[..., 0, 0] = 1.0
    meter = DistanceMeter(build("oblong").config, 1)
    meter.add(0, maps)
    return meter


def test_grid_distances_are_euclidean() -> None:
    result = compute_grid_distances(GRID, 8)
    for one in range(18):
        for other in range(18):
            down, across = one // 6 - other // 6, one % 6 - other % 6
            assert result[one, other].item() == pytest.approx(8 * math.hypot(down, across), abs=1e-4)


def test_attention_to_itself_has_distance_zero() -> None:
    assert meter_of(torch.eye(18)).compute().among_patches.max() == 0


def test_attention_to_the_right_neighbour_is_one_patch_away() -> None:
    patches = torch.eye(18)[[index - index % 6 + min(index % 6 + 1, 5) for index in range(18)]]  # the last column stays
    result = meter_of(patches).compute()
    np.testing.assert_allclose(result.among_patches, 8 * 5 / 6, rtol=1e-6)


def test_uniform_attention_has_the_mean_distance() -> None:
    result = meter_of(torch.full((18, 18), 1 / 18)).compute()
    np.testing.assert_allclose(result.among_patches, compute_grid_distances(GRID, 8).mean(), rtol=1e-6)


def test_class_token_counts_as_zero_or_is_left_out() -> None:
    result = meter_of(torch.full((18, 18), 1 / 18), to_class=0.25).compute()
    everywhere = compute_grid_distances(GRID, 8).mean()
    np.testing.assert_allclose(result.among_patches, everywhere, rtol=1e-6)
    np.testing.assert_allclose(result.over_all_tokens, 0.75 * everywhere, rtol=1e-6)


@pytest.mark.parametrize("kind", NETWORKS)
def test_distances_equal_plain_loops(kind: str) -> None:
    model = build(kind)
    images, maps = draw_images(model, 3), []
    stream_attention(model, images, lambda layer, result: maps.append(result.double().numpy()))
    rows, columns = model.config.grid
    first = model.config.num_prefix_tokens
    stride = model.config.image_size[0] // model.config.grid[0]
    result = measure_distances(model, [images[:2], images[2:]])
    assert result.num_images == 3
    for layer, attention in enumerate(maps):
        for head in range(2):
            among, plain = [], []
            for image in range(3):
                for query in range(rows * columns):
                    weights = attention[image, head, first + query, first:]
                    patches = np.stack(np.divmod(np.arange(rows * columns), columns))
                    pixels = stride * np.hypot(*(patches - patches[:, [query]]))
                    plain.append((weights * pixels).sum())
                    among.append((weights * pixels).sum() / weights.sum())
            assert result.among_patches[layer, head] == pytest.approx(np.mean(among), rel=1e-5)
            assert result.over_all_tokens[layer, head] == pytest.approx(np.mean(plain), rel=1e-5)
