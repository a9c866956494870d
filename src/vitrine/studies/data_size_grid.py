"""The grid of `data-size`: models, numbers of images and settings of each scale. No torch here.

Figure 4 of arXiv:2010.11929 trains with the same hyperparameters on every number of images and keeps the best weights by
validation accuracy ("early stopping"); figure 3 chooses weight decay, dropout and label smoothing for each. Every run has as
many steps as the one on all images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from vitrine.core.figures import HYBRID, RESNET, VIT
from vitrine.data.open_data import DatasetHandle, choose_test_split, find_data
from vitrine.data.source import Source
from vitrine.studies.config import Scale

VIT_SMALL, VIT_LARGE, RESNET_EQUAL, HYBRID_EQUAL = "ViT, half width", "ViT", "ResNet", "hybrid"
JFT, JFT_IMAGES, JFT_CLASSES = "jft", 303_000_000, 18_291  # section 4.1 and table 6
REAL_SET = "digits"
PLAIN = "none"
OWN_REMARK = "Learning rates are those of the glyphs."


@dataclass(frozen=True, kw_only=True)
class GridModel:
    """A model of the grid."""

    name: str
    settings: dict[str, Any]
    """Fields of ModelSettings; for the paper's models the name of a recipe, and changes to its model."""
    learning_rate: float | None = None
    """None: the recipe's."""
    rates_tried: tuple[float, ...] = ()
    """Learning rates of pre-training that `--search` has tried."""
    finetune_rate: float = 2e-3
    finetune_rates_tried: tuple[float, ...] = ()
    regularised: tuple[str, ...] = ()
    """Names of the regularisation that was chosen for each of the grid's sizes; empty: none was chosen."""
    colour: str
    marker: str = "o"
    line_width: float = 1.8

    @property
    def has_dropout(self) -> bool:
        """Return whether the model has tokens that can be dropped: ResNets have none."""
        return "patch_size" in self.settings


@dataclass(frozen=True, kw_only=True)
class Regularisation:
    """What figure 3 of the paper chooses for each number of images."""

    weight_decay: float
    dropout_rate: float = 0.0
    """Dropout of ViTs and hybrids; ResNets have none."""
    label_smoothing: float = 0.0


# At most four, of which the first is that of figure 4.
REGULARISATIONS: dict[str, Regularisation] = {
    PLAIN: Regularisation(weight_decay=0.05),
    "decay": Regularisation(weight_decay=0.5),
    "smoothing": Regularisation(weight_decay=0.05, label_smoothing=0.1),
    "all": Regularisation(weight_decay=0.5, dropout_rate=0.1, label_smoothing=0.1),
}


@dataclass(frozen=True, kw_only=True)
class BaseGrid:
    """What all runs of a study at one scale have in common, and the models that it trains."""

    models: Sequence[GridModel]
    seeds: tuple[int, ...]
    batch_size: int = 64
    total_steps: int = 0
    num_times: int = 10
    """Evaluations, of which the best is kept."""
    held_out: float = 0.1
    """Fraction of the training images to choose the best weights on, where there is no split for it."""
    image_size: int = 28
    glyphs: str = ""
    """Settings of the generated images, without their number and size."""
    caution: str = ""
    """What a finding of the scale is worth, for the page."""
    remark: str = ""
    """How the settings were chosen, for the page."""

    @property
    def default_source(self) -> str:
        """The images of a study without `--data`: as many glyphs as the run sees, so that every step has fresh ones."""
        return f"glyphs:{self.glyphs},images={self.total_steps * self.batch_size}@{self.image_size}" if self.glyphs else JFT


@dataclass(frozen=True, kw_only=True)
class Grid(BaseGrid):
    """What a scale of `data-size` trains."""

    compared: tuple[str, str]
    """Names of the ViT and of the ResNet of equal cost, whose gap the claims are about."""
    sizes: tuple[int, ...]
    """Numbers of images, without the last: all images, or fresh ones in every step."""
    finetune_steps: int = 0
    """Steps of fine-tuning on a real set; 0: models are not fine-tuned."""
    searched: tuple[int, ...] = ()
    """Numbers of images, besides all, that `--search` compares learning rates on."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run of the grid."""

    model: GridModel
    num_images: int
    seed: int
    regularisation: str = PLAIN

    @property
    def folder(self) -> str:
        """Folder of the run."""
        name = self.model.name.lower().replace(", ", "-").replace(" ", "-").replace("/", "-")
        regularisation = "" if self.regularisation == PLAIN else f"-{self.regularisation}"
        return f"{name}-{self.num_images}{regularisation}-seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What a grid must know of its images."""

    source: str
    num_images: int
    num_classes: int
    num_channels: int
    num_val: int
    """Images to choose the best weights on besides those to measure on; 0: they are held out of the training images."""
    num_test: int
    """Images to measure on; 0 if it is not known."""
    is_fresh: bool
    """Whether all images are so many that each is seen once."""


