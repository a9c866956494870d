"""Every figure of README.md, docs/paper.md and docs/results is in a data file of docs/results/data, and those that follow from
others do so.

`tests/figures.py` compares a page with its data file; here it is also shown to notice a change of any figure.
"""

import json
import re
import runpy
from collections.abc import Iterator
from statistics import mean, stdev
from typing import Any

import pytest

from tests.figures import (
    DATA,
    ROOT,
    WORD,
    Figure,
    compare,
    draft,
    find_tables,
    flatten,
    is_name,
    matches,
    read_data,
    read_page,
    resolve,
)
from vitrine.evaluation.intervals import wilson_interval
from vitrine.models.cost import compute_cost
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES

READER = runpy.run_path(str(ROOT / "docs" / "readme.py"))
PAGES = {path.stem: f"docs/results/{path.name}" for path in sorted((ROOT / "docs" / "results").glob("*.md"))}
PAGES |= {"paper": "docs/paper.md", "readme": "README.md"}
CHECKED = sorted(PAGES)  # each needs a data file: `python -m tests.figures PAGE` drafts it


def read_text(name: str) -> str:
    """Return a page's text, of the README without the commands that are run for it and their output."""
    text = read_page(PAGES[name])
    return text if name != "readme" else drop_examples(text)


def drop_examples(text: str) -> str:
    lines = text.splitlines()
    for example in reversed(list(READER["find_examples"](lines))):
        del lines[example.start : example.stop]
    return "\n".join(lines)


def test_every_page_has_its_data_file() -> None:
    assert {path.stem for path in DATA.glob("*.json")} == {*CHECKED, "readme-outputs"}


@pytest.mark.parametrize("name", CHECKED)
def test_figures_are_those_of_the_data_file(name: str) -> None:
    assert compare(read_text(name), name) == []


@pytest.mark.parametrize("name", CHECKED)
def test_tables_have_the_rows_and_columns_of_the_data_file(name: str) -> None:
    assert list_headings(draft(read_text(name))) == list_headings(read_data(name))


def list_headings(data: dict[str, Any]) -> list[tuple[list[str], list[str]]]:
    """Return the columns and rows of all tables with figures."""
    return [(table["columns"], list(table["rows"])) for table in find_tables(data) if any(flatten(table))]


@pytest.mark.parametrize("name", CHECKED)
def test_a_change_of_any_digit_is_noticed(name: str) -> None:
    """Only a name that becomes another known name is not: R50x1 to R50x2."""
    text = read_text(name)
    places = [digit.start() for digit in re.finditer(r"\d", text)]
    assert len(places) > 10
    changed = [f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}" for place in places]
    unnoticed = [(place, new) for place, new in zip(places, changed, strict=True) if matches(new, name)]
    assert [new[place - 40 : place + 20] for place, new in unnoticed if not is_name(find_word(new, place))] == []


def find_word(text: str, place: int) -> str:
    """Return the word around a place of a text."""
    return next((word[0] for word in WORD.finditer(text) if word.start() <= place < word.end()), "")


def test_the_first_difference_is_named() -> None:
    text = read_text("masked").replace("48.18", "48.19")
    assert [re.findall(r"48\.1\d|from scratch", difference) for difference in compare(text, "masked")] == [
        ["48.19", "48.18", "from scratch"]
    ]


# Figures that follow from others.


def assert_equals_rounded(value: float, text: str) -> None:
    """Compare to the digits written; a tenth of the last one is for rounding before."""
    assert abs(value - float(text)) <= 0.6 * 10.0 ** -len(text.partition(".")[2])


def read_floats(node: Any) -> list[float]:
    return [float(figure.text) for figure in flatten(node)]


SEEDS, SPREAD = "seed 0, 1, 2", "mean and spread"
SPREADS = {
    f"{name}, {label}": row
    for name in CHECKED
    for table in find_tables(read_data(name))
    for label, row in table["rows"].items()
    if SEEDS in row and SPREAD in row
}


