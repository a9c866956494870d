"""Parts that formats share: override, then stated value, then default; position tables that keep the logits."""

import pytest
import torch

from tests.filling import build_filled
from tests.formats.cases import SMALL, run
from vitrine.core.console import COMMAND_OPTIONS
from vitrine.data.preprocessing import build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.formats.base import (
    TABLE,
    ForeignCheckpoint,
    add_class_positions,
    describe_assumption,
    fold_class_positions,
    name_override,
    positions_to_table,
    rename,
)
from vitrine.formats.config import Overrides
from vitrine.formats.tensor_files import LazyTensor
from vitrine.models.config import Pool, Position, ViTConfig
from vitrine.models.registry import VARIANTS, build_model


def make_foreign(*names: str, shape: tuple[int, ...] = (2, 3), **overrides: object) -> ForeignCheckpoint:
    return ForeignCheckpoint(
        "the file", {name: LazyTensor(shape, "torch.float32", torch.empty) for name in names}, Overrides(**overrides)
    )


def test_shapes_are_looked_up_and_checked() -> None:
    assert make_foreign("head.weight").shape("head.weight", 2) == (2, 3)
    with pytest.raises(ValueError, match="lacks the tensor head"):
        make_foreign("head.weight").shape("head", 2)
    with pytest.raises(ValueError, match=r"w has shape \(2, 3\)"):
        make_foreign("w").shape("w", 4)
    with pytest.raises(ValueError, match=r"w has shape \(2, 0\)"):
        make_foreign("w", shape=(2, 0)).shape("w", 2)


def test_blocks_are_counted_by_their_largest_number() -> None:
    names = ["blocks.0.a", "blocks.2.a", "blocks.10.a", "other.40.a", *(f"x{index}" for index in range(9))]
    assert make_foreign(*names).count(r"blocks\.(\d+)\.") == 11
    assert make_foreign(*names).count(r"layers\.(\d+)\.") == 0
    with pytest.raises(ValueError, match="1,000,000,000 blocks"):  # more than there are tensors
        make_foreign("blocks.0.a", "blocks.999999999.a").count(r"blocks\.(\d+)\.")


def test_stated_value_before_override_before_default() -> None:
    foreign = make_foreign(num_heads=5)
    assert foreign.resolve("num_heads", 1, 2) == 1
    assert foreign.resolve("num_heads", None, 2) == 5
    assert foreign.resolve("norm_eps", 0.5, 2.0) == 0.5
    assert foreign.assumed == {}
    assert foreign.resolve("norm_eps", None, 2.0) == 2.0
    assert foreign.assumed == {"norm_eps": 2.0}


def test_a_default_preprocessing_is_assumed_unless_the_checkpoint_states_one() -> None:
    default, stated = build_imagenet_preprocessing((224, 224)), build_inception_preprocessing((224, 224))
    foreign = make_foreign()
    assert foreign.resolve_preprocessing(default, lambda: stated) == stated
    assert foreign.assumed == {}
    assert foreign.resolve_preprocessing(default) == default
    assert foreign.assumed == {"preprocess": default}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("gelu", "tanh", ["tanh", "gelu"]),
        ("norm_eps", 1e-6, ["1e-06", "norm_eps"]),
        ("num_heads", 12, ["12 heads", "num_heads"]),
        ("grid", (3, 5), ["3 x 5", "grid"]),
        ("preprocess", build_imagenet_preprocessing((224, 192)), ["219", "224 x 192", "bicubic", "ImageNet", "preprocess"]),
        ("preprocess", build_inception_preprocessing((24, 24)), ["24 x 24", "bilinear", "[-1, 1]", "preprocess"]),
    ],
)
def test_assumptions_name_value_and_option(name: str, value: object, words: list[str]) -> None:
    assert [word for word in words if word not in describe_assumption(name, value)] == []


def test_a_variants_size_gives_its_heads() -> None:
    for name, sizes in VARIANTS.items():
        foreign = make_foreign()
        if name != "b":  # of the same size as S
            assert foreign.resolve_num_heads(sizes["width"], sizes["mlp_dim"]) == sizes["num_heads"]
            assert foreign.assumed == {"num_heads": sizes["num_heads"]}


def test_other_heads_have_64_channels() -> None:
    assert make_foreign().resolve_num_heads(1280, 99) == 20
    with pytest.raises(ValueError, match=r"width of 100 .*num_heads"):
        make_foreign().resolve_num_heads(100, 400)
    assert make_foreign(num_heads=5).resolve_num_heads(100, 400) == 5
    assert make_foreign().resolve_num_heads(100, 400, stated=4) == 4


