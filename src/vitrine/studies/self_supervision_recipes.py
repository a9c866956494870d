"""The recipes of the runs of `self-supervision`. No torch here."""

from dataclasses import replace

from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig
from vitrine.data.sources.glyphs import NUM_HELD_OUT
from vitrine.evaluation.config import EvaluationConfig
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import MaskedPatchesConfig
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.finetune import FinetuneTask, imagenet
from vitrine.recipes.registry import RECIPES
from vitrine.studies.data_size_grid import JFT_IMAGES, PLAIN, REGULARISATIONS
from vitrine.studies.data_size_recipes import build_labelled_recipe, build_optim, build_report_config, leave_out_page
from vitrine.studies.self_supervision_grid import MASKED, SCRATCH, Cell, Grid, LabelledFacts, Start

ONCE = EvaluationConfig(num_times=1, test=False)  # at the end of pre-training, to show what it has reached
JFT_HELD_OUT = 0.001


def build_pretrain_recipe(grid: Grid, facts: LabelledFacts, cell: Cell) -> Recipe:
    """Build the recipe of the run that a cell starts from."""
    if cell.start.recipe:
        return build_paper_recipe(facts, cell)
    return build_glyph_recipe(grid, cell.start, cell.seed)


def build_glyph_recipe(grid: Grid, start: Start, seed: int) -> Recipe:
    """Build the recipe of pre-training on generated images. Only objective and learning rate differ between starts."""
    assert grid.model is not None
    assert start.pretrain_rate is not None
    is_masked = start.name == MASKED
    return Recipe(
        model=grid.model,
        data=DataConfig(source=grid.pretrain_source),
        loader=LoaderConfig(batch_size=grid.batch_size, num_workers=0),
        augment=AugmentConfig(crop="none", flip=False),
        objective="masked-patches" if is_masked else "supervised",
        masked_patches=MaskedPatchesConfig(target=grid.target) if is_masked else MaskedPatchesConfig(),
        optim=build_optim(start.pretrain_rate.value, grid.pretrain_steps, REGULARISATIONS[PLAIN].weight_decay),
        total_steps=grid.pretrain_steps,
        evaluation=ONCE,
        report=build_report_config(grid.pretrain_steps),
        seed=seed,
    )


def build_finetune_recipe(grid: Grid, facts: LabelledFacts, cell: Cell) -> Recipe:
    """Build the recipe that trains on the labelled images of a cell; the images are the same for every start."""
    if cell.start.recipe:
        return build_table4_recipe(facts, cell)
    assert grid.model is not None
    assert cell.start.finetune_rate is not None
    data = DataConfig(source=facts.source, subset=cell.size, subset_seed=cell.seed, in_memory=facts.is_default)
    model = grid.model if cell.pretrain_folder is None else ModelSettings(checkpoint=cell.pretrain_folder)
    return build_labelled_recipe(model, data, cell.start.finetune_rate.value, grid.finetune_steps, cell.seed)


def build_paper_recipe(facts: LabelledFacts, cell: Cell) -> Recipe:
    """Build the recipe of table 3, or of appendix B.1.2; from scratch it is as long on some labelled images as on all."""
    recipe = RECIPES[cell.start.recipe]()
    is_scratch = cell.start.name == SCRATCH
    data = select_labelled(recipe.data, facts, cell) if is_scratch else replace(recipe.data, held_out=JFT_HELD_OUT)
    total_steps = recipe.compute_total_steps(facts.num_images if is_scratch else JFT_IMAGES)
    report = leave_out_page(recipe.report)
    return replace(recipe, data=data, epochs=None, total_steps=total_steps, evaluation=ONCE, report=report, seed=cell.seed)


def build_table4_recipe(facts: LabelledFacts, cell: Cell) -> Recipe:
    """Build table 4's fine-tuning on ImageNet, at 384 pixels."""
    assert cell.pretrain_folder is not None
    recipe = imagenet(FinetuneTask(cell.pretrain_folder, facts.source, cell.num_images, facts.num_classes))
    data = select_labelled(recipe.data, facts, cell)
    recipe = replace(recipe, data=data, report=leave_out_page(recipe.report), seed=cell.seed)
    return with_changes(recipe, evaluation={"num_times": 0})


def select_labelled(data: DataConfig, facts: LabelledFacts, cell: Cell) -> DataConfig:
    """Return a data config with the labelled images of a cell."""
    subset_seed = cell.seed if cell.num_images < facts.num_images else 0  # of all images there is nothing to draw
    return replace(data, source=facts.source, subset=cell.size, subset_seed=subset_seed)


def count_evaluated(facts: LabelledFacts, recipe: Recipe) -> int:
    """Return how many images a run evaluates: pre-training those of the split val once, fine-tuning those of the test twice."""
    if recipe.evaluation.test:
        return 2 * facts.num_test
    return NUM_HELD_OUT if recipe.data.source.startswith("glyphs") else 0
