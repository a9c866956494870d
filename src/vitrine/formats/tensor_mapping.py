"""How one of our tensors lies in a foreign file: its names there, its shape, the order of its axes. The same both ways."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrine.core.console import join_names
from vitrine.formats.tensor_files import Tensors

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorMapping:
    """One tensor of ours and what holds it there; several names are parts of ours, one below the other."""

    ours: str
    theirs: tuple[str, ...]
    order: Literal["same", "transposed", "hwio"] = "same"
    """transposed: (in, out), as JAX keeps matrices; hwio: its convolutions, (height, width, in, out)."""
    shape: Shape | None = None
    """Of each part there; None: as ours, in that order."""

    def foreign_shape(self, ours: Shape) -> Shape:
        part = self.part_shape(ours)
        if self.shape is not None:
            return self.shape
        if self.order == "transposed":
            return part[::-1]
        return (part[2], part[3], part[1], part[0]) if self.order == "hwio" else part

    def part_shape(self, ours: Shape) -> Shape:
        return (ours[0] // len(self.theirs), *ours[1:])

    def read(self, parts: Iterable[Tensor], ours: Shape) -> Tensor:
        """Our tensor from theirs, in float32 and memory of its own; each of theirs is let go before the next is taken."""
        filled = torch.empty(ours)
        shape = self.part_shape(ours)
        for index, part in enumerate(parts):
            turned = self._turn_to_ours(part.reshape(self.foreign_shape(ours)), shape)
            filled.narrow(0, index * shape[0], shape[0]).copy_(turned)
        return filled

    def _turn_to_ours(self, part: Tensor, shape: Shape) -> Tensor:
        if self.order == "transposed":
            return part.reshape(shape[::-1]).T
        return (part.permute(3, 2, 0, 1) if self.order == "hwio" else part).reshape(shape)

    def write(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Their tensors from ours, each with memory of its own."""
        shape = self.foreign_shape(tuple(tensor.shape))
        for name, part in zip(self.theirs, tensor.chunk(len(self.theirs)), strict=True):
            if self.order == "transposed":
                part = part.T
            elif self.order == "hwio":
                part = part.reshape(shape[3], shape[2], shape[0], shape[1]).permute(2, 3, 1, 0)
            yield name, part.reshape(shape).clone(memory_format=torch.contiguous_format)


Layout = Sequence[TensorMapping]


def pair(ours: str, theirs: str) -> Iterator[TensorMapping]:
    """Weight and bias under the same last names."""
    for last in ("weight", "bias"):
        yield TensorMapping(f"{ours}.{last}", (f"{theirs}.{last}",))


def require_fit(layout: Layout, tensors: Tensors, shapes: Mapping[str, Shape], source: str) -> None:
    """Every tensor there has its place here and the shape for it, and the other way round; otherwise all are named."""
    expected = {name: entry.foreign_shape(shapes[entry.ours]) for entry in layout for name in entry.theirs}
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    misshapen = [
        f"{name} {format_shape(tensors[name].shape)} instead of {format_shape(shape)}"
        for name, shape in expected.items()
        if name in tensors and squeeze(tensors[name].shape) != squeeze(shape)
    ]
    no_numbers = [
        f"{name} ({tensors[name].dtype})" for name in expected if name in tensors and not tensors[name].is_floating_point
    ]
    complaints = (
        ("missing", missing),
        ("unexpected", unexpected),
        ("misshapen", misshapen),
        ("not floating point", no_numbers),
    )
    found = [f"{kind}: {join_names(names)}" for kind, names in complaints if names]
    if found:
        raise ValueError(f"{source} does not fit the model, so nothing was loaded; {'; '.join(found)}.")


def squeeze(shape: Iterable[int]) -> Shape:
    """Axes of length 1 do not count: old files keep a norm's scale as (1, 1, 1, C)."""
    return tuple(size for size in shape if size != 1)


def format_shape(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"
