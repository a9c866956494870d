"""The recipes of the runs of `data-size`; those on all images are also those of `scaling`. No torch here."""

from dataclasses import replace
from typing import Any

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.evaluation.config import EvaluationConfig
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import SupervisedConfig
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.registry import RECIPES
from vitrine.studies.data_size_grid import PLAIN, REAL_SET, REGULARISATIONS, BaseGrid, Cell, DataFacts, Grid, GridModel
from vitrine.training.config import OptimConfig, ReportConfig

FINETUNE_SUBSET = "10/class"


def build_recipe(grid: BaseGrid, facts: DataFacts, cell: Cell) -> Recipe:
    """Build the recipe of one run. Only model, learning rate, regularisation, number of images and seed differ between runs."""
    is_paper = "recipe" in cell.model.settings
    recipe = build_paper_recipe(facts, cell.model) if is_paper else build_small_recipe(grid, facts, cell)
    data: dict[str, Any] = {"source": facts.source}
    if cell.num_images < facts.num_images:
        data["subset"] = str(cell.num_images)
    if facts.num_val == 0:
        data["held_out"] = grid.held_out
    if len(data) > 1:
        data["subset_seed"] = cell.seed  # both models of a pair see the same images
    evaluation = replace(recipe.evaluation, patience=0)  # train to the end, and keep the best weights
    return replace(recipe, data=replace(recipe.data, **data), evaluation=evaluation, seed=cell.seed)


def count_evaluated(grid: BaseGrid, facts: DataFacts, num_images: int) -> int:
    """Return how many images a run evaluates: those that choose its best weights several times, those of the test twice."""
    return grid.num_times * (facts.num_val or round(grid.held_out * num_images)) + 2 * facts.num_test


def build_small_recipe(grid: BaseGrid, facts: DataFacts, cell: Cell) -> Recipe:
    """Build a recipe that one core trains in minutes."""
    model, chosen = cell.model, REGULARISATIONS[cell.regularisation]
    assert model.learning_rate is not None
    dropout: dict[str, Any] = {"dropout_rate": chosen.dropout_rate} if model.has_dropout and chosen.dropout_rate > 0 else {}
    return Recipe(
        model=ModelSettings(**model.settings, **dropout, image_size=grid.image_size, num_channels=facts.num_channels),
        data=DataConfig(source=facts.source),
        loader=LoaderConfig(batch_size=grid.batch_size, num_workers=0),  # a run has one thread, and no further process
        augment=AugmentConfig(crop="none", flip=False),
        supervised=SupervisedConfig(label_smoothing=chosen.label_smoothing),
        optim=build_optim(model.learning_rate, grid.total_steps, chosen.weight_decay),
        total_steps=grid.total_steps,
        evaluation=EvaluationConfig(num_times=grid.num_times),
        report=build_report_config(grid.total_steps),
    )


def build_optim(learning_rate: float, total_steps: int, weight_decay: float) -> OptimConfig:
    """Build the settings of AdamW: a tenth of the run is warm-up."""
    return OptimConfig(learning_rate=learning_rate, weight_decay=weight_decay, warmup_steps=max(1, total_steps // 10))


def build_finetune_recipe(grid: Grid, cell: Cell) -> Recipe:
    """Build the recipe that fine-tunes the model of a run on ten of each handwritten digit, at its own resolution."""
    model = ModelSettings(checkpoint=cell.folder)  # the model of that run, when it is made
    data = DataConfig(source=REAL_SET, subset=FINETUNE_SUBSET, subset_seed=cell.seed, in_memory=True)
    return build_labelled_recipe(model, data, cell.model.finetune_rate, grid.finetune_steps, cell.seed)


def build_labelled_recipe(model: ModelSettings, data: DataConfig, learning_rate: float, total_steps: int, seed: int) -> Recipe:
    """Build the recipe that trains a model on few labelled images, in minutes on one core."""
    return Recipe(
        model=model,
        data=data,
        loader=LoaderConfig(batch_size=32, num_workers=0),
        augment=AugmentConfig(crop="pad", padding=2, flip=False),
        optim=build_optim(learning_rate, total_steps, REGULARISATIONS[PLAIN].weight_decay),
        total_steps=total_steps,
        evaluation=EvaluationConfig(num_times=0),  # few images leave none to choose the best weights on: the last are used
        report=build_report_config(total_steps),
        seed=seed,
    )


def build_report_config(total_steps: int) -> ReportConfig:
    """Build what a run logs: no page, of which a study has one for all; drawing takes as long as many steps."""
    return ReportConfig(every_steps=max(1, total_steps // 40), page=False)


def leave_out_page(report: ReportConfig) -> ReportConfig:
    """Return what a run of the paper logs, without a page."""
    return replace(report, page=False)


def build_paper_recipe(facts: DataFacts, model: GridModel) -> Recipe:
    """Build the recipe of table 3, as long on every number of images as on all."""
    changes = {name: value for name, value in model.settings.items() if name != "recipe"}
    recipe = with_changes(RECIPES[model.settings["recipe"]](), **({"model": changes} if changes else {}))
    assert recipe.epochs is not None
    total_steps = round(recipe.epochs * facts.num_images / recipe.loader.batch_size)
    return replace(recipe, epochs=None, total_steps=total_steps, report=leave_out_page(recipe.report))
