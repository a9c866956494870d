"""Figures of a page of documentation, compared with its data file in docs/results/data.

A data file has the figures of its page in their order: a key for each heading, below it commands, tables and sentences with
their figures. Digits of keys count too, so a row of a table is found by its first cell. A value may be {"from": path}: a figure
of another data file, which the page may round. `python -m tests.figures PAGE` prints a first data file for a new page.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

from vitrine.formats.registry import FORMATS
from vitrine.models.registry import MODELS
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "results" / "data"

# Names with digits, which are not figures. One with a changed digit is a name no longer, and its digits count as a figure.
NAMES = {
    *("top-1", "Top-1", "top-5", "F1", "report.top1", "float32", "uint8", "TPUv3", "Apache-2.0"),
    *("AVX2", "AVX-512", "SSE4.1", "ONEDNN_MAX_CPU_ISA=AVX2"),
    *("CIFAR-10", "cifar10", "ImageNet-21k", "JFT-300M", "VTAB-1k", "Flowers-102", "flowers102", "imagenet-val-1000"),
    *("ViT-B_16.npz", "ViT-L_16.npz", "ViT-L_32.npz", "R50", "AxialResNet50", "S4L", "learned-2d"),
    *(*MODELS, *(name.rpartition("ViT-")[2] for name in MODELS), *RECIPES, *FINETUNE_RECIPES, *FORMATS),
}
COMMIT = r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7}\b"
NUMBER = r"(?:(?<![\w.)])[-+](?=\d))?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)*(?:e[-+]?\d+)?(?:[kM]\b)?"
WORD = re.compile(r"(?<!\w)#?[A-Za-z_][\w./:+-]*\w")


@cache
def find_figures(line: str) -> tuple[str, ...]:
    """Return the numbers and commits of a line without the commas of thousands; digits of names are left out."""
    text = WORD.sub(lambda match: match[0] if not is_name(match[0]) else "name", line)
    return tuple(found.replace(",", "") for found in re.findall(f"{COMMIT}|{NUMBER}", text))


@cache
def is_name(word: str) -> bool:
    """Return whether a word is a known name, the anchor of a heading, or a file or test that exists."""
    path, _, function = word.partition("::")
    if word in NAMES or (word.startswith("#") and word[1:] in list_anchors("docs/paper.md")):
        return True
    return path.startswith(("tests/", "benchmarks/")) and f"def {function}" in read_page(path)


@cache
def list_anchors(path: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", read_page(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def read_page(path: str) -> str:
    """Return the text of a file of the repository, empty if there is none."""
    file = ROOT / path
    return file.read_text(encoding="utf-8") if file.is_file() else ""


@cache
def read_data(name: str) -> dict[str, Any]:
    """Read a data file; its numbers stay text, with all their digits."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"), parse_float=str, parse_int=str)


@dataclass(frozen=True)
class Figure:
    """A figure of a data file and its keys; `rounded` if the page may have fewer digits."""

    text: str
    keys: tuple[str, ...]
    rounded: bool = False

    def equals(self, written: str) -> bool:
        """Return whether the page has this figure."""
        if not self.rounded:
            return self.text == written
        if not re.fullmatch(r"\d+(\.\d+)?", written):
            return False
        half = Decimal(5).scaleb(-1 - len(written.partition(".")[2]))  # of the last digit written
        return abs(Decimal(self.text) - Decimal(written)) <= half


def flatten(node: Any, keys: tuple[str, ...] = ()) -> Iterator[Figure]:
    """Yield the figures of a data file in their order."""
    if isinstance(node, dict) and set(node) == {"from"}:
        yield Figure(resolve(node["from"]), keys, rounded=True)
    elif isinstance(node, dict) and set(node) == {"columns", "rows"}:
        yield from flatten(node["columns"], keys)
        for label, row in node["rows"].items():
            yield from flatten([label, list(row.values())], (*keys, label))
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from flatten([key, value], (*keys, key))
    elif isinstance(node, list):
        for value in node:
            yield from flatten(value, keys)
    elif node is not None:
        yield from (Figure(text, keys) for text in find_figures(node))


def resolve(path: list[str]) -> str:
    """Return the figure at a path: data file, keys, row and column, index."""
    node: Any = read_data(path[0])
    for key in path[1:]:
        node = node["rows"] if isinstance(node, dict) and "rows" in node else node
        node = node[int(key)] if isinstance(node, list) else node[key]
    (figure,) = flatten(node)
    return figure.text


