"""Counts of a ResNet, which is a model by itself and the stem of a hybrid (see cost.py)."""

from dataclasses import replace

from vitrine.models.config import ResNetConfig, halve, halve_repeatedly, needs_projection
from vitrine.models.cost_parts import Part, count_linear_head

Grid = tuple[int, int]


def count_resnet(config: ResNetConfig) -> Part:
    root_output = config.root_dim * places(config.root_grid)
    count_unit = count_pre_activation_unit if config.style == "pre-activation" else count_post_activation_unit
    grid, units, unit_inputs, largest = config.root_grid, Part(), 0, 0
    for stage in range(len(config.stages)):
        for in_dim, mid_dim, stride in config.unit_shapes(stage):
            unit = count_unit(in_dim, mid_dim, grid, stride)
            units += replace(unit, peak=root_output + unit.peak)  # `encode` holds on to what `embed` gave it
            unit_inputs, largest = unit_inputs + in_dim * places(grid), max(largest, unit.saved)
            grid = strided(grid, stride)
    if config.gradient_checkpointing:
        units = replace(units, saved=unit_inputs + largest, saved_weights=0)
    return count_root(config) + units + count_last_norm(config) + count_linear_head(config)


def count_root(config: ResNetConfig) -> Part:
    grid = strided(config.image_size, 2)
    features, pooled = config.root_dim * places(grid), config.root_dim * places(config.root_grid)
    conv = count_conv(config.num_channels, config.root_dim, 7, grid)
    pool_saved = 2 * pooled  # where each maximum was, as 8-byte numbers
    if config.style == "pre-activation":
        image = config.num_channels * places(config.image_size)
        padded = config.root_dim * (grid[0] + 2) * (grid[1] + 2)
        return conv + Part(saved=image + padded + pool_saved, peak=features + padded + pooled)
    image = config.num_channels * same_padded(config.image_size, 7, 2)
    padded = config.root_dim * same_padded(grid, 3, 2)
    return conv + Part(
        parameters=2 * config.root_dim,
        saved=image + 2 * features + (padded if padded > features else 0) + pool_saved + (pooled if config.stages else 0),
        peak=max(3 * features, features + padded + pooled),
    )


def count_pre_activation_unit(in_dim: int, mid_dim: int, grid: Grid, stride: int) -> Part:
    """Each norm keeps its input, each ReLU its output, which is also what the next convolution keeps."""
    out_dim, before, after = 4 * mid_dim, places(grid), places(strided(grid, stride))
    projects = needs_projection(in_dim, mid_dim, stride)
    x, narrow, narrow_after, out = in_dim * before, mid_dim * before, mid_dim * after, out_dim * after
    shortcut = out if projects else 0
    return count_bottleneck(in_dim, mid_dim, grid, stride, projects) + Part(
        parameters=2 * (in_dim + 2 * mid_dim),
        saved=2 * x + 2 * narrow + 2 * narrow_after,
        peak=max(
            3 * x,
            2 * x + shortcut + narrow,
            x + shortcut + 3 * narrow,
            x + shortcut + 2 * narrow + narrow_after,
            x + shortcut + narrow_after + 2 * out,
        ),
    )


def count_post_activation_unit(in_dim: int, mid_dim: int, grid: Grid, stride: int) -> Part:
    """As above, but the unit's input was kept by the ReLU before it, and strided convolutions keep a padded copy."""
    out_dim, before, after = 4 * mid_dim, places(grid), places(strided(grid, stride))
    projects = needs_projection(in_dim, mid_dim, stride)
    x, narrow, narrow_after, out = in_dim * before, mid_dim * before, mid_dim * after, out_dim * after
    padded_places = same_padded(grid, 3, stride) if stride == 2 else before
    padded = mid_dim * padded_places if padded_places > before else 0
    shortcut = out if projects else 0
    return count_bottleneck(in_dim, mid_dim, grid, stride, projects) + Part(
        parameters=2 * (2 * mid_dim + out_dim) + (2 * out_dim if projects else 0),
        saved=2 * narrow + padded + 2 * narrow_after + 2 * out + shortcut,
        peak=max(
            x + 2 * shortcut,
            x + shortcut + 3 * narrow,
            x + shortcut + narrow + max(padded + narrow_after, 3 * narrow_after),
            x + shortcut + narrow_after + 2 * out,
        ),
    )


def count_bottleneck(in_dim: int, mid_dim: int, grid: Grid, stride: int, projects: bool) -> Part:
    after = strided(grid, stride)
    convs = (
        count_conv(in_dim, mid_dim, 1, grid)
        + count_conv(mid_dim, mid_dim, 3, after)
        + count_conv(mid_dim, 4 * mid_dim, 1, after)
    )
    return convs + count_conv(in_dim, 4 * mid_dim, 1, after) if projects else convs


def count_last_norm(config: ResNetConfig) -> Part:
    if config.style == "post-activation":
        return Part()
    features = config.feature_dim * places(config.grid)
    root_output = config.root_dim * places(config.root_grid)
    return Part(parameters=2 * config.feature_dim, saved=2 * features, peak=root_output + 3 * features)


def count_conv(in_dim: int, out_dim: int, kernel: int, output_grid: Grid) -> Part:
    weights = kernel * kernel * in_dim * out_dim
    # Standardising holds the kernel less its mean and the result, beside the kernel itself.
    return Part(parameters=weights, macs=weights * places(output_grid), saved_weights=2 * weights, peak_weights=2 * weights)


def places(grid: Grid) -> int:
    return grid[0] * grid[1]


def strided(grid: Grid, stride: int) -> Grid:
    return halve_repeatedly(grid, stride // 2)  # strides are 1 or 2


def same_padded(grid: Grid, kernel: int, stride: int) -> int:
    """Places of a map after TF's SAME padding."""
    rows, columns = ((halve(size) - 1) * stride + kernel for size in grid)
    return max(rows, grid[0]) * max(columns, grid[1])
