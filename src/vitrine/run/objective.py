"""What a run trains: the objective of its recipe, made new or as a run left it."""

from pathlib import Path

from vitrine.formats.checkpoint import Checkpoint
from vitrine.objectives.masked_patches import MaskedPatches
from vitrine.objectives.objective import Objective
from vitrine.objectives.supervised import Supervised
from vitrine.recipe import Recipe
from vitrine.run.folder import RunFolder
from vitrine.train.state import select_beside


def build_objective(recipe: Recipe, start: Checkpoint) -> Objective:
    if recipe.objective == "masked-patches":
        return MaskedPatches(start.model, start.preprocessing, recipe.masked_patches, recipe.seed)
    mixing = recipe.mixing if recipe.mixing.is_on else None
    return Supervised(start.model, start.preprocessing, recipe.supervised, mixing, recipe.seed)


def load_objective(out: str | Path) -> Objective:
    """Of the last checkpoint of the run in `out`, with the weights that its model comes without, as those of a prediction."""
    folder = RunFolder(Path(out))
    if not folder.recipe.is_file():
        raise FileNotFoundError(
            f"{out} is no folder of a run, and one with its recipe.json was needed: give `vitrine train`'s --out."
        )
    saved = folder.find_last()
    if saved is None:
        raise FileNotFoundError(f"{out} has no checkpoint yet: let `vitrine train` go on until it has saved one.")
    objective = build_objective(folder.read_recipe(), saved.checkpoint)
    objective.load_state_dict({**objective.state_dict(), **select_beside(saved.training)})
    return objective.eval()
