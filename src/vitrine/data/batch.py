"""Batch: the images and targets of one training or evaluation step.

Letters: B images, C channels, H x W pixels, K classes, A predicted classes.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

Target = Tensor
"""One class per image: int64 (B). Several labels or mixed classes: float (B, K), a weight for each class."""
Draws = dict[str, Tensor]
Draw = Callable[[Tensor, int], Draws]
"""Draws the random numbers that an objective needs, from the index (B) of the images and the step."""


@dataclass(frozen=True)
class Batch:
    """B samples of one step; with several ranks, this rank's part of the global batch."""

    image: Tensor
    """uint8 (B, C, H, W), or float in 0..1. Not normalised: the objective does that, so raw pixels stay available."""
    target: Target
    index: Tensor
    """int64 (B): index of each sample in its source. It stays on the CPU, where random numbers are drawn from it."""
    step: int
    views: tuple[Tensor, ...] = ()
    """Further random views of the same images, shaped like `image`, for objectives that ask for more than one."""
    draws: Draws = field(default_factory=dict)
    """Random numbers of the objective, e.g. masked patches: (B, ..) each. Drawn on the host, so that no step waits for them."""
    skipped: tuple[str, ...] = ()
    """Names of images that could not be read and are not in the batch."""

    def __len__(self) -> int:
        return len(self.index)

    def split(self, num_parts: int) -> list["Batch"]:
        """Split into consecutive parts of nearly equal size, e.g. for gradient accumulation; empty parts are left out."""
        if num_parts == 1:
            return [self]
        bounds = [len(self) * part // num_parts for part in range(num_parts + 1)]
        return [self.slice(start, end) for start, end in itertools.pairwise(bounds) if start < end]

    def slice(self, start: int, end: int) -> "Batch":
        """Return samples start to end (exclusive) as a batch."""
        return replace(self.map(lambda tensor: tensor[start:end]), index=self.index[start:end])

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the tensors to a device, without waiting if they are pinned; `index` stays on the CPU."""
        return self.map(lambda tensor: copy_to_device(tensor, device))

    def pin_memory(self) -> "Batch":
        """Copy the tensors to pinned memory; called by torch's DataLoader."""
        return self.map(Tensor.pin_memory)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with a function applied to all tensors but `index`."""
        draws = {name: function(tensor) for name, tensor in self.draws.items()}
        image, target, *views = (function(tensor) for tensor in (self.image, self.target, *self.views))
        return replace(self, image=image, target=target, views=tuple(views), draws=draws)

    def filled(self) -> "Batch":
        """Return the batch itself or, if it is empty, one with a blank image, because models do not take empty batches.

        A part of an evaluation can be empty on some ranks, and has to be computed all the same where parameters are sharded.
        """
        if len(self) > 0:
            return self
        return replace(self.map(lambda tensor: tensor.new_zeros(1, *tensor.shape[1:])), index=self.index.new_zeros(1))


def copy_to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device, without waiting for the copy if the tensor is in pinned memory.

    Copies from other memory must be waited for: the device, e.g. Apple's, may read it only after it is reused.
    """
    return tensor.to(device, non_blocking=tensor.is_pinned())


def match_labels(classes: Tensor, targets: Target) -> Tensor:
    """Return for each predicted class (B, A) whether it is a label of its image."""
    if targets.is_floating_point():
        return torch.gather(targets, 1, classes) > 0
    return classes == targets[:, None]
