"""Mixup and CutMix against their formulas and scipy's Beta distribution; parts of a batch are mixed like the whole."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from vitrine.data.augment.mixup import draw_mixing, mixup_batch
from vitrine.data.config import MixupConfig
from vitrine.data.preprocessing import Preprocessing

MIXUP, CUTMIX, BOTH = MixupConfig(mixup=0.4), MixupConfig(cutmix=1.0), MixupConfig(mixup=0.8, cutmix=1.0)
K = 7


def build_batch(num_images: int = 8, size: tuple[int, int] = (12, 10), seed: int = 0) -> tuple[Tensor, Tensor]:
    """uint8 images, and classes that differ between partners."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (num_images, 3, *size), dtype=torch.uint8, generator=generator)
    return images, torch.arange(num_images) % K


def mix(
    images: Tensor, targets: Tensor, config: MixupConfig, num_classes: int, *, seed: int, step: int
) -> tuple[Tensor, Tensor]:
    """Draw how to mix on the host, as a loader does, and mix."""
    draws = draw_mixing(config, tuple(images.shape[2:]), seed, torch.arange(len(images)), step) if config.is_on else {}
    draws = {name: tensor.to(images.device) for name, tensor in draws.items()}
    return mixup_batch(images, targets, config, draws, num_classes)


def find_fractions(mixing: MixupConfig, num_steps: int, size: tuple[int, int] = (1, 1), seed: int = 0) -> np.ndarray:
    """Fraction of the image itself at each step, read from its target."""
    images, classes = torch.zeros(2, 1, *size), torch.tensor([0, 1])
    return np.array([mix(images, classes, mixing, 2, seed=seed, step=step)[1][0, 0].item() for step in range(num_steps)])


def test_mixup_formula() -> None:
    images, classes = build_batch()
    partners = [1, 0, 3, 2, 5, 4, 7, 6]
    for step in range(5):
        mixed, targets = mix(images, classes, MIXUP, K, seed=3, step=step)
        fraction = targets[0, 0].double()
        assert 0.5 <= fraction <= 1
        floats = images.double() / 255
        expected = fraction * floats + (1 - fraction) * floats[partners]
        torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=1e-6)  # float32 of numbers up to 1
        rows = torch.eye(K, dtype=torch.float64)[classes]
        torch.testing.assert_close(targets.double(), fraction * rows + (1 - fraction) * rows[partners], rtol=0, atol=1e-7)
        assert (mixed.dtype, targets.dtype) == (torch.float32, torch.float32)


