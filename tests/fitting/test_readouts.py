"""Readouts: columns of one pass equal the features of a model that reads only these layers."""

import pytest
import torch

from tests.filling import build_filled
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.engines.engine import TorchEngine
from vitrine.fitting.readouts import (
    Readout,
    build_reader,
    flip_engine,
    join_readouts,
    list_readouts,
    select_columns,
    set_head,
)
from vitrine.formats.checkpoint import Calibration, Checkpoint
from vitrine.models.config import ResNetConfig, ViTConfig

VIT = ViTConfig(width=16, depth=6, num_heads=2, mlp_dim=32, patch_size=8, image_size=(16, 16), num_classes=5)


def make_checkpoint(config: ViTConfig = VIT) -> Checkpoint:
    names = tuple(f"class {number}" for number in range(config.num_classes))
    preprocessing = build_inception_preprocessing(config.image_size)
    return Checkpoint(build_filled(config), preprocessing, names, calibration=Calibration(temperature=2.0))


def draw_images(count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_one_pass_has_the_features_of_every_readout(pool: str) -> None:
    config = ViTConfig(**{**vars(VIT), "pool": pool})
    checkpoint, images = make_checkpoint(config), draw_images()
    readouts = list_readouts(config)
    whole = join_readouts(readouts)
    features = TorchEngine(build_reader(checkpoint, whole, 3)).features(images)
    assert len(readouts) > 3
    for readout in readouts:
        expected = TorchEngine(build_reader(checkpoint, readout, 3)).features(images)
        columns = select_columns(readout, whole, config.width)
        torch.testing.assert_close(features[:, torch.from_numpy(columns)], expected)


@pytest.mark.parametrize("depth", [1, 2, 3, 6, 12, 24])
def test_readouts_of_any_depth_are_valid_and_different(depth: int) -> None:
    config = ViTConfig(**{**vars(VIT), "depth": depth})
    readouts = list_readouts(config)
    assert len(set(readouts)) == len(readouts)
    assert Readout((depth - 1,), "class") in readouts
    for readout in readouts:
        assert readout.layers
        assert ViTConfig(**{**vars(config), **readout.changes}).feature_dim > 0


def test_large_readouts_are_left_out() -> None:
    large = list_readouts(ViTConfig(**{**vars(VIT), "depth": 24, "width": 1024, "num_heads": 16}))
    assert {each.layers for each in large} == {tuple(range(18, 24)), (23,)}
    huge = list_readouts(ViTConfig(**{**vars(VIT), "depth": 2, "width": 8192, "num_heads": 16}))
    assert huge == [Readout((1,), "class")]


def test_readouts_of_twelve_blocks() -> None:
    layers = {readout.layers for readout in list_readouts(ViTConfig(**{**vars(VIT), "depth": 12}))}
    assert layers == {(5, 7, 9, 11), (6, 7, 8, 9, 10, 11), (9, 10, 11), (11,)}


def test_other_networks_are_read_as_they_are() -> None:
    resnet = ResNetConfig(stages=(1, 1), num_classes=5)
    for config in (resnet, ViTConfig(**{**vars(VIT), "pool": "map"}), ViTConfig(**{**vars(VIT), "distillation_token": True})):
        assert list_readouts(config) == [Readout()]
        assert join_readouts([Readout()]) == Readout()


def test_the_model_itself_is_not_changed() -> None:
    checkpoint = make_checkpoint()
    before = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    reader = build_reader(checkpoint, Readout((4, 5), "both"), 3)
    set_head(reader.model, torch.ones(3, 64), torch.ones(3))
    assert (reader.calibration, reader.class_names) == (Calibration(), None)
    assert reader.model(torch.zeros(1, 3, 16, 16)).shape == (1, 3)
    assert checkpoint.model.config == VIT
    for name, tensor in checkpoint.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_flipped_engine() -> None:
    engine, images = TorchEngine(make_checkpoint()), draw_images()
    flipped = flip_engine(engine)
    assert torch.equal(flipped.features(images), engine.features(images.flip(-1)))
    assert flipped.fingerprint() != engine.fingerprint()
    assert flipped.num_classes == 5


def test_words() -> None:
    assert Readout((9, 10, 11), "both").describe() == "class token and patch mean of blocks 9 to 11"
    assert Readout((5, 7, 9), "class").describe() == "class token of blocks 5, 7 and 9"
    assert Readout((11,), "mean").describe() == "patch mean of block 11"
    assert Readout().describe() == "the model's own features"
