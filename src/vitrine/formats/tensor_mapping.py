"""TensorMapping: where one of our tensors lies in a foreign file (names, shape, axis order), for reading and writing."""

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
    """One tensor of ours and the foreign tensors that hold it; several are equal parts of ours along its first axis."""

    name: str
    foreign_names: tuple[str, ...]
    order: Literal["same", "transposed", "hwio"] = "same"
    """transposed: (in, out), the order of JAX's matrices; hwio: (height, width, in, out), that of its convolutions."""
    shape: Shape | None = None
    """Shape of each foreign part; None: the shape of our part in that order."""

    def foreign_shape(self, shape: Shape) -> Shape:
        """Return the shape of each foreign part, given the shape of our tensor."""
        part = self.part_shape(shape)
        orders = {"same": part, "transposed": part[::-1], "hwio": (*part[2:], *part[1::-1])}
        return self.shape or orders[self.order]

    def part_shape(self, shape: Shape) -> Shape:
        return (shape[0] // len(self.foreign_names), *shape[1:])

    def read(self, parts: Iterable[Tensor], shape: Shape) -> Tensor:
        """Assemble our float32 tensor from foreign parts; each part is released before the next is taken."""
        filled = torch.empty(shape)
        part_shape = self.part_shape(shape)
        for index, foreign in enumerate(parts):
            part = foreign.reshape(self.foreign_shape(shape))
            if self.order == "transposed":
                part = part.reshape(part_shape[::-1]).T
            elif self.order == "hwio":
                part = part.permute(3, 2, 0, 1)
            filled.narrow(0, index * part_shape[0], part_shape[0]).copy_(part.reshape(part_shape))
        return filled

    def write(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Split our tensor into (foreign name, foreign tensor), each in memory of its own."""
        shape = self.foreign_shape(tuple(tensor.shape))
        for name, part in zip(self.foreign_names, tensor.chunk(len(self.foreign_names)), strict=True):
            if self.order == "transposed":
                part = part.T
            elif self.order == "hwio":
                part = part.reshape(shape[3], shape[2], shape[0], shape[1]).permute(2, 3, 1, 0)
            yield name, part.reshape(shape).clone(memory_format=torch.contiguous_format)


def map_layers(layers: Mapping[str, str], name: str = "", foreign: str = "") -> Iterator[TensorMapping]:
    """Map weight and bias of layers {our name: foreign name} that have the same two in the file; the others are prefixes."""
    for own_name, foreign_name in layers.items():
        for parameter in ("weight", "bias"):
            yield TensorMapping(f"{name}{own_name}.{parameter}", (f"{foreign}{foreign_name}.{parameter}",))


def check_tensors(mappings: Sequence[TensorMapping], tensors: Tensors, shapes: Mapping[str, Shape], source: str) -> None:
    """Raise a ValueError that names every tensor which is missing, unexpected, of another shape or not floating point."""
    expected = {name: mapping.foreign_shape(shapes[mapping.name]) for mapping in mappings for name in mapping.foreign_names}
    present = [name for name in expected if name in tensors]
    problems = {
        "missing": [name for name in expected if name not in tensors],
        "unexpected": [name for name in tensors if name not in expected],
        "wrong shape": [
            f"{name} {format_shape(tensors[name].shape)} instead of {format_shape(expected[name])}"
            for name in present
            if squeeze(tensors[name].shape) != squeeze(expected[name])
        ],
        "not floating point": [f"{name} ({tensors[name].dtype})" for name in present if not tensors[name].is_floating_point],
    }
    found = [f"{problem}: {join_names(names)}" for problem, names in problems.items() if names]
    if found:
        raise ValueError(f"{source} does not fit the model, so nothing was loaded; {'; '.join(found)}.")


def squeeze(shape: Iterable[int]) -> Shape:
    """Drop axes of length 1: old files keep a norm's scale as (1, 1, 1, C)."""
    return tuple(size for size in shape if size != 1)


def format_shape(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"
