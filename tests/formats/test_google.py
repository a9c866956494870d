"""The authors' npz files, compared with a plain NumPy computation on the same arrays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.formats import cases
from tests.formats.cases import forget, load_quietly, make_checkpoint, run, save_quietly
from tests.formats.flax_reference import run_vit
from vitrine.core.console import VitrineWarning
from vitrine.formats.config import FormatName, Overrides
from vitrine.formats.load import load_checkpoint, load_model
from vitrine.models.config import HybridConfig, ModelConfig, ViTConfig

NAMES: dict[str, tuple[str, str, str, str]] = {
    "google-2020": ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    "google-linen": ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
    "big-vision": ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
}


def make_arrays(
    fmt: str, *, d: int = 16, heads: int = 2, m: int = 24, depth: int = 2, grid: int = 3, p: int = 4
) -> dict[str, Any]:
    """Draw random arrays with the names and shapes of the released files."""
    k = d // heads
    norm1, attention, norm2, mlp = NAMES[fmt]
    shapes: dict[str, tuple[int, ...]] = {
        "cls": (1, 1, d),
        "embedding/kernel": (p, p, 3, d),
        "embedding/bias": (d,),
        "Transformer/encoder_norm/scale": (d,),
        "Transformer/encoder_norm/bias": (d,),
        "head/kernel": (d, 5),
        "head/bias": (5,),
    }
    if fmt == "big-vision":
        shapes["pos_embedding"] = (1, grid * grid, d)
    else:
        shapes["Transformer/posembed_input/pos_embedding"] = (1, 1 + grid * grid, d)
    for index in range(depth):
        block = f"Transformer/encoderblock_{index}"
        for norm in (norm1, norm2):
            shapes |= {f"{block}/{norm}/scale": (d,), f"{block}/{norm}/bias": (d,)}
        shapes |= attention_shapes(f"{block}/{attention}", d, heads, k) | mlp_shapes(f"{block}/{mlp}", d, m)
    return draw(shapes)


def attention_shapes(name: str, d: int, heads: int, k: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}/out/kernel": (heads, k, d), f"{name}/out/bias": (d,)}
    for part in ("query", "key", "value"):
        shapes |= {f"{name}/{part}/kernel": (d, heads, k), f"{name}/{part}/bias": (heads, k)}
    return shapes


def map_head_shapes(d: int = 16, heads: int = 2, m: int = 24) -> dict[str, tuple[int, ...]]:
    norm = {"MAPHead_0/LayerNorm_0/scale": (d,), "MAPHead_0/LayerNorm_0/bias": (d,)}
    attention = attention_shapes("MAPHead_0/MultiHeadDotProductAttention_0", d, heads, d // heads)
    return {"MAPHead_0/probe": (1, 1, d), **norm, **attention, **mlp_shapes("MAPHead_0/MlpBlock_0", d, m)}


def mlp_shapes(name: str, d: int, m: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}/Dense_0/kernel": (d, m),
        f"{name}/Dense_0/bias": (m,),
        f"{name}/Dense_1/kernel": (m, d),
        f"{name}/Dense_1/bias": (d,),
    }


def draw(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: (0.4 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def assert_equals_numpy(arrays: dict[str, Any], fmt: str, model: Any, *, reads_first: bool = False) -> None:
    images = np.random.default_rng(1).standard_normal((2, *model.config.image_size, 3))
    wide = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}
    expected = run_vit(wide, images, NAMES[fmt], big_vision=fmt == "big-vision", reads_first=reads_first)
    with torch.no_grad():
        actual = model(torch.from_numpy(images).permute(0, 3, 1, 2).float())
    # NumPy computes in float64: the tolerance absorbs the rounding of float32.
    np.testing.assert_allclose(actual.numpy(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("fmt", NAMES)
def test_a_released_file_computes_the_same(fmt: FormatName, tmp_path: Path) -> None:
    arrays = make_arrays(fmt)
    np.savez(tmp_path / "vit.npz", **arrays)
    with pytest.warns(VitrineWarning, match=f"defaults of {fmt}: tanh GELU .*1e-06"):
        model = load_model(tmp_path / "vit.npz")
    assert model.config.num_heads == 2
    assert model.config.image_size == (12, 12)
    assert_equals_numpy(arrays, fmt, model)


@pytest.mark.parametrize("fmt", NAMES)
def test_written_files_compute_the_same_in_numpy(fmt: FormatName, tmp_path: Path) -> None:
    assert_written_equals_numpy(fmt, replace(cases.OBLONG, gelu="tanh", hidden_head=True), tmp_path)


@pytest.mark.parametrize(("fmt", "config"), [("google-2020", cases.HYBRID), ("google-linen", cases.ROOT_HYBRID)])
def test_hybrids_compute_the_same_in_numpy(fmt: FormatName, config: HybridConfig, tmp_path: Path) -> None:
    assert_written_equals_numpy(fmt, config, tmp_path)


@pytest.mark.parametrize("pool", ["mean", "map"])
def test_pools_of_big_vision_compute_the_same_in_numpy(pool: Any, tmp_path: Path) -> None:
    assert_written_equals_numpy("big-vision", ViTConfig(**cases.SMALL, num_classes=4, pool=pool), tmp_path)


def assert_written_equals_numpy(fmt: FormatName, config: ModelConfig, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(config)
    path = tmp_path / "out.npz"
    save_quietly(checkpoint, path, fmt)
    assert_equals_numpy(dict(np.load(path)), fmt, checkpoint.model)


def test_names_are_the_released_ones(tmp_path: Path) -> None:
    for fmt in ("google-2020", "google-linen", "big-vision"):
        save_quietly(make_checkpoint(cases.VIT), tmp_path / f"{fmt}.npz", fmt)
        shapes = {name: array.shape for name, array in np.load(tmp_path / f"{fmt}.npz").items()}
        expected = make_arrays(fmt, grid=6)
        assert shapes == {name: array.shape for name, array in expected.items()}


@pytest.mark.parametrize("prefix", ["params/", "opt/target/"])
def test_prefixes_of_training_checkpoints(prefix: str, tmp_path: Path) -> None:
    arrays = make_arrays("google-linen")
    beside = {"opt/state/step": np.array(7), "opt/state/param_states/cls/grad_ema": arrays["cls"]}
    np.savez(tmp_path / "vit.npz", **{f"{prefix}{name}": array for name, array in arrays.items()}, **beside)
    assert_equals_numpy(arrays, "google-linen", load_quietly(tmp_path / "vit.npz").model)


def test_scanned_blocks(tmp_path: Path) -> None:
    arrays = make_arrays("big-vision", depth=3)
    scanned = {name: array for name, array in arrays.items() if "encoderblock_" not in name}
    for name in [name for name in arrays if "encoderblock_0/" in name]:
        stack = [arrays[name.replace("encoderblock_0", f"encoderblock_{index}")] for index in range(3)]
        scanned[name.replace("encoderblock_0", "encoderblock")] = np.stack(stack)
    np.savez(tmp_path / "vit.npz", **scanned)
    model = load_quietly(tmp_path / "vit.npz").model
    assert model.config.depth == 3
    assert_equals_numpy(arrays, "big-vision", model)


def test_old_group_norms_with_leading_axes(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.HYBRID)
    save_quietly(checkpoint, tmp_path / "a.npz", "google-2020")
    old = {n: a.reshape(1, 1, 1, -1) if "gn" in n else a for n, a in np.load(tmp_path / "a.npz").items()}
    np.savez(tmp_path / "b.npz", **old)
    model = load_quietly(tmp_path / "b.npz", Overrides(grid=cases.HYBRID.grid)).model
    torch.testing.assert_close(run(model), run(checkpoint.model), rtol=0, atol=0)


def test_big_vision_folds_the_class_row_into_the_token(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    save_quietly(checkpoint, tmp_path / "a.npz", "big-vision")
    state = checkpoint.model.state_dict()
    written = np.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(written["cls"][0, 0], (state["class_token"] + state["positions.0.table"][:1])[0])
    np.testing.assert_array_equal(written["pos_embedding"][0], state["positions.0.table"][1:])


def test_absent_positions_are_sincos(tmp_path: Path) -> None:
    config = ViTConfig(**{**cases.SMALL, "image_size": (12, 20)}, num_classes=2, pool="mean", position="sincos-2d")
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, tmp_path / "a.npz", "big-vision")
    forget(tmp_path / "a.npz")
    with pytest.warns(VitrineWarning, match="56 x 56 patches"):
        load_checkpoint(tmp_path / "a.npz")
    model = load_quietly(tmp_path / "a.npz", Overrides(grid=(3, 5))).model
    torch.testing.assert_close(run(model), run(checkpoint.model), rtol=0, atol=0)


def test_a_grid_that_is_not_square_needs_an_override(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.OBLONG), tmp_path / "a.npz", "google-2020")
    forget(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"22 positions.*grid"):
        load_quietly(tmp_path / "a.npz")
    assert load_quietly(tmp_path / "a.npz", Overrides(grid=(3, 7))).model.config.image_size == (12, 28)
    with pytest.raises(ValueError, match="4 x 7"):
        load_quietly(tmp_path / "a.npz", Overrides(grid=(4, 7)))


@pytest.mark.parametrize(
    ("fmt", "changes"),
    [
        ("google-2020", {"pool": "map"}),
        ("google-2020", {"num_registers": 2}),
        ("google-linen", {"mlp": "swiglu"}),
        ("google-linen", {"position": "relative"}),
        ("big-vision", {"layer_scale": 1e-5}),
        ("big-vision", {"position_insertion": "every-layer"}),
        ("big-vision", {"pool": "mean", "class_token": True}),
        ("big-vision", {"pre_norm": True}),
        ("google-linen", {"qkv_bias": False}),
    ],
)
def test_unsupported_models(fmt: FormatName, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{fmt} cannot hold"):
        save_quietly(make_checkpoint(ViTConfig(**cases.SMALL, **changes)), tmp_path / "a.npz", fmt)
    assert list(tmp_path.iterdir()) == []


# Layouts of big_vision before 2022, restating its `fix_old_checkpoints`: positions lie in the encoder; a row for the class
# token is added to the token, or dropped if there is no token; the parts of the MAP head lie at the top level.


@pytest.mark.parametrize("place", ["Transformer/pos_embedding", "pos_embedding", "Transformer/posembed_input/pos_embedding"])
@pytest.mark.parametrize("has_class_token", [True, False])
@pytest.mark.parametrize("has_row", [True, False])
def test_old_positions_of_big_vision(place: str, has_class_token: bool, has_row: bool, tmp_path: Path) -> None:
    arrays = make_arrays("big-vision")
    token = arrays.pop("cls")
    row = draw({"row": (1, 1, 16)})["row"]
    old = dict(arrays)
    table = old.pop("pos_embedding")
    old[place] = np.concatenate([row, table], axis=1) if has_row else table
    if has_class_token:
        old["cls"], arrays["cls"] = token, token + row if has_row else token
    np.savez(tmp_path / "old.npz", **{f"opt/target/{name}": array for name, array in old.items()})
    with pytest.warns(VitrineWarning) as caught:
        model = load_model(tmp_path / "old.npz")
    assert model.config.grid == (3, 3)
    dropped = [str(warning.message) for warning in caught if "left out" in str(warning.message)]
    assert len(dropped) == int(has_row and not has_class_token)
    assert_equals_numpy(arrays, "big-vision", model)


def test_a_row_is_dropped_only_if_the_grid_does_not_say_otherwise(tmp_path: Path) -> None:
    """Ten positions are 3 x 3 and a row, or 2 x 5."""
    config = ViTConfig(**{**cases.SMALL, "image_size": (8, 20)}, pool="mean", num_classes=3)
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, tmp_path / "a.npz", "big-vision")
    assert load_checkpoint(tmp_path / "a.npz").model.config.grid == (2, 5)
    forget(tmp_path / "a.npz")
    model = load_quietly(tmp_path / "a.npz", Overrides(grid=(2, 5))).model
    torch.testing.assert_close(run(model), run(checkpoint.model), rtol=0, atol=0)
    with pytest.warns(VitrineWarning) as caught:
        assert load_model(tmp_path / "a.npz").config.grid == (3, 3)
    assert any("left out" in str(warning.message) for warning in caught)


def test_an_inlined_map_head(tmp_path: Path) -> None:
    arrays = make_arrays("big-vision") | draw(map_head_shapes())
    arrays.pop("cls")
    np.savez(tmp_path / "old.npz", **{name.removeprefix("MAPHead_0/"): array for name, array in arrays.items()})
    model = load_quietly(tmp_path / "old.npz").model
    assert model.config.pool == "map"
    assert_equals_numpy(arrays, "big-vision", model)


def test_the_image_tower_of_two(tmp_path: Path) -> None:
    """SigLIP's released files: no head, and the text tower, temperature and bias beside the image tower."""
    arrays = make_arrays("big-vision") | draw(map_head_shapes())
    for name in ("cls", "head/kernel", "head/bias"):
        arrays.pop(name)
    text = {"params/txt/Embed_0/embedding": arrays["pos_embedding"], "params/t": np.ones(1), "params/b": np.ones(1)}
    np.savez(tmp_path / "siglip.npz", **{f"params/img/{name}": array for name, array in arrays.items()}, **text)
    with pytest.warns(VitrineWarning) as caught:
        checkpoint = load_checkpoint(tmp_path / "siglip.npz")
    assert sum("3 tensors of the text tower" in str(warning.message) for warning in caught) == 1
    assert len(caught) == 2  # and one that names the assumptions
    assert checkpoint.preprocessing.resize == (12, 12)
    assert_equals_numpy(arrays, "big-vision", checkpoint.model)
    np.savez(tmp_path / "alone.npz", **{f"img/{name}": array for name, array in arrays.items()})
    assert_equals_numpy(arrays, "big-vision", load_quietly(tmp_path / "alone.npz").model)
    np.savez(
        tmp_path / "other.npz", **{f"params/img/{name}": array for name, array in arrays.items()}, **text, other=np.ones(1)
    )
    with pytest.raises(ValueError, match="unexpected: other"):
        load_quietly(tmp_path / "other.npz")


