"""Detection of formats by tensor names, with or without prefixes of training programs; our own format."""

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

CONFIGS: list[ModelConfig] = [
    cases.VIT,
    AxialConfig(**cases.SMALL),
    cases.HYBRID,
    cases.ROOT_HYBRID,
    cases.BIT,
    ResNetConfig(stages=(), width_factor=0.5, image_size=(32, 32)),
]
DRAWN = st.one_of(cases.plain_vits(("class", "mean", "map")), cases.vits(), cases.hybrids(), cases.resnets())


def written_names(fmt: CheckpointFormat, model: Model[Any]) -> list[str]:
    """Return the foreign names of a model's tensors, none if the format does not support it."""
    try:
        stored, _ = fmt.to_storable(model)
    except ValueError as error:
        if "cannot hold" not in str(error):
            raise
        return []
    return [name for mapping in fmt.tensor_mappings(stored) for name in mapping.foreign_names]


def assert_detected(config: ModelConfig) -> None:
    model = build_meta_model(config)
    for fmt in FORMATS.values():
        names = written_names(fmt, model)
        if names:
            assert [other.name for other in FORMATS.values() if other.matches(names)] == [fmt.name]
            assert detect_format(names, "the file") is fmt  # which also means that no other family is recognised
            assert len(set(names)) == len(names)


def test_the_table_has_every_name() -> None:
    assert tuple(FORMATS) == FORMAT_NAMES
    assert [fmt.name for fmt in FORMATS.values()] == list(FORMAT_NAMES)


def test_written_names_match_their_format_alone() -> None:
    for config in CONFIGS:
        assert_detected(config)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(config=DRAWN)
def test_names_of_any_model_match_their_format_alone(config: ModelConfig) -> None:
    assert_detected(config)


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"6 tensors .* a, b, c, d and 2 more"):
        detect_format("fedcba", "the file")
    with pytest.raises(ValueError, match=", ".join(FORMAT_NAMES)):
        detect_format([], "the file")


def make_tensors(*names: str) -> Tensors:
    return {name: LazyTensor((), "torch.float32", torch.empty) for name in names}


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/", "opt/target/params/"])
def test_training_state_of_jax_is_dropped(prefix: str) -> None:
    names = list(make_arrays("google-linen"))
    beside = ["opt/state/step", *(f"opt/state/param_states/{name}/grad_ema" for name in names)] if prefix else []
    stripped = strip_prefixes(make_tensors(*beside, *(f"{prefix}{name}" for name in names)))
    assert list(stripped) == names
    assert detect_format(stripped, "the file").name == "google-linen"


WRAPPINGS = {
    "compiled, then parallel": (torch.compile, nn.DataParallel),
    "parallel, then compiled": (nn.DataParallel, torch.compile),
    "averaged": (AveragedModel,),  # adds a step counter beside `module.`
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # raised within torch's own compiler
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_prefixes_of_torchs_wrappers_are_removed(wrapping: str) -> None:
    """torch itself adds `module.` and `_orig_mod.`, in the order of the wrappers."""
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    wrapped = network
    for wrap in WRAPPINGS[wrapping]:
        wrapped = wrap(wrapped)
    assert list(wrapped.state_dict()) != list(network.state_dict())
    assert list(strip_prefixes(make_tensors(*wrapped.state_dict()))) == list(network.state_dict())


@pytest.mark.parametrize(
    "config",
    [
        AxialConfig(**cases.SMALL, num_classes=3),
        ViTConfig(**cases.SMALL, position="relative", num_registers=2),
        ViTConfig(**cases.SMALL, position="learned-2d", position_insertion="every-layer", pool="map"),
        ViTConfig(**cases.SMALL, readout_layers=(0, 1), readout="both", num_classes=3),
        ResNetConfig(stages=(1,), style="post-activation", width_factor=0.5, image_size=(32, 40)),
    ],
)
def test_models_that_only_our_format_holds(config: ModelConfig, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, tmp_path / "out", "vitrine")
    again = load_checkpoint(tmp_path / "out")  # no warning: nothing is assumed
    assert again.model.config == config
    assert_same_weights(again.model, checkpoint.model)


def test_a_head_of_several_layers_is_unsupported_elsewhere(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, readout_layers=(0, 1), num_classes=3))
    for name in set(FORMAT_NAMES) - {"vitrine", "bit"}:
        with pytest.raises(ValueError, match=r"readout_layers=\(0, 1\)"):
            save_quietly(checkpoint, tmp_path / f"out{cases.ENDINGS[name]}", name)
    assert list(tmp_path.iterdir()) == []


def test_files_of_our_folder(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    save_quietly(checkpoint, tmp_path / "out", "vitrine")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == checkpoint.model.state_dict().keys()
    content = json.loads((tmp_path / "out" / "config.json").read_text())
    assert list(content) == ["format", "model", "preprocessing", "class_names", "provenance", "checksum", "metadata_checksum"]


def test_weights_without_their_config(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "vitrine")
    (tmp_path / "out" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"without their config\.json"):
        load_quietly(tmp_path / "out")
