"""Data of a run, initial models against their checkpoints and scikit-learn's ridge regression, and runs without labels."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import Ridge

from tests.filling import build_filled
from tests.formats import cases
from tests.run.test_run import make_recipe, write_data
from vitrine.core import runtime
from vitrine.core.console import VitrineWarning
from vitrine.core.runtime import Runtime
from vitrine.data import open_data
from vitrine.data.batch import Batch
from vitrine.data.config import DataConfig, LoaderConfig
from vitrine.data.open_data import DatasetHandle
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.evaluation.config import EvaluationConfig
from vitrine.evaluation.linear_heads import PENALTIES, fit_discriminant_head
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import SupervisedConfig
from vitrine.objectives.masked_patches import MaskedPatches
from vitrine.objectives.supervised import Supervised
from vitrine.recipe import HeadInit, Recipe, with_changes
from vitrine.recipes.registry import find_data_once
from vitrine.run import build as run_data
from vitrine.run import run as run_module
from vitrine.run.build import (
    build_evaluation_loader,
    build_initial_model,
    build_objective,
    check_memory,
    check_mps,
    load_objective,
    open_run_data,
    rebuild,
    set_fitted_head,
)
from vitrine.run.run import run_recipe
from vitrine.training.config import MachineConfig
from vitrine.training.metrics_log import read_records

COUNTS = {"train": 30, "val": 9, "test": 7}


def write_arrays(path: Path, splits: tuple[str, ...] = ("train", "val", "test"), **more: np.ndarray) -> str:
    """Write random grey images of 8 x 8 pixels, of three classes in turn."""
    arrays: dict[str, np.ndarray] = {}
    for place, split in enumerate(splits):
        drawn = np.random.default_rng(place)
        arrays[f"x_{split}"] = drawn.integers(0, 256, (COUNTS[split], 8, 8), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(COUNTS[split]) % 3
    np.savez(path, allow_pickle=False, **{**arrays, **more})
    return str(path)


@pytest.fixture
def arrays(tmp_path: Path) -> str:
    return write_arrays(tmp_path / "made.npz")


def make(source: str, evaluation: EvaluationConfig | None = None, loss: Any = "softmax", **data: Any) -> Recipe:
    return Recipe(
        model=ModelSettings(name="ViT-Ti/16", image_size=8, patch_size=4, num_channels=1),
        data=DataConfig(source=source, **data),
        loader=LoaderConfig(batch_size=4, num_workers=0),
        supervised=SupervisedConfig(loss=loss),
        evaluation=evaluation or EvaluationConfig(batch_size=4),
        total_steps=2,
    )


def names(source: Source | None) -> list[str]:
    assert source is not None
    return [source.name(index) for index in range(len(source))]


def test_splits_are_used_for_training_validation_and_test(arrays: str) -> None:
    data = open_run_data(make(arrays))
    assert names(data.train) == [f"made.npz/x_train[{index}]" for index in range(30)]
    assert names(data.val) == [f"made.npz/x_val[{index}]" for index in range(9)]
    assert names(data.test) == [f"made.npz/x_test[{index}]" for index in range(7)]
    assert data.val_name == "val"
    assert data.class_names == ("0", "1", "2")


def test_held_out_images_are_validated_on_and_not_trained_on(arrays: str) -> None:
    data = open_run_data(make(arrays, held_out=0.2))
    assert data.val_name == "held_out"
    assert len(names(data.val)) == 6
    assert sorted(names(data.train) + names(data.val)) == sorted(f"made.npz/x_train[{index}]" for index in range(30))
    assert len(names(data.test)) == 7


def test_without_validation_images_there_is_no_validation(tmp_path: Path) -> None:
    data = open_run_data(make(write_arrays(tmp_path / "made.npz", ("train", "test"))))
    assert data.val is None
    assert data.test is not None


def test_data_without_splits_is_all_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "made.npz"
    np.savez(path, images=np.zeros((6, 8, 8), np.uint8), labels=np.arange(6) % 2)
    data = open_run_data(make(str(path)))
    assert len(data.train) == 6
    assert data.val is data.test is None


def test_without_a_test_split_val_is_the_test_unless_it_chose_the_weights(tmp_path: Path) -> None:
    """ImageNet is such a case: its test labels are not public."""
    source = write_arrays(tmp_path / "made.npz", ("train", "val"))
    without_test = open_run_data(make(source))
    assert len(names(without_test.val)) == 9
    assert names(without_test.test) == names(without_test.val)  # of the last weights, and not of the best
    assert open_run_data(make(source, EvaluationConfig(patience=0))).test is None
    held_out = open_run_data(make(source, held_out=0.2))
    assert held_out.val_name == "held_out"
    assert names(held_out.test) == [f"made.npz/x_val[{index}]" for index in range(9)]
    assert open_run_data(make(source, held_out=0.2, split="val")).test is None
    assert open_run_data(make(source, EvaluationConfig(test=False), held_out=0.2)).test is None


def test_test_images_are_not_opened_if_the_recipe_says_so(arrays: str) -> None:
    data = open_run_data(make(arrays, EvaluationConfig(test=False)))
    assert data.test is None
    assert data.val is not None


@pytest.mark.parametrize(("split", "val", "test"), [("val", None, 7), ("validation", None, 7), ("test", 9, None)])
def test_the_training_split_is_neither_validated_nor_tested_on(
    split: str, val: int | None, test: int | None, arrays: str
) -> None:
    """Any spelling of the split counts."""
    data = open_run_data(make(arrays, split=split))
    assert [None if source is None else len(source) for source in (data.val, data.test)] == [val, test]


def test_a_subset_applies_to_training_images_only(arrays: str) -> None:
    data = open_run_data(make(arrays, subset="2/class"))
    assert len(data.train) == 6
    assert data.val is not None
    assert data.test is not None
    assert (len(data.val), len(data.test)) == (9, 7)


def test_all_splits_are_loaded_into_memory_if_requested(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for split in ("train", "valid", "test"):
        for name, grey in (("a", 10), ("b", 200)):
            (root / split / name).mkdir(parents=True)
            for number in range(2):
                Image.new("L", (8, 8), grey).save(root / split / name / f"{number}.png")
    for in_memory in (False, True):
        data = open_run_data(make(str(root), in_memory=in_memory))
        for source in (data.train, data.val, data.test):
            assert source is not None
            assert (source.read_block(np.arange(2)) is not None) == in_memory
            assert source.class_names == ("a", "b")


def test_supervised_learning_needs_labels(tmp_path: Path) -> None:
    for index in range(3):
        Image.new("L", (8, 8)).save(tmp_path / f"{index}.png")
    with pytest.raises(ValueError, match="no labels"):
        open_run_data(make(str(tmp_path)))


def test_several_labels_need_the_sigmoid_loss(tmp_path: Path) -> None:
    path = str(tmp_path / "made.npz")
    np.savez(path, images=np.zeros((4, 8, 8), np.uint8), labels=np.array([[1, 0], [1, 1], [0, 1], [0, 0]]))
    with pytest.raises(ValueError, match="sigmoid"):
        open_run_data(make(path))
    assert len(open_run_data(make(path, loss="sigmoid")).train) == 4


@pytest.mark.parametrize("names_there", [("cat", "dog", "horse"), ("dog", "cat"), ()])
@pytest.mark.parametrize("split", ["val", "test"])
def test_all_splits_must_have_the_same_classes(split: str, names_there: tuple[str, ...]) -> None:
    """Formats on disk have the same classes in all splits; on the hub each split has its own."""

    def open_split(name: str | None) -> Source:
        class_names = names_there if name == split else ("cat", "dog")
        labels = Labels.one_each([0, 1]) if class_names else Labels.none_each(2)
        return ArraySource(np.zeros((2, 8, 8, 1), np.uint8), labels, class_names, str(name))

    dataset = DatasetHandle("pets", "made", ("train", "val", "test"), open_split)
    with pytest.raises(ValueError, match=rf"pets.*{split}.*\({len(names_there)} and 2"):
        open_run_data(make("pets"), dataset)


@pytest.mark.parametrize("patience", [0, 2])
def test_patience_needs_validation_images(patience: int, tmp_path: Path) -> None:
    """Otherwise patience would be ignored silently."""
    recipe = make(write_arrays(tmp_path / "made.npz", ("train", "test")), EvaluationConfig(patience=patience))
    with pytest.raises(ValueError, match=r"evaluation\.patience.*data\.held_out"):
        open_run_data(recipe)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_an_evaluation_reads_every_image_once_for_any_number_of_ranks(world_size: int, batch_size: int, arrays: str) -> None:
    recipe = make(arrays, EvaluationConfig(batch_size=batch_size))
    source = open_run_data(recipe).test
    assert source is not None
    seen: dict[int, torch.Tensor] = {}
    for rank in range(world_size):
        runtime = Runtime(CPU, rank, world_size)
        loader = build_evaluation_loader(source, build_inception_preprocessing((8, 8), 1), recipe, runtime)
        for batch in loader.read_epoch():
            for index, image, label in zip(batch.index.tolist(), batch.image, batch.target.tolist(), strict=True):
                assert index not in seen
                assert label == index % 3
                seen[index] = image
    assert sorted(seen) == list(range(7))
    pixels = np.load(arrays)["x_test"]
    for index, image in seen.items():  # as they are: nothing of training is done to them
        np.testing.assert_array_equal(image.numpy()[0], pixels[index])


def test_an_evaluation_skips_bad_images_if_training_does(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(3):
            Image.new("L", (8, 8), 40 * index).save(tmp_path / name / f"{index}.png")
    (tmp_path / "a" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    recipe = make(str(tmp_path), bad_images="skip")
    loader = build_evaluation_loader(
        open_run_data(recipe).train, build_inception_preprocessing((8, 8), 1), recipe, Runtime(CPU)
    )
    with pytest.warns(match=r"a/1\.png"):
        seen = [index for batch in loader.read_epoch() for index in batch.index.tolist()]
    assert seen == [0, 2, 3, 4, 5]


def test_vtab_s_thousand_images_are_not_validated_on(tmp_path: Path) -> None:
    """They include its 200 validation images."""
    source = f"vtab:photos:{write_arrays(tmp_path / 'made.npz', ('train', 'test'))}"
    whole = open_run_data(make(source, split="train800val200"))
    assert (len(whole.train), whole.val, len(names(whole.test))) == (30, None, 7)
    part = open_run_data(make(source, split="train800"))
    assert (len(part.train), part.val_name, len(names(part.val))) == (24, "val", 6)
    assert not set(names(part.train)) & set(names(part.val))


def test_data_that_was_found_already_is_not_found_again(arrays: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = find_data_once(arrays)
    opened: list[str | None] = []
    counted = replace(dataset, open_split=lambda split: opened.append(split) or dataset.open_split(split))
    for module in (open_data, run_data):
        monkeypatch.setattr(module, "find_data", lambda data: data if isinstance(data, DatasetHandle) else pytest.fail(data))
    data = open_run_data(make(arrays), counted)
    assert opened == ["train", "val", "test"]
    assert data.test is dataset.open("test")  # opened once, however often it is asked for


CPU = torch.device("cpu")
CLASSES = ("cat", "dog", "horse")
TINY: dict[str, Any] = {"image_size": 8, "patch_size": 4, "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}


@pytest.fixture(autouse=True)
def generator() -> Iterator[None]:
    """Restore torch's generator, which initial models seed."""
    with torch.random.fork_rng():
        yield


