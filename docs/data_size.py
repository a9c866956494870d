"""Make the file of the demo's figure from a finished study: `python docs/data_size.py studies/data-size-small/study.json`.

src/vitrine/demo/data_size.json comes with the package. It has the accuracies of the study's own regime, the verdicts, and the
command that makes the study again; everything else stays in study.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from vitrine.core.files import write_json
from vitrine.demo.data_size import RESULT
from vitrine.recipe import join_command
from vitrine.studies.data_size_grid import GRIDS, Grid, find_facts
from vitrine.studies.data_size_readings import pick_pretraining


def summarise_study(study: dict[str, Any]) -> dict[str, Any]:
    """Return the content of data_size.json from that of study.json."""
    grid = GRIDS[study["scale"]]
    facts = find_facts(grid, None)
    if study["study"] != "data-size" or study["data"] != facts.source:
        raise SystemExit(f"{study['study']} on {study['data']} is not the study data-size on its own images: leave out --data.")
    runs = [run for run in study["runs"] if run["reading"] is not None and pick_pretraining(run, run["reading"]) is not None]
    accuracies: dict[str, dict[str, dict[str, float]]] = {}
    for run in sorted(runs, key=lambda run: (run["num_images"], run["seed"])):
        seeds = accuracies.setdefault(run["model"], {}).setdefault(str(run["num_images"]), {})
        seeds[str(run["seed"])] = run["reading"]["accuracy"]
    return {
        "scale": study["scale"],
        "data": study["data"],
        "num_classes": facts.num_classes,
        "regime": study["regime"],
        "command": join_command("vitrine", "study", study["study"], "--scale", study["scale"], *list_seed_words(grid, study)),
        "amounts": {str(run["num_images"]): run["amount"] for run in sorted(runs, key=lambda run: run["num_images"])},
        "accuracies": accuracies,
        "verdicts": [
            {
                "claim": verdict["claim"]["name"],
                "unit": verdict["claim"]["unit"],
                "outcome": verdict["outcome"],
                "estimate": verdict["estimate"],
                "num_seeds": verdict["num_seeds"],
            }
            for verdict in study["verdicts"]
        ],
    }


def list_seed_words(grid: Grid, study: dict[str, Any]) -> list[object]:
    """Return the option of the seeds, unless they are the grid's. Seeds that undecided claims got are not in all cells."""
    cells: dict[tuple[str, int], set[int]] = {}
    for run in study["runs"]:
        cells.setdefault((run["model"], run["num_images"]), set()).add(run["seed"])
    seeds = sorted(set.intersection(*cells.values()))
    return [] if seeds == sorted(grid.seeds) else ["--seeds", *seeds]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="study.json of a finished study")
    words = parser.parse_args()
    write_json(RESULT, summarise_study(json.loads(words.study.read_text(encoding="utf-8"))))