@cache
def list_known(name: str) -> tuple[Figure, ...]:
    """Return the figures of a data file in their order."""
    return tuple(flatten(read_data(name)))


def matches(text: str, name: str) -> bool:
    """Return whether the figures of a text are those of a data file, in their order."""
    written, known = list_written(text), list_known(name)
    return len(written) == len(known) and all(map(Figure.equals, known, written))


def list_written(text: str) -> list[str]:
    return [figure for line in text.splitlines() for figure in find_figures(line)]


def compare(text: str, name: str) -> list[str]:
    """Return what differs between the figures of a text and those of a data file, for people."""
    if matches(text, name):
        return []
    written, known = list_written(text), list_known(name)
    differences = []
    matcher = SequenceMatcher(None, [figure.text for figure in known], written, autojunk=False)
    for _, start, stop, page_start, page_stop in matcher.get_opcodes():
        found, missed = written[page_start:page_stop], known[start:stop]
        if len(found) != len(missed) or not all(map(Figure.equals, missed, found)):
            where = " > ".join((missed or known[start - 1 : start] or known[:1])[0].keys)
            differences.append(f"the page has {found} where its data has {[each.text for each in missed]} ({where})")
    return differences


def find_tables(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the tables of a data file, or of a draft, in their order."""
    if isinstance(node, dict) and set(node) == {"columns", "rows"}:
        yield node
    elif isinstance(node, dict):
        for value in node.values():
            yield from find_tables(value)


# A first data file for a page.


def draft(text: str) -> dict[str, Any]:
    """Return the figures of a page below its headings: commands, tables, and sentences by their first words."""
    drafted: dict[str, Any] = {}
    for section in re.split(r"^(?=#)", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        content: dict[str, Any] = {}
        for block in re.split(r"\n\s*\n", body.strip("\n")):
            draft_block(block, lambda key, value, content=content: content.update({unique(key, content): value}))
        drafted[heading.strip("# ")] = content
    return drafted


def draft_block(block: str, add: Callable[[str, Any], None]) -> None:
    lines = block.splitlines()
    if lines and lines[0].startswith("    "):
        add("commands", [line.strip() for line in lines])
    elif lines and lines[0].startswith("|"):
        add("table", draft_table([[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]))
    else:
        for sentence in re.split(r"(?<=[.:;])\s+(?=[A-Z`*(])|\n- ", " ".join(lines)):
            figures = find_figures(sentence)
            if figures:
                key = re.sub(r"[`*|]|\S*\d\S*", "", sentence).split()
                add(" ".join(key[:7]).strip(" ,.:;("), draft_value(figures))


def draft_table(cells: list[list[str]]) -> dict[str, Any]:
    columns, rows = cells[0], cells[2:]
    table: dict[str, Any] = {"columns": columns, "rows": {}}
    for row in rows:
        count = next(n for n in range(1, len(row) + 1) if "".join(row[:n]) and [each[:n] for each in rows].count(row[:n]) == 1)
        label = ", ".join(re.sub(r"[`*]", "", cell) for cell in row[:count] if cell)
        pairs = zip(columns[count:], row[count:], strict=True)
        table["rows"][label] = {name: draft_value(find_figures(cell)) for name, cell in pairs if find_figures(cell)}
    return table


def draft_value(figures: tuple[str, ...]) -> Any:
    values = [f"<{figure}>" if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?(e-?\d+)?", figure) else figure for figure in figures]
    return values[0] if len(values) == 1 else values


def unique(key: str, content: dict[str, Any]) -> str:
    return key if key not in content else unique(f"{key} again", content)


def format_data(node: Any, indent: str = "") -> str:
    """Return the text of a data file, in which short lists and tables' rows take one line; "<1.50>" becomes a number."""
    line = re.sub(r'"<([^">]*)>"', r"\1", json.dumps(node, ensure_ascii=False))
    if not node or not isinstance(node, dict | list) or (len(indent + line) < 120 and not any_dict(node)):
        return line
    deeper = indent + " "
    if isinstance(node, list):
        return "[\n" + ",\n".join(deeper + format_data(value, deeper) for value in node) + f"\n{indent}]"
    parts = (f"{deeper}{json.dumps(key, ensure_ascii=False)}: {format_data(value, deeper)}" for key, value in node.items())
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def any_dict(node: dict[str, Any] | list[Any]) -> bool:
    return any(isinstance(value, dict) for value in (node.values() if isinstance(node, dict) else node))


if __name__ == "__main__":
    print(format_data(draft(read_page(sys.argv[1]))))
