"""What weights do not tell: the user's word, then the checkpoint's, then what is usual."""

import pytest
import torch

from vitrine.formats.config import Facts
from vitrine.formats.format import Given, rename, settle_grid, settle_num_heads, settle_unseen_grid
from vitrine.formats.tensors import StoredTensor
from vitrine.models.registry import VARIANTS


def make_given(*names: str, shape: tuple[int, ...] = (2, 3), **facts: object) -> Given:
    return Given("the file", {name: StoredTensor(shape, "torch.float32", torch.empty) for name in names}, Facts(**facts))


def test_shapes_are_looked_up_and_checked() -> None:
    assert make_given("head.weight").shape("head.weight", 2) == (2, 3)
    with pytest.raises(ValueError, match=r"the file lacks the tensor head, from which the model's size is read\."):
        make_given("head.weight").shape("head", 2)
    with pytest.raises(ValueError, match=r"the file: w has the shape \(2, 3\); needed are 4 axes\."):
        make_given("w").shape("w", 4)
    with pytest.raises(ValueError, match=r"w has the shape \(2, 0\)"):
        make_given("w", shape=(2, 0)).shape("w", 2)


def test_blocks_are_counted_by_their_largest_number() -> None:
    names = ["blocks.0.a", "blocks.2.a", "blocks.10.a", "other.40.a", *(f"x{index}" for index in range(9))]
    assert make_given(*names).count(r"blocks\.(\d+)\.") == 11
    assert make_given(*names).count(r"layers\.(\d+)\.") == 0


def test_a_count_beyond_the_tensors_is_a_lie() -> None:
    with pytest.raises(ValueError, match=r"the file counts 1,000,000,000 blocks in its names and has 2 tensors\."):
        make_given("blocks.0.a", "blocks.999999999.a").count(r"blocks\.(\d+)\.")


def test_only_what_nobody_said_is_noted() -> None:
    given = make_given()
    assert given.settle(0, 1, 2, "two", "--number") == 0
    assert given.settle(None, 0, 2, "two", "--number") == 0
    assert given.assumed == []
    assert given.settle(None, None, 2, "two", "--number") == 2
    assert given.assumed == ["two (--number)"]


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "b"])
def test_a_variants_sizes_tell_its_heads(variant: str) -> None:
    sizes = VARIANTS[variant]
    given = make_given()
    assert settle_num_heads(given, sizes["width"], sizes["mlp_dim"]) == sizes["num_heads"]
    assert given.assumed == [f"{sizes['num_heads']} heads (--num-heads)"]


def test_other_heads_are_64_wide() -> None:
    assert settle_num_heads(make_given(), 1280, 99) == 20
    with pytest.raises(
        ValueError, match="the file does not tell how many heads share its width of 100: pass it as --num-heads"
    ):
        settle_num_heads(make_given(), 100, 400)


def test_the_users_heads_stand_above_the_checkpoints() -> None:
    given = make_given(num_heads=5)
    assert settle_num_heads(given, 100, 400, known=4) == 5
    assert settle_num_heads(make_given(), 100, 400, known=4) == 4
    assert given.assumed == []


@pytest.mark.parametrize(
    ("num_positions", "rows", "known", "expected"),
    [
        (197, (1,), None, ((14, 14), 1)),
        (196, (0,), None, ((14, 14), 0)),
        (198, (2, 0), None, ((14, 14), 2)),
        (196, (1, 0), None, ((14, 14), 0)),
        (2, (1,), None, ((1, 1), 1)),
        (22, (1,), (3, 7), ((3, 7), 1)),
        (21, (1, 0), (3, 7), ((3, 7), 0)),
        (17, (1,), (2, 8), ((2, 8), 1)),  # a square too, but somebody knows better
    ],
)
def test_the_grid_behind_a_table(
    num_positions: int, rows: tuple[int, ...], known: tuple[int, int] | None, expected: tuple[tuple[int, int], int]
) -> None:
    assert settle_grid(make_given(), num_positions, rows, known) == expected
    assert settle_grid(make_given(grid=known), num_positions, rows, None) == expected
    assert settle_grid(make_given(grid=expected[0]), num_positions, rows, (99, 99)) == expected


@pytest.mark.parametrize(("num_positions", "rows"), [(22, (1,)), (1, (1,)), (0, (1, 0))])
def test_no_grid_is_guessed_but_a_square(num_positions: int, rows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"{num_positions} positions, which are no square grid with {rows[0]}.*--grid"):
        settle_grid(make_given(), num_positions, rows)


def test_a_wrong_grid_is_refused() -> None:
    message = (
        "the file has 17 positions, which do not fill a grid of 3 x 5 patches with 1 or 0 more: pass .* --grid ROWSxCOLUMNS"
    )
    with pytest.raises(ValueError, match=message):
        settle_grid(make_given(), 17, (1, 0), (3, 5))
    with pytest.raises(ValueError, match=message):
        settle_grid(make_given(grid=(3, 5)), 17, (1, 0), (4, 4))


def test_a_grid_that_is_not_stored_is_of_224_pixels() -> None:
    given = make_given()
    assert settle_unseen_grid(given, 16) == (14, 14)
    assert given.assumed == ["images of 14 x 14 patches (--grid)"]
    assert settle_unseen_grid(make_given(), 16, (2, 3)) == (2, 3)
    assert settle_unseen_grid(make_given(grid=(4, 5)), 16, (2, 3)) == (4, 5)
    assert settle_unseen_grid(make_given(), 500) == (1, 1)


def test_every_pattern_in_order() -> None:
    renamed = rename(make_given("old.w", "b").tensors, [("^old", "new"), (r"new\.", "newest/")])
    assert list(renamed) == ["newest/w", "b"]


def test_two_ways_of_naming_in_one_file() -> None:
    with pytest.raises(ValueError, match="new and another tensor both stand for new: the file mixes two ways of naming"):
        rename(make_given("old", "new").tensors, [("old", "new")])
