"""What a training step, or an evaluation, is given."""

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def match_labels(answers: Tensor, labels: Tensor) -> Tensor:
    """For each of several answers to each image (B, A), whether it is the label (B), or one of the labels (B, K)."""
    if labels.is_floating_point():
        return torch.gather(labels, 1, answers) > 0
    return answers == labels[:, None]


@dataclass(frozen=True)
class Batch:
    """B samples, or, of several processes, this one's part of them."""

    image: Tensor
    """Bytes (B, C, H, W), or floats in 0..1; not normalised yet, so that raw pixels are there for whoever needs them."""
    label: Tensor
    """int64 (B), or float (B, K) for several labels and mixed targets."""
    index: Tensor
    """int64 (B): the number of each in its source; it stays on the processor, where choices are drawn by it."""
    step: int
    skipped: tuple[str, ...] = ()
    """Names of images that could not be read and are not here."""

    def __len__(self) -> int:
        return len(self.index)

    def split(self, num_parts: int) -> list["Batch"]:
        """In equal parts, as far as that goes, one after another."""
        if num_parts == 1:
            return [self]
        bounds = [len(self) * part // num_parts for part in range(num_parts + 1)]
        parts = [slice(start, end) for start, end in itertools.pairwise(bounds) if start < end]
        return [replace(self, image=self.image[part], label=self.label[part], index=self.index[part]) for part in parts]

    def to(self, device: torch.device | str) -> "Batch":
        image, label = (tensor.to(device, non_blocking=True) for tensor in (self.image, self.label))
        return replace(self, image=image, label=label)

    def pin_memory(self) -> "Batch":
        """Called by torch's DataLoader."""
        return replace(self, image=self.image.pin_memory(), label=self.label.pin_memory())
