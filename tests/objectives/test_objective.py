"""The contract."""

import pytest
import torch
from torch import Tensor

from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.models.registry import build_model
from vitrine.objectives.objective import LossOutput, Objective

# Of ImageNet, as torchvision's documentation has them.
MEAN, STD = (torch.tensor(numbers).view(3, 1, 1) for numbers in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def build_objective(**changes: object) -> Objective:
    torch.manual_seed(0)
    settings = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32, "image_size": 16, "num_classes": 3}
    model = build_model("ViT-Ti/8", **(settings | changes))
    torch.nn.init.normal_(model.head.weight)
    return Objective(model, build_imagenet_preprocessing((16, 16))).eval()


def draw_images(num_images: int = 5) -> Tensor:
    return torch.randint(0, 256, (num_images, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_an_objective_has_to_say_what_it_minimises() -> None:
    with pytest.raises(NotImplementedError):
        build_objective().forward(None)
    assert LossOutput(torch.tensor(1.0)).metrics == {}


def test_metrics_of_one_output_are_not_those_of_another() -> None:
    assert LossOutput(torch.tensor(1.0)).metrics is not LossOutput(torch.tensor(1.0)).metrics


@torch.no_grad()
def test_raw_pixels_are_normalised_before_they_are_classified() -> None:
    objective, images = build_objective(), draw_images()
    kept = images.clone()
    logits = objective.classify(images)
    assert logits.shape == (5, 3)
    torch.testing.assert_close(logits, objective.encoder((images / 255 - MEAN) / STD))
    torch.testing.assert_close(objective.classify(images / 255), logits)  # floats are in 0..1 already
    assert torch.equal(images, kept)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["class", "mean", "map"])
def test_features_are_what_the_head_reads(pool: str) -> None:
    objective, images = build_objective(pool=pool), draw_images()
    features = objective.featurise(images)
    assert features.shape == (5, 16)
    head = objective.encoder.head
    torch.testing.assert_close(features @ head.weight.T + head.bias, objective.classify(images))


@torch.no_grad()
def test_no_image_gives_no_row() -> None:
    """One of several processes may have none of the last images, and must still take part."""
    objective = build_objective()
    assert objective.classify(draw_images(0)).shape == (0, 3)
    assert objective.featurise(draw_images(0)).shape == (0, 16)


def test_what_it_normalises_by_goes_with_the_weights_and_is_not_saved_with_them() -> None:
    objective = build_objective()
    assert all(name.startswith("encoder.") for name in objective.state_dict())
    moved = objective.to("meta")
    assert moved.classify(draw_images().to("meta")).shape == (5, 3)
