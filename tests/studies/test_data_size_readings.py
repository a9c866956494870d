"""Ways in which data-size is measured: only those with runs count."""

from tests.studies.test_data_size import SEEDS, make_outcomes
from vitrine.studies.data_size import build
from vitrine.studies.data_size_readings import FINETUNED, MAIN, collect, list_measures
from vitrine.studies.runner import RunOutcome


def test_readings_are_those_of_finished_runs_of_their_kind() -> None:
    plan = build("tiny", None, SEEDS)
    outcomes = make_outcomes(plan, {})
    failed = [RunOutcome(outcomes[0].run, None, error=ValueError("Diverged.")), *outcomes[1:]]
    columns = outcomes[0].run.columns
    cell = (columns["model"], columns["num_images"], columns["seed"])
    assert collect(outcomes, MAIN).keys() - collect(failed, MAIN).keys() == {cell}
    assert collect(failed, FINETUNED).keys() == collect(outcomes, MAIN).keys()


def test_without_fine_tuning_there_is_one_measure_less() -> None:
    plan = build("tiny", None, SEEDS)
    outcomes = [each for each in make_outcomes(plan, {}) if each.run.start is None]
    assert list_measures(plan, outcomes) == [MAIN]
    assert list_measures(plan, []) == [MAIN]
    assert FINETUNED.count_classes(plan) == 10
    assert MAIN.count_classes(plan) == plan.num_classes == 4
