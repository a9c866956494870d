"""Importing the package and asking for help must not import torch, which takes seconds."""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module

import pytest

import vitrine
from vitrine.cli import COMMANDS

Run = Callable[[str], subprocess.CompletedProcess[str]]

# Two ways to make `import torch` fail: Python's own mark for it, and a finder that refuses.
BLOCKS = {
    "mark": "import sys; sys.modules['torch'] = None",
    "finder": """
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is blocked")
sys.meta_path.insert(0, Refuse())
""",
}


@pytest.fixture(params=BLOCKS)
def run_without_torch(request: pytest.FixtureRequest) -> Run:
    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", f"{BLOCKS[request.param]}\n{code}"], capture_output=True, text=True)

    return run


def test_the_package_imports_without_torch(run_without_torch: Run) -> None:
    result = run_without_torch("import vitrine; print(len(vitrine.MODELS), vitrine.ViTConfig.__name__)")
    assert (result.returncode, result.stdout) == (0, f"{len(vitrine.MODELS)} ViTConfig\n")


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_every_help_works_without_torch(arguments: list[str], run_without_torch: Run) -> None:
    result = run_without_torch(f"from vitrine.cli import main; main({arguments!r})")
    assert result.returncode == 0, result.stderr
    assert "usage: vitrine" in result.stdout


def test_costs_need_no_torch(run_without_torch: Run) -> None:
    result = run_without_torch("import vitrine; print(vitrine.compute_cost('ViT-G/14').num_parameters)")
    assert result.stdout == "1844440680\n"


def test_the_block_blocks(run_without_torch: Run) -> None:
    assert run_without_torch("import vitrine; vitrine.build_model('ViT-Ti/16')").returncode == 1


def test_public_names_are_the_real_ones() -> None:
    for name, home in vitrine.PUBLIC_NAMES.items():
        assert getattr(vitrine, name) is getattr(import_module(home), name)
        assert name in dir(vitrine)
    with pytest.raises(AttributeError, match=r"has no attribute 'build_modell'; it has: .*build_model"):
        _ = vitrine.build_modell


def test_the_module_runs_as_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "vitrine", "--version"], capture_output=True, text=True)
    assert result.stdout == f"vitrine {vitrine.__version__}\n"
