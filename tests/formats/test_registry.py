"""Tests of formats/registry.py.

A file's format is told by the names of its tensors, whatever training program wrapped them.
Our own folder: what is in it, and that it is enough.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tests.formats import cases
from tests.formats.cases import assert_same_weights, load_quietly, make_checkpoint, save_quietly
from tests.formats.test_google import make_arrays
from vitrine.formats.base import CheckpointFormat
from vitrine.formats.config import FORMAT_NAMES
from vitrine.formats.load import load_checkpoint
from vitrine.formats.registry import FORMATS, detect_format, strip_prefixes
from vitrine.formats.tensor_files import LazyTensor, Tensors
from vitrine.models.config import AxialConfig, ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.model import Model
from vitrine.models.registry import build_meta_model

CONFIGS: dict[str, ModelConfig] = {
    "vit": cases.VIT,
    "oblong": cases.OBLONG,
    "axial": AxialConfig(**cases.SMALL),
    "hybrid": cases.HYBRID,
    "root hybrid": cases.ROOT_HYBRID,
    "resnet": cases.BIT,
    "root alone": ResNetConfig(stages=(), width_factor=0.5, image_size=(32, 32)),
}
DRAWN = st.one_of(cases.plain_vits(("class", "mean", "map")), cases.vits(), cases.hybrids(), cases.resnets())


def written_names(form: CheckpointFormat, model: Model[Any]) -> list[str]:
    """Empty where the format refuses such a model."""
    try:
        adapted, _ = form.to_storable(model)
    except ValueError as refusal:
        if "cannot hold" not in str(refusal):
            raise
        return []
    return [name for entry in form.tensor_mappings(adapted) for name in entry.foreign_names]


def assert_told_apart(config: ModelConfig) -> None:
    model = build_meta_model(config)
    for form in FORMATS.values():
        names = written_names(form, model)
        if names:
            assert [other.name for other in FORMATS.values() if other.matches(names)] == [form.name]
            assert detect_format(names, "the file") is form
            assert len(set(names)) == len(names)


def test_the_table_has_every_name() -> None:
    assert tuple(FORMATS) == FORMAT_NAMES
    assert [form.name for form in FORMATS.values()] == list(FORMAT_NAMES)


@pytest.mark.parametrize("name", CONFIGS)
def test_written_names_are_recognised_by_their_format_alone(name: str) -> None:
    assert_told_apart(CONFIGS[name])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(config=DRAWN)
def test_any_models_names_are_recognised_by_their_format_alone(config: ModelConfig) -> None:
    assert_told_apart(config)


def test_an_unknown_file_hears_what_is_known() -> None:
    with pytest.raises(
        ValueError, match="the file is in no known format: its 6 tensors are named a, b, c, d and 2 more; known"
    ):
        detect_format("fedcba", "the file")
    with pytest.raises(ValueError, match=", ".join(FORMAT_NAMES)):
        detect_format([], "the file")


def stored(*names: str) -> Tensors:
    return {name: LazyTensor((), "torch.float32", torch.empty) for name in names}


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/", "opt/target/params/"])
def test_jaxs_training_state_is_left_out(prefix: str) -> None:
    names = list(make_arrays("google-linen"))
    beside = ["opt/state/step", *(f"opt/state/param_states/{name}/grad_ema" for name in names)] if prefix else []
    stripped = strip_prefixes(stored(*beside, *(f"{prefix}{name}" for name in names)))
    assert list(stripped) == names
    assert detect_format(stripped, "the file").name == "google-linen"


WRAPPINGS = {
    "parallel": (nn.DataParallel,),
    "compiled": (torch.compile,),
    "compiled, then parallel": (torch.compile, nn.DataParallel),
    "parallel, then compiled": (nn.DataParallel, torch.compile),
    "averaged": (AveragedModel,),  # keeps a step counter beside `module.`
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # raised within torch's own compiler
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_torchs_wrappers_are_taken_off(wrapping: str) -> None:
    """The names are torch's own: it adds `module.` and `_orig_mod.`, in the order in which the wrappers were put on."""
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    wrapped = network
    for wrap in WRAPPINGS[wrapping]:
        wrapped = wrap(wrapped)
    assert list(wrapped.state_dict()) != list(network.state_dict())
    assert list(strip_prefixes(stored(*wrapped.state_dict()))) == list(network.state_dict())


@pytest.mark.parametrize(
    "config",
    [
        AxialConfig(**cases.SMALL, num_classes=3),
        ViTConfig(**cases.SMALL, position="relative", num_registers=2),
        ViTConfig(**cases.SMALL, position="learned-2d", position_insertion="every-layer", pool="map"),
        ResNetConfig(stages=(1,), style="post-activation", width_factor=0.5, image_size=(32, 40)),
    ],
)
def test_what_no_other_format_holds(config: ModelConfig, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, tmp_path / "out", "vitrine")
    again = load_checkpoint(tmp_path / "out")  # no notice: nothing is assumed
    assert again.model.config == config
    assert_same_weights(again.model, checkpoint.model)


def test_the_folder_holds_two_files(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    save_quietly(checkpoint, tmp_path / "out", "vitrine")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == checkpoint.model.state_dict().keys()
    content = json.loads((tmp_path / "out" / "config.json").read_text())
    assert list(content) == ["format", "model", "preprocessing", "class_names", "provenance", "checksum"]


def test_the_layout_names_every_tensor_once(tmp_path: Path) -> None:
    layout = FORMATS["vitrine"].tensor_mappings(cases.HYBRID)
    assert [entry.foreign_names for entry in layout] == [(entry.name,) for entry in layout]


def test_weights_without_their_configuration(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "vitrine")
    (tmp_path / "out" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"without the config.json that describes them: give the whole folder"):
        load_quietly(tmp_path / "out")
