"""Pretrained models on the Hugging Face hub to fine-tune from: the table pretrained.csv, and a choice from it by time.

The table is written by benchmarks/pretrained_table.py. Every row is in timm's layout. No torch is imported.
"""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from vitrine.core.console import name_setting
from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.cost import compute_cost
from vitrine.models.registry import resolve_config

# Families, and what their networks have beyond the plain one of the same name. The order decides between rows without a
# published figure: AugReg and DINOv2 were pre-trained for transfer and come in every size; then follow image-text pairs,
# then other networks with ImageNet-21k, then those with ImageNet-1k alone.
FAMILIES: dict[str, dict[str, Any]] = {
    "AugReg": {},
    "DINOv2 with registers": {"layer_scale": 1e-5, "num_registers": 4, "class_position": False},
    "DINOv2": {"layer_scale": 1e-5},
    "SigLIP": {"pool": "map"},
    "CLIP": {"pre_norm": True, "patch_bias": False},
    "ViT": {},
    "DeiT III": {"layer_scale": 1e-5, "class_position": False},
    "BiT": {},
    "DeiT distilled": {"distillation_token": True},
    "DeiT": {},
    "MAE": {},
}
# Licences under which a model may be chosen without asking. All others are listed, e.g. cc-by-nc, which forbids commercial use.
PERMISSIVE = ("apache-2.0", "mit")


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """A row of the table."""

    name: str
    """Model reference, e.g. hf://timm/vit_base_patch16_224.augreg_in21k."""
    family: str
    model: str
    """Our name of the network, e.g. ViT-B/16."""
    licence: str
    """Licence of the weights, by its name on the hub."""
    image_size: int
    num_classes: int
    num_parameters: int
    """Parameters with the head, as counted by timm."""
    imagenet_top1: float | None
    """Published accuracy on ImageNet in percent, after fine-tuning at the resolution that `source` states; None: not known."""
    source: str
    """Where the accuracy is published."""

    @property
    def config(self) -> ModelConfig:
        """Sizes of the network; its GELU and epsilons are those of the checkpoint, which only loading it shows."""
        return resolve_config(self.model, image_size=self.image_size, num_classes=self.num_classes, **FAMILIES[self.family])

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the features of one image."""
        return self.count_macs(self.image_size)

    def count_macs(self, image_size: int) -> int:
        """Return the multiply-accumulates of the features of one image of another size; the size is rounded to patches."""
        patch = self.config.patch_size if isinstance(self.config, ViTConfig) else 32
        config = resolve_config(self.model, image_size=max(1, round(image_size / patch)) * patch, **FAMILIES[self.family])
        return compute_cost(config, num_classes=0).macs

    @property
    def is_permissive(self) -> bool:
        """Return whether the licence allows use for any purpose, commercial ones too."""
        return self.licence in PERMISSIVE

    def to_json(self) -> dict[str, Any]:
        """Return the row and its MACs, as `vitrine models --pretrained --json` writes them."""
        return {**asdict(self), "macs": self.macs}


COLUMNS = tuple(field.name for field in fields(StartingPoint))


def list_starting_points(names: Sequence[str] = ()) -> tuple[StartingPoint, ...]:
    """Return the table, or the rows whose name, family or network contains one of `names`, in any case."""
    found: set[StartingPoint] = set()
    for name in names:
        matches = [point for point in read_table() if matches_name(point, name)]
        if not matches:
            families = ", ".join(FAMILIES)
            raise ValueError(
                f"No starting point has {name!r} in its name; try a family ({families}) or a network, e.g. ViT-B/16."
            )
        found.update(matches)
    return tuple(point for point in read_table() if point in found or not names)


def matches_name(point: StartingPoint, name: str) -> bool:
    return any(name.casefold() in text.casefold() for text in (point.name, point.family, point.model))


@cache
def read_table() -> tuple[StartingPoint, ...]:
    """Read pretrained.csv, which lies in the package."""
    lines = files("vitrine.formats").joinpath("pretrained.csv").read_text(encoding="utf-8").splitlines()
    return tuple(map(parse_row, csv.DictReader(lines)))


def parse_row(row: dict[str, str]) -> StartingPoint:
    """Return a row of the table with its numbers as numbers; an empty accuracy is None."""
    counts = {name: int(row[name]) for name in ("image_size", "num_classes", "num_parameters")}
    top1 = float(row["imagenet_top1"]) if row["imagenet_top1"] else None
    return StartingPoint(**{**row, **counts, "imagenet_top1": top1})


def choose_starting_point(
    num_images: int,
    seconds: float,
    macs_per_second: float,
    is_cached: Callable[[str], bool] | None = None,
    image_size: int | None = None,
) -> StartingPoint:
    """Return the best starting point whose features of `num_images` images take at most `seconds`, else the cheapest one.

    Best is the highest published accuracy; rows without one come after those, in the order of FAMILIES, the largest first.
    Only permissive licences are considered. Without a connection, pass `is_cached` (e.g. `core.hub.is_model_cached`), which
    gets a row's name: other rows are left out, and OSError is raised if none remains. `image_size` is that of the images, if it
    is not each model's own.
    """
    if not (num_images >= 0 and seconds >= 0 and 0 < macs_per_second < math.inf):
        given = f"num_images={num_images}, seconds={seconds:g} and macs_per_second={macs_per_second:g}"
        raise ValueError(f"{given} must be at least 0, the last above 0.")
    usable = [point for point in read_table() if point.is_permissive and (is_cached is None or is_cached(point.name))]
    if not usable:
        advice = f"pass {name_setting('model', 'PATH')}, or connect and run again"
        raise OSError(f"The hub cannot be reached, and its cache holds none of the pretrained models: {advice}.")
    costs = {point: point.count_macs(image_size or point.image_size) for point in usable}
    affordable = [point for point in usable if costs[point] * num_images <= seconds * macs_per_second]
    return max(affordable, key=rank) if affordable else min(usable, key=lambda point: costs[point])


def rank(point: StartingPoint) -> tuple[float, int, int]:
    """Return a key that is larger for better starting points."""
    return point.imagenet_top1 or 0.0, -list(FAMILIES).index(point.family), point.macs