@pytest.mark.parametrize("fmt", NAMES)
@pytest.mark.parametrize("dim", [10, 16])
def test_a_hidden_head_of_any_width(fmt: FormatName, dim: int, tmp_path: Path) -> None:
    hidden = draw({"pre_logits/kernel": (16, dim), "pre_logits/bias": (dim,), "head/kernel": (dim, 5)})
    arrays = make_arrays(fmt) | hidden
    np.savez(tmp_path / "vit.npz", **arrays)
    model = load_quietly(tmp_path / "vit.npz").model
    assert model.config.hidden_head_dim == (None if dim == 16 else dim)
    assert_equals_numpy(arrays, fmt, model)
    assert_written_equals_numpy(fmt, model.config, tmp_path)


def test_the_pool_is_assumed_where_tensors_do_not_show_it(tmp_path: Path) -> None:
    arrays = make_arrays("big-vision")
    token = arrays.pop("cls")
    np.savez(tmp_path / "vit.npz", **arrays)
    with pytest.warns(VitrineWarning, match=r"mean pooling \(pool\)"):
        assert_equals_numpy(arrays, "big-vision", load_model(tmp_path / "vit.npz"))
    with pytest.warns(VitrineWarning) as caught:
        model = load_model(tmp_path / "vit.npz", overrides=Overrides(pool="first"))
    assert "(pool)" not in str(caught[0].message)
    assert_equals_numpy(arrays, "big-vision", model, reads_first=True)
    np.savez(tmp_path / "token.npz", **arrays, cls=token)
    with pytest.raises(ValueError, match="pool=first contradicts"):
        load_quietly(tmp_path / "token.npz", Overrides(pool="first"))


def test_the_first_patch_is_written_by_big_vision_alone(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, pool="first", num_classes=3))
    save_quietly(checkpoint, tmp_path / "a.npz", "big-vision")
    assert_equals_numpy(dict(np.load(tmp_path / "a.npz")), "big-vision", checkpoint.model, reads_first=True)
    assert load_checkpoint(tmp_path / "a.npz").model.config == checkpoint.model.config
    for name in ("google-2020", "google-linen", "timm", "hf", "torchvision"):
        with pytest.raises(ValueError, match="first"):
            save_quietly(checkpoint, tmp_path / f"b{cases.ENDINGS[name]}", name)
