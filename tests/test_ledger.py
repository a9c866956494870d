"""The commands, tests, links and numbers that docs/paper.md names exist and are right."""

import re
import shlex
from pathlib import Path

import pytest

from tests.figures import list_anchors, resolve
from tests.models.test_cost import EXAFLOPS
from tests.recipes.test_pretrain import NUM_IMAGES
from vitrine import cli
from vitrine.models.cost import compute_cost
from vitrine.recipes.finetune import TABLE_4_RECIPES
from vitrine.recipes.pretrain import TABLE_3_RECIPES, TABLE_7_RECIPES
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES

ROOT = Path(__file__).parent.parent
LEDGER = (ROOT / "docs" / "paper.md").read_text()
STATES = ("**equal**", "**measured in miniature**", "**not run**")


def read_section(title: str) -> str:
    """Return the text below a heading, up to the next one of the same or a higher level."""
    level = len(title.split()[0])
    below = LEDGER.split(f"\n{title}\n", 1)[1]
    return re.split(rf"^#{{1,{level}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def read_rows(text: str) -> list[list[str]]:
    """Return the cells of the tables, without their headers."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    headers = {index - 1 for index, row in enumerate(rows) if set("".join(row)) <= set("-")}
    return [row for index, row in enumerate(rows) if index not in headers and index - 1 not in headers]


# A command may be broken into lines in a paragraph, but not in a table.
CODE = sorted({" ".join(code.split()) for code in re.findall(r"`([^`]+)`", LEDGER)})
COMMANDS = [code for code in CODE if code.startswith("vitrine ")]
TESTS = [code for code in CODE if code.startswith("tests/")]
LINKS = sorted(set(re.findall(r"\]\(([^)]+)\)", LEDGER)))
LEDGER_ROWS = [
    row for title in ("## The text", "## Tables", "## Figures") for row in read_rows(read_section(title)) if len(row) == 5
]


def test_the_page_is_not_empty() -> None:
    assert len(COMMANDS) > 30
    assert len(TESTS) > 30
    assert len(LINKS) > 10
    assert len(LEDGER_ROWS) > 40
    assert len(MEASURED) > 15


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_with_its_recipe(command: str) -> None:
    name, words = cli.split_command(shlex.split(command)[1:])
    assert name in cli.COMMANDS
    if name == "train" and words[0] not in ("--list", "RECIPE"):
        assert words[0] in RECIPES
    if "--recipe" in words:
        assert words[words.index("--recipe") + 1] in FINETUNE_RECIPES


@pytest.mark.parametrize("command", [command for command in COMMANDS if " --" in command])
def test_the_options_of_a_command_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, words = cli.split_command(shlex.split(command)[1:])
    options = {word for word in words if word.startswith("--")} - {"--recipe", "--list"}
    known = read_help(name, words, capsys)
    assert {option for option in options if not re.search(rf"{re.escape(option)}[ ,\n]", known)} == set()


@pytest.mark.parametrize("option", [code.split()[0] for code in CODE if code.startswith("--")])
def test_an_option_alone_is_one_of_training_or_few_shot(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    known = read_help("train", ["digits"], capsys) + read_help("few-shot", [], capsys)
    assert re.search(rf"{re.escape(option)}[ ,\n]", known)


HELP: dict[tuple[str, ...], str] = {}


def read_help(name: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the help of a command, with a recipe or data where it needs one."""
    recipe = [words[0] if words[0] in RECIPES else "digits"] if name == "train" else []
    asked = (*name.split(), *(("MODEL", "digits") if name == "finetune" else recipe), "--help-all")
    if asked not in HELP:
        with pytest.raises(SystemExit) as stop:
            cli.main(list(asked))
        assert stop.value.code == 0
        HELP[asked] = capsys.readouterr().out
    return HELP[asked]


@pytest.mark.parametrize("test", TESTS)
def test_a_test_exists(test: str) -> None:
    path, _, function = test.partition("::")
    assert (f"\ndef {function}(" if function else "\ndef test_") in (ROOT / path).read_text()


@pytest.mark.parametrize("link", [link for link in LINKS if not link.startswith("https://")])
def test_a_linked_file_exists(link: str) -> None:
    path, _, anchor = link.partition("#")
    target = ROOT / "docs" / (path or "paper.md")
    assert target.is_file()
    if anchor:
        assert anchor in list_anchors(str(target.relative_to(ROOT)))


@pytest.mark.parametrize("path", [code for code in CODE if re.match(r"(python )?benchmarks/", code)])
def test_a_benchmark_exists(path: str) -> None:
    assert (ROOT / path.removeprefix("python ")).is_file()


@pytest.mark.parametrize(("kind", "count"), [("Table", 9), ("Figure", 14)])
def test_every_table_and_figure_has_its_row(kind: str, count: int) -> None:
    assert [row[0] for row in LEDGER_ROWS if row[0].startswith(kind)] == [f"{kind} {number}" for number in range(1, count + 1)]


@pytest.mark.parametrize("row", LEDGER_ROWS, ids=lambda row: row[0])
def test_a_row_has_a_command_a_test_and_a_state(row: list[str]) -> None:
    assert all(row)
    assert any(state in row[4] for state in STATES)
    assert "`tests/" in row[3] or row[3] == "as figure 6"
    if "**measured in miniature**" in row[4]:
        assert ".md)" in row[4], "a measured result needs a link to it"


MEASURED = [
    (number, path)
    for row in LEDGER_ROWS
    for text, path in re.findall(r"\*\*measured in miniature\*\*: ([^*]+?)\(\[results\]\(([^)]+)\)", row[4])
    for number in re.findall(r"\d+\.\d+|\d+ ms", text)
]


@pytest.mark.parametrize(("number", "path"), MEASURED)
def test_a_measured_number_is_in_the_linked_file(number: str, path: str) -> None:
    assert number in (ROOT / "docs" / path).read_text()


def test_every_section_and_appendix_is_covered() -> None:
    """The section of a table or figure is before the colon, of the text in the first column."""
    covered = {section for row in LEDGER_ROWS for section in (row[0].split(", ") + row[1].split(": ")[:1])}
    sections = [*(f"3.{number}" for number in (1, 2)), *(f"4.{number}" for number in range(1, 7))]
    appendices = ["A", "B.1", "B.1.1", "B.1.2", "C", *(f"D.{number}" for number in range(1, 11))]
    assert [section for section in sections + appendices if section not in covered] == []


def test_every_recipe_of_the_paper_is_named() -> None:
    named = set(CODE) | {word for command in COMMANDS for word in command.split()}
    assert {*TABLE_3_RECIPES, *TABLE_7_RECIPES, *TABLE_4_RECIPES, "hyperrule", "jft-masked-vit-b16"} - named == set()


def test_parameters_are_the_computed_ones() -> None:
    found = re.findall(r"(\S+/\d+) ([\d,]+\d)", " ".join(row[2] for row in read_rows(read_section("### Table 1: parameters"))))
    assert [name for name, _ in found] == ["ViT-B/16", "ViT-L/32", "ViT-L/16", "ViT-H/14"]
    assert all(compute_cost(name).num_parameters == int(number.replace(",", "")) for name, number in found)


ROWS = read_rows(read_section("### Tables 3, 5 and 6: pre-training"))


def test_every_row_of_table_3_is_listed() -> None:
    assert [row[0].strip("`") for row in ROWS if row[0] != "none"] == list(TABLE_3_RECIPES)
    assert len(ROWS) == len(TABLE_3_RECIPES) + 2


@pytest.mark.parametrize("row", [row for row in ROWS if row[0] != "none"], ids=lambda row: row[0])
def test_a_row_of_pre_training_matches_its_recipe(row: list[str]) -> None:
    name, epochs, lr, paper, ours, top1 = (cell.strip("`") for cell in row)
    recipe = TABLE_3_RECIPES[name]()
    assert (float(epochs), float(lr)) == (recipe.epochs, recipe.optim.learning_rate)
    exaflops = compute_cost(recipe.model.resolve(1000)).compute_exaflops(NUM_IMAGES[recipe.data.source], float(epochs))
    assert ours == f"{exaflops:,.1f}"
    documented = TABLE_3_RECIPES[name].__doc__ or ""
    assert paper == "" or f"Cost: {paper} exaFLOPs" in documented
    assert f"{top1} %" in documented or (top1 == "not published" and "not published" in documented)


@pytest.mark.parametrize("row", [row for row in ROWS if row[0] == "none"], ids=lambda row: row[3])
def test_a_network_without_a_recipe_has_its_compute(row: list[str]) -> None:
    paper, model = row[3].strip(")").split(" (")
    assert (model, int(row[1]), int(paper)) in {(name, epochs, figure) for name, epochs, figure, _ in EXAFLOPS}
    assert row[4] == f"{compute_cost(model).compute_exaflops(303e6, int(row[1])):,.1f}"


def read_ledger(*path: str) -> str:
    """Return a figure of the ledger's data file, which `tests/test_results.py` compares with the page."""
    return resolve(["paper", *path])


def compute_finetuning(name: str, image_size: int, num_steps: int, num_runs: int = 1) -> float:
    """Return the exaFLOPs of fine-tuning in batches of 512."""
    return compute_cost(name, image_size).compute_exaflops(512, num_steps) * num_runs


TEXT, TABLES, FIGURES, TABLE_2 = "The text", "Tables", "Figures", "Table 2: what it takes"
JFT, MASKED_IMAGES = 303e6, 4096e6  # a million steps of 4096
COMPUTED: list[tuple[float, str, str, str, int]] = [
    (compute_finetuning("ViT-B/16", 384, 20_000), TABLES, "Table 5", "state", 0),
    (compute_finetuning("ViT-B/16", 384, 10_000), TABLES, "Table 5", "state", 1),
    (compute_finetuning("ViT-B/16", 384, 500), TABLES, "Table 5", "state", 2),
    (compute_finetuning("ViT-L/16", 384, 2500, num_runs=19), TABLES, "Table 9", "state", 5),
    (compute_finetuning("ViT-H/14", 518, 20_000), TABLE_2, "ViT-H/14, JFT", "fine-tuning on ImageNet, each run", 0),
    (compute_finetuning("ViT-L/16", 512, 20_000), TABLE_2, "ViT-L/16, JFT", "fine-tuning on ImageNet, each run", 0),
    (compute_cost("ViT-B/16").compute_exaflops(MASKED_IMAGES, 1), TEXT, "4.6, B.1.2", "state", 4),
    (compute_cost("Axial-ViT-B/16").compute_exaflops(JFT, 7), FIGURES, "Figure 13", "state", 0),
    (compute_cost("Axial-ViT-B/32").compute_exaflops(JFT, 7), FIGURES, "Figure 13", "state", 1),
    (compute_cost("Axial-ViT-B/16").macs / 1e9, FIGURES, "Figure 13", "state", 2),
    (compute_cost("ViT-B/16").macs / 1e9, FIGURES, "Figure 13", "state", 3),
    (compute_cost("Axial-ViT-B/32").macs / 1e9, FIGURES, "Figure 13", "state", 4),
    (compute_cost("ViT-B/32").macs / 1e9, FIGURES, "Figure 13", "state", 5),
    (compute_cost("R50x1").num_parameters, TEXT, "4.1, ResNets with group norm and standardised convolutions", "state", 0),
    (compute_cost("ViT-B/16").num_tokens - 1, TEXT, "3.1, eq. 1", "state", 0),
    (compute_cost("R50+ViT-B/32").num_tokens - 1, TEXT, "3.1, 4.1", "state", 0),
    (compute_cost("R50+ViT-B/16").num_tokens - 1, TEXT, "3.1, 4.1", "state", 1),
]


@pytest.mark.parametrize(("value", "section", "row", "column", "index"), COMPUTED)
def test_a_computed_figure_is_what_the_code_computes(value: float, section: str, row: str, column: str, index: int) -> None:
    text = read_ledger(section, "table", row, column, str(index))
    assert f"{value:.{len(text.partition('.')[2])}f}" == text


def test_core_days_follow_from_tables_2_and_6() -> None:
    """Both tables have two of the runs, which differ in exaFLOPs per core-day."""
    key = "By tables and a core-day is exaFLOPs"
    slow, fast = (float(read_ledger("The paper, line by line", key, index)) for index in "25")
    assert (slow, fast) == (round(4262 / 2500, 1), round(1567 / 680, 1))
    total = sum(figure for _, _, figure, _ in EXAFLOPS) + 859  # the outlier, which EXAFLOPS leaves out
    assert read_ledger(TABLES, "table", "Table 6", "state", "0") == f"{total / 1000:.1f}k"
    days = [read_ledger(TABLES, "table", "Table 6", "state", index) for index in "12"]
    assert days == [f"{total / 1000 / rate:.0f}" for rate in (fast, slow)]
    one, least, most = (read_ledger(FIGURES, "table", "Figure 3", "state", index) for index in "012")
    recipe = TABLE_3_RECIPES["imagenet-vit-b16"]()
    exaflops = compute_cost("ViT-B/16").compute_exaflops(NUM_IMAGES[recipe.data.source], 300)
    assert (one, least, most) == tuple(f"{exaflops / rate:.0f}" for rate in (1, fast, slow))
