"""The files, functions and packages that docs/architecture.md names exist."""

import re
from pathlib import Path

import pytest

from tests.test_repository import ALLOWED

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILES = sorted(set(re.findall(r"[\w/]+\.py\b", PAGE)))
# Steps of the diagrams that are functions or classes; other words describe what happens in between.
STEPS = sorted(set(re.findall(r"-> (\w+)  ", PAGE)))
CODE = "\n".join(path.read_text() for path in (ROOT / "src" / "vitrine").rglob("*.py"))


@pytest.mark.parametrize("name", FILES)
def test_a_file_exists(name: str) -> None:
    folders = (ROOT / "src" / "vitrine", ROOT / "tests", ROOT / "docs")
    assert any(path.as_posix().endswith(f"/{name}") for folder in folders for path in folder.rglob("*.py"))


@pytest.mark.parametrize("step", [step for step in STEPS if "_" in step or step[0].isupper()])
def test_a_step_is_a_function_or_a_class(step: str) -> None:
    assert re.search(rf"^ *(def|class) {step}\b", CODE, flags=re.MULTILINE)


def test_every_package_is_named() -> None:
    assert {part for part in ALLOWED if not re.search(rf"\b{part}\b", PAGE)} == set()
