"""The result of the study `data-size` that comes with the package, for the demo's report; docs/data_size.py makes its file.

data_size.json has the test accuracy of every model by number of images and seed, in the regime of figure 4 of arXiv:2010.11929,
and the verdicts.
"""

from pathlib import Path
from typing import Any

from vitrine.core.files import read_json
from vitrine.core.html_report import Section
from vitrine.core.page_images import Chart
from vitrine.core.page_parts import Commands, Part, Table
from vitrine.evaluation.intervals import Estimate
from vitrine.studies.answers import Readings
from vitrine.studies.data_size_figures import AXIS, build_curve, format_size
from vitrine.studies.data_size_grid import GRIDS, Grid
from vitrine.studies.page_claims import WORDS, describe_interval, format_signed
from vitrine.studies.size_figures import draw_accuracies

RESULT = Path(__file__).parent / "data_size.json"
FIGURE_HEIGHT = 3.6


def build_data_size_sections(path: Path = RESULT) -> list[Section]:
    """Build the section of the study; none if the package comes without its result."""
    return [build_section(read_json(path))] if path.is_file() else []


def build_section(result: dict[str, Any]) -> Section:
    """Build the section from the content of data_size.json."""
    grid: Grid = GRIDS[result["scale"]]
    readings = read_accuracies(result)
    amounts = {int(size): amount for size, amount in result["amounts"].items()}
    rows = [format_size(grid, readings, size, amount) for size, amount in amounts.items()]
    columns = ("images", *(f"{model.name}, %" for model in grid.models), " minus ".join(grid.compared))
    curves = [build_curve(model) for model in grid.models]
    guessing = 100 / result["num_classes"]
    words = "; ".join(f"{row[0]} images: {', '.join(row[1:-1])} percent" for row in rows)
    chart = Chart(
        lambda figure: draw_accuracies(figure, curves, readings, guessing, amounts, AXIS),
        alt=f"Test accuracy of {', '.join(model.name for model in grid.models)} by number of images. {words}.",
        look="Look at how the distance between ViT and ResNet changes from left to right.",
        caption="Each dot is one run, tested on images that it has not trained on; lines join the means over seeds.",
        height=FIGURE_HEIGHT,
    )
    text = (
        "The demo has one size of pre-training set. This figure is of a study with several, made once with the command below "
        f"and not by this demo: figures 3 and 4 of the paper in small. {result['regime']}"
    )
    parts: list[Part] = [chart, Table(columns, rows), build_verdict_table(result), Commands([result["command"]])]
    return Section("With how much data does the ViT catch up?", "Data size, figure 4", text, parts)


def read_accuracies(result: dict[str, Any]) -> Readings:
    """Return the accuracies as the study's figures take them."""
    return {
        (model, int(size), int(seed)): {"accuracy": accuracy}
        for model, sizes in result["accuracies"].items()
        for size, seeds in sizes.items()
        for seed, accuracy in seeds.items()
    }


def build_verdict_table(result: dict[str, Any]) -> Table:
    """Build the table of the paper's claims and what the study found."""
    rows = [(verdict["claim"], WORDS[verdict["outcome"]].lower(), *describe_value(verdict)) for verdict in result["verdicts"]]
    return Table(("claim of the paper", "verdict", "measured", "95 % interval over seeds"), rows, (0, 1))


def describe_value(verdict: dict[str, Any]) -> tuple[str, str]:
    """Return value and interval of a verdict; empty if it has none."""
    if verdict["estimate"] is None:
        return "", ""
    estimate, unit = Estimate(**verdict["estimate"]), verdict["unit"]
    return f"{format_signed(estimate.value, unit)} {unit}", describe_interval(estimate, unit)