def small_vit(width: int, depth: int = 2) -> dict[str, Any]:
    """Return the settings of a ViT of patches of 7 pixels."""
    shape = {"patch_size": 7, "width": width, "depth": depth, "mlp_dim": 2 * width}
    return {"name": "ViT-Ti/16", **shape, "pool": "mean", "position": "sincos-2d", "gelu": "erf"}


def small_resnet(width_factor: float, stages: tuple[int, ...]) -> dict[str, Any]:
    """Return the settings of a BiT-like ResNet of few channels."""
    return {"name": f"R26x{width_factor:g}", "stages": stages, "num_groups": 4}


def small_hybrid(width_factor: float, stages: tuple[int, ...], width: int, depth: int) -> dict[str, Any]:
    """Return the settings of a ViT on the cells of a small ResNet's last feature map."""
    stem = {"name": "R26+ViT-Ti/16", "stem_width_factor": width_factor, "stem_stages": stages, "stem_num_groups": 4}
    return {**small_vit(width, depth), **stem, "patch_size": 1}


GRIDS: dict[Scale, Grid] = {
    "tiny": Grid(
        models=(
            GridModel(
                name=VIT_SMALL,
                settings={**small_vit(16, 1), "num_heads": 2},
                learning_rate=4e-3,
                colour=VIT,
                line_width=1.2,
            ),
            GridModel(name=VIT_LARGE, settings={**small_vit(32, 1), "num_heads": 2}, learning_rate=4e-3, colour=VIT),
            GridModel(name=RESNET_EQUAL, settings=small_resnet(0.125, (1,)), learning_rate=1.6e-2, colour=RESNET, marker="s"),
            GridModel(
                name=HYBRID_EQUAL,
                settings={**small_hybrid(0.0625, (1, 1), 20, 1), "num_heads": 1},
                learning_rate=4e-3,
                colour=HYBRID,
                marker="D",
            ),
        ),
        compared=(VIT_LARGE, RESNET_EQUAL),
        sizes=(20, 100),
        seeds=(0,),
        batch_size=20,
        total_steps=20,
        finetune_steps=4,
        num_times=1,
        image_size=14,
        glyphs="classes=4,warp=0.1,noise=0.2",
        searched=(20,),
        caution="This scale shows that everything works. Models, runs and images are far too small for a finding.",
    ),
    "small": Grid(
        models=(
            GridModel(
                name=VIT_SMALL,
                settings={**small_vit(48), "num_heads": 3},
                learning_rate=8e-3,
                rates_tried=(2e-3, 4e-3, 8e-3, 1.6e-2),
                colour=VIT,
                line_width=1.2,
                finetune_rate=8e-3,
                finetune_rates_tried=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
            ),
            GridModel(
                name=VIT_LARGE,
                settings={**small_vit(96), "num_heads": 3},
                learning_rate=4e-3,
                rates_tried=(2e-3, 4e-3, 8e-3),
                finetune_rate=2e-3,
                finetune_rates_tried=(1e-3, 2e-3, 4e-3),
                colour=VIT,
            ),
            # Three stages are stronger than two at the same cost: the claims are against the better ResNet.
            GridModel(
                name=RESNET_EQUAL,
                settings=small_resnet(0.3125, (1, 2, 1)),
                learning_rate=0.128,
                rates_tried=(8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128, 0.256),
                finetune_rate=8e-3,
                finetune_rates_tried=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
                colour=RESNET,
                marker="s",
            ),
            GridModel(
                name=HYBRID_EQUAL,
                settings={**small_hybrid(0.375, (1, 1), 48, 2), "num_heads": 2},
                learning_rate=8e-3,
                rates_tried=(2e-3, 4e-3, 8e-3, 1.6e-2),
                colour=HYBRID,
                finetune_rate=1.6e-2,
                finetune_rates_tried=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
                marker="D",
            ),
        ),
        compared=(VIT_LARGE, RESNET_EQUAL),
        sizes=(128, 512, 2_048, 8_192, 32_768),
        seeds=(0, 1, 2),
        total_steps=2_048,  # 131,072 images: 1,024 times the smallest number
        finetune_steps=300,
        glyphs="classes=200,warp=0.2,noise=1.0",
        searched=(512, 8_192),
        remark=(
            "A learning rate is that of the highest mean accuracy on held-out images over 512, 8,192 and fresh ones, with seed "
            "0. The mean counts all three alike: on fresh images alone the ResNet was best with 8e-3 (92.1 instead of 89.6 %), "
            "on 512 with 0.128 (36.5 instead of 3.6 %). Five other regimes were tried with a first ResNet of two stages: with "
            "strong warp the ViT underfits, with 50 easy classes there is a ceiling."
        ),
    ),
    "paper": Grid(
        models=(
            GridModel(
                name="ViT-b/32",
                settings={"recipe": "jft-vit-b32", "name": "ViT-b/32"},
                colour=VIT,
                line_width=1.2,
            ),
            GridModel(name="ViT-B/32", settings={"recipe": "jft-vit-b32"}, colour=VIT),
            GridModel(name="ViT-L/32", settings={"recipe": "jft-vit-l32"}, colour=VIT, line_width=2.4),
            GridModel(name="ViT-L/16", settings={"recipe": "jft-vit-l16"}, colour=VIT, line_width=2.4),
            GridModel(name="R50x1", settings={"recipe": "jft-r50x1"}, colour=RESNET, marker="s"),
            GridModel(name="R152x2", settings={"recipe": "jft-r152x2"}, colour=RESNET, marker="s", line_width=2.4),
        ),
        compared=("ViT-B/32", "R50x1"),
        sizes=(9_000_000, 30_000_000, 90_000_000),
        seeds=(0,),
        num_times=50,
        held_out=0.001,
        remark=(
            "Settings are those of table 3. The paper does not say how long it trains on subsets: here as many steps as on all "
            "images, 7 epochs of them. It measures linear 5-shot accuracy on ImageNet, this study accuracy on images of the "
            "same kind; `vitrine few-shot` measures the former on each model."
        ),
    ),
}


