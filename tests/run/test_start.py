"""Where runs begin: against the checkpoints that they begin from, and scikit-learn's ridge regression."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from tests.filling import build_filled
from tests.formats import cases
from vitrine.core.notices import Notice
from vitrine.data.config import DataConfig, LoaderConfig
from vitrine.data.source import ArraySource, Labels
from vitrine.evaluate.config import EvaluationConfig
from vitrine.evaluate.head_start import PENALTIES, fit_discriminant_head
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import HeadInit, Recipe
from vitrine.run import start as module
from vitrine.run.start import build_start, rebuild, set_fitted_head
from vitrine.train.config import MachineConfig

CPU = torch.device("cpu")
CLASSES = ("cat", "dog", "horse")
TINY: dict[str, Any] = {"image_size": 8, "patch_size": 4, "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}


@pytest.fixture(autouse=True)
def generator() -> Iterator[None]:
    """A start seeds everyone's generator; other tests are to find theirs."""
    with torch.random.fork_rng():
        yield


def make(model: ModelSettings, **changes: Any) -> Recipe:
    return Recipe(
        model=model,
        data=DataConfig(source="digits"),
        loader=LoaderConfig(batch_size=4, num_workers=0),
        **{"total_steps": 2, "evaluation": EvaluationConfig(batch_size=8), **changes},
    )


def fresh(**settings: Any) -> Recipe:
    return make(ModelSettings(name="ViT-Ti/16", **TINY, **settings))


def from_checkpoint(path: Path, **settings: Any) -> Recipe:
    return make(ModelSettings(checkpoint=str(path), **settings))


def save(config: ModelConfig, path: Path) -> Checkpoint:
    """Of random weights, a head of five classes among them."""
    checkpoint = cases.make_checkpoint(config)
    save_checkpoint(checkpoint, path)
    return checkpoint


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_fresh_weights_are_a_function_of_the_seed() -> None:
    recipe = fresh()
    torch.manual_seed(1)
    first = build_start(recipe, CLASSES).model.state_dict()
    torch.manual_seed(2)
    torch.rand(100)
    assert are_equal(first, build_start(recipe, CLASSES).model.state_dict())
    other = build_start(replace(recipe, seed=1), CLASSES).model.state_dict()
    assert not torch.equal(first["patches.projection.weight"], other["patches.projection.weight"])


def test_a_fresh_start_is_complete() -> None:
    start = build_start(fresh(num_channels=1), CLASSES)
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
def test_fresh_weights_get_the_paper_s_values_or_imagenet_s(preprocess: Any, mean: object, std: object) -> None:
    preprocessing = build_start(fresh(preprocess=preprocess), CLASSES).preprocessing
    assert (preprocessing.mean, preprocessing.std, preprocessing.crop) == (mean, std, (8, 8))


def test_an_evaluation_may_crop_out_of_a_larger_size() -> None:
    start = build_start(replace(fresh(), evaluation=EvaluationConfig(resize=11)), CLASSES)
    assert (start.preprocessing.resize, start.preprocessing.crop) == (11, (8, 8))
    with pytest.raises(ValueError, match=r"^evaluation.resize=7 must be at least the size of the model, 8\.$"):
        build_start(replace(fresh(), evaluation=EvaluationConfig(resize=7)), CLASSES)


@pytest.mark.parametrize(
    "config",
    [cases.VIT, cases.HYBRID, cases.BIT, replace(cases.VIT, hidden_head=True), replace(cases.VIT, num_classes=0)],
    ids=["vit", "hybrid", "bit", "hidden head", "no head"],
)
def test_a_checkpoint_keeps_all_but_its_head(config: ModelConfig, tmp_path: Path) -> None:
    saved = save(config, tmp_path / "saved")
    start = build_start(from_checkpoint(tmp_path / "saved"), CLASSES)
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
    start = build_start(from_checkpoint(tmp_path / "saved"), tuple("abcde"))
    assert not start.model.state_dict()["head.weight"].any()
    assert start.class_names == tuple("abcde")


