"""The grid of `self-supervision`: starts, numbers of labelled images and settings of each scale. No torch here.

A start is what fine-tuning begins with: fresh weights, or those of pre-training by masked patches or by labels, on the same
images. All three are fine-tuned on the same labelled images for as many steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from vitrine.data.config import Subset
from vitrine.data.open_data import choose_test_split, find_data
from vitrine.data.subsets import count_images, select_subset
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import PatchTarget
from vitrine.recipes.small import tiny_vit
from vitrine.studies.config import Scale
from vitrine.studies.data_size_grid import REAL_SET, check_splits

SCRATCH, MASKED, LABELS = "from scratch", "masked patches", "labels"
STARTS = (SCRATCH, MASKED, LABELS)
TARGETS: tuple[PatchTarget, ...] = ("mean-colour", "small-colours", "pixels")
OWN_REMARK = "Learning rates are those of the digits, and so is the target of masked patches."
IMAGENET, IMAGENET_IMAGES, IMAGENET_CLASSES, IMAGENET_TEST = "imagenet", 1_281_167, 1_000, 50_000


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A learning rate that `--search` chooses."""

    value: float
    tried: tuple[float, ...] = ()
    """All values that a search has tried; empty: none was made."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A start of fine-tuning."""

    name: str
    recipe: str = ""
    """At scale paper the recipe of its training before table 4's; its settings are not searched for."""
    pretrain_rate: Rate | None = None
    """Rate of pre-training on generated images; None: there is none."""
    finetune_rate: Rate | None = None
    """None: the recipe's."""

    @property
    def folder(self) -> str:
        """First part of the folders of its runs."""
        return self.name.replace(" ", "-")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What a scale trains."""

    starts: tuple[Start, ...]
    labelled: str
    """The labelled images without `--data`."""
    sizes: tuple[str, ...]
    """Subsets of the labelled images, as in `DataConfig.subset`."""
    seeds: tuple[int, ...]
    model: ModelSettings | None = None
    """None: that of the recipes."""
    target: PatchTarget = "mean-colour"
    targets_tried: tuple[PatchTarget, ...] = ()
    batch_size: int = 64
    pretrain_steps: int = 0
    finetune_steps: int = 0
    glyphs: str = ""
    """Settings of the images to pre-train on, without their number and size."""
    caution: str = ""
    """What a finding of the scale is worth, for the page."""
    remark: str = ""
    """How the settings were chosen, for the page."""

    @property
    def pretrain_source(self) -> str:
        """The images to pre-train on: as many glyphs as a run sees, so that every step has fresh ones."""
        assert self.model is not None
        return f"glyphs:{self.glyphs},images={self.pretrain_steps * self.batch_size}@{self.model.image_size}"


@dataclass(frozen=True, kw_only=True)
class LabelledFacts:
    """What a grid must know of its labelled images."""

    source: str
    num_images: int
    num_classes: int
    num_test: int
    is_default: bool
    """Whether they are those that the settings were chosen for."""

    def count(self, size: str) -> int:
        """Return the number of images in a subset, e.g. 5/class."""
        subset = Subset.parse(size)
        assert not subset.per_class or isinstance(subset.amount, int)
        return count_images(subset.amount, self.num_images) * (self.num_classes if subset.per_class else 1)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A start on some labelled images, with one seed."""

    start: Start
    size: str
    num_images: int
    seed: int

    @property
    def folder(self) -> str:
        """Folder of its fine-tuning."""
        return f"{self.start.folder}-{self.num_images}-seed-{self.seed}"

    @property
    def pretrain_folder(self) -> str | None:
        """Folder of the run that it starts from; None for fresh weights."""
        if self.start.name != SCRATCH:
            return f"{self.start.folder}-seed-{self.seed}"
        return f"{self.folder}-before" if self.start.recipe else None  # the paper's run learns the same labels, at 224 pixels