def find_facts(grid: BaseGrid, data: str | None) -> DataFacts:
    """Return what there is to know about the images of a grid, from the data, or from the paper if JFT is not there."""
    try:
        dataset = find_data(data or grid.default_source)
    except FileNotFoundError:
        if data is not None or grid.glyphs:
            raise
        return DataFacts(
            source=JFT, num_images=JFT_IMAGES, num_classes=JFT_CLASSES, num_channels=3, num_val=0, num_test=0, is_fresh=False
        )
    check_splits(dataset)
    train = dataset.open_train()
    is_fresh = data is None and bool(grid.glyphs)
    return DataFacts(
        source=dataset.name,
        num_images=len(train),
        num_classes=len(train.class_names),
        num_channels=1 if is_fresh else count_channels(train),
        num_val=len(dataset.open("val")) if {"val", "test"} <= set(dataset.splits) else 0,
        num_test=len(dataset.open(choose_test_split(dataset))),
        is_fresh=is_fresh,
    )


def describe_choice(grid: BaseGrid, facts: DataFacts) -> str:
    """Return the caution of a grid and how its settings were chosen, which is about the glyphs if the scale has them."""
    remark = grid.remark if facts.is_fresh or not grid.glyphs else OWN_REMARK
    return " ".join(filter(None, (grid.caution, remark)))


def count_channels(source: Source) -> int:
    """Return the channels of the images: arrays may be grey, files are read in colour."""
    block = source.read_block(np.zeros(1, np.int64))
    return 3 if block is None else block.shape[3]


def check_splits(dataset: DatasetHandle) -> None:
    """Raise ValueError unless there are images to train on and others to measure on."""
    if "train" not in dataset.splits or not {"val", "test"} & set(dataset.splits):
        raise ValueError(
            f"{dataset.name} has the splits {dataset.splits or 'none'}; expected train, and test or val to measure on: add one."
        )


def list_sizes(grid: Grid, facts: DataFacts) -> tuple[int, ...]:
    """Return the numbers of images, the last one all that there are; raise ValueError if there are too few to compare."""
    sizes = tuple(size for size in grid.sizes if size < facts.num_images)
    if not sizes:
        raise ValueError(
            f"{facts.source} has {facts.num_images:,} training images; expected more than {grid.sizes[0]:,}, the smallest "
            "number to train on: use larger data, or a smaller scale."
        )
    return (*sizes, facts.num_images)


def list_cells(grid: Grid, facts: DataFacts, seeds: tuple[int, ...]) -> Iterator[Cell]:
    """Yield every run: first all of the first seed, the smallest numbers of images first.

    On the images that settings were chosen for, a model has a second run where another regularisation was chosen.
    """
    for seed, size, model in product(sorted(seeds or grid.seeds), list_sizes(grid, facts), grid.models):
        yield Cell(model=model, num_images=size, seed=seed)
        chosen = find_regularisation(grid, facts, model, size)
        if chosen != PLAIN:
            yield Cell(model=model, num_images=size, seed=seed, regularisation=chosen)


def find_regularisation(grid: Grid, facts: DataFacts, model: GridModel, num_images: int) -> str:
    """Return the name of the regularisation that was chosen for a model on a number of images."""
    if not facts.is_fresh or num_images not in grid.sizes or not model.regularised:
        return PLAIN
    return model.regularised[grid.sizes.index(num_images)]
