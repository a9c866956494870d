"""Lack of memory at every place that computes is one sentence that names the setting of that place."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.commands.test_evaluate import fail
from tests.evaluation.test_predictor import make_classifier
from tests.formats import cases
from tests.formats.cases import save_quietly
from tests.photos import draw_images
from tests.run.test_run import make_recipe, write_data
from vitrine.core.runtime import explain_out_of_memory
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.predictor import Predictor
from vitrine.formats.save import save_checkpoint
from vitrine.models.model import Model
from vitrine.models.settings import ModelSettings
from vitrine.models.vit import VisionTransformer
from vitrine.objectives.supervised import Supervised
from vitrine.run.build import build_initial_model
from vitrine.run.run import RunEvaluator, run_recipe

pytestmark = [pytest.mark.usefixtures("short_runs")]

# What torch raises on CUDA, mps and CPUs, and by CUDA's libraries.
ERRORS: list[BaseException] = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("MPS backend out of memory (MPS allocated: 17.98 GB, other allocations: 1.2 GB)."),
    RuntimeError("Invalid buffer size: 58.24 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error)[:12])
def test_every_device_s_words_are_known(error: BaseException) -> None:
    with pytest.raises(ValueError, match=r"^A batch does not fit into the memory of mps: lower it\.$"):
        raise_explained(error)


def test_other_errors_stay_what_they_are() -> None:
    for error in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("memory")):
        with pytest.raises(type(error), match=r"mat1|memory") as raised:
            raise_explained(error)
        assert raised.value is error


def raise_explained(error: BaseException) -> None:
    with explain_out_of_memory("A batch", "mps", "lower it"):
        raise error


def renew(error: BaseException) -> BaseException:
    """Return a copy: the traceback of one that outlives its test would keep models and loader workers alive."""
    return type(error)(*error.args)


class Shortage:
    """Makes models run out of memory from some forward pass on, in training or in evaluation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.holds: Callable[[Model[Any]], bool] = lambda model: False
        encode_tokens = VisionTransformer.encode_tokens

        def encode_or_fail(model: Any, tokens: Tensor, *arguments: Any) -> Any:
            if self.holds(model):
                raise renew(ERRORS[0])
            return encode_tokens(model, tokens, *arguments)

        monkeypatch.setattr(VisionTransformer, "encode_tokens", encode_or_fail)


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    return Shortage(monkeypatch)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "noise.npz")


def test_training_names_its_own_settings(shortage: Shortage, source: str, tmp_path: Path) -> None:
    shortage.holds = lambda model: model.training
    with pytest.raises(ValueError, match=r"training step of 16 images .* machine.accumulation_steps=2"):
        run_recipe(make_recipe(source), tmp_path / "run")


def test_an_evaluation_within_a_run_names_its_batch_size(shortage: Shortage, source: str, tmp_path: Path) -> None:
    shortage.holds = lambda model: not model.training
    with pytest.raises(ValueError, match=r"evaluation .* lower evaluation.batch_size=10"):
        run_recipe(make_recipe(source), tmp_path / "run")


def test_the_final_test_names_its_batch_size(
    shortage: Shortage, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_final = RunEvaluator.evaluate_final

    def evaluate_short(*arguments: Any) -> Any:
        shortage.holds = lambda model: True
        return evaluate_final(*arguments)

    monkeypatch.setattr(RunEvaluator, "evaluate_final", evaluate_short)
    with pytest.raises(ValueError, match=r"lower evaluation.batch_size=10"):
        run_recipe(make_recipe(source), tmp_path / "run")


def test_fitting_a_head_names_the_batch_size(shortage: Shortage, source: str, tmp_path: Path) -> None:
    recipe = make_recipe(source)
    save_checkpoint(build_initial_model(recipe, ("a", "b", "c", "d")), tmp_path / "start")
    shortage.holds = lambda model: True
    recipe = replace(recipe, model=ModelSettings(checkpoint=str(tmp_path / "start")), head_init="ridge")
    with pytest.raises(ValueError, match=r"lower evaluation.batch_size=10"):
        run_recipe(recipe, tmp_path / "run")


def test_a_model_that_does_not_fit_is_named(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_move(module: Any, *arguments: Any) -> Any:
        raise renew(ERRORS[1])

    monkeypatch.setattr(Supervised, "to", fail_to_move, raising=False)
    with pytest.raises(ValueError, match=r"The model does not fit .* machine.sharding='fsdp'"):
        run_recipe(make_recipe(source), tmp_path / "run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    files = [
        file for seed, name in enumerate(("class 0", "class 1")) for file in draw_images(folder / "photos" / name, 3, seed=seed)
    ]
    save_quietly(make_classifier(files, replace(cases.VIT, num_classes=2)), folder / "model", "vitrine")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "MODEL", "DATA", "--batch-size", "7"),
        ("predict", "MODEL", "DATA", "--batch-size", "7"),
        ("features", "MODEL", "DATA", "--out", "OUT", "--batch-size", "7", "--no-cache"),
        ("few-shot", "MODEL", "DATA", "--shots", "1", "--held-out", "0.5", "--batch-size", "7", "--no-cache"),
        ("probe", "MODEL", "DATA", "--held-out", "0.5", "--batch-size", "7", "--no-cache"),
        ("data", "check", "DATA", "--model", "MODEL", "--batch-size", "7", "--no-cache"),
        ("inspect", "MODEL", "DATA", "--out", "OUT"),
    ],
    ids=lambda command: command[0],
)
def test_commands_name_their_own_option(
    command: tuple[str, ...], shortage: Shortage, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shortage.holds = lambda model: True
    names = {"MODEL": folder / "model", "DATA": folder / "photos", "OUT": tmp_path / "out.npz"}
    error = fail(capsys, *(names.get(word, word) for word in command), "--device", "cpu")
    assert "does not fit into the memory of cpu" in error
    assert ("image size" if command[0] == "inspect" else "--batch-size than 7") in error


def test_a_predictor_in_python_names_its_argument(shortage: Shortage, folder: Path) -> None:
    predictor = Predictor(folder / "model", "cpu", InferenceConfig(batch_size=3, num_workers=0))
    shortage.holds = lambda model: True
    with pytest.raises(ValueError, match="smaller batch_size than 3"):
        predictor.predict(folder / "photos")
    with pytest.raises(ValueError, match="smaller batch_size than 3"):
        predictor.attention(folder / "photos", layer=0)
