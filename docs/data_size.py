"""Make the file of the demo's figure from a finished study: `python docs/data_size.py studies/data-size-small/study.json`.

src/vitrine/demo/data_size.json comes with the package. It has the accuracies of the study's own regime, the verdicts, and the
command that makes the study again; everything else stays in study.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from vitrine.core.files import write_json
from vitrine.data.sources.glyphs import parse_settings
from vitrine.demo.data_size import RESULT
from vitrine.recipe import join_command
from vitrine.studies.data_size_readings import pick_pretraining


def summarise_study(study: dict[str, Any]) -> dict[str, Any]:
    """Return the content of data_size.json from that of study.json."""
    if study["study"] != "data-size" or not study["data"].startswith("glyphs"):
        raise SystemExit(f"{study['study']} on {study['data']} is not the study data-size on glyphs: give its study.json.")
    runs = [run for run in study["runs"] if run["reading"] is not None and pick_pretraining(run, run["reading"]) is not None]
    accuracies: dict[str, dict[str, dict[str, float]]] = {}
    for run in sorted(runs, key=lambda run: (run["num_images"], run["seed"])):
        seeds = accuracies.setdefault(run["model"], {}).setdefault(str(run["num_images"]), {})
        seeds[str(run["seed"])] = run["reading"]["accuracy"]
    return {
        "scale": study["scale"],
        "data": study["data"],
        "num_classes": parse_settings(study["data"]).classes,
        "regime": study["regime"],
        "command": join_command("vitrine", "study", study["study"], "--scale", study["scale"]),
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="study.json of a finished study")
    words = parser.parse_args()
    write_json(RESULT, summarise_study(json.loads(words.study.read_text(encoding="utf-8"))))
