"""Runs without labels: what comes out of them, and what becomes of it afterwards."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.run.test_run import make_recipe, write_data
from vitrine.data.batch import Batch
from vitrine.data.config import DataConfig
from vitrine.evaluate.config import EvaluationConfig
from vitrine.formats.load import load_checkpoint
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import MaskedPatchesConfig
from vitrine.objectives.masked_patches import MaskedPatches
from vitrine.objectives.supervised import Supervised
from vitrine.recipe import Recipe
from vitrine.run import run as module
from vitrine.run.objective import build_objective, load_objective
from vitrine.run.run import run_recipe
from vitrine.run.start import build_start
from vitrine.train.metrics_file import read_records


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "plot_curves", lambda records, path, title: None)
    with torch.random.fork_rng():
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "shades.npz")


def make_masked(source: str, **changes: object) -> Recipe:
    return make_recipe(source, **{"objective": "masked-patches", "model": {"patch_size": 2, "dropout_rate": 0.0}, **changes})


def test_a_run_without_labels_gives_a_network_without_a_head(source: str, tmp_path: Path) -> None:
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


def test_its_result_is_fine_tuned_as_any_other(source: str, tmp_path: Path) -> None:
    run_recipe(make_masked(source, total_steps=3), tmp_path / "run")
    for head_init in ("zero", "ridge", "discriminant"):
        model = ModelSettings(checkpoint=str(tmp_path / "run" / "model"))
        tuned = replace(make_recipe(source, total_steps=20, head_init="zero"), model=model, head_init=head_init)
        summary = run_recipe(tuned, tmp_path / head_init)
        assert summary.test_top1 is not None
        assert summary.test_top1 > 0.4
        assert load_checkpoint(tmp_path / head_init / "model").class_names == ("0", "1", "2", "3")


def test_few_shot_accuracy_chooses_the_best_where_it_is_measured(source: str, tmp_path: Path) -> None:
    recipe = make_masked(source, total_steps=6, evaluation=EvaluationConfig(num_times=3, few_shot=2, batch_size=10))
    summary = run_recipe(recipe, tmp_path / "run")
    found = [record["few_shot_2"] for record in read_records(tmp_path / "run" / "metrics.jsonl") if "few_shot_2" in record]
    assert len(found) == 3
    assert summary.best == max(found)


def test_images_without_labels_are_enough(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    recipe = make_masked("unused", data=DataConfig(source=str(tmp_path / "images"), held_out=0.2), total_steps=4)
    summary = run_recipe(recipe, tmp_path / "run")
    assert summary.num_train_images == 16
    few = replace(recipe, evaluation=EvaluationConfig(num_times=1, few_shot=1))
    with pytest.raises(ValueError, match=r"evaluation.few_shot=1 needs labels of two or more classes: leave it out"):
        run_recipe(few, tmp_path / "few")


@pytest.mark.parametrize("polyak_factor", [None, 0.5])
def test_the_objective_of_a_run_is_as_it_left_it(polyak_factor: float | None, source: str, tmp_path: Path) -> None:
    recipe = make_masked(source, total_steps=30, polyak_factor=polyak_factor)
    run_recipe(recipe, tmp_path / "run")
    objective = load_objective(tmp_path / "run")
    assert isinstance(objective, MaskedPatches)
    fresh = build_objective(recipe, build_start(recipe, ()))
    images = torch.from_numpy(np.load(source)["x_val"])[:, None]
    batch = Batch(images, torch.zeros(len(images)), torch.arange(len(images)), step=0)
    with torch.no_grad():
        assert objective(batch).loss < 0.9 * fresh.eval()(batch).loss
        final = [record["val_loss"] for record in read_records(tmp_path / "run" / "metrics.jsonl") if "val_loss" in record][-1]
        assert objective(batch).loss.item() == pytest.approx(final, rel=1e-4)


def test_the_objective_of_a_classifier_can_be_had_as_well(source: str, tmp_path: Path) -> None:
    run_recipe(make_recipe(source, total_steps=3), tmp_path / "run")
    assert isinstance(load_objective(tmp_path / "run"), Supervised)


def test_what_is_no_run_costs_a_sentence(source: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no folder of a run"):
        load_objective(tmp_path)
    run_recipe(make_recipe(source, total_steps=3), tmp_path / "run")
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / checkpoint.name)
    with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
        load_objective(tmp_path / "run")


def test_hybrids_are_refused(source: str, tmp_path: Path) -> None:
    model = ModelSettings(name="R26+ViT-Ti/16", image_size=32, num_channels=1)
    with pytest.raises(ValueError, match="take a ViT"):
        run_recipe(replace(make_masked(source), model=model), tmp_path / "run")


def test_settings_that_need_labels_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match="mixing is for learning from labels"):
        make_masked(source, mixing={"mixup": 0.2})
    with pytest.raises(ValueError, match="supervised has settings of learning from labels"):
        make_masked(source, supervised={"label_smoothing": 0.1})
    with pytest.raises(ValueError, match="head_init='ridge' is for learning from labels"):
        make_masked(source, head_init="ridge")
    with pytest.raises(ValueError, match="masked_patches has settings of predicting patches"):
        make_recipe(source, masked_patches=MaskedPatchesConfig(target="pixels"))
