"""A batch keeps what it is not asked to change, and goes where it is sent."""

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
    return Batch(image=image, target=torch.tensor([3, 1]), index=torch.tensor([10, 20]), step=7, skipped=("a.jpg", "b.jpg"))


def require_equal(batch: Batch, other: Batch) -> None:
    for name in ("image", "target", "index"):
        mine, theirs = getattr(batch, name), getattr(other, name)
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine.cpu(), theirs.cpu())
    assert (batch.step, batch.skipped) == (other.step, other.skipped)


def test_length_is_the_number_of_samples() -> None:
    assert len(build_batch()) == 2
    assert len(Batch(torch.zeros(0, 3, 4, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64), step=0)) == 0


def test_nothing_is_skipped_unless_said() -> None:
    assert Batch(torch.zeros(1, 3, 4, 4), torch.zeros(1), torch.zeros(1), step=0).skipped == ()


def test_to_sends_what_is_computed_with_and_keeps_the_rest() -> None:
    batch = build_batch()
    moved = batch.to("meta")
    assert [tensor.device.type for tensor in (moved.image, moved.target, moved.index)] == ["meta", "meta", "cpu"]
    assert (moved.step, moved.skipped, len(moved)) == (7, ("a.jpg", "b.jpg"), 2)
    assert moved.image.is_contiguous(memory_format=torch.channels_last)
    assert batch.image.device.type == "cpu"  # a batch is not changed but made anew
    require_equal(batch.to(torch.device("cpu")), batch)


def test_pin_memory_pins_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Tensor] = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(Tensor, "pin_memory", pin)  # pinning itself needs an accelerator
    batch = build_batch()
    require_equal(batch.pin_memory(), batch)
    assert len(pinned) == 2


def test_a_batch_passes_through_a_loader_and_a_pickle() -> None:
    batch = build_batch()
    require_equal(pickle.loads(pickle.dumps(batch)), batch)
    [passed] = DataLoader([batch], batch_size=None)
    require_equal(passed, batch)
    with pytest.raises(TypeError):
        default_collate([batch])  # it is a whole batch already


def test_a_batch_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        build_batch().step = 8


def test_an_answer_is_right_if_it_is_the_label_or_one_of_them() -> None:
    answers = torch.tensor([[2, 0], [1, 2]])
    assert match_labels(answers, torch.tensor([0, 1])).tolist() == [[False, True], [True, False]]
    several = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert match_labels(answers, several).tolist() == [[True, True], [False, False]]


def number_images(num_images: int) -> Batch:
    numbers = torch.arange(num_images)
    return Batch(numbers.to(torch.uint8).view(-1, 1, 1, 1), numbers + 100, numbers + 200, step=7, skipped=("a.jpg",))


@pytest.mark.parametrize("num_images", [1, 2, 7, 8, 64])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 100])
def test_parts_are_the_batch_one_after_another_and_nearly_equal(num_images: int, num_parts: int) -> None:
    batch = number_images(num_images)
    parts = batch.split(num_parts)
    for name in ("image", "target", "index"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
    sizes = [len(part) for part in parts]
    assert len(sizes) == min(num_images, num_parts)  # none is empty: a mean over no image is not a number
    assert max(sizes) - min(sizes) <= 1
    assert {(part.step, part.skipped) for part in parts} == {(7, ("a.jpg",))}


def test_parts_of_an_even_division_are_numpy_s() -> None:
    batch = number_images(12)
    expected = np.split(np.arange(200, 212), 4)
    assert [part.index.tolist() for part in batch.split(4)] == [part.tolist() for part in expected]


def test_parts_keep_rows_of_labels_and_the_layout_of_pixels() -> None:
    images = torch.zeros(4, 3, 6, 5, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    first, second = Batch(images, torch.eye(4), torch.arange(4), step=0).split(2)
    assert torch.equal(first.target, torch.eye(4)[:2])
    assert torch.equal(second.target, torch.eye(4)[2:])
    assert second.image.is_contiguous(memory_format=torch.channels_last)


def test_one_part_is_the_batch_itself() -> None:
    batch = number_images(3)
    assert batch.split(1) == [batch]
