"""What is collected of a family: costs and answers by seed and model, for seeds that have all of them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.studies.test_scaling import SEEDS, make_outcomes, make_plan
from vitrine.evaluation.intervals import count_draws
from vitrine.studies.claims import compute_logit
from vitrine.studies.frontier import fit_frontier
from vitrine.studies.runner import RunOutcome
from vitrine.studies.scaling_readings import COMPUTE, TIME, collect_family, compute_logits, list_whole_seeds


def test_costs_and_answers_are_by_seed_and_model() -> None:
    outcomes = make_outcomes(make_plan(), ratio=2.0)
    runs = collect_family(outcomes, "ResNet", SEEDS, COMPUTE)
    table = {(each.run.columns["model"], each.run.columns["seed"]): each for each in outcomes}
    models = [run.columns["model"] for run in make_plan().runs if run.columns["family"] == "ResNet"][:6]
    assert runs.cost.shape == (3, 6)
    assert runs.hits.shape == (2000, 3, 6)
    for row, seed in enumerate(SEEDS):
        for column, model in enumerate(models):
            outcome = table[model, seed]
            assert outcome.summary is not None
            assert outcome.reading is not None
            assert runs.cost[row, column] == outcome.summary.exaflops
            assert runs.hits[:, row, column].mean() == outcome.reading["accuracy"]
            assert runs.logits[row, column] == compute_logit(outcome.reading["accuracy"], 2000)
    seconds = collect_family(outcomes, "ResNet", SEEDS, TIME)
    assert outcomes[0].summary is not None
    assert seconds.cost.mean() > 1 > runs.cost.mean()


def test_draws_are_fitted_as_their_images_would_be() -> None:
    runs = collect_family(make_outcomes(make_plan(), ratio=2.0), "ViT", SEEDS, COMPUTE)
    draws = count_draws(runs.num_images, 5)
    fitted = runs.fit_draws(draws)
    assert fitted.slope.shape == (6, 3)
    assert fitted.slope[0] == pytest.approx(runs.fit().slope, nan_ok=True)
    drawn = np.repeat(np.arange(runs.num_images), draws[:, 2])
    alone = fit_frontier(runs.cost, compute_logits(runs.hits[drawn].mean(axis=0), runs.num_images))
    assert fitted.slope[2] == pytest.approx(alone.slope, nan_ok=True)


def test_only_seeds_with_all_models_are_whole() -> None:
    plan = make_plan()
    outcomes = make_outcomes(plan, ratio=2.0)
    assert list_whole_seeds(plan, outcomes, ["ViT"]) == [0, 1, 2]
    failed = replace(outcomes[0], summary=None, reading=None, error=ValueError("Diverged."))  # a ViT with seed 0
    assert list_whole_seeds(plan, [failed, *outcomes[1:]], ["ViT", "ResNet"]) == [1, 2]
    assert list_whole_seeds(plan, [failed, *outcomes[1:]], ["ResNet"]) == [0, 1, 2]
    missing = [each for each in outcomes if each.run.columns["model"] != "ResNet 6x1-2-1"]
    assert list_whole_seeds(plan, missing, ["ResNet"]) == []
    assert list_whole_seeds(plan, [RunOutcome(each.run, None) for each in outcomes], ["ViT"]) == []
