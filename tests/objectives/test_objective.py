"""The contract of objectives: raw images in, logits and features out, parameter groups of encoder and objective."""

import pytest
import torch
from torch import Tensor

from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.models.registry import build_model
from vitrine.objectives.objective import LossOutput, Objective

# ImageNet's, from torchvision's documentation.
MEAN, STD = (torch.tensor(numbers).view(3, 1, 1) for numbers in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def build_objective(**changes: object) -> Objective:
    torch.manual_seed(0)
    settings = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32, "image_size": 16, "num_classes": 3}
    model = build_model("ViT-Ti/8", **(settings | changes))
    torch.nn.init.normal_(model.head.weight)
    return Objective(model, build_imagenet_preprocessing((16, 16))).eval()


def draw_images(num_images: int = 5) -> Tensor:
    return torch.randint(0, 256, (num_images, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_an_objective_has_to_define_its_loss() -> None:
    with pytest.raises(NotImplementedError):
        build_objective().forward(None)
    assert LossOutput(torch.tensor(1.0)).metrics == {}


def test_outputs_do_not_share_their_metrics() -> None:
    assert LossOutput(torch.tensor(1.0)).metrics is not LossOutput(torch.tensor(1.0)).metrics


@torch.no_grad()
def test_logits_are_computed_from_normalised_pixels() -> None:
    objective, images = build_objective(), draw_images()
    kept = images.clone()
    logits = objective.logits(images)
    assert logits.shape == (5, 3)
    torch.testing.assert_close(logits, objective.encoder((images / 255 - MEAN) / STD))
    torch.testing.assert_close(objective.logits(images / 255), logits)  # floats are in 0..1 already
    assert torch.equal(images, kept)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["class", "mean", "map"])
def test_features_are_what_the_head_reads(pool: str) -> None:
    objective, images = build_objective(pool=pool), draw_images()
    features = objective.features(images)
    assert features.shape == (5, 16)
    head = objective.encoder.head
    torch.testing.assert_close(features @ head.weight.T + head.bias, objective.logits(images))


@torch.no_grad()
def test_an_empty_batch_gives_no_rows() -> None:
    """With several ranks, one may have none of the last images and must still take part."""
    objective = build_objective()
    assert objective.logits(draw_images(0)).shape == (0, 3)
    assert objective.features(draw_images(0)).shape == (0, 16)


def test_normalisation_constants_move_with_the_weights_and_are_not_saved() -> None:
    objective = build_objective()
    assert all(name.startswith("encoder.") for name in objective.state_dict())
    moved = objective.to("meta")
    assert moved.logits(draw_images().to("meta")).shape == (5, 3)


def test_parameters_of_the_encoder_keep_their_groups_and_own_ones_are_above_it() -> None:
    class WithHead(Objective):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            self.decoder = torch.nn.Linear(16, 2)

    encoder = build_objective().encoder
    objective = WithHead(encoder, build_imagenet_preprocessing((16, 16)))
    no_decay = objective.no_weight_decay()
    for name, _ in encoder.named_parameters():
        assert objective.block_index(f"encoder.{name}") == encoder.block_index(name)
        assert objective.is_head(f"encoder.{name}") == encoder.is_head(name)
        assert (f"encoder.{name}" in no_decay) == (name in encoder.no_weight_decay())
    assert objective.block_index("decoder.weight") == objective.depth + 1 == 3
    assert not objective.is_head("decoder.weight")
    assert "decoder.weight" not in no_decay
    assert "decoder.bias" in no_decay
