"""`inspect` and its report on small networks, against the single functions image by image."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.inspection.networks import RESNET, build
from tests.objectives.test_masked_patches import build as build_masked
from tests.pages import read_page
from vitrine.data.preprocessing import Preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.inspection.attention import read_query
from vitrine.inspection.config import InspectConfig, RolloutConfig
from vitrine.inspection.distance import measure_distances
from vitrine.inspection.inspect_model import Inspection, inspect
from vitrine.inspection.report import write_inspection
from vitrine.inspection.rollout import compute_rollout
from vitrine.models.registry import build_model

SIZES = ((40, 60), (70, 35), (48, 48))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write three images of different shapes, and one file that is not an image."""
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


def inspect_folder(folder: Path, kind: str = "oblong", rollout: RolloutConfig | None = None, **changes: object) -> Inspection:
    config = InspectConfig(**changes)
    return inspect(make_checkpoint(kind), [folder], config, rollout, device="cpu")


def test_rollout_and_distance_equal_the_single_functions(folder: Path) -> None:
    rollout = RolloutConfig(fusion="max", dropped_share=0.3)
    inspection = inspect_folder(folder, rollout=rollout, query="2,3")
    checkpoint = make_checkpoint()
    images = torch.stack([checkpoint.preprocessing.load(folder / f"{number}.png") for number in range(3)])
    normalised = checkpoint.preprocessing.normalise(images)
    joint = compute_rollout(checkpoint.model, normalised, rollout)
    np.testing.assert_allclose(
        np.stack(inspection.attention.rollouts), read_query(joint, checkpoint.model.config, "2,3"), atol=1e-6
    )
    distances = measure_distances(checkpoint.model, [normalised])
    np.testing.assert_allclose(inspection.attention.distances.among_patches, distances.among_patches, rtol=1e-5)


def test_images_keep_their_shape_and_crop_box(folder: Path) -> None:
    inspection = inspect_folder(folder)
    assert [image.pixels.shape[:2] for image in inspection.images] == list(SIZES)
    preprocessing = make_checkpoint().preprocessing
    for image, (height, width) in zip(inspection.images, SIZES, strict=True):
        left, top, right, bottom = preprocessing.compute_box(height, width)
        np.testing.assert_allclose(image.box, (left / width, top / height, right / width, bottom / height))
    for number, image in enumerate(inspection.images):
        expected = preprocessing.load(folder / f"{number}.png").permute(1, 2, 0)
        np.testing.assert_array_equal(image.model_input, expected)


def test_unreadable_files_are_listed(folder: Path) -> None:
    inspection = inspect_folder(folder)
    assert list(inspection.unreadable) == [str(folder / "broken.jpg")]
    with pytest.raises(ValueError, match=r"1 images.*broken\.jpg"):
        inspect(make_checkpoint(), folder / "broken.jpg", device="cpu")


def test_images_in_memory_give_the_same_as_files(folder: Path) -> None:
    paths = [folder / "0.png", folder / "1.png"]
    with Image.open(paths[0]) as image:
        objects = [image.convert("RGB"), np.asarray(Image.open(paths[1]))]
    from_files, from_memory = (inspect(make_checkpoint(), images, device="cpu") for images in (paths, objects))
    np.testing.assert_array_equal(np.stack(from_memory.attention.rollouts), np.stack(from_files.attention.rollouts))
    np.testing.assert_array_equal(from_memory.features.norms, from_files.features.norms)


def test_number_of_drawn_and_measured_images(folder: Path) -> None:
    inspection = inspect_folder(folder, num_drawn=1, num_measured=2)
    assert (len(inspection.images), len(inspection.attention.rollouts), len(inspection.attention.maps)) == (1, 1, 1)
    assert inspection.attention.distances.num_images == 2
    assert inspect_folder(folder, num_drawn=3, num_measured=1).attention.distances.num_images == 1


def test_chosen_layers_and_heads(folder: Path) -> None:
    inspection = inspect_folder(folder, layers=(2, 0), heads=(1,))
    assert inspection.attention.maps[0].shape == (2, 1, 3, 6)
    default = inspect_folder(folder)
    assert (default.attention.choice.layers, default.attention.choice.heads) == ((0, 1, 2), (0, 1))
    np.testing.assert_allclose(inspection.attention.maps[0][0], default.attention.maps[0][2, 1:])
    with pytest.raises(ValueError, match="layer 3"):
        inspect_folder(folder, layers=(3,))
    with pytest.raises(ValueError, match="head 2"):
        inspect_folder(folder, heads=(2,))


def test_resnet_report_has_no_attention(folder: Path, tmp_path: Path) -> None:
    inspection = inspect_folder(folder, "resnet")
    assert inspection.attention is None
    write_inspection(inspection, tmp_path / "out", "a ResNet")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "features.png",
        "filters.png",
        "index.html",
        "numbers.json",
        "arrays.npz",
    }
    with pytest.raises(ValueError, match="ResNet"):
        inspect_folder(folder, "resnet", layers=(0,))
    with pytest.raises(ValueError, match="ResNet"):
        inspect_folder(folder, "resnet", num_measured=3)


@pytest.mark.parametrize("kind", ["oblong", "hybrid", "relative", "registers", "mean pooled"])
def test_report_files(kind: str, folder: Path, tmp_path: Path) -> None:
    inspection = inspect_folder(folder, kind)
    page = read_page(write_inspection(inspection, tmp_path / "out", "small"))
    assert len(page.find("section")) == 6  # rollout, maps, distance, features, positions, filters
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert [entry["image"] for entry in numbers["images"]] == [image.name for image in inspection.images]
    np.testing.assert_allclose(numbers["images"][1]["rollout"], inspection.attention.rollouts[1], rtol=1e-6)
    assert numbers["distances"]["num_images"] == 3
    arrays = np.load(tmp_path / "out" / "arrays.npz")
    assert arrays["rollouts"].shape == (3, *inspection.attention.rollouts[0].shape)
    assert any(name.startswith("positions_0") for name in arrays)


def test_report_of_masked_patches(folder: Path, tmp_path: Path) -> None:
    objective = build_masked().eval()
    checkpoint = Checkpoint(objective.encoder, Preprocessing(resize=32, crop=(32, 32)), None, {})
    inspection = inspect(checkpoint, folder, device="cpu")
    page = write_inspection(inspection, tmp_path / "out", "small", objective)
    strips = read_page(page).find("section")[-1].find(kind="strip")
    assert [len(strip.find("img")) for strip in strips] == [4] * len(inspection.images)
    assert (tmp_path / "out" / "masked.png").is_file()
