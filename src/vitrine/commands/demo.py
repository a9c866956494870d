"""`vitrine demo`: the whole story on built-in data or on someone's own, with a report to look at."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.commands.train import stop_here
from vitrine.core.console import print_table
from vitrine.core.files import check_output_file, write_json
from vitrine.demo.config import DIGITS, DemoConfig

if TYPE_CHECKING:
    from vitrine.demo.plan import Plan


def demo(
    out: Path = Path("demo"),
    data: str = DIGITS,
    model: str | None = None,
    seed: int = 0,
    device: str | None = None,
    json: Path | None = None,
) -> None:
    """Pre-train a small ViT, transfer it, compare it with others of like cost, and look inside: OUT/report.html.

    Without options on built-in data, in a few minutes on two processor cores. The same command again goes on where it stopped.

    Args:
        out: The folder of the report, with a folder for each run.
        data: Your own images, in folders by class, or any other data; at most a few hundred of them are learned from.
        model: Your own checkpoint of a ViT, in any known format, to be transferred in place of the one that is pre-trained.
        seed: Of all that is drawn.
        device: Where to compute, as cuda; a GPU where there is one, if you do not say.
        json: Write the results to this file.
    """
    config = DemoConfig(out=out, data=data, model=model, seed=seed, device=device)
    if json is not None:
        check_output_file(json)
    try:
        run(config, json)
    except KeyboardInterrupt:
        stop_here(None)


def run(config: DemoConfig, json: Path | None) -> None:
    from vitrine.core.runtime import choose_device
    from vitrine.demo.plan import plan_story
    from vitrine.demo.report import COLUMNS, format_rows, list_results, write_report
    from vitrine.demo.steps import Interrupted, run_demo

    choose_device(config.device)
    plan = plan_story(config)
    announce(plan)
    try:
        results = run_demo(plan)
    except Interrupted as error:
        stop_here(error.summary.interrupted_by, error.summary)
        raise
    page = write_report(plan, results)
    if json is not None:
        write_json(json, list_results(plan, results))
    print_table(COLUMNS, format_rows(results))
    print(f"Accuracies are on {len(plan.test):,} images. The report, with the command of each step, is {page}.")


def announce(plan: "Plan") -> None:
    """What will be done, and how long it may take."""
    names = ", ".join(step.key for step in plan.steps)
    images = f"{len(plan.train):,} images to learn from, {len(plan.test):,} to test on"
    minutes = max(1, round(plan.minutes))
    print(
        f"{plan.config.data}: {images}. {len(plan.steps)} steps ({names}), about {minutes} min on two processor cores; "
        f"all of it goes to {plan.config.out}.",
        file=sys.stderr,
        flush=True,
    )
