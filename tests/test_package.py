"""The package imports without torch, which takes seconds, and its public names are what they say."""

import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from inspect import isclass
from pathlib import Path

import numpy as np
import pytest

import vitrine
from tests.photos import draw_divided
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


def test_no_module_imports_what_only_some_functions_use() -> None:
    """matplotlib and scikit-learn take a second to import; figures and probes import them when they are drawn or fitted."""
    code = """
import pkgutil, sys, vitrine
from importlib import import_module
for module in pkgutil.walk_packages(vitrine.__path__, "vitrine."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
print([name for name in ("matplotlib", "sklearn", "datasets", "pyarrow", "tensorboard", "transformers") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


def test_costs_need_no_torch() -> None:
    result = run_without_torch("import vitrine; print(vitrine.compute_cost('ViT-G/14').num_parameters)")
    assert result.stdout == "1844440680\n"


def test_the_block_blocks() -> None:
    assert run_without_torch("import vitrine; vitrine.build_model('ViT-Ti/16')").returncode == 1


@pytest.fixture(scope="module")
def all_modules_imported() -> None:
    """Importing `vitrine.x` sets the attribute `x` of the package, which would hide a function of that name."""
    for module in pkgutil.walk_packages(vitrine.__path__, "vitrine."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


@pytest.mark.usefixtures("all_modules_imported")
def test_no_module_hides_a_public_name() -> None:
    for name, home in vitrine.PUBLIC_NAMES.items():
        public = getattr(vitrine, name)
        assert public is getattr(import_module(home), name)
        assert name in dir(vitrine)
        if name[0].islower():
            assert callable(public)
        elif name[1].islower():
            assert isclass(public)


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")  # the data is too small for VTAB
@pytest.mark.usefixtures("all_modules_imported", "short_runs", "cache")
def test_every_public_function_can_be_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on a small model and small data; their results are tested elsewhere."""
    import torch

    from vitrine.studies.data_size_grid import GRIDS

    monkeypatch.chdir(tmp_path)
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    short = {"total_steps": 2, "optim": {"warmup_steps": 1}}
    recipe = vitrine.with_changes(vitrine.find_recipe("digits")(), model={"depth": 1}, **short)
    model, image = Path("run/model"), np.zeros((8, 8), np.uint8)
    demo = vitrine.DemoConfig(model=str(model), steps=1, subset="1/class", num_drawn=1, num_measured=1)
    tiny = GRIDS["tiny"]
    monkeypatch.setitem(GRIDS, "tiny", replace(tiny, models=tiny.models[1:3], sizes=tiny.sizes[:1]))
    (tmp_path / "tasks").mkdir()
    draw_divided(tmp_path / "tasks" / "own", ("ant", "bee"), 4, 2)
    calls: dict[str, Callable[[], object]] = {
        "train": lambda: vitrine.train(recipe, "run"),
        "run_recipe": lambda: vitrine.run_recipe(recipe, "run"),
        "load_checkpoint": lambda: vitrine.load_checkpoint(model),
        "load_model": lambda: vitrine.load_model(model),
        "save_checkpoint": lambda: vitrine.save_checkpoint(vitrine.load_checkpoint(model), "saved", "vitrine"),
        "save_model": lambda: vitrine.save_model(
            vitrine.load_model(model), "saved-model", "vitrine", preprocessing=vitrine.load_checkpoint(model).preprocessing
        ),
        "verify_checkpoint": lambda: list(vitrine.verify_checkpoint(vitrine.load_checkpoint(model), Path("saved"), images)),
        "convert": lambda: vitrine.convert(model, "model.safetensors", "timm"),
        "finetune": lambda: vitrine.finetune(model, "digits", "tuned", recipe="demo-transfer", **short),
        "fit": lambda: vitrine.fit("digits", model, "fitted", vitrine.FitConfig(minutes=0)),
        "predict": lambda: vitrine.predict(model, [image]).predictions[0].classes,
        "features": lambda: vitrine.features(model, "digits", "test"),
        "evaluate": lambda: vitrine.evaluate(model, "digits").report,
        "evaluate_multi_label": lambda: vitrine.evaluate_multi_label(
            replace(vitrine.load_checkpoint(model), calibration=vitrine.Calibration(thresholds=(0.5,) * 10)), "digits"
        ),
        "few_shot": lambda: vitrine.few_shot(model, "digits", shots=(1,), seeds=(0,)),
        "probe": lambda: vitrine.probe(model, "digits", ("means",)),
        "inspect": lambda: vitrine.inspect(model, [image]),
        "write_inspection": lambda: vitrine.write_inspection(vitrine.inspect(model, [image]), Path("inside"), "title"),
        "vtab": lambda: vitrine.vtab(
            model, "tasks", model={"image_size": 8}, loader={"batch_size": 2}, machine={"accumulation_steps": 1}, **short
        ),
        "run_study": lambda: vitrine.run_study("data-size", vitrine.StudyConfig(scale="tiny")),
        "plan_study": lambda: vitrine.plan_study("data-size", vitrine.StudyConfig(scale="paper")),
        "run_demo": lambda: vitrine.run_demo(demo),
        "check_data": lambda: vitrine.check_data("digits"),
        "find_duplicates": lambda: vitrine.find_duplicates("digits", "digits"),
        "pack_data": lambda: vitrine.pack_data("digits", Path("packed"), 8),
        "list_caches": lambda: vitrine.list_caches(),
        "clear_caches": lambda: vitrine.clear_caches(["verified"]),
        "open_data": lambda: vitrine.open_data("digits", "test"),
        "list_starting_points": lambda: vitrine.list_starting_points(["ViT-B/16"]),
        "list_models": lambda: vitrine.list_models(["ViT-B/16"]),
        "compute_cost": lambda: vitrine.compute_cost("ViT-B/16"),
        "build_model": lambda: vitrine.build_model("ViT-Ti/16", image_size=32, depth=1),
        "find_recipe": lambda: vitrine.find_recipe("digits"),
        "with_changes": lambda: recipe,
    }
    assert set(calls) == {name for name in vitrine.PUBLIC_NAMES if name[0].islower()}
    for name, call in calls.items():
        assert call() is not None or name.startswith("save"), name


def test_every_data_file_is_packaged() -> None:
    root = Path(__file__).parent.parent
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["vitrine"]
    package = root / "src" / "vitrine"
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files == {path for pattern in patterns for path in package.glob(pattern)}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'build_modell'.*build_model"):
        _ = vitrine.build_modell


def test_the_module_runs_as_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "vitrine", "--version"], capture_output=True, text=True)
    assert result.stdout == f"vitrine {vitrine.__version__}\n"
