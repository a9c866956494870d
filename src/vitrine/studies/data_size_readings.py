"""What `data-size` measures of its runs, each in one way: accuracy by model, number of images and seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrine.studies.answers import Reading, Readings, collect_readings
from vitrine.studies.data_size_grid import PLAIN, REAL_SET
from vitrine.studies.runner import RunOutcome
from vitrine.studies.study import StudyPlan

REAL_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One way to measure the claims."""

    name: str
    pick: Callable[[Mapping[str, Any], Reading], Reading | None]
    """Returns from columns and reading of a run what is measured in this way; None for runs that it does not concern."""
    is_real: bool = False
    """Whether it is measured on the real set, and not on images of the same kind."""

    def count_classes(self, plan: StudyPlan) -> int:
        """Return the number of classes to guess from."""
        return REAL_CLASSES if self.is_real else plan.num_classes


def pick_pretraining(columns: Mapping[str, Any], reading: Reading) -> Reading | None:
    """Return the answers of a run with the settings of figure 4."""
    return reading if columns["kind"] == "pre-training" and columns["regularisation"] == PLAIN else None


def pick_few_shot(columns: Mapping[str, Any], reading: Reading) -> Reading | None:
    """Return the few-shot accuracy of the features of such a run."""
    if pick_pretraining(columns, reading) is None or "few_shot" not in reading:
        return None
    return {"accuracy": reading["few_shot"], "num_images": NUM_REAL_TEST}


def pick_finetuning(columns: Mapping[str, Any], reading: Reading) -> Reading | None:
    """Return the answers of a fine-tuned model on the real set."""
    return reading if columns["kind"] == "fine-tuning" else None


NUM_REAL_TEST = 360  # handwritten digits of the split test
MAIN = Measure(name="same settings", pick=pick_pretraining)
FINETUNED = Measure(name=f"fine-tuned on {REAL_SET}", pick=pick_finetuning, is_real=True)
FEW_SHOT = Measure(name=f"5-shot on {REAL_SET}", pick=pick_few_shot, is_real=True)
REGULARISED = "settings chosen for each number"


def list_measures(plan: StudyPlan, outcomes: Sequence[RunOutcome]) -> list[Measure]:
    """Return the ways in which a study was measured: that of the verdicts first."""
    chosen = {
        (run.columns["model"], run.columns["num_images"]): run.columns["regularisation"]
        for run in plan.runs
        if run.columns["regularisation"] != PLAIN
    }

    def pick_chosen(columns: Mapping[str, Any], reading: Reading) -> Reading | None:
        wanted = chosen.get((columns["model"], columns["num_images"]), PLAIN)
        return reading if columns["kind"] == "pre-training" and columns["regularisation"] == wanted else None

    measures = [MAIN, *([Measure(name=REGULARISED, pick=pick_chosen)] if chosen else []), FINETUNED, FEW_SHOT]
    return [measure for measure in measures if measure is MAIN or collect(outcomes, measure)]


def collect(outcomes: Sequence[RunOutcome], measure: Measure) -> Readings:
    """Return the readings of all finished runs in one way."""
    return collect_readings(outcomes, "model", measure.pick)