def make_start(model: ModelSettings, **changes: Any) -> Recipe:
    return Recipe(
        model=model,
        data=DataConfig(source="digits"),
        loader=LoaderConfig(batch_size=4, num_workers=0),
        **{"total_steps": 2, "evaluation": EvaluationConfig(batch_size=8), **changes},
    )


def fresh(**settings: Any) -> Recipe:
    return make_start(ModelSettings(name="ViT-Ti/16", **TINY, **settings))


def from_checkpoint(path: Path, **settings: Any) -> Recipe:
    return make_start(ModelSettings(checkpoint=str(path), **settings))


def save(config: ModelConfig, path: Path) -> Checkpoint:
    """Save a checkpoint of random weights with five classes."""
    checkpoint = cases.make_checkpoint(config)
    save_checkpoint(checkpoint, path)
    return checkpoint


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_fresh_weights_are_a_function_of_the_seed() -> None:
    recipe = fresh()
    torch.manual_seed(1)
    first = build_initial_model(recipe, CLASSES).model.state_dict()
    torch.manual_seed(2)
    torch.rand(100)
    assert are_equal(first, build_initial_model(recipe, CLASSES).model.state_dict())
    other = build_initial_model(replace(recipe, seed=1), CLASSES).model.state_dict()
    assert not torch.equal(first["patches.projection.weight"], other["patches.projection.weight"])