@pytest.mark.parametrize("row", SPREADS.values(), ids=SPREADS)
def test_mean_and_spread_follow_from_the_seeds(row: dict[str, list[str]]) -> None:
    values = read_floats(row[SEEDS])
    for value, text in zip((mean(values), stdev(values)), row[SPREAD], strict=True):
        assert_equals_rounded(value, text)


def list_intervals() -> Iterator[tuple[str, int, list[str]]]:
    """Yield an accuracy in per cent, the number of images it is measured on, and its interval."""
    for row in ("top-1", "top-5"):
        cells = read_data("evaluation")["A classifier"]["table"]["rows"][row]
        yield cells["value"], 1000, cells["95 % interval"]
    for cells in read_data("evaluation")["Frozen features"]["table"]["rows"].values():
        for column, count in (("pets", 444), ("flowers", 523)):
            figures = cells[column]
            start = 2 if float(figures[1]) < 10 else 1  # after the spread, if there is one
            yield figures[0], count, figures[start : start + 2]
    for cells in read_data("vtab")["VTAB: results"]["table"]["rows"].values():
        yield cells["top-1"][0], 300, cells["interval"]
    for cells in read_data("training")["The demo"]["table"]["rows"].values():
        accuracy, count = [*(figure.text for figure in flatten(cells["accuracy"])), "360"][:2]
        yield accuracy, int(count), cells["95 % interval"]


@pytest.mark.parametrize(("accuracy", "count", "interval"), list(list_intervals()))
def test_intervals_are_wilsons(accuracy: str, count: int, interval: list[str]) -> None:
    parts = 6 * count  # the mean over two or three seeds is a multiple of one of these
    estimate = wilson_interval(round(float(accuracy) / 100 * parts) / parts, count)
    for value, text in zip((estimate.low, estimate.high), interval, strict=True):
        assert value is not None
        assert_equals_rounded(100 * value, text)


def list_derived() -> Iterator[tuple[float, str]]:
    """Yield what follows from the figures of a page, and the figure that it has for it."""
    masked = read_data("masked")["As pre-training"]
    scratch, after = (read_floats(row[SEEDS]) for row in masked["table"]["rows"].values())
    gains = [second - first for first, second in zip(scratch, after, strict=True)]
    yield from zip(
        (mean(gains), min(gains), max(gains)), masked["Pre-training without labels gains points on average"], strict=True
    )

    vtab = read_data("vtab")["VTAB: results"]
    tops = {name: float(row["top-1"][0]) for name, row in vtab["table"]["rows"].items()}
    means, chances = vtab["The mean of the two tasks of"], vtab["In so few steps little is learned"]
    yield mean((tops["flowers102"], tops["pets"])), means[0]
    yield mean(top for name, top in tops.items() if name.startswith("shapes")), means[2]
    yield from ((100 / 9, chances[0]), (100 / 8, chances[1]))  # classes of position and orientation

    loader = read_data("data")["Data: images per second"]
    figures = loader["If the device is the same CPU"]
    for slower, total, row in zip(figures[:4], figures[4:], loader["table"]["rows"].values(), strict=True):
        yield float(row["plain"][0]) / float(slower), total

    memory = read_data("inspection")["Memory"]
    two, four = (float(row["peak in MB"]) for row in memory["table"]["rows"].values())
    yield four / two, memory["Twice the images take times the memory"]

    training = read_data("training")
    costs = training["Cost of the training loop"]["table"]["rows"]
    peak, fraction, others = costs["peak memory of a fine-tuning step, Ti/16, batch 32"]["result"]
    yield 100 * float(peak) / float(others), fraction

    demos = training["What the accuracies depend on"]
    rows = demos["table"]["rows"].values()
    columns = [[read_floats(row[name])[0] for row in rows if name in row] for name in demos["table"]["columns"][1:]]
    yield max(max(column) - min(column) for column in columns), demos["largest difference"][0]

    for recipe, table in (("cifar10-vit", "table"), ("fashion-mnist", "Fashion-MNIST")):
        text = training["Small models from scratch"][table]["rows"][recipe]["model"][3]
        yield round(compute_cost(RECIPES[recipe]().model.resolve(10)).num_parameters, -3), text


