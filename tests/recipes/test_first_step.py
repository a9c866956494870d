"""The first training step of every recipe, with its own model, resolution, augmentation, loss and optimizer.

A new head is zero, so the first loss does not depend on the images and has a closed form.
"""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrine.data.batch import Batch
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.save import save_model
from vitrine.models.cost import compute_cost
from vitrine.models.registry import build_meta_model, build_model
from vitrine.objectives.objective import Objective
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES
from vitrine.run import run
from vitrine.run.build import build_objective
from vitrine.training.metrics_log import read_records
from vitrine.training.optimizer import build_optimizer

CLASSES = ("ant", "bee", "cat")
NUM_CLASSES = len(CLASSES)
LARGEST = 30_000_000  # most parameters of a model that is trained here; larger ones are on the meta device
NUM_PARAMETERS = {name: compute_cost(build().model.resolve(NUM_CLASSES)).num_parameters for name, build in RECIPES.items()}
SMALL = [name for name, number in NUM_PARAMETERS.items() if number <= LARGEST]
LARGE = [name for name, number in NUM_PARAMETERS.items() if number > LARGEST]
# A step of a ResNet takes seconds.
STEPS = [pytest.param(name, marks=pytest.mark.full if name.startswith("jft") else ()) for name in SMALL]


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the curves: drawing them takes longer than the step."""
    monkeypatch.setattr(run, "write_run_report", lambda *arguments: None)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write noise images of three classes, all of one size because some recipes keep images in memory."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for label in CLASSES:
        (folder / label).mkdir()
        for index in range(4):
            Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / label / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model with a hidden layer in its head, like the paper's, to be fine-tuned."""
    torch.manual_seed(0)
    model = build_model(
        "ViT-Ti/16", image_size=32, width=8, depth=1, num_heads=1, mlp_dim=8, num_classes=5, hidden_head=True, head_bias=-10.0
    )
    path = tmp_path_factory.mktemp("checkpoint") / "model"
    save_model(model, path, preprocessing=build_inception_preprocessing((32, 32)))
    return path


def shorten(recipe: Recipe, images: Path) -> Recipe:
    """Change a recipe to one step of two images; everything else stays."""
    return with_changes(
        recipe,
        data={"source": str(images), "held_out": 0.0, "subset": "all"},
        loader={"batch_size": 2, "num_workers": 0},
        optim={"warmup_steps": 0},
        machine={"accumulation_steps": 1},
        evaluation={"num_times": 0, "test": False, "patience": None, "few_shot": 0},
        total_steps=1,
        device="cpu",
    )


def compute_first_loss(recipe: Recipe) -> float:
    """Return the first loss of a head of zeros: all classes or colours are equally likely, up to the bias."""
    if recipe.objective == "masked-patches":
        return math.log(512)
    if recipe.supervised.loss == "softmax":
        return math.log(NUM_CLASSES)
    bias = recipe.model.head_bias or 0.0
    return math.log1p(math.exp(-bias)) + (NUM_CLASSES - 1) * math.log1p(math.exp(bias))


def take_first_step(recipe: Recipe, out: Path) -> dict[str, float]:
    summary = run.run_recipe(recipe, out, "first step")
    assert (summary.is_finished, summary.steps, summary.images) == (True, 1, 2)
    (record,) = read_records(out / "metrics.jsonl")
    shutil.rmtree(out)  # some have hundreds of megabytes
    assert record["step"] == 1
    assert record["rate"] == recipe.optim.learning_rate
    assert 0 < record["grad_norm"] < math.inf
    return record


def test_recipes_are_small_or_large() -> None:
    assert {"digits", "imagenet-vit-s16", "jft-r50x1", "cifar10-hybrid"} <= set(SMALL)
    assert {"jft-vit-h14", "jft-r152x2", "jft-r50-vit-l16"} <= set(LARGE)


@pytest.mark.parametrize("name", STEPS)
def test_first_step_of_a_recipe(name: str, images: Path, tmp_path: Path) -> None:
    recipe = shorten(RECIPES[name](), images)
    assert take_first_step(recipe, tmp_path / "run")["loss"] == pytest.approx(compute_first_loss(recipe), rel=1e-6)


@pytest.mark.parametrize("name", FINETUNE_RECIPES)
def test_first_step_of_a_fine_tuning_recipe(name: str, checkpoint: Path, images: Path, tmp_path: Path) -> None:
    task = FinetuneTask(str(checkpoint), str(images), num_images=12, num_classes=NUM_CLASSES, measure_area=lambda: 40 * 40)
    recipe = shorten(FINETUNE_RECIPES[name].build(task), images)
    loss = take_first_step(recipe, tmp_path / "run")["loss"]
    if recipe.head_init == "zero":
        assert loss == pytest.approx(math.log(NUM_CLASSES), rel=1e-6)
    else:
        assert math.isfinite(loss)


@pytest.mark.parametrize("name", LARGE)
def test_large_recipe_builds_model_and_optimizer(name: str) -> None:
    recipe = RECIPES[name]()
    objective = build_on_meta_device(recipe)
    num_parameters = NUM_PARAMETERS[name]
    if recipe.objective == "masked-patches":  # for 3 classes there are 512 colours, and a mask
        num_parameters += (512 - NUM_CLASSES) * (768 + 1) + 768
    assert sum(parameter.numel() for parameter in objective.parameters()) == num_parameters
    groups = build_optimizer(objective, recipe.optim).param_groups
    assert sorted(id(tensor) for group in groups for tensor in group["params"]) == sorted(map(id, objective.parameters()))
    assert {group["weight_decay"] for group in groups} == {0.0, recipe.optim.weight_decay}


@pytest.mark.full
@pytest.mark.parametrize("name", LARGE)
def test_first_step_of_a_large_recipe_on_the_meta_device(name: str) -> None:
    recipe = RECIPES[name]()
    objective = build_on_meta_device(recipe).train()
    image = torch.empty(2, 3, 224, 224, dtype=torch.uint8, device="meta")
    label = torch.empty(2, dtype=torch.int64, device="meta")
    loss = objective(Batch(image=image, target=label, index=torch.arange(2), step=0)).loss
    loss.backward()
    assert loss.shape == ()
    assert [key for key, parameter in objective.named_parameters() if parameter.grad is None] == []


def build_on_meta_device(recipe: Recipe) -> Objective:
    config = recipe.model.resolve(NUM_CLASSES if recipe.objective == "supervised" else 0)
    start = Checkpoint(build_meta_model(config), build_inception_preprocessing(config.image_size), None, {})
    with torch.device("meta"):
        return build_objective(recipe, start)