def test_a_fresh_model_has_classes_and_provenance() -> None:
    start = build_initial_model(fresh(num_channels=1), CLASSES)
    assert start.class_names == CLASSES
    assert start.model.config.num_classes == 3
    assert start.provenance == {"source": "ViT-Ti/16, fresh weights"}
    assert start.model(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize(
    ("preprocess", "mean", "std"),
    [
        (None, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("inception", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_fresh_models_are_preprocessed_as_in_the_paper_or_as_for_imagenet(preprocess: Any, mean: object, std: object) -> None:
    preprocessing = build_initial_model(fresh(preprocess=preprocess), CLASSES).preprocessing
    assert (preprocessing.mean, preprocessing.std, preprocessing.crop) == (mean, std, (8, 8))


def test_evaluation_may_crop_from_a_larger_size() -> None:
    start = build_initial_model(replace(fresh(), evaluation=EvaluationConfig(resize=11)), CLASSES)
    assert (start.preprocessing.resize, start.preprocessing.crop) == (11, (8, 8))
    with pytest.raises(ValueError, match=r"resize=7 .*8"):
        build_initial_model(replace(fresh(), evaluation=EvaluationConfig(resize=7)), CLASSES)


@pytest.mark.parametrize(
    "config",
    [cases.VIT, cases.HYBRID, cases.BIT, replace(cases.VIT, hidden_head=True), replace(cases.VIT, num_classes=0)],
    ids=["vit", "hybrid", "bit", "hidden head", "no head"],
)
def test_a_checkpoint_keeps_all_but_its_head(config: ModelConfig, tmp_path: Path) -> None:
    saved = save(config, tmp_path / "saved")
    start = build_initial_model(from_checkpoint(tmp_path / "saved"), CLASSES)
    before, after = saved.model.state_dict(), start.model.state_dict()
    heads = {name for name in before.keys() | after.keys() if name.split(".")[0] in ("head", "hidden_head")}
    assert {"head.weight", "head.bias"} <= heads
    assert before.keys() - heads == after.keys() - heads
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - heads)
    assert not after["head.weight"].any()  # zeros, as in section 3.2
    assert not after["head.bias"].any()
    assert after["head.weight"].shape[0] == 3
    assert start.class_names == CLASSES
    assert start.preprocessing == saved.preprocessing
    assert start.provenance["source"] == str(tmp_path / "saved")
    assert start.provenance["from"]["trained"] == "for a test"
    assert start.model.config.num_classes == 3


def test_a_head_of_as_many_classes_is_replaced_too(tmp_path: Path) -> None:
    save(cases.VIT, tmp_path / "saved")
    start = build_initial_model(from_checkpoint(tmp_path / "saved"), tuple("abcde"))
    assert not start.model.state_dict()["head.weight"].any()
    assert start.class_names == tuple("abcde")


def test_another_resolution_resizes_the_positions(tmp_path: Path) -> None:
    save(cases.VIT, tmp_path / "saved")
    start = build_initial_model(from_checkpoint(tmp_path / "saved", image_size=32), CLASSES)
    expected = load_checkpoint(tmp_path / "saved", image_size=32)
    assert start.preprocessing == expected.preprocessing
    assert start.preprocessing.crop == start.model.config.image_size == (32, 32)
    assert start.model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    names = [name for name in expected.model.state_dict() if name.startswith("positions")]
    assert names
    assert all(torch.equal(expected.model.state_dict()[name], start.model.state_dict()[name]) for name in names)


def test_dropout_and_gradient_checkpointing_can_be_set_for_a_checkpoint(tmp_path: Path) -> None:
    saved = save(cases.VIT, tmp_path / "saved")
    recipe = from_checkpoint(tmp_path / "saved", dropout_rate=0.1, stochastic_depth_rate=0.2)
    recipe = replace(recipe, machine=MachineConfig(gradient_checkpointing=True))
    start = build_initial_model(recipe, CLASSES)
    config = start.model.config
    assert isinstance(config, ViTConfig)
    assert (config.dropout_rate, config.stochastic_depth_rate, config.gradient_checkpointing) == (0.1, 0.2, True)
    assert torch.equal(start.model.state_dict()["class_token"], saved.model.state_dict()["class_token"])
    images = torch.rand(4, 3, 24, 24)
    with torch.no_grad():
        start.model.head.weight.normal_()
        assert not torch.equal(start.model.train()(images), start.model(images))


def test_dropout_is_rejected_for_models_without_it(tmp_path: Path) -> None:
    save(cases.BIT, tmp_path / "saved")
    assert not hasattr(cases.BIT, "dropout_rate")
    with pytest.raises(ValueError, match="dropout_rate"):
        build_initial_model(from_checkpoint(tmp_path / "saved", dropout_rate=0.1), CLASSES)


def test_the_recipe_overrides_what_a_file_does_not_specify(tmp_path: Path) -> None:
    config = replace(cases.VIT, width=192, depth=1, num_heads=3)
    with pytest.warns(VitrineWarning, match="GELU"):
        save_checkpoint(cases.make_checkpoint(config), tmp_path / "a.pth", "timm")
    (tmp_path / "a.pth.vitrine.json").unlink()
    recipe = from_checkpoint(tmp_path / "a.pth", gelu="tanh", norm_eps=1e-5, preprocess="imagenet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VitrineWarning)  # of the number of heads
        start = build_initial_model(recipe, CLASSES)
    assert isinstance(start.model.config, ViTConfig)
    assert (start.model.config.gelu, start.model.config.norm_eps) == ("tanh", 1e-5)
    assert start.preprocessing.mean == (0.485, 0.456, 0.406)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        build_initial_model(from_checkpoint(tmp_path / "missing"), CLASSES)


def test_rebuilding_without_changes_returns_the_model() -> None:
    model = build_filled(cases.VIT)
    assert rebuild(model, gradient_checkpointing=False) is model


@pytest.mark.parametrize("config", [cases.VIT, cases.HYBRID, cases.BIT])
def test_rebuilding_does_not_change_the_outputs(config: ModelConfig) -> None:
    model = build_filled(config)
    changed = rebuild(model, gradient_checkpointing=True)
    assert changed.config.gradient_checkpointing
    assert are_equal(model.state_dict(), changed.state_dict())
    images = torch.rand(2, 3, *config.image_size)
    with torch.no_grad():
        assert torch.equal(model.eval()(images), changed.eval()(images))


def make_source(num_images: int, size: tuple[int, int], labels: Labels | None = None) -> ArraySource:
    drawn = np.random.default_rng(0)
    pixels = drawn.integers(0, 256, (num_images, *size, 3), dtype=np.uint8)
    chosen = labels or Labels.one_each(drawn.integers(0, 3, num_images))
    return ArraySource(pixels, chosen, CLASSES, "made")


def start_from(config: ModelConfig, path: Path, head_init: HeadInit = "ridge") -> tuple[Recipe, Checkpoint]:
    """Return a recipe and its initial model, whose preprocessing does not resize."""
    save(config, path)
    recipe = make_start(ModelSettings(checkpoint=str(path)), head_init=head_init)
    start = build_initial_model(recipe, CLASSES)
    return recipe, replace(start, preprocessing=replace(start.preprocessing, resize=None))


def solve_by_sklearn(features: np.ndarray, labels: np.ndarray, queries: np.ndarray, l2: float) -> np.ndarray:
    """Solve ridge regression on standardised features, with a constant feature of 100 as intercept and targets -1 and 1."""
    mean, std = features.mean(axis=0), features.std(axis=0) + 1e-5
    design, asked = ((each - mean) / std for each in (features, queries))
    targets = 2.0 * (labels[:, None] == np.arange(3)) - 1
    ridge = Ridge(alpha=l2, fit_intercept=False, solver="cholesky")
    ridge.fit(np.pad(design, ((0, 0), (0, 1)), constant_values=100.0), targets)
    return ridge.predict(np.pad(asked, ((0, 0), (0, 1)), constant_values=100.0))


@pytest.mark.parametrize(
    "config", [cases.VIT, ResNetConfig(stages=(1, 1), width_factor=0.25, num_classes=5, image_size=(32, 32))]
)
def test_the_ridge_head_equals_scikit_learn(config: ModelConfig, tmp_path: Path) -> None:
    """It does for one of the penalties, up to a factor; both are chosen to suit a softmax."""
    recipe, start = start_from(config, tmp_path / "saved")
    source = make_source(50, config.image_size)
    set_fitted_head(start, source, recipe, Runtime(CPU))
    model = start.model.eval()
    images = torch.from_numpy(source.pixels).permute(0, 3, 1, 2)
    queries = torch.randint(0, 256, (20, 3, *config.image_size), dtype=torch.uint8)
    with torch.no_grad():
        features, asked = (
            model.pool(model.encode(start.preprocessing.normalise(each))).double().numpy() for each in (images, queries)
        )
        logits = model(start.preprocessing.normalise(queries)).double().numpy()
    misfits = []
    for share in PENALTIES:
        expected = solve_by_sklearn(features, source.labels.values, asked, share * len(source))
        factor = (logits * expected).sum() / (expected * expected).sum()
        assert factor > 0
        misfits.append(np.abs(logits - factor * expected).max() / np.abs(logits).max())
    assert min(misfits) < 1e-4  # the folded layer is kept in single precision
    assert sorted(misfits)[1] > 1e-3  # the others are really other solutions


def test_the_discriminant_head_is_that_of_the_frozen_features(tmp_path: Path) -> None:
    recipe, start = start_from(cases.VIT, tmp_path / "saved", "discriminant")
    source = make_source(50, (24, 24))
    set_fitted_head(start, source, recipe, Runtime(CPU))
    model = start.model.eval()
    with torch.no_grad():
        images = start.preprocessing.normalise(torch.from_numpy(source.pixels).permute(0, 3, 1, 2))
        features = model.pool(model.encode(images))
    weight, bias = fit_discriminant_head(features, torch.from_numpy(source.labels.values), len(CLASSES))
    torch.testing.assert_close(model.state_dict()["head.weight"], weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.state_dict()["head.bias"], bias, rtol=1e-3, atol=1e-3)


def test_fitting_a_head_changes_nothing_else(tmp_path: Path) -> None:
    recipe, start = start_from(cases.VIT, tmp_path / "saved")
    before = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
    was_training = start.model.training
    set_fitted_head(start, make_source(20, (24, 24)), recipe, Runtime(CPU))
    after = start.model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    assert start.model.training == was_training
    assert all(parameter.requires_grad for parameter in start.model.parameters())


def test_the_ridge_head_is_not_fitted_to_dropout(tmp_path: Path) -> None:
    """Features are computed in evaluation mode, so even a dropout rate of 0.9 changes nothing."""
    save(cases.VIT, tmp_path / "saved")
    source, heads = make_source(20, (24, 24)), []
    for rate in (0.0, 0.9):
        recipe = replace(from_checkpoint(tmp_path / "saved", dropout_rate=rate), head_init="ridge")
        start = build_initial_model(recipe, CLASSES)
        start.model.train()
        set_fitted_head(start, source, recipe, Runtime(CPU))
        heads.append(start.model.state_dict()["head.weight"])
    assert torch.equal(*heads)


def test_both_heads_of_a_distilled_model_are_fitted(tmp_path: Path) -> None:
    recipe, start = start_from(replace(cases.VIT, distillation_token=True), tmp_path / "saved")
    set_fitted_head(start, make_source(20, (24, 24)), recipe, Runtime(CPU))
    state = start.model.state_dict()
    assert state["head.weight"].any()
    assert torch.equal(state["head.weight"], state["head_distillation.weight"])


def test_a_head_is_fitted_to_a_subset_of_very_many_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, start = start_from(cases.VIT, tmp_path / "saved")
    monkeypatch.setattr(run_data, "MAX_FITTED_IMAGES", 10)
    set_fitted_head(start, make_source(40, (24, 24)), recipe, Runtime(CPU))
    assert start.model.state_dict()["head.weight"].isfinite().all()


@pytest.mark.parametrize("head_init", ["ridge", "discriminant"])
def test_a_fitted_head_needs_one_label_each(head_init: HeadInit, tmp_path: Path) -> None:
    recipe, start = start_from(cases.VIT, tmp_path / "saved", head_init)
    source = make_source(3, (24, 24), Labels.several_each([[0], [1, 2], []]))
    with pytest.raises(ValueError, match=f"head_init='{head_init}'"):
        set_fitted_head(start, source, recipe, Runtime(CPU))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(run_module, "write_run_report", lambda *arguments: None)
    with torch.random.fork_rng():
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "shades.npz")


def make_masked(source: str, **changes: object) -> Recipe:
    return make_recipe(source, **{"objective": "masked-patches", "model": {"patch_size": 2, "dropout_rate": 0.0}, **changes})


def test_a_run_without_labels_gives_a_model_without_a_head(source: str, tmp_path: Path) -> None:
    summary = run_recipe(make_masked(source, total_steps=40), tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run" / "model")
    assert saved.model.config.num_classes == 0
    assert saved.class_names is None
    assert summary.test_top1 is None
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert records[-1].keys() >= {"val_accuracy", "val_loss"}
    assert {"val_top1", "val_top5"}.isdisjoint(name for record in records for name in record)
    losses = [record["val_loss"] for record in records if "val_loss" in record]
    assert losses[-1] < losses[0]
    assert summary.best == max(record["val_accuracy"] for record in records if "val_accuracy" in record)


def test_a_self_supervised_model_can_be_fine_tuned(source: str, tmp_path: Path) -> None:
    run_recipe(make_masked(source, total_steps=3), tmp_path / "run")
    for head_init in ("zero", "ridge", "discriminant"):
        model = ModelSettings(checkpoint=str(tmp_path / "run" / "model"))
        tuned = replace(make_recipe(source, total_steps=20, head_init="zero"), model=model, head_init=head_init)
        summary = run_recipe(tuned, tmp_path / head_init)
        assert summary.test_top1 is not None
        assert summary.test_top1 > 0.4
        assert load_checkpoint(tmp_path / head_init / "model").class_names == ("0", "1", "2", "3")


def test_few_shot_accuracy_chooses_the_best_self_supervised_weights(source: str, tmp_path: Path) -> None:
    recipe = make_masked(source, total_steps=6, evaluation=EvaluationConfig(num_times=3, few_shot=2, batch_size=10))
    summary = run_recipe(recipe, tmp_path / "run")
    found = [record["few_shot_2"] for record in read_records(tmp_path / "run" / "metrics.jsonl") if "few_shot_2" in record]
    assert len(found) == 3
    assert summary.best == max(found)


def test_masked_patches_need_no_labels(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    recipe = make_masked("unused", data=DataConfig(source=str(tmp_path / "images"), held_out=0.2), total_steps=4)
    summary = run_recipe(recipe, tmp_path / "run")
    assert summary.num_train_images == 16
    few = replace(recipe, evaluation=EvaluationConfig(num_times=1, few_shot=1))
    with pytest.raises(ValueError, match="few_shot=1"):
        run_recipe(few, tmp_path / "few")


@pytest.mark.parametrize("polyak_factor", [None, 0.5])
def test_the_objective_of_a_run_can_be_loaded(polyak_factor: float | None, source: str, tmp_path: Path) -> None:
    recipe = make_masked(source, total_steps=30, polyak_factor=polyak_factor)
    run_recipe(recipe, tmp_path / "run")
    objective = load_objective(tmp_path / "run")
    assert isinstance(objective, MaskedPatches)
    fresh = build_objective(recipe, build_initial_model(recipe, ()))
    images = torch.from_numpy(np.load(source)["x_val"])[:, None]
    batch = objective.add_draws(Batch(images, torch.zeros(len(images)), torch.arange(len(images)), step=0))
    with torch.no_grad():
        assert objective(batch).loss < 0.9 * fresh.eval()(batch).loss
        final = [record["val_loss"] for record in read_records(tmp_path / "run" / "metrics.jsonl") if "val_loss" in record][-1]
        assert objective(batch).loss.item() == pytest.approx(final, rel=1e-4)


def test_the_objective_of_a_supervised_run_can_be_loaded(source: str, tmp_path: Path) -> None:
    run_recipe(make_recipe(source, total_steps=3), tmp_path / "run")
    assert isinstance(load_objective(tmp_path / "run"), Supervised)


def test_loading_an_objective_needs_a_run_with_a_checkpoint(source: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"recipe\.json"):
        load_objective(tmp_path)
    run_recipe(make_recipe(source, total_steps=3), tmp_path / "run")
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / checkpoint.name)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_objective(tmp_path / "run")


def test_hybrids_are_rejected_for_masked_patches(source: str, tmp_path: Path) -> None:
    model = ModelSettings(name="R26+ViT-Ti/16", image_size=32, num_channels=1)
    with pytest.raises(ValueError, match="ViT"):
        run_recipe(replace(make_masked(source), model=model), tmp_path / "run")


GB = 10**9


def check_on(monkeypatch: pytest.MonkeyPatch, memory: int | None, world_size: int = 1, **changes: Any) -> None:
    """Check a ViT-B/16 of 86 million parameters and batches of 64 on a GPU of this much memory."""
    monkeypatch.setattr(runtime, "measure_memory", lambda device: memory)
    recipe = with_changes(
        Recipe(model=ModelSettings(name="ViT-B/16"), loader=LoaderConfig(batch_size=64), total_steps=1), **changes
    )
    check_memory(recipe.model.resolve(1000), recipe, Runtime(torch.device("cuda"), 0, world_size))


def test_a_step_beyond_all_memory_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 weights, gradients and Adam's averages take 1.39 GB and 64 images 7.56 GB; twice the memory is allowed."""
    single = {"precision": "float32"}
    check_on(monkeypatch, 5 * GB, machine=single)
    check_on(monkeypatch, None, machine=single)
    with pytest.raises(ValueError, match=r"8\.95 GB .*4 GB"):
        check_on(monkeypatch, 4 * GB, machine=single)
    for machine in ({"precision": "bfloat16"}, {"compile": True}, {"accumulation_steps": 4}, {"gradient_checkpointing": True}):
        check_on(monkeypatch, 4 * GB, machine={**single, **machine})
    check_on(monkeypatch, 4 * GB, world_size=2, machine=single)
    check_on(monkeypatch, 4 * GB, machine=single, optim={"frozen_blocks": -1})


def test_shards_optimizers_and_averages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """ViT-B/16 with one image: 16 bytes a parameter are 1.39 GB, SGD takes 12, and a Polyak average 4 more."""
    one = {"loader": {"batch_size": 8}, "machine": {"accumulation_steps": 4, "precision": "bfloat16"}}
    with pytest.raises(ValueError, match="memory"):
        check_on(monkeypatch, GB // 2, world_size=2, **one)
    one["machine"]["sharding"] = "fsdp"
    check_on(monkeypatch, GB // 2, world_size=2, **one)
    one = {"loader": {"batch_size": 1}, "machine": {"precision": "bfloat16"}}
    check_on(monkeypatch, int(0.6 * GB), **one, optim={"kind": "sgd"})
    for changes in ({}, {"optim": {"kind": "sgd"}, "polyak_factor": 0.9999}):
        with pytest.raises(ValueError, match="memory"):
            check_on(monkeypatch, int(0.6 * GB), **one, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"depth": 1_000_000}},
        {"model": {"width": 10_000_000}},
        {"model": {"mlp_dim": 10**11}},
        {"model": {"patch_size": 1, "image_size": 40_000}},
        {"loader": {"batch_size": 10**9}},
        {"loader": {"batch_size": 10**12}, "machine": {"accumulation_steps": 10**12}},
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_read(changes: dict[str, Any], tmp_path: Path) -> None:
    """At once, from the closed form: the data does not even exist."""
    recipe = with_changes(make_recipe(str(tmp_path / "none.npz")), **changes)
    with pytest.raises(ValueError, match=r"at least .* of memory"):
        run_recipe(recipe, tmp_path / "run")


def test_an_absurd_batch_is_refused_for_a_checkpoint_too(tmp_path: Path) -> None:
    data = write_arrays(tmp_path / "data.npz")
    checkpoint = run_recipe(make_recipe(data), tmp_path / "first")
    assert checkpoint.is_finished
    recipe = make_recipe(data)
    recipe = replace(recipe, model=ModelSettings(checkpoint=str(tmp_path / "first" / "model")))
    with pytest.raises(ValueError, match="memory"):
        run_recipe(with_changes(recipe, loader={"batch_size": 10**9}), tmp_path / "second")


@pytest.mark.parametrize("name", ["dropout_rate", "stochastic_depth_rate"])
def test_checkpointing_with_dropout_is_refused_on_mps_only(name: str) -> None:
    """torch restores no generator of mps, so that recomputed blocks would draw other masks."""
    recipe, config = make("photos"), replace(cases.VIT, **{"dropout_rate": 0.0, name: 0.1})
    checkpointed = replace(recipe, machine=replace(recipe.machine, gradient_checkpointing=True))
    with pytest.raises(ValueError, match=f"mps with {name}=0.1"):
        check_mps(config, checkpointed, Runtime(torch.device("mps")))
    check_mps(replace(config, **{name: 0.0}), checkpointed, Runtime(torch.device("mps")))
    check_mps(config, recipe, Runtime(torch.device("mps")))
    check_mps(config, checkpointed, Runtime(CPU))