def test_cutmix_pastes_a_box_and_weights_targets_by_its_area() -> None:
    images, classes = build_batch(6, (24, 16))
    images[::2], images[1::2] = 10, 200
    num_empty = 0
    for step in range(60):
        mixed, targets = mix(images, classes, CUTMIX, K, seed=0, step=step)
        assert mixed.dtype == torch.uint8
        is_pasted = mixed != images
        assert (is_pasted == is_pasted[0, 0]).all()  # the same box in all images
        assert torch.equal(mixed, torch.where(is_pasted, 210 - images, images))
        rows, columns = is_pasted[0, 0].any(dim=1).nonzero(), is_pasted[0, 0].any(dim=0).nonzero()
        num_empty += len(rows) == 0
        if len(rows) > 0:
            assert is_pasted[0, 0, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        fraction = is_pasted[0, 0].double().mean().item()
        assert targets[4, 5].item() == pytest.approx(fraction, abs=1e-6)
        assert targets[4, 4].item() == pytest.approx(1 - fraction, abs=1e-6)
    assert num_empty < 6


@pytest.mark.parametrize("alpha", [0.2, 5.0])
def test_mixup_fraction_is_the_larger_part_of_a_beta_draw(alpha: float) -> None:
    fractions = find_fractions(MixupConfig(mixup=alpha), 600)
    beta = stats.beta(alpha, alpha)
    # P(max(a, 1 - a) <= s) = F(s) - F(1 - s); float32 fractions at 1 are compared as they are.
    assert stats.kstest(fractions, lambda s: np.where(s < 0.5, 0, beta.cdf(s) - beta.cdf(1 - s))).pvalue > 1e-3


def test_cutmix_box_has_the_drawn_area_and_centre() -> None:
    side, alpha = 64, 0.7
    images, classes = torch.zeros(2, 1, side, side, dtype=torch.uint8), torch.tensor([0, 1])
    images[1] = 1
    seen, centres = [], []
    for step in range(700):
        inside = mix(images, classes, MixupConfig(cutmix=alpha), 2, seed=1, step=step)[0][0, 0].bool()
        rows, columns = inside.any(dim=1).nonzero(), inside.any(dim=0).nonzero()
        if len(rows) == 0:
            continue
        top, bottom = rows[0].item(), rows[-1].item() + 1
        left, right = columns[0].item(), columns[-1].item() + 1
        centres.append(((top + bottom) / 2, (left + right) / 2))
        if top > 0 and bottom < side:  # not clipped in height, which has the ratio of the image
            seen.append((bottom - top) / side)
    # Boxes of height h are whole if their centre is h / 2 away from the borders: a fraction 1 - h / side of them.
    heights = np.linspace(0, 1, 4001)[1:-1]
    density = 2 * heights * stats.beta(alpha, alpha).pdf(heights**2) * (1 - heights)
    cumulated = np.cumsum(density) / density.sum()
    assert stats.kstest(seen, lambda h: np.interp(h, heights, cumulated)).pvalue > 1e-3
    assert np.mean([row for row, _ in centres]) == pytest.approx(side / 2, abs=side / 20)
    assert np.mean([column for _, column in centres]) == pytest.approx(side / 2, abs=side / 20)


@pytest.mark.parametrize("mixing", [MIXUP, CUTMIX, BOTH], ids=["mixup", "cutmix", "both"])
@pytest.mark.parametrize("num_images", [8, 9])
def test_parts_of_a_batch_are_mixed_like_the_whole(mixing: MixupConfig, num_images: int) -> None:
    images, classes = build_batch(num_images)
    for step in range(8):
        whole = mix(images, classes, mixing, K, seed=5, step=step)
        parts = [
            mix(images[part], classes[part], mixing, K, seed=5, step=step)
            for part in (slice(0, 2), slice(2, 6), slice(6, None))
        ]
        for index in (0, 1):
            assert torch.equal(torch.cat([part[index] for part in parts]), whole[index])


@pytest.mark.parametrize("mixing", [MIXUP, CUTMIX], ids=["mixup", "cutmix"])
def test_last_image_of_an_odd_batch_is_unchanged(mixing: MixupConfig) -> None:
    images, classes = build_batch(5)
    floats = images.float() / 255
    mixed, targets = mix(floats, classes, mixing, K, seed=0, step=0)
    assert torch.equal(mixed[4], floats[4])
    assert torch.equal(targets[4], torch.eye(K)[classes[4]])
    assert not torch.equal(mixed[3], floats[3])


@pytest.mark.parametrize("mixing", [MIXUP, CUTMIX, BOTH], ids=["mixup", "cutmix", "both"])
def test_mixing_depends_on_seed_and_step_only(mixing: MixupConfig) -> None:
    images, classes = build_batch(2, (64, 64))
    before = images.clone(), classes.clone()
    results = {}
    for seed, step in ((0, 0), (0, 1), (1, 0), (1, 1), (-1, 0), (2**63, 2**40)):
        mixed, targets = mix(images, classes, mixing, K, seed=seed, step=step)
        again, targets_again = mix(images, classes, mixing, K, seed=seed, step=step)
        assert torch.equal(mixed, again)
        assert torch.equal(targets, targets_again)
        results[seed, step] = mixed.double().sum().item(), targets[0, 0].item()
    assert len(set(results.values())) == 6
    assert torch.equal(images, before[0])
    assert torch.equal(classes, before[1])


def test_with_both_on_a_step_is_mixed_by_one_of_them_alone() -> None:
    images, classes = build_batch(4, (16, 16))
    floats = images.float() / 255
    for step in range(20):
        draws = draw_mixing(BOTH, (16, 16), 0, torch.arange(4), step)
        alone = CUTMIX if (draws["blended"] == 0).all() else MIXUP
        mixed, targets = mixup_batch(images, classes, BOTH, draws, K)
        expected, expected_targets = mixup_batch(floats, classes, alone, draws, K)
        assert torch.equal(mixed, expected)
        assert torch.equal(targets, expected_targets)


def test_mixup_and_cutmix_alternate_equally_often() -> None:
    draws = [draw_mixing(BOTH, (16, 16), 0, torch.arange(2), step) for step in range(600)]
    num_cutmix = sum((each["blended"] == 0).all().item() for each in draws)
    assert all((each["box"] == 0).all() or (each["blended"] == 0).all() for each in draws)
    assert stats.binomtest(num_cutmix, 600).pvalue > 1e-3


@pytest.mark.parametrize("mixing", [MIXUP, CUTMIX, BOTH, MixupConfig()], ids=["mixup", "cutmix", "both", "off"])
def test_targets_sum_to_one(mixing: MixupConfig) -> None:
    images, classes = build_batch(8)
    classes[1] = classes[0]  # partners of one class keep exactly that class
    for step in range(20):
        targets = mix(images, classes, mixing, K, seed=0, step=step)[1]
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(8), rtol=0, atol=1e-6)
        assert torch.equal(targets[:2], torch.eye(K)[classes[:2]])
        assert targets.min() >= 0


