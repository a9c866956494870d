"""Label issues in data with known wrong labels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.pictures import write_picture
from vitrine.core.console import VitrineWarning
from vitrine.data.open_data import find_data
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.quality.check import check_data
from vitrine.evaluation.features import Features
from vitrine.evaluation.label_issues import count_votes, find_contradicted_labels, find_label_issues
from vitrine.evaluation.predictor import Predictor
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.models.registry import build_model


def make_clusters(num_classes: int = 3, num_each: int = 20) -> Features:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num_classes).repeat_interleave(num_each)
    values = 5 * torch.eye(num_classes, 8)[labels] + torch.randn(len(labels), 8, generator=generator)
    return Features(values, labels, torch.arange(len(labels)) + 100)


def test_clean_labels_have_no_issues() -> None:
    assert find_contradicted_labels(make_clusters(), 3) == []


def test_wrong_labels_are_found_with_a_suggestion() -> None:
    features = make_clusters()
    labels = features.labels.clone()
    labels[5], labels[25] = 2, 0
    suspects = find_contradicted_labels(Features(features.values, labels, features.index), 3)
    assert {(each.index, each.label, each.suggested) for each in suspects} == {(105, 2, 0), (125, 0, 1)}
    assert all(each.fraction > 0.8 for each in suspects)


def test_votes_by_hand() -> None:
    """Points on a circle: the neighbours of the first are at 10 and 60 degrees, and vote by cosine."""
    angles = torch.tensor([0.0, 10.0, 60.0, 180.0]) * torch.pi / 180
    values = 3 * torch.stack([angles.cos(), angles.sin()], dim=1)
    votes = count_votes(values, np.array([0, 1, 0, 1]), 2, num_neighbours=2)
    near, far = np.cos(np.pi / 18), 0.5
    assert votes[0] == pytest.approx([far / (near + far), near / (near + far)], abs=1e-6)


def test_one_image_has_no_neighbours() -> None:
    assert find_contradicted_labels(Features(torch.ones(1, 4), torch.zeros(1, dtype=torch.int64), torch.zeros(1)), 2) == []


def test_label_issues_of_a_data_check(tmp_path: Path, cache: Path) -> None:
    """Bright and dark images, one in the wrong folder and one unreadable."""
    from PIL import ImageEnhance

    from tests.data.pictures import draw_picture

    for number in range(24):
        name = "bright" if number % 2 else "dark"
        image = ImageEnhance.Brightness(draw_picture(number, (32, 32))).enhance(1.6 if number % 2 else 0.2)
        path = tmp_path / "data" / ("dark" if number == 7 else name) / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    (tmp_path / "data" / "dark" / "00.png").write_bytes(b"nothing")
    check = check_data(find_data(tmp_path / "data"))

    torch.manual_seed(0)  # random weights separate bright from dark
    model = build_model("ViT-Ti/16", image_size=32, depth=1, width=32, num_heads=2, mlp_dim=32, num_classes=0, pool="mean")
    checkpoint = Checkpoint(model, Preprocessing(resize=32, crop=(32, 32)), None, {})
    suspects = find_label_issues(check, Predictor(checkpoint, "cpu"))
    assert {issue.kind for issue in suspects} == {"label suspect"}
    assert [check.name(issue.images[0]) for issue in suspects] == ["dark/07.png"]
    assert suspects[0].detail.startswith("looks like bright (")


def test_one_class_gives_a_warning_and_no_issues(tmp_path: Path, cache: Path) -> None:
    write_picture(tmp_path / "data" / "cat" / "0.jpg", 0)
    check = check_data(find_data(tmp_path / "data"))
    model = build_model("ViT-Ti/16", image_size=32, depth=1, width=32, num_heads=2, mlp_dim=32, num_classes=0)
    predictor = Predictor(Checkpoint(model, Preprocessing(resize=32, crop=(32, 32))), "cpu")
    with pytest.warns(VitrineWarning, match="two classes"):
        assert find_label_issues(check, predictor) == []


def test_photographs_in_the_wrong_folder(assets: Path, cache: Path, tmp_path: Path) -> None:
    """Eight breeds of cats and dogs, some in the wrong folder, with DeiT-Tiny."""
    breeds = sorted(path.name for path in (assets / "pets" / "test").iterdir())[:8]
    moved = []
    for number_of_breed, breed in enumerate(breeds):
        for number, path in enumerate(sorted((assets / "pets" / "test" / breed).iterdir())):
            wrong = number == 0 and number_of_breed % 2 == 0
            target = tmp_path / "data" / (breeds[number_of_breed + 1] if wrong else breed)
            target.mkdir(parents=True, exist_ok=True)
            (target / path.name).symlink_to(path)
            moved += [f"{target.name}/{path.name}"] if wrong else []
    check = check_data(find_data(tmp_path / "data"))
    with pytest.warns(VitrineWarning):
        checkpoint = load_checkpoint(assets / "deit-tiny" / "model.safetensors")
    suspects = {check.name(issue.images[0]) for issue in find_label_issues(check, Predictor(checkpoint, "cpu"))}
    assert len(suspects & set(moved)) >= 3
    assert len(suspects) <= 12
