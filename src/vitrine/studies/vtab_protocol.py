"""What every task of VTAB is trained with: the paper's one setting, what departs from it, and what a sweep tries instead.

Table 4 and appendix B.1.1 of arXiv:2010.11929. No torch here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from vitrine.data.sources.vtab import WHOLE
from vitrine.recipe import FREE, Recipe, list_fields, with_changes
from vitrine.recipes.finetune import Transfer, vtab
from vitrine.studies.config import LENGTH_FACTORS, RATE_FACTORS, VtabConfig
from vitrine.studies.vtab_survey import NUM_IMAGES, FoundTask

# Where a run's images are read from and how is no part of the protocol; the rest of `data` is set task by task.
NO_PROTOCOL = (*FREE, "seed", "data")
OF_TASKS = ("source", "split", "subset", "subset_seed", "exclude", "held_out")


@dataclass(frozen=True)
class Setting:
    learning_rate: float
    total_steps: int

    def __str__(self) -> str:
        return f"rate-{self.learning_rate:g}-steps-{self.total_steps}"


def build_protocol(model: str, root: str) -> Recipe:
    """The paper's setting (table 4), in which nothing is watched on the way: all 1000 images are trained on."""
    transfer = Transfer(checkpoint=model, source=root, num_images=NUM_IMAGES, image_area=0, num_classes=0)
    return with_changes(vtab(transfer), evaluation={"num_times": 0})


def check_recipe(recipe: Recipe, protocol: Recipe) -> None:
    """No field was set in vain, or against what makes a task one of VTAB's."""
    for name in OF_TASKS:
        if getattr(recipe.data, name) != getattr(protocol.data, name):
            raise ValueError(f"data.{name} is set for each task by VTAB itself: leave it out.")
    if recipe.evaluation.num_times != 0 or not recipe.evaluation.test:
        raise ValueError("VTAB trains on all images that could be watched, and measures once on test: leave evaluation.* out.")
    if recipe.objective != "supervised" or recipe.total_steps is None or recipe.epochs is not None:
        raise ValueError("VTAB needs the supervised objective and a length in steps, as total_steps=2500: leave others out.")


def list_departures(recipe: Recipe, protocol: Recipe, config: VtabConfig, found: Sequence[FoundTask] = ()) -> list[str]:
    """In words, every setting that is not the paper's, and every task that has fewer images than it should."""
    usual = dict(list_fields(protocol.to_json()))
    return [
        *([] if config.test_images is None else [f"at most {config.test_images} test images instead of all"]),
        *([describe_sweep(list_settings(recipe, config))] if config.sweep else []),
        *(
            f"{name} {value} instead of {usual[name]}"
            for name, value in list_fields(recipe.to_json())
            if value != usual[name] and not any(name == free or name.startswith(f"{free}.") for free in NO_PROTOCOL)
        ),
        *(
            f"{each.task.name} with {each.num_train_images} images to learn from instead of {NUM_IMAGES:,}"
            for each in found
            if each.num_train_images < NUM_IMAGES
        ),
    ]


def describe_sweep(settings: Sequence[Setting]) -> str:
    """The paper does not name what it chose from."""
    rates = dict.fromkeys(f"{each.learning_rate:g}" for each in settings)
    lengths = dict.fromkeys(f"{each.total_steps:,}" for each in settings)
    return f"chosen from the rates {', '.join(rates)} and {', '.join(lengths)} steps, which the paper does not name"


def build_task_recipe(recipe: Recipe, found: FoundTask, split: str = WHOLE) -> Recipe:
    """The setting on the images of a task, without what would change its labels."""
    augment = {"flip": recipe.augment.flip and found.task.flip}
    if not found.task.crop:
        augment |= {"crop": "none", "resize": None}
    return with_changes(recipe, data={"source": found.source, "split": split}, augment=augment)


def list_settings(recipe: Recipe, config: VtabConfig) -> list[Setting]:
    """Two rates and two lengths, unless others were given."""
    assert recipe.total_steps is not None
    rate, total_steps = recipe.optim.learning_rate, recipe.total_steps
    rates = config.rates or tuple(float(f"{rate * factor:.6g}") for factor in RATE_FACTORS)
    lengths = config.lengths or tuple(max(1, round(total_steps * factor)) for factor in LENGTH_FACTORS)
    return [Setting(rate, length) for rate, length in product(rates, lengths)]


def apply_setting(recipe: Recipe, setting: Setting) -> Recipe:
    """Warm-up takes the same share of the run as it did."""
    assert recipe.total_steps is not None
    warmup_steps = round(recipe.optim.warmup_steps * setting.total_steps / recipe.total_steps)
    optim = replace(recipe.optim, learning_rate=setting.learning_rate, warmup_steps=warmup_steps)
    return replace(recipe, optim=optim, total_steps=setting.total_steps)
