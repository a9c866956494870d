"""The grid of self-supervision: its labelled images, and data that it can use."""

from pathlib import Path

import pytest

from tests.studies.test_data_size_grid import write_data
from vitrine.data.open_data import find_data
from vitrine.studies.self_supervision_grid import GRIDS, find_facts, list_cells


def test_the_small_scale_has_three_sizes_of_the_digits_and_fresh_glyphs() -> None:
    grid = GRIDS["small"]
    facts = find_facts(grid, None)
    assert (facts.num_classes, facts.num_images, facts.num_test) == (10, 1437, 360)
    assert [facts.count(size) for size in grid.sizes] == [50, 200, 1000]
    glyphs = find_data(grid.pretrain_source).open_train()
    assert len(glyphs) == grid.pretrain_steps * grid.batch_size
    assert len(glyphs.class_names) == 200
    assert grid.model is not None
    assert grid.model.resolve(10).grid == (7, 7)


def test_cells_begin_with_the_first_seed_and_the_fewest_images() -> None:
    grid = GRIDS["tiny"]
    cells = [*list_cells(grid, find_facts(grid, None), (1, 0))]
    assert [cell.seed for cell in cells] == [0] * 9 + [1] * 9
    assert [cell.num_images for cell in cells[:9]] == [20] * 3 + [50] * 3 + [200] * 3


def test_imagenet_need_not_be_there_for_the_cost() -> None:
    grid = GRIDS["paper"]
    facts = find_facts(grid, None)
    assert [facts.count(size) for size in grid.sizes] == [12_812, 128_117, 1_281_167]
    with pytest.raises(FileNotFoundError):
        find_facts(grid, "no-such-folder")
    with pytest.raises(FileNotFoundError):
        find_facts(GRIDS["small"], "no-such-folder")


@pytest.mark.parametrize(("splits", "num_images", "word"), [(("train",), 300, "test or val"), (("train", "test"), 50, "class")])
def test_data_that_is_too_small_or_has_no_test_is_refused(
    splits: tuple[str, ...], num_images: int, word: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=word):
        find_facts(GRIDS["tiny"], write_data(tmp_path / "own.npz", splits, num_images=num_images))
