"""Batches can be split, moved, pinned and pickled."""

import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from vitrine.data.batch import Batch, match_labels


def build_batch() -> Batch:
    image = torch.arange(2 * 4 * 5 * 3, dtype=torch.uint8).view(2, 4, 5, 3).permute(0, 3, 1, 2)
    target, index = torch.tensor([3, 1]), torch.tensor([10, 20])
    return Batch(image, target, index, step=7, views=(image + 1, image + 2), skipped=("a.jpg", "b.jpg"))


def list_tensors(batch: Batch) -> tuple[Tensor, ...]:
    return (batch.image, batch.target, batch.index, *batch.views)


def require_equal(batch: Batch, other: Batch) -> None:
    for tensor, expected in zip(list_tensors(batch), list_tensors(other), strict=True):
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor.cpu(), expected.cpu())
    assert (batch.step, batch.skipped) == (other.step, other.skipped)


def test_length_and_defaults() -> None:
    assert len(build_batch()) == 2
    empty = Batch(torch.zeros(0, 3, 4, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64), step=0)
    assert (len(empty), empty.views, empty.skipped) == (0, (), ())


def test_index_stays_on_the_cpu() -> None:
    batch = build_batch()
    moved = batch.to("meta")
    assert [tensor.device.type for tensor in list_tensors(moved)] == ["meta", "meta", "cpu", "meta", "meta"]
    assert (moved.step, moved.skipped, len(moved)) == (7, ("a.jpg", "b.jpg"), 2)
    assert moved.image.is_contiguous(memory_format=torch.channels_last)
    assert batch.image.device.type == "cpu"  # a new batch
    require_equal(batch.to(torch.device("cpu")), batch)


def test_pin_memory_pins_images_views_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Tensor] = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(Tensor, "pin_memory", pin)  # pinning needs an accelerator
    batch = build_batch()
    require_equal(batch.pin_memory(), batch)
    assert len(pinned) == 4


@pytest.mark.parametrize("is_pinned", [True, False])
def test_only_copies_of_pinned_memory_are_not_waited_for(is_pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []

    def copy(tensor: Tensor, device: str, non_blocking: bool) -> Tensor:
        found.append(non_blocking)
        return tensor

    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: is_pinned)
    monkeypatch.setattr(Tensor, "to", copy)
    build_batch().to("cuda")
    assert found == [is_pinned] * 4


def test_batch_passes_through_a_dataloader_and_pickle() -> None:
    batch = build_batch()
    require_equal(pickle.loads(pickle.dumps(batch)), batch)
    [passed] = DataLoader([batch], batch_size=None)
    require_equal(passed, batch)
    with pytest.raises(TypeError):
        default_collate([batch])  # it is a whole batch already


def test_batch_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        build_batch().step = 8


def test_predicted_class_matches_any_label() -> None:
    classes = torch.tensor([[2, 0], [1, 2]])
    assert match_labels(classes, torch.tensor([0, 1])).tolist() == [[False, True], [True, False]]
    several = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert match_labels(classes, several).tolist() == [[True, True], [False, False]]


def number_images(num_images: int) -> Batch:
    numbers = torch.arange(num_images)
    image = numbers.to(torch.uint8).view(-1, 1, 1, 1)
    return Batch(image, numbers + 100, numbers + 200, step=7, views=(image + 50,), skipped=("a.jpg",))


@pytest.mark.parametrize("num_images", [1, 2, 7, 8, 64])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 100])
def test_parts_are_consecutive_and_nearly_equal(num_images: int, num_parts: int) -> None:
    batch = number_images(num_images)
    parts = batch.split(num_parts)
    for expected, *tensors in zip(list_tensors(batch), *map(list_tensors, parts), strict=True):
        assert torch.equal(torch.cat(tensors), expected)
    sizes = [len(part) for part in parts]
    assert len(sizes) == min(num_images, num_parts)  # none is empty: the mean over no images is NaN
    assert max(sizes) - min(sizes) <= 1
    assert {(part.step, part.skipped) for part in parts} == {(7, ("a.jpg",))}


def test_even_parts_equal_numpys_split() -> None:
    batch = number_images(12)
    expected = np.split(np.arange(200, 212), 4)
    assert [part.index.tolist() for part in batch.split(4)] == [part.tolist() for part in expected]


def test_parts_keep_float_targets_and_memory_layout() -> None:
    images = torch.zeros(4, 3, 6, 5, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    first, second = Batch(images, torch.eye(4), torch.arange(4), step=0).split(2)
    assert torch.equal(first.target, torch.eye(4)[:2])
    assert torch.equal(second.target, torch.eye(4)[2:])
    assert second.image.is_contiguous(memory_format=torch.channels_last)


def test_one_part_is_the_batch_itself() -> None:
    batch = number_images(3)
    assert batch.split(1) == [batch]
