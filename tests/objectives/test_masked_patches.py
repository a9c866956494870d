"""Masked patch prediction: shares, targets against a direct computation, no leak, and that it learns."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.batch import Batch
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.models.patches import cut_patches
from vitrine.models.registry import build_model
from vitrine.objectives.config import MaskedPatchesConfig, PatchTarget
from vitrine.objectives.masked_patches import MaskedPatches, draw_corruption, take

TARGETS: tuple[PatchTarget, ...] = ("mean-colour", "small-colours", "pixels")
SMALL = {"width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64, "patch_size": 8, "image_size": 32, "num_classes": 0}


@pytest.fixture(autouse=True)
def own_generator() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def build(target: PatchTarget = "mean-colour", **changes: Any) -> MaskedPatches:
    model = build_model("ViT-Ti/16", **{**SMALL, **changes})
    channels = model.config.num_channels
    preprocessing = build_inception_preprocessing(model.config.image_size, channels)
    objective = MaskedPatches(model, preprocessing, MaskedPatchesConfig(target=target))
    torch.nn.init.normal_(objective.get_parameter("prediction.weight"), std=0.1)  # zeros would hide every mistake before it
    return objective


def draw_batch(num_images: int = 8, num_channels: int = 3, step: int = 0) -> Batch:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (num_images, num_channels, 32, 32), dtype=np.uint8))
    return Batch(image, torch.zeros(num_images, dtype=torch.int64), torch.arange(num_images), step)


@given(
    st.integers(4, 60), st.floats(0.05, 0.95), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**31), st.integers(0, 10**6)
)
@settings(max_examples=100, deadline=None)
def test_every_image_has_the_same_shares(
    num_patches: int, corrupted: float, masked: float, replaced: float, seed: int, step: int
) -> None:
    config = MaskedPatchesConfig(corrupted_rate=corrupted, masked_rate=masked, replaced_rate=replaced * (1 - masked))
    if not 0 < round(corrupted * num_patches) < num_patches:
        with pytest.raises(ValueError, match="at least one must be"):
            draw_corruption(config, torch.arange(5), step, num_patches, seed)
        return
    found = draw_corruption(config, torch.arange(5), step, num_patches, seed)
    num_corrupted = round(corrupted * num_patches)
    assert found.places.shape == (5, num_corrupted)
    assert found.num_masked == round(masked * num_corrupted)
    assert abs(found.replacements.shape[1] - config.replaced_rate * num_corrupted) <= 1
    for places, others in zip(found.places.tolist(), found.replacements.tolist(), strict=True):
        assert len(set(places)) == num_corrupted
        assert set(places) <= set(range(num_patches))
        assert set(others) <= set(range(num_patches)) - set(places)


def test_the_paper_s_shares_of_a_16_patch_image() -> None:
    found = draw_corruption(MaskedPatchesConfig(), torch.arange(3), 0, 196, 0)
    assert (found.places.shape[1], found.num_masked, found.replacements.shape[1]) == (98, 78, 10)


def test_places_are_equally_likely_and_differ_by_seed_step_and_image() -> None:
    config = MaskedPatchesConfig()
    found = draw_corruption(config, torch.arange(4000), 3, 16, 0)
    counts = np.bincount(found.places.numpy().ravel(), minlength=16)
    assert np.abs(counts / 4000 - 0.5).max() < 0.04  # five deviations
    firsts = np.bincount(found.places[:, 0].numpy(), minlength=16)
    assert np.abs(firsts / 4000 - 1 / 16).max() < 0.02
    again = draw_corruption(config, torch.arange(4000), 3, 16, 0)
    assert torch.equal(again.places, found.places)
    assert torch.equal(again.replacements, found.replacements)
    assert not torch.equal(draw_corruption(config, torch.arange(4000), 4, 16, 0).places, found.places)
    assert not torch.equal(draw_corruption(config, torch.arange(4000), 3, 16, 1).places, found.places)
    assert len({tuple(row) for row in found.places.tolist()}) > 3000


def test_an_image_has_its_corruption_whatever_the_batch_around_it() -> None:
    config = MaskedPatchesConfig()
    whole = draw_corruption(config, torch.tensor([5, 9, 2]), 7, 49, 1)
    alone = draw_corruption(config, torch.tensor([9]), 7, 49, 1)
    assert torch.equal(alone.places[0], whole.places[1])


def test_tokens_become_the_mask_another_s_or_stay() -> None:
    tokens, mask = torch.randn(5, 20, 6), torch.randn(6)
    found = draw_corruption(MaskedPatchesConfig(), torch.arange(5), 0, 20, 0)
    changed = found.apply(tokens, mask)
    for image in range(5):
        places, others = found.places[image].tolist(), found.replacements[image].tolist()
        expected = tokens[image].clone()
        for place in places[:8]:
            expected[place] = mask
        expected[places[8]] = tokens[image, others[0]]
        assert torch.equal(changed[image], expected)


def compute_colours(patch: np.ndarray, side: int) -> list[int]:
    """Of a patch (C, P, P) of bytes, by loops."""
    step = patch.shape[1] // side
    colours = []
    for row in range(side):
        for column in range(side):
            cell = patch[:, row * step : (row + 1) * step, column * step : (column + 1) * step]
            code = 0
            for channel in cell:
                code = 8 * code + int(channel.astype(np.float64).mean()) // 32
            colours.append(code)
    return colours


@pytest.mark.parametrize("num_channels", [1, 3])
@pytest.mark.parametrize(("target", "side"), [("mean-colour", 1), ("small-colours", 4)])
def test_colours_are_those_of_a_direct_computation(target: PatchTarget, side: int, num_channels: int) -> None:
    objective, batch = build(target, num_channels=num_channels), draw_batch(4, num_channels)
    places = torch.tensor([[0, 5, 15], [1, 2, 3], [7, 8, 12], [4, 3, 2]])
    found = objective.read_targets(batch.image, places)
    for image, row in enumerate(places.tolist()):
        for number, place in enumerate(row):
            top, left = 8 * (place // 4), 8 * (place % 4)
            patch = batch.image[image, :, top : top + 8, left : left + 8].numpy()
            assert found[image, number].tolist() == compute_colours(patch, side)


def test_black_and_white_are_the_first_and_the_last_of_512() -> None:
    objective, places = build(), torch.tensor([[0], [0]])
    images = torch.stack([torch.zeros(3, 32, 32), torch.full((3, 32, 32), 255)]).to(torch.uint8)
    assert objective.read_targets(images, places).flatten().tolist() == [0, 511]
    assert objective.read_targets(images.float() / 255, places).flatten().tolist() == [0, 511]
    assert objective.target.num_outputs == 512


def test_pixels_are_what_the_model_sees() -> None:
    objective, batch = build("pixels"), draw_batch(2)
    found = objective.read_targets(batch.image, torch.tensor([[6], [9]]))
    expected = (batch.image[1, :, 16:24, 8:16].float() / 255 - 0.5) / 0.5
    torch.testing.assert_close(found[1, 0], expected.flatten())
    assert objective.target.num_outputs == 3 * 8 * 8


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_is_torch_s_at_the_corrupted_places(target: PatchTarget) -> None:
    objective, batch = build(target), draw_batch()
    corruption = objective.draw(batch)
    places, outputs = corruption.places, objective.predict(batch.image, corruption)
    wanted = objective.read_targets(batch.image, places)
    losses = []
    for image in range(len(batch)):
        for number in range(places.shape[1]):
            output, answer = outputs[image, number], wanted[image, number]
            if target == "pixels":
                losses.append(((output - answer) ** 2).mean())
            else:
                rows = output.reshape(len(answer), -1)
                losses.append(-rows.log_softmax(dim=1)[torch.arange(len(answer)), answer].mean())
    torch.testing.assert_close(objective(batch).loss, torch.stack(losses).mean())


def test_the_loss_does_not_depend_on_outputs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the encoder gives at uncorrupted places, the loss is the same."""
    objective, batch = build(), draw_batch()
    places = objective.draw(batch).places
    before = objective(batch).loss
    encode_tokens = objective.encoder.encode_tokens

    def disturb(tokens: Tensor, taps: Any) -> Tensor:
        tokens = encode_tokens(tokens, taps)
        noise = torch.randn_like(tokens)
        prefix = tokens.shape[1] - 16
        noise.scatter_(1, (places + prefix)[:, :, None].expand(-1, -1, tokens.shape[2]), 0.0)
        return tokens + noise

    monkeypatch.setattr(objective.encoder, "encode_tokens", disturb)
    assert torch.equal(objective(batch).loss, before)


