"""Distances where they are known: at home, one to the right, everywhere alike; on grids that are not square."""

import math

import numpy as np
import pytest
import torch

from tests.inspection.networks import NETWORKS, build, draw_images
from vitrine.inspection.attention import compute_stride, stream_attention
from vitrine.inspection.distance import DistanceMeter, compute_grid_distances, measure_distances

GRID = (3, 6)  # of "oblong", with patches of 8 pixels and a class token


def meter_of(patches: torch.Tensor, to_class: float = 0.0) -> DistanceMeter:
    """After one layer in which patches read each other by (N, N), but for the share that goes to the class token."""
    maps = torch.zeros(1, 2, 19, 19)
    maps[..., 1:, 1:] = patches * (1 - to_class)
    maps[..., 1:, 0] = to_class
    maps[..., 0, 0] = 1.0
    meter = DistanceMeter(build("oblong").config, 1)
    meter.add(0, maps)
    return meter


def test_distances_on_a_grid_are_euclid_s() -> None:
    found = compute_grid_distances(GRID, 8)
    for one in range(18):
        for other in range(18):
            down, across = one // 6 - other // 6, one % 6 - other % 6
            assert found[one, other].item() == pytest.approx(8 * math.hypot(down, across), abs=1e-4)


def test_attention_to_oneself_goes_nowhere() -> None:
    assert meter_of(torch.eye(18)).finish().among_patches.max() == 0


def test_attention_to_the_right_goes_one_patch() -> None:
    patches = torch.eye(18)[[index - index % 6 + min(index % 6 + 1, 5) for index in range(18)]]  # the last column stays
    found = meter_of(patches).finish()
    np.testing.assert_allclose(found.among_patches, 8 * 5 / 6, rtol=1e-6)


def test_attention_to_everyone_goes_the_mean_distance() -> None:
    found = meter_of(torch.full((18, 18), 1 / 18)).finish()
    np.testing.assert_allclose(found.among_patches, compute_grid_distances(GRID, 8).mean(), rtol=1e-6)


def test_the_class_token_is_at_no_distance_or_left_out() -> None:
    found = meter_of(torch.full((18, 18), 1 / 18), to_class=0.25).finish()
    everywhere = compute_grid_distances(GRID, 8).mean()
    np.testing.assert_allclose(found.among_patches, everywhere, rtol=1e-6)
    np.testing.assert_allclose(found.as_they_are, 0.75 * everywhere, rtol=1e-6)


@pytest.mark.parametrize("kind", NETWORKS)
def test_figures_are_those_of_loops_over_images_heads_and_queries(kind: str) -> None:
    model = build(kind)
    images, maps = draw_images(model, 3), []
    stream_attention(model, images, lambda layer, found: maps.append(found.double().numpy()))
    rows, columns = model.config.grid
    first, stride = model.config.num_prefix_tokens, compute_stride(model.config)
    found = measure_distances(model, [images[:2], images[2:]])
    assert found.num_images == 3
    for layer, attention in enumerate(maps):
        for head in range(2):
            among, plain = [], []
            for image in range(3):
                for query in range(rows * columns):
                    weights = attention[image, head, first + query, first:]
                    places = np.stack(np.divmod(np.arange(rows * columns), columns))
                    pixels = stride * np.hypot(*(places - places[:, [query]]))
                    plain.append((weights * pixels).sum())
                    among.append((weights * pixels).sum() / weights.sum())
            assert found.among_patches[layer, head] == pytest.approx(np.mean(among), rel=1e-5)
            assert found.as_they_are[layer, head] == pytest.approx(np.mean(plain), rel=1e-5)