@pytest.mark.parametrize(
    ("num_positions", "rows", "stated", "expected"),
    [
        (197, (1,), None, ((14, 14), 1)),
        (196, (0,), None, ((14, 14), 0)),
        (198, (2, 0), None, ((14, 14), 2)),
        (196, (1, 0), None, ((14, 14), 0)),
        (2, (1,), None, ((1, 1), 1)),
        (22, (1,), (3, 7), ((3, 7), 1)),
        (21, (1, 0), (3, 7), ((3, 7), 0)),
        (17, (1,), (2, 8), ((2, 8), 1)),  # 16 is a square too, but the stated grid counts
    ],
)
def test_grid_of_a_position_table(
    num_positions: int, rows: tuple[int, ...], stated: tuple[int, int] | None, expected: tuple[tuple[int, int], int]
) -> None:
    assert make_foreign().resolve_grid(num_positions, rows, stated) == expected
    assert make_foreign(grid=stated).resolve_grid(num_positions, rows, None) == expected
    assert make_foreign(grid=(99, 99)).resolve_grid(num_positions, rows, expected[0]) == expected


def test_a_grid_that_does_not_fit_is_an_error() -> None:
    for num_positions, rows in ((22, (1,)), (1, (1,)), (0, (1, 0))):
        with pytest.raises(ValueError, match=rf"{num_positions} positions.*square.*grid"):
            make_foreign().resolve_grid(num_positions, rows)
    with pytest.raises(ValueError, match=r"17 positions.*3 x 5"):
        make_foreign().resolve_grid(17, (1, 0), (3, 5))
    with pytest.raises(ValueError, match=r"17 positions.*3 x 5"):
        make_foreign(grid=(3, 5)).resolve_grid(17, (1, 0))


def test_a_grid_that_is_not_stored_is_that_of_224_pixels() -> None:
    foreign = make_foreign()
    assert foreign.resolve_unseen_grid(16) == (14, 14)
    assert foreign.assumed == {"grid": (14, 14)}
    assert make_foreign().resolve_unseen_grid(16, (2, 3)) == (2, 3)
    assert make_foreign(grid=(4, 5)).resolve_unseen_grid(16) == (4, 5)
    assert make_foreign(grid=(4, 5)).resolve_unseen_grid(16, (2, 3)) == (2, 3)
    assert make_foreign().resolve_unseen_grid(500) == (1, 1)


def test_patterns_are_applied_in_order() -> None:
    renamed = rename(make_foreign("old.w", "b").tensors, [("^old", "new"), (r"new\.", "newest/")])
    assert list(renamed) == ["newest/w", "b"]
    with pytest.raises(ValueError, match="mixes two"):
        rename(make_foreign("old", "new").tensors, [("old", "new")])


@pytest.mark.parametrize("position", ["none", "learned-1d", "learned-2d", "sincos-2d"])
@pytest.mark.parametrize("class_position", [None, False])
def test_position_tables_keep_the_logits(position: Position, class_position: bool | None) -> None:
    config = ViTConfig(**{**SMALL, "image_size": (12, 20)}, position=position, class_position=class_position, num_classes=3)
    model = build_filled(config)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for change in (add_class_positions, fold_class_positions, lambda config, state: (config, state)):
        changed_config, state = change(*positions_to_table(model))
        assert changed_config.position == "learned-1d"
        changed = build_model(changed_config).eval()
        changed.load_state_dict(state)
        torch.testing.assert_close(run(changed), run(model), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_both_readout_tokens_are_folded() -> None:
    model = build_filled(ViTConfig(**SMALL, distillation_token=True))
    config, state = fold_class_positions(*positions_to_table(model))
    old = model.state_dict()
    assert config.num_position_rows == 0
    torch.testing.assert_close(state["class_token"], old["class_token"] + old[TABLE][:1])
    torch.testing.assert_close(state["distillation_token"], old["distillation_token"] + old[TABLE][1:2])


@pytest.mark.parametrize("position", ["learned-1d", "learned-2d"])
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_positions_of_registers_are_folded_into_them(position: Position, pool: Pool) -> None:
    model = build_filled(ViTConfig(**SMALL, num_registers=2, register_position=True, position=position, pool=pool))
    config, state = positions_to_table(model, "fold")
    assert (config.num_position_rows, len(state[TABLE])) == (0, 36)
    folded = build_model(config).eval()
    folded.load_state_dict(state)
    torch.testing.assert_close(run(folded), run(model), rtol=1e-6, atol=1e-6)


def test_a_complete_table_is_not_copied() -> None:
    model = build_filled(ViTConfig(**SMALL))
    config, state = add_class_positions(*positions_to_table(model))
    assert config is model.config
    assert state[TABLE].data_ptr() == model.state_dict()[TABLE].data_ptr()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, ["gelu", "num_heads"]),  # Python
        (["--gelu", "--num-heads"], ["--gelu", "--num-heads"]),
        (
            ["--model.gelu", "--model.num-heads"],
            ["--model.gelu", "--num-heads of `vitrine convert`"],
        ),  # heads: of fresh weights
        (["--device"], ["--gelu of `vitrine convert`", "--num-heads of `vitrine convert`"]),
    ],
)
def test_an_override_is_named_as_the_running_command_takes_it(options: list[str] | None, expected: list[str]) -> None:
    token = COMMAND_OPTIONS.set(None if options is None else lambda: options)
    try:
        assert [name_override(name) for name in ("gelu", "num_heads")] == expected
    finally:
        COMMAND_OPTIONS.reset(token)
