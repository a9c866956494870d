"""Tests of formats/base.py.

What weights do not tell: the user's word, then the checkpoint's, then what is usual.
The same network in another form gives the same numbers.
"""

import pytest
import torch

from tests.filling import build_filled
from tests.formats.cases import SMALL, run
from vitrine.formats.base import (
    TABLE,
    ForeignCheckpoint,
    add_class_positions,
    fold_class_positions,
    positions_to_table,
    rename,
    resolve_grid,
    resolve_num_heads,
    resolve_unseen_grid,
)
from vitrine.formats.config import Overrides
from vitrine.formats.tensor_files import LazyTensor
from vitrine.models.config import Position, ViTConfig
from vitrine.models.registry import VARIANTS, build_model


def make_given(*names: str, shape: tuple[int, ...] = (2, 3), **overrides: object) -> ForeignCheckpoint:
    return ForeignCheckpoint(
        "the file", {name: LazyTensor(shape, "torch.float32", torch.empty) for name in names}, Overrides(**overrides)
    )


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
    assert resolve_num_heads(given, sizes["width"], sizes["mlp_dim"]) == sizes["num_heads"]
    assert given.assumed == [f"{sizes['num_heads']} heads (--num-heads)"]


def test_other_heads_are_64_wide() -> None:
    assert resolve_num_heads(make_given(), 1280, 99) == 20
    with pytest.raises(
        ValueError, match="the file does not tell how many heads share its width of 100: pass it as --num-heads"
    ):
        resolve_num_heads(make_given(), 100, 400)


def test_the_users_heads_stand_above_the_checkpoints() -> None:
    given = make_given(num_heads=5)
    assert resolve_num_heads(given, 100, 400, stated=4) == 5
    assert resolve_num_heads(make_given(), 100, 400, stated=4) == 4
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
    assert resolve_grid(make_given(), num_positions, rows, known) == expected
    assert resolve_grid(make_given(grid=known), num_positions, rows, None) == expected
    assert resolve_grid(make_given(grid=expected[0]), num_positions, rows, (99, 99)) == expected


@pytest.mark.parametrize(("num_positions", "rows"), [(22, (1,)), (1, (1,)), (0, (1, 0))])
def test_no_grid_is_guessed_but_a_square(num_positions: int, rows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"{num_positions} positions, which are no square grid with {rows[0]}.*--grid"):
        resolve_grid(make_given(), num_positions, rows)


def test_a_wrong_grid_is_refused() -> None:
    message = (
        "the file has 17 positions, which do not fill a grid of 3 x 5 patches with 1 or 0 more: pass .* --grid ROWSxCOLUMNS"
    )
    with pytest.raises(ValueError, match=message):
        resolve_grid(make_given(), 17, (1, 0), (3, 5))
    with pytest.raises(ValueError, match=message):
        resolve_grid(make_given(grid=(3, 5)), 17, (1, 0), (4, 4))


def test_a_grid_that_is_not_stored_is_of_224_pixels() -> None:
    given = make_given()
    assert resolve_unseen_grid(given, 16) == (14, 14)
    assert given.assumed == ["images of 14 x 14 patches (--grid)"]
    assert resolve_unseen_grid(make_given(), 16, (2, 3)) == (2, 3)
    assert resolve_unseen_grid(make_given(grid=(4, 5)), 16, (2, 3)) == (4, 5)
    assert resolve_unseen_grid(make_given(), 500) == (1, 1)


def test_every_pattern_in_order() -> None:
    renamed = rename(make_given("old.w", "b").tensors, [("^old", "new"), (r"new\.", "newest/")])
    assert list(renamed) == ["newest/w", "b"]


def test_two_ways_of_naming_in_one_file() -> None:
    with pytest.raises(ValueError, match="new and another tensor both stand for new: the file mixes two ways of naming"):
        rename(make_given("old", "new").tensors, [("old", "new")])


@pytest.mark.parametrize("position", ["none", "learned-1d", "learned-2d", "sincos-2d"])
@pytest.mark.parametrize("class_position", [None, False])
@pytest.mark.parametrize("fold", [add_class_positions, fold_class_positions, lambda config, state: (config, state)])
def test_logits_stay(position: Position, class_position: bool | None, fold: object, tmp_path: object) -> None:
    config = ViTConfig(**{**SMALL, "image_size": (12, 20)}, position=position, class_position=class_position, num_classes=3)
    model = build_filled(config)
    folded_config, state = fold(*positions_to_table(model))
    assert folded_config.position == "learned-1d"
    folded = build_model(folded_config).eval()
    folded.load_state_dict(state)
    torch.testing.assert_close(run(folded), run(model), rtol=1e-6, atol=1e-6)


def test_both_readout_tokens_are_folded() -> None:
    model = build_filled(ViTConfig(**SMALL, distillation_token=True))
    config, state = fold_class_positions(*positions_to_table(model))
    old = model.state_dict()
    assert config.num_position_rows == 0
    torch.testing.assert_close(state["class_token"], old["class_token"] + old[TABLE][:1])
    torch.testing.assert_close(state["distillation_token"], old["distillation_token"] + old[TABLE][1:2])


def test_the_model_itself_is_left_alone() -> None:
    model = build_filled(ViTConfig(**SMALL))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fold_class_positions(*positions_to_table(model))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_nothing_to_do_changes_nothing() -> None:
    model = build_filled(ViTConfig(**SMALL))
    config, state = add_class_positions(*positions_to_table(model))
    assert config is model.config
    assert state[TABLE].data_ptr() == model.state_dict()[TABLE].data_ptr()
