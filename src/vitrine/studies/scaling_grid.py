"""The grid of `scaling`: models of three families over a range of compute, and settings of each scale. No torch here.

Figure 5 of arXiv:2010.11929 compares 7 ResNets, 6 ViTs and 5 hybrids, pre-trained on JFT-300M. At the small scales all runs
have the same images and steps, and compute grows with the models alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

from vitrine.core.figures import HYBRID, RESNET, VIT
from vitrine.studies.config import Scale
from vitrine.studies.data_size_grid import BaseGrid, Cell, DataFacts, GridModel, small_hybrid, small_resnet, small_vit

Family = Literal["ViT", "ResNet", "hybrid"]
FAMILIES: tuple[Family, ...] = get_args(Family)
COMPARED: tuple[Family, Family] = ("ViT", "ResNet")
STYLES: dict[Family, tuple[str, str]] = {"ViT": (VIT, "o"), "ResNet": (RESNET, "s"), "hybrid": (HYBRID, "D")}


@dataclass(frozen=True, kw_only=True)
class ScalingModel(GridModel):
    """A model of the grid with its family."""

    family: Family


@dataclass(frozen=True, kw_only=True)
class ScalingGrid(BaseGrid):
    """What a scale of `scaling` trains."""

    models: tuple[ScalingModel, ...]


def build_model(
    family: Family,
    name: str,
    settings: dict[str, Any],
    learning_rate: float | None = None,
    rates_tried: tuple[float, ...] = (),
) -> ScalingModel:
    """Return a model in the colour and with the marker of its family."""
    colour, marker = STYLES[family]
    return ScalingModel(
        family=family,
        name=name,
        settings=settings,
        learning_rate=learning_rate,
        rates_tried=rates_tried,
        colour=colour,
        marker=marker,
    )


def vit(width: int, depth: int, num_heads: int, learning_rate: float, *rates_tried: float) -> ScalingModel:
    """Return a small ViT, which is named by its width and depth."""
    settings = {**small_vit(width, depth), "num_heads": num_heads}
    return build_model("ViT", f"ViT {width}x{depth}", settings, learning_rate, rates_tried)


def resnet(channels: int, stages: tuple[int, ...], learning_rate: float, *rates_tried: float) -> ScalingModel:
    """Return a small ResNet, which is named by its channels and the units of its stages."""
    name = f"ResNet {name_stem(channels, stages)}"
    num_groups = 4 if channels % 4 == 0 else 2
    settings = {**small_resnet(channels / 64, stages), "num_groups": num_groups}
    return build_model("ResNet", name, settings, learning_rate, rates_tried)


def hybrid(
    channels: int,
    stages: tuple[int, ...],
    width: int,
    depth: int,
    num_heads: int,
    learning_rate: float,
    *rates_tried: float,
) -> ScalingModel:
    """Return a small hybrid, which is named by its ResNet and its ViT."""
    name = f"hybrid {name_stem(channels, stages)}+{width}x{depth}"
    settings = {**small_hybrid(channels / 64, stages, width, depth), "num_heads": num_heads}
    return build_model("hybrid", name, settings, learning_rate, rates_tried)


def name_stem(channels: int, stages: tuple[int, ...]) -> str:
    """Return channels and units of a ResNet as in names, e.g. 20x1-2-1."""
    return f"{channels}x{'-'.join(map(str, stages))}"


def paper(family: Family, name: str, recipe: str) -> ScalingModel:
    """Return a model of figure 5 with the settings of table 3."""
    return build_model(family, name, {"recipe": recipe})


GRIDS: dict[Scale, ScalingGrid] = {
    "tiny": ScalingGrid(
        models=(
            vit(16, 1, 2, 4e-3),
            vit(24, 1, 2, 4e-3),
            vit(32, 1, 2, 4e-3),
            resnet(4, (1,), 1.6e-2),
            resnet(6, (1,), 1.6e-2),
            resnet(8, (1,), 1.6e-2),
            hybrid(4, (1, 1), 20, 1, 1, 4e-3),
        ),
        seeds=(0,),
        batch_size=20,
        total_steps=20,
        num_times=1,
        image_size=14,
        glyphs="classes=4,warp=0.1,noise=0.2",
        caution="This scale shows that everything works. Models, runs and images are far too small for a finding.",
    ),
    # From 0.25 to 8 MMACs, in steps of about a factor of 2; hybrids at both ends and in the middle.
    "small": ScalingGrid(
        models=(
            vit(28, 2, 1, 8e-3),
            vit(40, 2, 2, 8e-3),
            vit(48, 3, 2, 8e-3),
            vit(72, 3, 3, 4e-3),
            vit(96, 3, 3, 4e-3),
            vit(144, 3, 4, 4e-3),
            resnet(6, (1, 2, 1), 3.2e-2),
            resnet(8, (1, 2, 1), 3.2e-2),
            resnet(12, (1, 2, 1), 1.6e-2),
            resnet(16, (2, 2, 2), 1.6e-2),
            resnet(20, (2, 4, 2), 1.6e-2),
            resnet(28, (2, 4, 2), 1.6e-2),
            hybrid(4, (1, 1), 24, 2, 1, 8e-3),
            hybrid(8, (1, 1), 64, 2, 2, 4e-3),
            hybrid(16, (1, 1), 112, 4, 4, 4e-3),
        ),
        seeds=(0, 1, 2),
        total_steps=2_048,
        num_times=4,  # with fresh images in every step the last weights are nearly always the best
        glyphs="classes=200,warp=0.2,noise=1.0",
        remark=(
            "Learning rates are first guesses from models of 2.5 MMACs: 4e-3 for ViT and hybrid, 1.6e-2 for the ResNet, and "
            "twice as much for small models. No neighbours were tried yet. Shapes were chosen by cost alone."
        ),
    ),
    "paper": ScalingGrid(
        models=(
            paper("ViT", "ViT-B/32", "jft-vit-b32"),
            paper("ViT", "ViT-B/16", "jft-vit-b16"),
            paper("ViT", "ViT-L/32", "jft-vit-l32"),
            paper("ViT", "ViT-L/16", "jft-vit-l16"),
            paper("ViT", "ViT-L/16, 14 epochs", "jft-vit-l16-14ep"),
            paper("ViT", "ViT-H/14, 14 epochs", "jft-vit-h14"),
            paper("ResNet", "R50x1", "jft-r50x1"),
            paper("ResNet", "R50x2", "jft-r50x2"),
            paper("ResNet", "R101x1", "jft-r101x1"),
            paper("ResNet", "R152x1", "jft-r152x1"),
            paper("ResNet", "R152x2", "jft-r152x2"),
            paper("hybrid", "R50+ViT-B/32", "jft-r50-vit-b32"),
            paper("hybrid", "R50+ViT-B/16", "jft-r50-vit-b16"),
            paper("hybrid", "R50+ViT-L/32", "jft-r50-vit-l32"),
            paper("hybrid", "R50+ViT-L/16", "jft-r50-vit-l16"),
            paper("hybrid", "R50+ViT-L/16, 14 epochs", "jft-r50-vit-l16-14ep"),
        ),
        seeds=(0,),
        num_times=50,
        held_out=0.001,
        remark=(
            "Settings are those of table 3; models without a number of epochs have 7. Two ResNets of figure 5 are left out, "
            "because the paper gives no learning rate for them: R152x2 with 14 epochs, and R200x3. It measures accuracy after "
            "fine-tuning, mean over five sets; this study accuracy on images of the same kind."
        ),
    ),
}


def list_cells(grid: ScalingGrid, facts: DataFacts, seeds: tuple[int, ...]) -> Iterator[tuple[ScalingModel, Cell]]:
    """Yield every run with its model, on all images: first all of the first seed."""
    for seed, model in product(sorted(seeds or grid.seeds), grid.models):
        yield model, Cell(model=model, num_images=facts.num_images, seed=seed)
