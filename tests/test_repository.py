"""The direction of imports between packages, no import cycles, and a test file for every module."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "vitrine"
MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}

# Package -> packages it may import. Data flows to the right: nothing on the left knows what is on its right.
ALLOWED: dict[str, set[str]] = {
    "version": set(),
    "core": {"version"},
    "data": {"core"},
    "models": {"core"},
    "formats": {"core", "data", "models", "version"},
    "engines": {"core", "data", "models", "formats"},
    "objectives": {"core", "data", "models"},
    "training": {"core", "data", "models", "objectives"},
    "evaluation": {"core", "data", "models", "formats", "engines", "objectives"},
    "field_effects": {"core", "objectives", "recipe"},  # recipe: for type checkers only
    "recipe": {"core", "data", "models", "objectives", "training", "evaluation", "field_effects"},
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
        "field_effects",
        "recipe",
        "recipes",
        "version",
    },
    "inspection": {"core", "data", "models", "formats", "engines", "objectives", "training", "evaluation", "run"},
    "fitting": {
        *("core", "data", "models", "formats", "engines", "training", "evaluation", "recipe", "recipes", "run", "version"),
    },
    "studies": {
        *(
            "core",
            "data",
            "models",
            "formats",
            "objectives",
            "training",
            "evaluation",
            "field_effects",
            "recipe",
            "recipes",
            "run",
        ),
    },
    "demo": {
        *("core", "data", "models", "formats", "training", "evaluation", "recipe", "recipes", "run", "inspection", "studies"),
    },
}
UNTESTED = {PACKAGE / "version.py"}
MAY_IMPORT_ALL = {"__init__", "__main__", "cli", "commands"}


def read_imports(tree: ast.AST) -> Iterator[str]:
    """Yield the full names that a module imports, also inside functions; not those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"Relative import of {node.module}: write the full name."
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from read_imports(ast.Module(node.orelse, []))
        else:
            yield from read_imports(node)


@cache
def find_imported_modules(name: str) -> set[str]:
    """Return the modules of this package that a module imports: `vitrine.core.files` for one of its functions, too."""
    imported: set[str] = set()
    for full_name in read_imports(ast.parse(MODULES[name].read_text())):
        module = full_name if full_name in MODULES else full_name.rpartition(".")[0]
        if module in MODULES:
            imported.add(module)
        elif f"{full_name}.__init__" in MODULES:
            imported.add(f"{full_name}.__init__")
    return imported - {name}


@pytest.mark.parametrize("name", MODULES)
def test_imports_only_point_left(name: str) -> None:
    part = name.split(".")[1]
    if part in MAY_IMPORT_ALL:
        return
    assert part in ALLOWED, f"{name} is in a new package: add to ALLOWED what it may import."
    tree = ast.parse(MODULES[name].read_text())
    names = {each for node in ast.walk(tree) for each in read_imports(node)}  # imports for type checkers count here
    wrong = {each.split(".")[1] for each in names if each.startswith("vitrine.")} - ALLOWED[part] - {part}
    assert not wrong, f"{name} imports {sorted(wrong)}; {part} may import only {sorted(ALLOWED[part])}."


def test_no_modules_import_each_other() -> None:
    """Imports inside functions count: they only hide a cycle."""
    try:
        TopologicalSorter({name: find_imported_modules(name) for name in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(f"These modules import each other: {' <- '.join(error.args[1])}.")


def test_the_cycle_check_sees_imports_inside_functions() -> None:
    code = "if TYPE_CHECKING:\n    import a\nelse:\n    import b\ndef f():\n    from c import d\n    with e: import g.h"
    assert list(read_imports(ast.parse(code))) == ["b", "c.d", "g.h"]
    assert "vitrine.formats.load" in find_imported_modules("vitrine.commands.options")  # imported inside a function


def test_only_the_console_prints() -> None:
    """What is printed passes one filter, in `core.console`; rich is used there and by the progress of a run."""
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text())
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert name == "vitrine.core.console" or not calls & {"print", "pprint", "sys.stdout.write", "sys.stderr.write"}, name
        uses_rich = any(each.startswith("rich.") for each in read_imports(tree))
        assert not uses_rich or name in ("vitrine.core.console", "vitrine.training.progress"), name


def test_every_allowed_part_exists() -> None:
    assert {part for part in ALLOWED if not list(PACKAGE.glob(f"{part}*"))} == set()


def test_every_module_has_its_test() -> None:
    tests = Path(__file__).parent
    untested = [
        path.relative_to(PACKAGE)
        for path in set(MODULES.values()) - UNTESTED
        if not path.name.startswith("__") and not (tests / path.relative_to(PACKAGE)).with_name(f"test_{path.name}").exists()
    ]
    assert untested == []