@pytest.mark.parametrize(("value", "text"), list(list_derived()))
def test_figures_that_follow_from_others(value: float, text: str) -> None:
    assert_equals_rounded(value, text)


@pytest.mark.parametrize("section", ["Training step", "Inference"])
def test_the_fastest_other_library_is_bold(section: str) -> None:
    table = read_data("models")[section]["table"]
    others = [row for label, row in table["rows"].items() if label not in ("ours", "floor")]
    fastest = [min((row[column][0] for row in others), key=float) for column in table["columns"][1:]]
    text = read_page(PAGES["models"]).split(f"## {section}\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"\*\*([\d.]+)\*\*", text)) == sorted(fastest)


def test_the_readmes_demo_is_the_one_of_the_results() -> None:
    lines = json.loads((DATA / "readme-outputs.json").read_text(encoding="utf-8"))["vitrine demo"]
    printed = [re.findall(r"[\d.]+(?= %| \.\.)", line) for line in lines if " .. " in line]
    rows = read_data("training")["The demo"]["table"]["rows"].values()
    assert printed == [[next(flatten(row["accuracy"])).text, *row["95 % interval"]] for row in rows]


SCRATCH, DEMO = ("training", "Small models from scratch"), ("training", "The demo", "table")
AFTER_MASKED = "after masked patches, mean colours, half of the patches"
EXPECTED: dict[str, list[str]] = {
    "digits": [*SCRATCH, "built-in data", "digits", "test top-1", "0"],
    "shapes": [*SCRATCH, "built-in data", "shapes", "test top-1", "0"],
    "fashion-mnist": [*SCRATCH, "Fashion-MNIST", "fashion-mnist", "test top-1"],
    "cifar10-vit": [*SCRATCH, "table", "cifar10-vit", "test top-1"],
    "cifar10-hybrid": [*SCRATCH, "table", "cifar10-hybrid", "test top-1"],
    "cifar10-masked": ["masked", "Corruption and targets", "table", "half, mean colour", "at the end of pre-training"],
    "folder-masked": ["masked", "Corruption and targets", "photographs at pixels, a ViT of blocks", "4"],
    "cifar10-small": ["masked", "As pre-training", "table", AFTER_MASKED, SPREAD, "0"],
    "folder": ["training", "Fine-tuning on a folder", "table", "Oxford-IIIT Pet, 20 images of each breed", SPREAD, "0"],
    "demo-glyphs-vit": [*DEMO, "pre-training of the ViT", "accuracy", "0"],
    "demo-glyphs-resnet": [*DEMO, "pre-training of the ResNet", "accuracy", "0"],
    "demo-glyphs-hybrid": [*DEMO, "pre-training of the hybrid", "accuracy", "0"],
    "demo-transfer": [*DEMO, "transfer of the ViT", "accuracy"],
    "demo-vit": [*DEMO, "ViT from scratch", "accuracy"],
    "demo-resnet": [*DEMO, "ResNet from scratch", "accuracy"],
    "demo-hybrid": [*DEMO, "hybrid from scratch", "accuracy"],
}
DOCUMENTED = {
    name: expected[1]
    for name, build in [*RECIPES.items(), *((name, recipe.build) for name, recipe in FINETUNE_RECIPES.items())]
    if (expected := re.search(r"Expect ([\d.]+) %.*docs/results", build.__doc__ or "", flags=re.DOTALL))
}


def test_what_recipes_expect_is_what_was_measured() -> None:
    assert set(DOCUMENTED) == set(EXPECTED)
    measured = {name: Figure(resolve(path), (name,), rounded=True) for name, path in EXPECTED.items()}
    assert [figure for name, figure in measured.items() if not figure.equals(DOCUMENTED[name])] == []
