"""Our own folder: what is in it, and that it is enough."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.formats import cases
from tests.formats.cases import assert_same_weights, load_quietly, make_checkpoint, save_quietly
from vitrine.formats.load import load_checkpoint
from vitrine.formats.own import OWN
from vitrine.models.config import AxialConfig, ModelConfig, ResNetConfig, ViTConfig


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
    layout = OWN.layout(cases.HYBRID)
    assert [entry.theirs for entry in layout] == [(entry.ours,) for entry in layout]


def test_weights_without_their_configuration(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "vitrine")
    (tmp_path / "out" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"without the config.json that describes them: give the whole folder"):
        load_quietly(tmp_path / "out")