def test_another_resolution_resizes_the_positions(tmp_path: Path) -> None:
    save(cases.VIT, tmp_path / "saved")
    start = build_start(from_checkpoint(tmp_path / "saved", image_size=32), CLASSES)
    expected = load_checkpoint(tmp_path / "saved", image_size=32)
    assert start.preprocessing == expected.preprocessing
    assert start.preprocessing.crop == start.model.config.image_size == (32, 32)
    assert start.model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    names = [name for name in expected.model.state_dict() if name.startswith("positions")]
    assert names
    assert all(torch.equal(expected.model.state_dict()[name], start.model.state_dict()[name]) for name in names)


def test_dropout_and_recomputing_can_be_had_from_a_checkpoint(tmp_path: Path) -> None:
    saved = save(cases.VIT, tmp_path / "saved")
    recipe = from_checkpoint(tmp_path / "saved", dropout_rate=0.1, stochastic_depth_rate=0.2)
    recipe = replace(recipe, machine=MachineConfig(gradient_checkpointing=True))
    start = build_start(recipe, CLASSES)
    config = start.model.config
    assert isinstance(config, ViTConfig)
    assert (config.dropout_rate, config.stochastic_depth_rate, config.gradient_checkpointing) == (0.1, 0.2, True)
    assert torch.equal(start.model.state_dict()["class_token"], saved.model.state_dict()["class_token"])
    images = torch.rand(4, 3, 24, 24)
    with torch.no_grad():
        start.model.head.weight.normal_()
        assert not torch.equal(start.model.train()(images), start.model(images))


def test_dropout_of_a_network_that_has_none_is_refused(tmp_path: Path) -> None:
    save(cases.BIT, tmp_path / "saved")
    assert not hasattr(cases.BIT, "dropout_rate")
    with pytest.raises(ValueError, match=r"^dropout_rate cannot be had from this checkpoint's network: leave it out\.$"):
        build_start(from_checkpoint(tmp_path / "saved", dropout_rate=0.1), CLASSES)


