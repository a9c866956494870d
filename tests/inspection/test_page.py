"""index.html of an inspection, parsed: predictions against the model, overlays and maps against the arrays, its size."""

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.inspection.test_inspect_model import inspect_folder, make_checkpoint
from tests.pages import Element, list_links, list_rows, read_page
from vitrine.core.figures import MAX_DARKNESS
from vitrine.formats.checkpoint import Calibration
from vitrine.formats.load import load_checkpoint
from vitrine.inspection.config import InspectConfig
from vitrine.inspection.inspect_model import inspect
from vitrine.inspection.page import frame_query
from vitrine.inspection.report import write_inspection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 70, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number} <b>.png")
    return tmp_path / "images"


def read_pixels(image: Element) -> np.ndarray:
    content = base64.b64decode(image.attributes["src"].partition("base64,")[2])
    with Image.open(io.BytesIO(content)) as opened:
        return np.asarray(opened.convert("RGBA"))


def test_predictions_are_beside_the_images(folder: Path, tmp_path: Path) -> None:
    checkpoint = replace(make_checkpoint(), class_names=("ant", "<bee>", "cat", "dog"))
    inspection = inspect(checkpoint, folder, device="cpu")
    path = write_inspection(inspection, tmp_path / "out", "small", command="vitrine inspect x")
    page = read_page(path)
    images = torch.stack([checkpoint.preprocessing.load(file) for file in sorted(folder.iterdir())])
    with torch.no_grad():
        probabilities = checkpoint.model(checkpoint.preprocessing.normalise(images)).softmax(dim=1)
    for number, figure in enumerate(page.one(kind="gallery").find("figure")):
        assert figure.one("b").text == checkpoint.class_names[int(probabilities[number].argmax())]
        assert f"{100 * probabilities[number].max():.1f}\u202f% sure" in figure.one("figcaption").text
    assert [link.resolve() for link in list_links(page, path)] == sorted(folder.iterdir())
    assert "vitrine inspect x" in page.one("footer").text
    entries = [link.text for link in page.one("nav").find("a")]
    assert ["figure" in entry for entry in entries] == [True, False, True, False, True, True]


def test_probabilities_of_several_labels_are_sigmoids(folder: Path) -> None:
    checkpoint = replace(make_checkpoint(), calibration=Calibration(thresholds=(0.5,) * 4))
    images = torch.stack([checkpoint.preprocessing.load(file) for file in sorted(folder.iterdir())])
    with torch.no_grad():
        expected = checkpoint.model(checkpoint.preprocessing.normalise(images)).sigmoid().max(dim=1).values
    inspection = inspect(checkpoint, folder, device="cpu")
    assert [each.probabilities[0] for each in inspection.predictions] == pytest.approx(expected.tolist(), rel=1e-4)  # batches


def test_overlays_and_maps_are_those_of_the_arrays(folder: Path, tmp_path: Path) -> None:
    inspection = inspect_folder(folder, layers=(0, 2))
    page = read_page(write_inspection(inspection, tmp_path / "out", "small"))
    attention = inspection.attention
    for lens, rollout in zip(page.find(kind="lens"), attention.rollouts, strict=True):
        alpha = read_pixels(lens.find("img")[1])[..., 3]
        expected = MAX_DARKNESS * (1 - (rollout - rollout.min()) / np.ptp(rollout))
        np.testing.assert_allclose(alpha / 255, expected, atol=0.003)
    grids = page.find(kind="maps")
    assert len(grids) == 3
    for grid, maps in zip(grids, attention.maps, strict=True):
        _, *cells = grid.find("img")
        assert [cell.attributes["alt"] for cell in cells[:3]] == ["layer 0, head 0", "layer 0, head 1", "layer 2, head 0"]
        for cell, heat in zip(cells, maps.reshape(-1, *maps.shape[2:]), strict=True):
            brightness = read_pixels(cell)[..., :3].sum(axis=2)  # grows with the value, as the colours do
            assert np.unravel_index(brightness.argmax(), heat.shape) == np.unravel_index(heat.argmax(), heat.shape)


def test_distances_are_in_a_table(folder: Path, tmp_path: Path) -> None:
    inspection = inspect_folder(folder)
    page = read_page(write_inspection(inspection, tmp_path / "out", "small"))
    rows = list_rows(page.one("table"))
    expected = [
        [str(layer), f"{row.mean():.1f}", f"{row.min():.1f}", f"{row.max():.1f}"]
        for layer, row in enumerate(inspection.attention.distances.among_patches)
    ]
    assert rows == expected


def test_a_model_without_head_or_attention(folder: Path, tmp_path: Path) -> None:
    inspection = inspect_folder(folder, "resnet")
    assert inspection.predictions == []
    page = read_page(write_inspection(inspection, tmp_path / "out", "small"))
    assert page.find(kind="lens") == page.find(kind="maps") == []
    assert page.one(kind="gallery").find("b") == []
    assert len(page.find("section")) == 3


def test_query_patch_is_framed() -> None:
    pixels = np.full((32, 48, 1), 200, dtype=np.uint8)
    framed = frame_query(pixels, "1,2", (4, 6))
    assert framed[8:16, 16:24].reshape(-1, 3).tolist().count([255, 0, 0]) == 28
    assert (framed[:8] == 200).all()
    assert frame_query(pixels, "class", (4, 6)) is pixels


def test_page_of_eight_photographs_is_small(assets: Path, tmp_path: Path) -> None:
    folders = [assets / "imagenet-val-1000" / f"{label:03d}" for label in range(100, 900, 100)]
    photos = [next(folder.iterdir()) for folder in folders]
    with pytest.warns(UserWarning, match="does not specify"):
        checkpoint = load_checkpoint(assets / "deit-tiny" / "model.safetensors")
    inspection = inspect(checkpoint, photos, InspectConfig(num_drawn=8), device="cpu")
    path = write_inspection(inspection, tmp_path / "out", "DeiT-Tiny")
    page = read_page(path, max_bytes=3_000_000)
    assert len(page.find(kind="lens")) == 8
    assert all(link.is_file() for link in list_links(page, path))
