"""The direction of the layout, kept by a test instead of by memory."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "vitrine"

# Who may import whom. Data flows to the right; nothing on the left knows what is on its right.
ALLOWED: dict[str, set[str]] = {
    "version": set(),
    "core": set(),
    "data": {"core"},
    "models": {"core"},
    "formats": {"core", "data", "models", "version"},
    "engines": {"core", "data", "models", "formats"},
    "objectives": {"core", "data", "models"},
    "training": {"core", "models", "objectives"},
    "evaluation": {"core", "data", "models", "formats", "engines", "objectives"},
    "recipe": {"core", "data", "models", "objectives", "training", "evaluation"},
    "recipes": {"recipe", "core", "data", "models", "objectives", "training", "evaluation"},
    "run": {
        "core",
        "data",
        "models",
        "formats",
        "engines",
        "objectives",
        "training",
        "evaluation",
        "recipe",
        "recipes",
        "version",
    },
    "inspection": {"core", "data", "models", "formats", "engines", "objectives", "training", "evaluation", "run"},
    "studies": {"core", "data", "evaluation", "recipe", "recipes", "run"},
    "demo": {"core", "data", "models", "formats", "training", "evaluation", "recipe", "recipes", "run", "inspection"},
}
EVERYTHING = {"__init__", "__main__", "cli", "commands"}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_parts(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports from {'.' * node.level}{node.module or ''}: write the whole name."
            # `from vitrine import run` and `from vitrine.training import loop` alike.
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("vitrine.")}


def test_imports_only_point_left() -> None:
    for path in PACKAGE.rglob("*.py"):
        part = part_of(path)
        if part in EVERYTHING:
            continue
        assert part in ALLOWED, f"{path} is a new part of the house: say in ALLOWED what it may import."
        wrong = imported_parts(path) - ALLOWED[part] - {part}
        assert not wrong, f"{path} imports {sorted(wrong)}; {part} may import only {sorted(ALLOWED[part])}."


def test_every_allowed_part_exists() -> None:
    assert {part for part in ALLOWED if not list(PACKAGE.glob(f"{part}*"))} == set()


def test_every_module_has_its_test() -> None:
    tests = Path(__file__).parent
    untested = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*.py")
        if not path.name.startswith("__") and not (tests / path.relative_to(PACKAGE)).with_name(f"test_{path.name}").exists()
    ]
    assert untested == []
