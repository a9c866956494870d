"""The search of settings: neighbours of the best, runs that are shared, failures and interruptions."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from vitrine.recipe import Recipe
from vitrine.studies.runner import RunOutcome, RunTable, StudyRun
from vitrine.studies.search import MAX_VALUES, Choice, SearchResult, list_first_rates, list_first_runs, search


def build_run(folder: str) -> StudyRun:
    return StudyRun(label=folder, recipe=Recipe(epochs=1), folder=folder, title=folder)


def make_choice(factor: float | None = 2.0, values: tuple[float, ...] = (1.0, 2.0, 4.0)) -> Choice:
    return Choice(name="rate", values=values, committed=2.0, build=lambda value: (build_run(f"{value:g}"),), factor=factor)


def make_runs(score: Callable[[float], float], made: list[str]) -> Callable[[Sequence[StudyRun]], RunTable]:
    """Return a function that makes runs whose accuracy is a function of the value in their folder's name."""

    def make(runs: Sequence[StudyRun]) -> RunTable:
        made.extend(run.folder for run in runs)
        return RunTable([RunOutcome(run, None, {"accuracy": score(float(run.folder))}) for run in runs])

    return make


@pytest.mark.parametrize(
    ("optimum", "tried"),
    [(2, [1, 2, 4]), (4, [1, 2, 4, 8]), (16, [1, 2, 4, 8, 16, 32]), (0.5, [0.25, 0.5, 1, 2, 4])],
)
def test_values_are_tried_until_the_best_lies_between_others(optimum: float, tried: list[float]) -> None:
    made: list[str] = []
    (found,), table = search([make_choice()], make_runs(lambda value: -abs(value - optimum), made))
    assert found.best == optimum
    assert [trial.value for trial in found.trials] == tried
    assert sorted(map(float, made)) == tried  # each run is made once
    assert len(table.outcomes) == len(tried)


def test_choices_of_a_family_try_the_same_values() -> None:
    """The best of one is 8, of the other 1: both try all values that either needs."""

    def make(runs: Sequence[StudyRun]) -> RunTable:
        scores = [-abs(float(run.folder[1:]) - (8 if run.folder[0] == "a" else 1)) for run in runs]
        return RunTable([RunOutcome(run, None, {"accuracy": score}) for run, score in zip(runs, scores, strict=True)])

    choices = [
        replace(make_choice(), name=name, family="rates", build=lambda value, name=name: (build_run(f"{name}{value:g}"),))
        for name in ("a", "b")
    ]
    found, _ = search(choices, make)
    assert [each.best for each in found] == [8, 1]
    assert [[trial.value for trial in each.trials] for each in found] == [[0.5, 1, 2, 4, 8, 16]] * 2


def test_runs_that_others_start_from_do_not_count() -> None:
    def build(value: float) -> tuple[StudyRun, ...]:
        return build_run(f"{100 * value}"), replace(build_run(f"{value:g}"), start=f"{100 * value}")

    choice = replace(make_choice(factor=None), build=build)
    (found,), _ = search([choice], make_runs(lambda value: value, []))
    assert [trial.accuracies for trial in found.trials] == [(1,), (2,), (4,)]


def test_first_rates_surround_the_committed_ones() -> None:
    assert list_first_rates(4e-3) == pytest.approx((2e-3, 4e-3, 8e-3))
    assert list_first_rates(4e-3, 1e-3, 2e-3) == pytest.approx((5e-4, 1e-3, 2e-3, 4e-3, 8e-3))


def test_a_search_ends_where_nothing_is_ever_best() -> None:
    (found,), _ = search([make_choice()], make_runs(lambda value: value, []))
    assert len(found.trials) == MAX_VALUES


def test_a_choice_without_a_factor_has_its_values_alone() -> None:
    (found,), _ = search([make_choice(factor=None)], make_runs(lambda value: value, []))
    assert [trial.value for trial in found.trials] == [1, 2, 4]


def test_a_value_whose_run_failed_is_not_the_best() -> None:
    def make(runs: Sequence[StudyRun]) -> RunTable:
        outcomes = [
            RunOutcome(run, None, error=ValueError("Diverged."))
            if float(run.folder) > 2
            else RunOutcome(run, None, {"accuracy": 0.5})
            for run in runs
        ]
        return RunTable(outcomes)

    (found,), table = search([make_choice(factor=None)], make)
    assert found.best == 1.0
    assert [trial.accuracies for trial in found.trials] == [(0.5,), (0.5,), ()]
    result = SearchResult(name="x", out=Path("out"), found=[found], failures=table.failures)
    (choice,) = result.to_json()["choices"]
    assert (choice["best"], choice["committed"]) == ("1", "2")
    assert choice["trials"][2] == {"value": "4", "score": 0.0, "accuracies": []}


def test_an_interrupted_search_has_found_nothing() -> None:
    found, table = search([make_choice()], lambda runs: RunTable([], signal.SIGTERM))
    assert found == []
    assert table.interrupted_by == signal.SIGTERM


def test_runs_that_others_start_from_come_first_and_shared_ones_once() -> None:
    shared = build_run("shared")
    choices = [
        Choice(name=name, values=(1.0,), committed=1.0, build=lambda value, name=name: (build_run(name),), prepare=(shared,))
        for name in ("a", "b")
    ]
    assert [run.folder for run in list_first_runs(choices)] == ["shared", "a", "b"]
