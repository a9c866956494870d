"""The package imports without torch, which takes seconds, and its public names are what they say."""

import pkgutil
import subprocess
import sys
from importlib import import_module
from inspect import isclass

import pytest

import vitrine
from vitrine.cli import COMMANDS

BLOCK_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is blocked")
sys.meta_path.insert(0, Refuse())
"""


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", f"{BLOCK_TORCH}\n{code}"], capture_output=True, text=True)


def test_the_package_imports_without_torch() -> None:
    result = run_without_torch("import vitrine; print(len(vitrine.MODELS), vitrine.ViTConfig.__name__)")
    assert (result.returncode, result.stdout) == (0, f"{len(vitrine.MODELS)} ViTConfig\n")


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_every_help_works_without_torch(arguments: list[str]) -> None:
    result = run_without_torch(f"from vitrine.cli import main; main({[*arguments[0].split(), *arguments[1:]]!r})")
    assert result.returncode == 0, result.stderr
    assert "usage: vitrine" in result.stdout
    assert "{None}" not in result.stdout


def test_costs_need_no_torch() -> None:
    result = run_without_torch("import vitrine; print(vitrine.compute_cost('ViT-G/14').num_parameters)")
    assert result.stdout == "1844440680\n"


def test_the_block_blocks() -> None:
    assert run_without_torch("import vitrine; vitrine.build_model('ViT-Ti/16')").returncode == 1


def test_no_module_hides_a_public_name() -> None:
    """Importing `vitrine.x` sets the attribute `x` of the package, so no module may have the name of a function."""
    for module in pkgutil.walk_packages(vitrine.__path__, "vitrine."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name, home in vitrine.PUBLIC_NAMES.items():
        public = getattr(vitrine, name)
        assert public is getattr(import_module(home), name)
        assert name in dir(vitrine)
        if name[0].islower():
            assert callable(public)
        elif name[1].islower():
            assert isclass(public)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'build_modell'.*build_model"):
        _ = vitrine.build_modell


def test_the_module_runs_as_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "vitrine", "--version"], capture_output=True, text=True)
    assert result.stdout == f"vitrine {vitrine.__version__}\n"
