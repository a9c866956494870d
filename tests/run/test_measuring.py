"""What is measured in the course of a run, against the same measured by hand on the model that was saved."""

from pathlib import Path

import pytest
import torch

from tests.run.test_run import make_recipe, read_split, write_data
from vitrine.core.runtime import Runtime
from vitrine.run.folder import RunFolder
from vitrine.run.run import Run

ALONE = Runtime(torch.device("cpu"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "shades.npz")


def build_run(source: str, tmp_path: Path, **changes: object) -> Run:
    with torch.random.fork_rng():
        run = Run(make_recipe(source, **changes), RunFolder(tmp_path / "run"), ALONE)
        torch.manual_seed(0)
        torch.nn.init.normal_(run.state.objective.encoder.head.weight)
    return run


def test_watching_gives_the_figures_of_the_watched_images_without_dropout(source: str, tmp_path: Path) -> None:
    run = build_run(source, tmp_path)
    score, record = run.measurer.watch(run.state)
    images, labels = read_split(source, "val")
    encoder = run.state.objective.encoder.eval()
    with torch.no_grad():
        logits = encoder(images)
    assert score == pytest.approx((logits.argmax(dim=1) == labels).double().mean().item())
    loss = pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert record == {"val_top1": score, "val_top5": 1.0, "val_loss": loss}


def test_the_averaged_weights_are_measured_and_then_put_back(source: str, tmp_path: Path) -> None:
    run = build_run(source, tmp_path, polyak_factor=0.5)
    assert run.state.average is not None
    head = run.state.objective.encoder.head
    with torch.no_grad():
        run.state.average.values["encoder.head.weight"].zero_()
        run.state.average.values["encoder.head.bias"].copy_(torch.tensor([9.0, 0.0, 0.0, 0.0]))
    before = head.weight.clone()
    score, _ = run.measurer.watch(run.state)
    _, labels = read_split(source, "val")
    assert score == pytest.approx((labels == 0).double().mean().item())
    assert torch.equal(head.weight, before)
    assert run.state.objective.training


def test_few_shot_accuracy_is_measured_where_it_is_wanted(source: str, tmp_path: Path) -> None:
    run = build_run(source, tmp_path, evaluation={"few_shot": 3})
    _, record = run.measurer.watch(run.state)
    assert 0.5 < record["few_shot_3"] <= 1  # brightness tells the classes apart, and random features keep it
