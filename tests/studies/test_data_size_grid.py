"""The grid of data-size: its numbers of images, its runs, and data that it can use."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitrine.data.open_data import find_data
from vitrine.studies.data_size_grid import (
    GRIDS,
    OWN_REMARK,
    PLAIN,
    Cell,
    describe_choice,
    find_facts,
    find_regularisation,
    list_cells,
    list_sizes,
)


def test_the_small_scale_has_six_sizes_over_three_decades() -> None:
    grid = GRIDS["small"]
    sizes = list_sizes(grid, find_facts(grid, None))
    assert len(sizes) >= 6
    assert sizes[-1] >= 1000 * sizes[0]
    assert sizes[-1] == grid.total_steps * grid.batch_size  # fresh images in every step


def write_data(path: Path, splits: tuple[str, ...], num_images: int = 300, channels: int = 1) -> str:
    arrays: dict[str, np.ndarray] = {}
    for split in splits:
        arrays[f"x_{split}"] = np.zeros((num_images, 8, 8, channels), np.uint8)
        arrays[f"y_{split}"] = np.arange(num_images) % 3
    np.savez(path, allow_pickle=False, **arrays)
    return str(path)


def test_data_without_test_images_is_refused(tmp_path: Path) -> None:
    data = write_data(tmp_path / "own.npz", ("train",))
    with pytest.raises(ValueError, match="test or val"):
        find_facts(GRIDS["tiny"], data)


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    facts = find_facts(GRIDS["tiny"], write_data(tmp_path / "own.npz", ("train", "test"), num_images=20))
    with pytest.raises(ValueError, match="20 training images"):
        list_sizes(GRIDS["tiny"], facts)


def test_data_that_is_not_there_is_an_error_unless_it_is_the_paper_s() -> None:
    with pytest.raises(FileNotFoundError):
        find_facts(GRIDS["paper"], "no-such-folder")
    facts = find_facts(GRIDS["paper"], None)
    assert (facts.num_images, facts.num_classes) == (303_000_000, 18_291)
    with pytest.raises(FileNotFoundError):
        find_data(facts.source)


def test_a_chosen_regularisation_has_a_run_of_its_own() -> None:
    grid = GRIDS["tiny"]
    first = replace(grid.models[0], regularised=(PLAIN, "decay"))
    grid = replace(grid, models=(first, *grid.models[1:]))
    facts = find_facts(grid, None)
    cells = [*list_cells(grid, facts, (0,))]
    assert len(cells) == len(grid.models) * (len(grid.sizes) + 1) + 1
    (extra,) = [cell for cell in cells if cell.regularisation != PLAIN]
    assert extra == Cell(model=first, num_images=grid.sizes[1], seed=0, regularisation="decay")
    assert len({cell.folder for cell in cells}) == len(cells)
    assert find_regularisation(grid, facts, first, facts.num_images) == PLAIN  # fresh images need none


def test_other_images_than_the_generated_ones_have_no_chosen_regularisation(tmp_path: Path) -> None:
    grid = GRIDS["tiny"]
    grid = replace(grid, models=(replace(grid.models[0], regularised=("decay", "decay")),))
    facts = find_facts(grid, write_data(tmp_path / "own.npz", ("train", "test")))
    assert {cell.regularisation for cell in list_cells(grid, facts, (0,))} == {PLAIN}


def test_how_settings_were_chosen_is_said_of_the_images_that_they_were_chosen_for(tmp_path: Path) -> None:
    data = write_data(tmp_path / "own.npz", ("train", "test"))
    tiny, small, paper = (GRIDS[scale] for scale in ("tiny", "small", "paper"))
    assert describe_choice(small, find_facts(small, None)) == small.remark
    assert describe_choice(small, find_facts(small, data)) == OWN_REMARK
    assert describe_choice(tiny, find_facts(tiny, data)) == f"{tiny.caution} {OWN_REMARK}"
    assert describe_choice(paper, find_facts(paper, data)) == paper.remark  # table 3 is for any images