def test_off_leaves_images_and_gives_one_hot_targets() -> None:
    images, classes = build_batch()
    mixed, targets = mix(images, classes, MixupConfig(), K, seed=0, step=0)
    assert mixed is images
    assert torch.equal(targets, torch.nn.functional.one_hot(classes, K).float())


@pytest.mark.parametrize("mixing", [MIXUP, CUTMIX], ids=["mixup", "cutmix"])
def test_sets_of_labels_are_mixed(mixing: MixupConfig) -> None:
    images, classes = build_batch(4)
    rows = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0.5]])
    _, targets = mix(images, rows, mixing, 3, seed=0, step=2)
    own = mix(images, classes, mixing, K, seed=0, step=2)[1][0, 0]
    torch.testing.assert_close(targets, own * rows + (1 - own) * rows[[1, 0, 3, 2]])


@pytest.mark.parametrize("mixing", [MIXUP, CUTMIX], ids=["mixup", "cutmix"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.float64])
def test_memory_layout_and_float_type_are_kept(mixing: MixupConfig, dtype: torch.dtype) -> None:
    images, classes = build_batch()
    images = images if dtype == torch.uint8 else (images / 255).to(dtype)
    plain = mix(images, classes, mixing, K, seed=0, step=0)[0]
    last = mix(images.contiguous(memory_format=torch.channels_last), classes, mixing, K, seed=0, step=0)[0]
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, last)
    assert plain.dtype == (torch.float32 if dtype == torch.uint8 and mixing is MIXUP else dtype)


def test_mixing_commutes_with_normalising() -> None:
    images, classes = build_batch()
    normalise = Preprocessing(resize=None, crop=(12, 10), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1)).normalise
    for mixing in (MIXUP, CUTMIX):
        before = mix(normalise(images), classes, mixing, K, seed=0, step=0)[0]
        torch.testing.assert_close(normalise(mix(images, classes, mixing, K, seed=0, step=0)[0]), before)


def test_values_on_the_device_are_not_read() -> None:
    # Tensors on "meta" have no values, so reading them would fail.
    images, classes = (tensor.to("meta") for tensor in build_batch())
    for mixing in (MIXUP, CUTMIX):
        mixed, targets = mix(images, classes, mixing, K, seed=0, step=0)
        assert (mixed.shape, targets.shape) == ((8, 3, 12, 10), (8, K))
        assert mixed.device.type == targets.device.type == "meta"


def test_empty_batch() -> None:
    for mixing in (MIXUP, CUTMIX):
        mixed, targets = mix(torch.zeros(0, 3, 4, 4), torch.zeros(0, dtype=torch.int64), mixing, K, seed=0, step=0)
        assert (mixed.shape, targets.shape) == ((0, 3, 4, 4), (0, K))


@pytest.mark.parametrize("alpha", [1e-3, 1e3])
def test_fractions_at_the_limits_of_alpha(alpha: float) -> None:
    for mixing in (MixupConfig(mixup=alpha), MixupConfig(cutmix=alpha)):
        fractions = find_fractions(mixing, 100, (8, 8))
        assert ((fractions >= 0) & (fractions <= 1)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(4, 3, 5)}, "(4, 3, 5)"),
        ({"images": torch.zeros(4, 3, 5, 5, dtype=torch.int32)}, "torch.int32"),
        ({"targets": torch.zeros(3, dtype=torch.int64)}, "(3,)"),
        ({"targets": torch.zeros(4)}, "torch.float32 and shape (4,)"),
        ({"targets": torch.zeros(4, 6)}, "(4, 6)"),
    ],
)
def test_invalid_batches(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"images": torch.zeros(4, 3, 5, 5), "targets": torch.zeros(4, dtype=torch.int64)}
    with pytest.raises(ValueError, match=re.escape(message)):
        mix(**(arguments | change), config=BOTH, num_classes=K, seed=0, step=0)
