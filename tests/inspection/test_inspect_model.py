"""The whole of it on small networks: what is found is what the functions give image by image, and what is written."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.inspection.networks import RESNET, build
from tests.objectives.test_masked_patches import build as build_masked
from vitrine.data.preprocessing import Preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.inspection.attention import read_query
from vitrine.inspection.config import InspectConfig, RolloutConfig
from vitrine.inspection.distance import measure_distances
from vitrine.inspection.inspect_model import Inspection, inspect_model
from vitrine.inspection.report import write_inspection
from vitrine.inspection.rollout import compute_rollout
from vitrine.models.registry import build_model

SIZES = ((40, 60), (70, 35), (48, 48))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images of different shapes, and one file that is none."""
    (tmp_path / "images").mkdir()
    for number, (height, width) in enumerate(SIZES):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "images" / "broken.jpg").write_bytes(b"no image")
    return tmp_path / "images"


def make_checkpoint(kind: str = "oblong") -> Checkpoint:
    model = build(kind) if kind != "resnet" else build_model("R50x1", num_classes=0, **RESNET).eval()
    height, width = model.config.image_size
    return Checkpoint(model, Preprocessing(resize=min(height, width) + 4, crop=(height, width)), None, {})


def look(folder: Path, kind: str = "oblong", rollout: RolloutConfig | None = None, **changes: object) -> Inspection:
    config = InspectConfig(**changes)
    return inspect_model(make_checkpoint(kind), [folder], config, rollout or RolloutConfig())


def test_each_image_has_the_rollout_of_its_own(folder: Path) -> None:
    rollout = RolloutConfig(fusion="max", dropped_share=0.3)
    found = look(folder, rollout=rollout, query="2,3")
    checkpoint = make_checkpoint()
    images = torch.stack([checkpoint.preprocessing.load(folder / f"{number}.png") for number in range(3)])
    normalised = checkpoint.preprocessing.normalise(images)
    joint = compute_rollout(checkpoint.model, normalised, rollout)
    np.testing.assert_allclose(np.stack(found.rollouts), read_query(joint, checkpoint.model.config, "2,3"), atol=1e-6)
    distances = measure_distances(checkpoint.model, [normalised])
    assert found.distances is not None
    np.testing.assert_allclose(found.distances.among_patches, distances.among_patches, rtol=1e-5)


def test_pictures_keep_their_shape_and_know_what_is_seen_of_them(folder: Path) -> None:
    found = look(folder)
    assert [picture.pixels.shape[:2] for picture in found.pictures] == list(SIZES)
    preprocessing = make_checkpoint().preprocessing
    for picture, (height, width) in zip(found.pictures, SIZES, strict=True):
        left, top, right, bottom = preprocessing.compute_box(height, width)
        np.testing.assert_allclose(picture.box, (left / width, top / height, right / width, bottom / height))
        assert picture.seen.shape == (24, 48, 3)


def test_bad_files_are_told_of_and_do_not_stop_the_rest(folder: Path) -> None:
    found = look(folder)
    assert list(found.unreadable) == [str(folder / "broken.jpg")]
    with pytest.raises(ValueError, match=r"No image could be read \(1 were tried\): .*broken\.jpg"):
        inspect_model(make_checkpoint(), [folder / "broken.jpg"], InspectConfig(), RolloutConfig())


def test_as_many_are_drawn_and_measured_as_wanted(folder: Path) -> None:
    found = look(folder, num_drawn=1, num_measured=2)
    assert (len(found.pictures), len(found.rollouts), len(found.maps)) == (1, 1, 1)
    assert found.distances is not None
    assert found.distances.num_images == 2
    assert look(folder, num_drawn=3, num_measured=1).distances.num_images == 1


def test_chosen_layers_and_heads_are_drawn(folder: Path) -> None:
    found = look(folder, layers=(2, 0), heads=(1,))
    assert found.maps[0].shape == (2, 1, 3, 6)
    usual = look(folder)
    assert (usual.layers, usual.heads) == ((0, 1, 2), (0, 1))
    np.testing.assert_allclose(found.maps[0][0], usual.maps[0][2, 1:])
    with pytest.raises(ValueError, match="layer 3 does not exist"):
        look(folder, layers=(3,))
    with pytest.raises(ValueError, match="head 2 does not exist"):
        look(folder, heads=(2,))


def test_of_a_resnet_what_there_is_is_drawn(folder: Path, tmp_path: Path) -> None:
    found = look(folder, "resnet")
    assert found.query is None
    write_inspection(found, tmp_path / "out", "a ResNet")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "features.png",
        "filters.png",
        "index.html",
        "numbers.json",
        "arrays.npz",
    }
    with pytest.raises(ValueError, match="A ResNet has no attention"):
        look(folder, "resnet", layers=(0,))


@pytest.mark.parametrize("kind", ["oblong", "hybrid", "relative", "registers", "mean pooled"])
def test_everything_is_written(kind: str, folder: Path, tmp_path: Path) -> None:
    found = look(folder, kind)
    page = write_inspection(found, tmp_path / "out", "small").read_text()
    for title in ("Attention rollout", "Attention maps", "Mean attention distance", "Patch features", "Embedding filters"):
        assert f"<h2>{title}</h2>" in page
    assert page.count("<img") == len(list((tmp_path / "out").glob("*.png")))
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert [entry["image"] for entry in numbers["images"]] == [picture.name for picture in found.pictures]
    np.testing.assert_allclose(numbers["images"][1]["rollout"], found.rollouts[1], rtol=1e-6)
    assert numbers["distances"]["num_images"] == 3
    arrays = np.load(tmp_path / "out" / "arrays.npz")
    assert arrays["rollouts"].shape == (3, *found.rollouts[0].shape)
    assert any(name.startswith("positions_0") for name in arrays)


def test_masked_patches_are_shown_for_models_trained_so(folder: Path, tmp_path: Path) -> None:
    objective = build_masked().eval()
    checkpoint = Checkpoint(objective.encoder, Preprocessing(resize=32, crop=(32, 32)), None, {})
    found = inspect_model(checkpoint, [folder], InspectConfig(), RolloutConfig())
    page = write_inspection(found, tmp_path / "out", "small", objective)
    assert "<h2>Masked patches</h2>" in page.read_text()
    assert (tmp_path / "out" / "masked.png").is_file()


def test_the_model_is_left_in_its_mode(folder: Path) -> None:
    checkpoint = make_checkpoint()
    checkpoint.model.train()
    inspect_model(checkpoint, [folder], InspectConfig(), RolloutConfig())
    assert checkpoint.model.training