def test_a_masked_patch_leaves_no_trace_in_any_prediction() -> None:
    objective, batch = build().eval(), draw_batch(1)
    corruption = objective.draw(batch)
    before = objective.predict(batch.image, corruption)
    kept = corruption.places[0, corruption.num_masked + corruption.replacements.shape[1] :].tolist()
    for place in range(16):
        top, left = 8 * (place // 4), 8 * (place % 4)
        image = batch.image.clone()
        image[0, :, top : top + 8, left : left + 8] = 255 - image[0, :, top : top + 8, left : left + 8]
        after = objective.predict(image, corruption)
        is_hidden = place in corruption.places[0].tolist() and place not in kept
        assert torch.equal(after, before) == is_hidden


def learn(objective: MaskedPatches, batch: Batch, steps: Sequence[int]) -> None:
    """At a rate that falls to zero: else what is learnt last depends on the last digits of sums, which processors differ in."""
    optimizer = torch.optim.Adam(objective.parameters(), lr=3e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=len(steps))
    for step in steps:
        optimizer.zero_grad()
        objective(replace(batch, step=step)).loss.backward()
        optimizer.step()
        decay.step()


def draw_coloured_batch() -> Batch:
    """Eight images whose patches have one colour each."""
    batch = draw_batch()
    image = F.interpolate(batch.image[:, :, :4, :4].float(), (32, 32), mode="nearest").to(torch.uint8)
    return replace(batch, image=image)


@pytest.mark.parametrize("target", TARGETS)
def test_it_learns_eight_images_by_heart(target: PatchTarget) -> None:
    objective, batch = build(target), draw_coloured_batch()
    first = objective(batch).loss.item()
    learn(objective, batch, [0] * 250)
    last = objective(batch)
    assert last.loss.item() < 0.05 * first
    assert last.metrics[objective.metric_names[0]] > 0.9


def test_it_knows_eight_images_whatever_is_hidden_of_them() -> None:
    objective, batch = build(width=64, mlp_dim=128, position="sincos-2d"), draw_coloured_batch()
    learn(objective, batch, range(400))
    with torch.no_grad():
        found = [objective(replace(batch, step=1_000_000 + draw)).metrics["accuracy"].item() for draw in range(20)]
    assert sum(found) / len(found) > 0.85  # from 0.97 to 0.99 for the seeds 0 to 5


@pytest.mark.parametrize("target", TARGETS)
def test_targets_look_like_the_patches(target: PatchTarget) -> None:
    """As far as they say: the mean colour to half a level, the pixels to a rounding error."""
    objective, batch = build(target), draw_batch()
    places = objective.draw(batch).places
    rendered = objective.render(objective.read_targets(batch.image, places)).unflatten(-1, (3, 8, 8))
    patches = take(cut_patches(batch.image.float(), 8), places).unflatten(-1, (3, 8, 8))
    if target == "pixels":
        torch.testing.assert_close(rendered, patches, rtol=0, atol=1e-3)
        return
    side = 1 if target == "mean-colour" else 4
    means = F.interpolate(F.adaptive_avg_pool2d(patches.flatten(0, 1), side), size=8, mode="nearest")
    assert (rendered.flatten(0, 1) - means).abs().max() <= 16


@pytest.mark.parametrize("target", TARGETS)
def test_a_perfect_output_is_answered_by_the_target(target: PatchTarget) -> None:
    objective, batch = build(target), draw_batch()
    wanted = objective.read_targets(batch.image, objective.draw(batch).places)
    perfect = wanted if target == "pixels" else 50.0 * F.one_hot(wanted, 512).flatten(2)
    assert torch.equal(objective.target.answer(perfect), wanted)
    assert objective.target.compare(perfect, wanted).loss < 1e-6


@pytest.mark.parametrize("target", TARGETS)
def test_it_begins_from_a_blank_answer(target: PatchTarget) -> None:
    model = build_model("ViT-Ti/16", **SMALL)
    preprocessing = build_inception_preprocessing((32, 32))
    objective, batch = MaskedPatches(model, preprocessing, MaskedPatchesConfig(target=target)), draw_batch()
    squares = objective.read_targets(batch.image, objective.draw(batch).places).square().float().mean().item()
    assert objective(batch).loss.item() == pytest.approx(squares if target == "pixels" else math.log(512), rel=1e-5)


def test_every_parameter_but_the_classifier_s_learns() -> None:
    objective = build()
    objective(draw_batch()).loss.backward()
    idle = [name for name, parameter in objective.named_parameters() if parameter.grad is None]
    assert idle == []
    assert objective.mask.grad is not None
    assert objective.mask.grad.any()


@pytest.mark.parametrize("name", ["R26x1", "R26+ViT-Ti/16"])
def test_networks_that_do_not_begin_with_patches_are_refused(name: str) -> None:
    model = build_model(name, image_size=64, num_classes=0)
    with pytest.raises(ValueError, match="take a ViT"):
        MaskedPatches(model, build_inception_preprocessing((64, 64)), MaskedPatchesConfig())


def test_patches_too_small_to_shrink_are_refused() -> None:
    model = build_model("ViT-Ti/16", **{**SMALL, "patch_size": 2})
    with pytest.raises(ValueError, match="cannot be shrunk to 4 x 4"):
        MaskedPatches(model, build_inception_preprocessing((32, 32)), MaskedPatchesConfig(target="small-colours"))
