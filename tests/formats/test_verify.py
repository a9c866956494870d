"""Verification detects every difference, with transformers as a second reader."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.filling import fill_randomly
from tests.formats import cases
from tests.formats.cases import make_checkpoint, save_quietly
from vitrine.formats import verify
from vitrine.formats.verify import Comparison, draw_images, verify_checkpoint
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.registry import build_model


@pytest.mark.parametrize(
    "config",
    [
        cases.VIT,
        cases.BIT,
        replace(cases.VIT, distillation_token=True),
        replace(cases.VIT, num_classes=0),
        replace(cases.VIT, num_classes=0, hidden_head=True),
        replace(cases.VIT, num_classes=0, distillation_token=True),
        replace(cases.BIT, num_classes=0),
    ],
)
def test_transformers_verifies_its_own_format(config: ModelConfig, tmp_path: Path) -> None:
    config = replace(config, num_groups=16) if isinstance(config, ResNetConfig) else config
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, tmp_path / "out", "hf")
    own, peer = verify_checkpoint(checkpoint, tmp_path / "out", draw_images(checkpoint, 3, seed=0))
    assert (own.reader, own.max_difference) == ("vitrine", 0)
    assert peer.reader == "transformers"
    assert peer.is_equal
    assert peer.max_difference > 0 or isinstance(config, ResNetConfig)
    assert peer.same_answers == peer.num_images == 3


@pytest.mark.parametrize("changes", [{"gelu": "erf"}, {"norm_eps": 1e-3}, {"num_heads": 4}])
def test_another_network_is_detected(changes: dict[str, object], tmp_path: Path) -> None:
    checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, num_classes=5))
    other = build_model(checkpoint.model.config, **changes).eval()
    other.load_state_dict(checkpoint.model.state_dict())
    save_quietly(replace(checkpoint, model=other), tmp_path / "out", "vitrine")
    (comparison,) = verify_checkpoint(checkpoint, tmp_path / "out", draw_images(checkpoint, 3, seed=0))
    assert comparison.same_description  # so that only the outputs differ
    assert not comparison.is_equal


@pytest.mark.parametrize(("field", "scale"), [("max_difference", "max_logit"), ("max_feature_difference", "max_feature")])
@pytest.mark.parametrize(("difference", "is_equal"), [(0.9e-5, True), (1.1e-5, False), (1e-3, False)])
def test_logits_and_features_may_differ_by_rounding_only(field: str, scale: str, difference: float, is_equal: bool) -> None:
    equal = Comparison("vitrine", 0.0, 8.0, 0.0, 3.0, same_answers=3, num_images=3, same_description=True)
    assert equal.is_equal
    assert replace(equal, **{field: difference * getattr(equal, scale)}).is_equal == is_equal


def test_a_changed_head_is_detected_by_its_logits(tmp_path: Path) -> None:
    checkpoint, other = make_checkpoint(cases.VIT), make_checkpoint(cases.VIT)
    with torch.no_grad():
        other.model.head.bias[2] += 1e-3  # features stay the same
    save_quietly(other, tmp_path / "out", "vitrine")
    (comparison,) = verify_checkpoint(checkpoint, tmp_path / "out", draw_images(checkpoint, 3, seed=0))
    assert comparison.max_feature_difference == 0
    assert comparison.same_description
    assert not comparison.is_equal


def test_other_preprocessing_and_class_names_are_detected(tmp_path: Path) -> None:
    """Those too that do not show on images of the right size."""
    checkpoint = make_checkpoint(cases.VIT)
    images = draw_images(checkpoint, 3, seed=0)
    others = [{"mean": (0.1, 0.2, 0.3)}, {"resize": 99}, {"interpolation": "nearest"}]
    written = [replace(checkpoint, preprocessing=replace(checkpoint.preprocessing, **changes)) for changes in others]
    for index, other in enumerate([*written, replace(checkpoint, class_names=tuple("abcde"))]):
        save_quietly(other, tmp_path / str(index), "vitrine")
        (comparison,) = verify_checkpoint(checkpoint, tmp_path / str(index), images)
        assert (comparison.max_difference == 0) == (index > 0)
        assert not comparison.is_equal


def test_features_are_compared_where_the_head_is_zero(tmp_path: Path) -> None:
    checkpoint, other = make_checkpoint(cases.VIT), make_checkpoint(cases.VIT)
    fill_randomly(other.model, seed=1)
    for model in (checkpoint.model, other.model):
        model.reset_head(5)
    save_quietly(other, tmp_path / "out", "hf")
    for comparison in verify_checkpoint(checkpoint, tmp_path / "out", draw_images(checkpoint, 3, seed=0)):
        assert comparison.max_difference == comparison.max_logit == 0
        assert not comparison.is_equal


def test_drawn_images_depend_on_the_seed_alone() -> None:
    checkpoint = make_checkpoint(cases.OBLONG)
    images = draw_images(checkpoint, 2, seed=1)
    assert images.shape == (2, 3, 12, 28)
    assert images.dtype == torch.uint8
    assert images.float().std() > 20
    assert torch.equal(images, draw_images(checkpoint, 2, seed=1))
    assert not torch.equal(images, draw_images(checkpoint, 2, seed=2))


def test_both_sides_are_computed_without_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA, convolutions in TF32 would differ by more than the tolerance; what the context does is tested with it."""
    used: list[tuple[torch.dtype, str]] = []

    @contextmanager
    def record(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
        used.append((dtype, device.type))
        yield
        used.append((dtype, "left"))

    compute = verify.compute_outputs
    monkeypatch.setattr(verify, "computing_in", record)
    monkeypatch.setattr(verify, "compute_outputs", lambda *rest: used.append((torch.float32, "computed")) or compute(*rest))
    checkpoint = make_checkpoint(cases.VIT)
    save_quietly(checkpoint, tmp_path / "copy", "vitrine")
    verify_checkpoint(checkpoint, tmp_path / "copy", draw_images(checkpoint, 2, seed=0))
    assert [what for _, what in used] == ["cpu", "computed", "computed", "left"]
