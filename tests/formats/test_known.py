"""A file's format is told by the names of its tensors, whatever training program wrapped them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tests.formats import cases
from tests.formats.test_google import make_arrays
from vitrine.formats.config import FORMAT_NAMES
from vitrine.formats.format import Format
from vitrine.formats.known import FORMATS, recognise, strip_prefixes
from vitrine.formats.tensors import StoredTensor, Tensors
from vitrine.models.config import AxialConfig, ModelConfig, ResNetConfig
from vitrine.models.model import Model
from vitrine.models.registry import build_empty

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


def written_names(form: Format, model: Model[Any]) -> list[str]:
    """Empty where the format refuses such a model."""
    try:
        adapted, _ = form.adapt(model)
    except ValueError as refusal:
        if "cannot hold" not in str(refusal):
            raise
        return []
    return [name for entry in form.layout(adapted) for name in entry.theirs]


def assert_told_apart(config: ModelConfig) -> None:
    model = build_empty(config)
    for form in FORMATS.values():
        names = written_names(form, model)
        if names:
            assert [other.name for other in FORMATS.values() if other.recognises(names)] == [form.name]
            assert recognise(names, "the file") is form
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
        recognise("fedcba", "the file")
    with pytest.raises(ValueError, match=", ".join(FORMAT_NAMES)):
        recognise([], "the file")


def stored(*names: str) -> Tensors:
    return {name: StoredTensor((), "torch.float32", torch.empty) for name in names}


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/", "opt/target/params/"])
def test_jaxs_training_state_is_left_out(prefix: str) -> None:
    names = list(make_arrays("google-linen"))
    beside = ["opt/state/step", *(f"opt/state/param_states/{name}/grad_ema" for name in names)] if prefix else []
    stripped = strip_prefixes(stored(*beside, *(f"{prefix}{name}" for name in names)))
    assert list(stripped) == names
    assert recognise(stripped, "the file").name == "google-linen"


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
