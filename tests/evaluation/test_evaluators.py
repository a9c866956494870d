"""Evaluators of a run: metrics against plain torch and scikit-learn, their names, and which of them run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from tests.filling import fill_randomly
from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.data.loader import build_eval_loader
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.evaluation.config import EvaluationConfig
from vitrine.evaluation.evaluators import (
    EVALUATORS,
    EvaluationSetup,
    choose_selector,
    classify,
    classify_images,
    gather_topk,
    list_evaluators,
)
from vitrine.evaluation.topk import TopK
from vitrine.models.registry import build_model
from vitrine.objectives.config import OBJECTIVES, MaskedPatchesConfig, ObjectiveKind, SupervisedConfig
from vitrine.objectives.masked_patches import MaskedPatches
from vitrine.objectives.objective import Objective
from vitrine.objectives.supervised import Supervised

CLASSES = ("dark", "grey", "light")
PREPROCESSING = build_inception_preprocessing((8, 8), 1)


def make_source(num_images: int, seed: int) -> ArraySource:
    """Noise whose brightness depends on the class."""
    drawn = np.random.default_rng(seed)
    labels = np.arange(num_images) % 3
    pixels = drawn.integers(0, 90, (num_images, 8, 8, 1)) + 80 * labels[:, None, None, None]
    return ArraySource(pixels.astype(np.uint8), Labels.one_each(labels), CLASSES, "made")


TRAIN, VAL = make_source(30, 0), make_source(17, 1)


def build_objective(kind: ObjectiveKind, **settings: Any) -> Objective:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        num_classes = 3 if kind == "supervised" else 0
        shape = {"image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32, "num_channels": 1}
        model = build_model("ViT-Ti/16", **shape, num_classes=num_classes, dropout_rate=0.5)
        if kind == "supervised":
            torch.nn.init.normal_(model.head.weight)
            return Supervised(model, PREPROCESSING, SupervisedConfig(**settings))
        return MaskedPatches(model, PREPROCESSING, MaskedPatchesConfig(**settings))


def build_setup(objective: Objective, few_shot: int = 0) -> EvaluationSetup:
    def read(source: Source) -> Iterator[Batch]:
        return build_eval_loader(source, PREPROCESSING, batch_size=5, num_workers=0).read_epoch()

    @contextmanager
    def evaluating() -> Iterator[None]:
        objective.eval()
        yield
        objective.train()

    return EvaluationSetup(
        objective=objective,
        runtime=Runtime(torch.device("cpu")),
        config=EvaluationConfig(few_shot=few_shot, num_times=1),
        seed=3,
        train=TRAIN,
        source=VAL,
        split="val",
        read=read,
        evaluating=evaluating,
    )


def read_pixels(source: ArraySource) -> torch.Tensor:
    pixels = source.pixels.reshape(len(source), 1, 8, 8)
    return torch.from_numpy(pixels).float() / 127.5 - 1


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_top1_equals_plain_torch(loss: Any) -> None:
    objective = build_objective("supervised", loss=loss)
    metrics = EVALUATORS["top1"].measure(build_setup(objective))
    with torch.no_grad():
        logits = objective.eval().encoder(read_pixels(VAL))
    labels = torch.arange(17) % 3
    expected = {"val_top1": (logits.argmax(dim=1) == labels).double().mean().item(), "val_top5": 1.0}
    if loss == "softmax":  # the cross-entropy of a sigmoid classifier means nothing
        expected["val_loss"] = torch.nn.functional.cross_entropy(logits, labels).item()
    assert metrics == pytest.approx(expected, rel=1e-5)


def test_the_objective_is_measured_over_all_images_with_the_same_masks() -> None:
    objective = build_objective("masked-patches")
    fill_randomly(objective)  # a head of zeros has the same loss in every batch, whatever their weights
    setup = build_setup(objective)
    metrics = EVALUATORS["objective"].measure(setup)
    assert EVALUATORS["objective"].measure(setup) == metrics
    [batch] = build_eval_loader(VAL, PREPROCESSING, batch_size=17, num_workers=0).read_epoch()
    with torch.no_grad():
        output = objective.eval()(objective.add_draws(batch))
    expected = {"val_accuracy": output.metrics["accuracy"].item(), "val_loss": output.loss.item()}
    assert metrics == pytest.approx(expected, rel=1e-5)
    assert list(metrics) == ["val_accuracy", "val_loss"]


def test_few_shot_fits_to_some_training_images_and_measures_on_the_others() -> None:
    """All ten training images of each class are used, so that scikit-learn can repeat it; chance is a third."""
    objective = build_objective("supervised")
    [(name, accuracy)] = EVALUATORS["few_shot"].measure(build_setup(objective, few_shot=10)).items()
    with torch.no_grad():
        train, val = (objective.eval().features(read_pixels(source) / 2 + 0.5).numpy() for source in (TRAIN, VAL))
    mean, std = train.mean(axis=0), train.std(axis=0) + 1e-5
    targets = 2 * np.eye(3)[np.arange(30) % 3] - 1
    predicted = Ridge(alpha=1024).fit((train - mean) / std, targets).predict((val - mean) / std).argmax(axis=1)
    assert name == "few_shot_10"
    assert accuracy == pytest.approx((predicted == np.arange(17) % 3).mean(), abs=1.01 / 17)
    assert accuracy > 0.5


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("top1", build_objective("supervised")),
        ("top1", build_objective("supervised", loss="sigmoid")),
        ("objective", build_objective("masked-patches")),
        ("objective", build_objective("masked-patches", target="pixels")),
        ("few_shot", build_objective("supervised")),
    ],
)
def test_declared_metrics_are_those_that_are_measured(name: str, objective: Objective) -> None:
    setup = build_setup(objective, few_shot=2)
    assert list(EVALUATORS[name].list_metrics(setup)) == list(EVALUATORS[name].measure(setup))


@pytest.mark.parametrize(
    ("objective", "few_shot", "evaluators", "selector"),
    [
        ("supervised", 0, ["top1"], "top1"),
        ("supervised", 5, ["top1", "few_shot"], "top1"),
        ("masked-patches", 0, ["objective"], "objective"),
        ("masked-patches", 5, ["objective", "few_shot"], "few_shot"),
    ],
)
def test_objective_and_settings_choose_the_evaluators(
    objective: ObjectiveKind, few_shot: int, evaluators: list[str], selector: str
) -> None:
    spec, config = OBJECTIVES[objective], EvaluationConfig(few_shot=few_shot)
    assert list_evaluators(spec, config) == evaluators
    assert choose_selector(spec, config) == selector


def test_predictions_of_every_image_are_kept() -> None:
    setup = build_setup(build_objective("supervised"))
    result, topk = classify_images(setup)
    assert result == classify(setup)  # the same numbers, to the last bit
    with torch.no_grad():
        probabilities = setup.objective.eval().encoder(read_pixels(VAL)).softmax(dim=1)
    assert topk.index.tolist() == list(range(17))
    assert torch.equal(topk.classes, probabilities.argsort(dim=1, descending=True))
    torch.testing.assert_close(topk.probabilities[:, 0], probabilities.max(dim=1).values)
    assert topk.hits[:, 0].double().mean().item() == result.top1


@dataclass(frozen=True)
class OneOfTwo(Runtime):
    """A rank of two, whose sum adds what the other rank has."""

    world_size: int = 2
    other: torch.Tensor | None = None
    given: list[torch.Tensor] = field(default_factory=list)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self.given.append(tensor)
        return tensor if self.other is None else tensor + self.other


@pytest.mark.parametrize("has_several", [False, True])
def test_ranks_gather_their_predictions(has_several: bool) -> None:
    _, whole = classify_images(build_setup(build_objective("supervised")))
    if has_several:
        has_label = torch.arange(17) % 4 > 0
        whole = replace(whole, losses=torch.full((17,), torch.nan), hits=whole.hits & has_label[:, None], has_label=has_label)
    parts = [whole.take(torch.arange(17)[rank::2]) for rank in range(2)]
    second = OneOfTwo(torch.device("cpu"), 1)
    gather_topk(parts[1], 17, second)
    found = gather_topk(parts[0], 17, OneOfTwo(torch.device("cpu"), other=second.given[0]))
    for each in fields(TopK):
        torch.testing.assert_close(getattr(found, each.name), getattr(whole, each.name), rtol=0, atol=0, equal_nan=True)


def test_skipped_images_are_missing_after_gathering() -> None:
    _, whole = classify_images(build_setup(build_objective("supervised")))
    found = gather_topk(whole.take(torch.tensor([4, 2])), 17, OneOfTwo(torch.device("cpu")))
    assert found.index.tolist() == [2, 4]
    assert torch.equal(found.classes, whole.classes[[2, 4]])