GRIDS: dict[Scale, Grid] = {
    "tiny": Grid(
        starts=(
            Start(name=SCRATCH, finetune_rate=Rate(value=4e-3)),
            Start(name=MASKED, pretrain_rate=Rate(value=4e-3), finetune_rate=Rate(value=4e-3)),
            Start(name=LABELS, pretrain_rate=Rate(value=4e-3), finetune_rate=Rate(value=4e-3)),
        ),
        labelled=REAL_SET,
        sizes=("2/class", "5/class", "20/class"),
        seeds=(0,),
        model=tiny_vit(14, num_channels=1, patch_size=7, width=16, depth=1, num_heads=2),
        batch_size=20,
        pretrain_steps=20,
        finetune_steps=4,
        glyphs="classes=4,warp=0.1,noise=0.2",
        caution="This scale shows that everything works. Model, runs and images are far too small for a finding.",
    ),
    "small": Grid(
        starts=(
            Start(name=SCRATCH, finetune_rate=Rate(value=2e-3)),
            Start(name=MASKED, pretrain_rate=Rate(value=2e-3), finetune_rate=Rate(value=2e-3)),
            Start(name=LABELS, pretrain_rate=Rate(value=2e-3), finetune_rate=Rate(value=2e-3)),
        ),
        labelled=REAL_SET,
        sizes=("5/class", "20/class", "100/class"),
        seeds=(0, 1, 2),
        model=tiny_vit(28, num_channels=1, patch_size=4),
        pretrain_steps=2_048,
        finetune_steps=600,
        glyphs="classes=200,warp=0.2,noise=1.0",
        remark="Learning rates and target were set before any search, near those of other small recipes.",
    ),
    "paper": Grid(
        starts=(
            Start(name=SCRATCH, recipe="imagenet-vit-b16"),
            Start(name=MASKED, recipe="jft-masked-vit-b16"),
            Start(name=LABELS, recipe="jft-vit-b16"),
        ),
        labelled=IMAGENET,
        sizes=("1%", "10%", "all"),
        seeds=(0,),
        remark=(
            "Settings are those of tables 3 and 4 and of appendix B.1.2. All three starts are fine-tuned at 384 pixels; from "
            "scratch a model first learns the same labelled images at 224 pixels, for as many steps as on all of ImageNet. The "
            "paper reports all of ImageNet's labels alone."
        ),
    ),
}


def find_facts(grid: Grid, data: str | None) -> LabelledFacts:
    """Return what there is to know about the labelled images, from the data, or from the paper if ImageNet is not there.

    Raises ValueError if the data has no images to test on, or too few of a class for the largest subset.
    """
    try:
        dataset = find_data(data or grid.labelled)
    except FileNotFoundError:
        if data is not None or grid.labelled != IMAGENET:
            raise
        return LabelledFacts(
            source=IMAGENET,
            num_images=IMAGENET_IMAGES,
            num_classes=IMAGENET_CLASSES,
            num_test=IMAGENET_TEST,
            is_default=True,
        )
    check_splits(dataset)
    train = dataset.open_train()
    select_subset(train, grid.sizes[-1])
    return LabelledFacts(
        source=dataset.name,
        num_images=len(train),
        num_classes=len(train.class_names),
        num_test=len(dataset.open(choose_test_split(dataset))),
        is_default=data is None,
    )


def describe_choice(grid: Grid, facts: LabelledFacts) -> str:
    """Return the caution of a grid and how its settings were chosen: for its own images, or by the paper for all."""
    remark = grid.remark if facts.is_default or not grid.glyphs else OWN_REMARK
    return " ".join(filter(None, (grid.caution, remark)))


def list_cells(grid: Grid, facts: LabelledFacts, seeds: tuple[int, ...]) -> Iterator[Cell]:
    """Yield every start on every number of labelled images: first all of the first seed, the fewest images first."""
    for seed, size, start in product(sorted(seeds or grid.seeds), grid.sizes, grid.starts):
        yield Cell(start=start, size=size, num_images=facts.count(size), seed=seed)