def test_facts_that_a_file_does_not_say_are_the_recipe_s(tmp_path: Path) -> None:
    config = replace(cases.VIT, width=192, depth=1, num_heads=3)
    with pytest.warns(Notice, match="tanh GELU, where erf is usual"):
        save_checkpoint(cases.make_checkpoint(config), tmp_path / "a.pth", "timm")
    (tmp_path / "a.pth.vitrine.json").unlink()
    recipe = from_checkpoint(tmp_path / "a.pth", gelu="tanh", norm_eps=1e-5, preprocess="imagenet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # of the number of heads
        start = build_start(recipe, CLASSES)
    assert isinstance(start.model.config, ViTConfig)
    assert (start.model.config.gelu, start.model.config.norm_eps) == ("tanh", 1e-5)
    assert start.preprocessing.mean == (0.485, 0.456, 0.406)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No checkpoint at .*missing"):
        build_start(from_checkpoint(tmp_path / "missing"), CLASSES)


def test_rebuilding_without_a_change_is_the_model_itself() -> None:
    model = build_filled(cases.VIT)
    assert rebuild(model, gradient_checkpointing=False) is model


@pytest.mark.parametrize("config", [cases.VIT, cases.HYBRID, cases.BIT])
def test_rebuilding_changes_nothing_that_is_computed(config: ModelConfig) -> None:
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
    """Its preprocessing resizes nothing, so that the test can do without it."""
    save(config, path)
    recipe = make(ModelSettings(checkpoint=str(path)), head_init=head_init)
    start = build_start(recipe, CLASSES)
    return recipe, replace(start, preprocessing=replace(start.preprocessing, resize=None))


def solve_by_sklearn(features: np.ndarray, labels: np.ndarray, queries: np.ndarray, l2: float) -> np.ndarray:
    """Features with mean 0 and std 1, and a constant one of 100 in place of an intercept; targets -1 and 1."""
    mean, std = features.mean(axis=0), features.std(axis=0) + 1e-5
    design, asked = ((each - mean) / std for each in (features, queries))
    targets = 2.0 * (labels[:, None] == np.arange(3)) - 1
    ridge = Ridge(alpha=l2, fit_intercept=False, solver="cholesky")
    ridge.fit(np.pad(design, ((0, 0), (0, 1)), constant_values=100.0), targets)
    return ridge.predict(np.pad(asked, ((0, 0), (0, 1)), constant_values=100.0))


@pytest.mark.parametrize(
    "config", [cases.VIT, ResNetConfig(stages=(1, 1), width_factor=0.25, num_classes=5, image_size=(32, 32))]
)
def test_the_ridge_head_answers_as_scikit_learn_s(config: ModelConfig, tmp_path: Path) -> None:
    """For one of the penalties, and with scores that are scaled by a factor, both of which are chosen to suit a softmax."""
    recipe, start = start_from(config, tmp_path / "saved")
    source = make_source(50, config.image_size)
    set_fitted_head(start, source, recipe, CPU)
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
    set_fitted_head(start, source, recipe, CPU)
    model = start.model.eval()
    with torch.no_grad():
        images = start.preprocessing.normalise(torch.from_numpy(source.pixels).permute(0, 3, 1, 2))
        features = model.pool(model.encode(images))
    weight, bias = fit_discriminant_head(features, torch.from_numpy(source.labels.values), len(CLASSES))
    torch.testing.assert_close(model.state_dict()["head.weight"], weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.state_dict()["head.bias"], bias, rtol=1e-3, atol=1e-3)


def test_the_ridge_head_leaves_the_mode_and_the_other_weights_alone(tmp_path: Path) -> None:
    recipe, start = start_from(cases.VIT, tmp_path / "saved")
    before = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
    was_training = start.model.training
    set_fitted_head(start, make_source(20, (24, 24)), recipe, CPU)
    after = start.model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    assert start.model.training == was_training
    assert all(parameter.requires_grad for parameter in start.model.parameters())


def test_the_ridge_head_is_not_fitted_to_dropout(tmp_path: Path) -> None:
    """Features are those of evaluation, so a rate that wipes most of them out changes nothing."""
    save(cases.VIT, tmp_path / "saved")
    source, heads = make_source(20, (24, 24)), []
    for rate in (0.0, 0.9):
        recipe = replace(from_checkpoint(tmp_path / "saved", dropout_rate=rate), head_init="ridge")
        start = build_start(recipe, CLASSES)
        start.model.train()
        set_fitted_head(start, source, recipe, CPU)
        heads.append(start.model.state_dict()["head.weight"])
    assert torch.equal(*heads)


def test_both_heads_of_a_distilled_model_get_it(tmp_path: Path) -> None:
    recipe, start = start_from(replace(cases.VIT, distillation_token=True), tmp_path / "saved")
    set_fitted_head(start, make_source(20, (24, 24)), recipe, CPU)
    state = start.model.state_dict()
    assert state["head.weight"].any()
    assert torch.equal(state["head.weight"], state["head_distillation.weight"])


def test_a_ridge_head_of_very_many_images_is_fitted_to_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, start = start_from(cases.VIT, tmp_path / "saved")
    monkeypatch.setattr(module, "MAX_FITTED_IMAGES", 10)
    set_fitted_head(start, make_source(40, (24, 24)), recipe, CPU)
    assert start.model.state_dict()["head.weight"].isfinite().all()


@pytest.mark.parametrize("head_init", ["ridge", "discriminant"])
def test_a_fitted_head_needs_one_label_each(head_init: HeadInit, tmp_path: Path) -> None:
    recipe, start = start_from(cases.VIT, tmp_path / "saved", head_init)
    source = make_source(3, (24, 24), Labels.several_each([[0], [1, 2], []]))
    with pytest.raises(
        ValueError, match=rf"^head_init='{head_init}' needs images with one label each: take head_init='zero'\.$"
    ):
        set_fitted_head(start, source, recipe, CPU)
