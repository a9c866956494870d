"""`vitrine inspect`: the paper's figures from any checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions
from vitrine.core.console import print_error, print_table, warn_user
from vitrine.core.files import make_folder
from vitrine.inspection.config import InspectConfig, RolloutConfig

if TYPE_CHECKING:
    from vitrine.inspection.inspect_model import Inspection
    from vitrine.objectives.masked_patches import MaskedPatches


def inspect(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGE|FOLDER ...")],
    out: Path,
    device: str | None = None,
    *,
    config: Annotated[InspectConfig, arg(name="")],
    rollout: RolloutConfig,
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Attention rollout and maps, attention distance, patch features, position embeddings and embedding filters.

    All of it is on one page, OUT/index.html, with the figures beside it and the numbers in numbers.json and arrays.npz. Of the
    model of a run of masked patch prediction (RUN/model) there is also what it was shown, and what it says.

    Args:
        model: A folder or file in any known format, or hf://org/name[@revision].
        images: Image files, and folders of them at any depth.
        out: The folder to write to.
        device: Where to compute, as cuda; a GPU where there is one, if you do not say.
    """
    if not images:
        raise ValueError("vitrine inspect MODEL IMAGE ..: no image was given, and files or folders of them were needed.")
    make_folder(out)

    from vitrine.core.runtime import choose_device
    from vitrine.inspection.inspect_model import inspect_model
    from vitrine.inspection.report import write_inspection

    chosen = choose_device(device)
    masked = load_masked(Path(model))
    found = inspect_model(checkpoint.load(model), images, config, rollout, chosen)
    page = write_inspection(found, out, model, None if masked is None else masked.to(chosen))
    print_distances(found)
    for reason in found.unreadable.values():
        print_error(reason)
    print(f"The page is {page}.")


def load_masked(model: Path) -> "MaskedPatches | None":
    """The objective that a model was trained by, if that was masked patch prediction and its run still has it."""
    from vitrine.objectives.masked_patches import MaskedPatches
    from vitrine.run.build import load_objective
    from vitrine.run.folder import RunFolder

    run = RunFolder(model.parent)
    is_run = model.is_dir() and run.recipe.is_file() and run.is_readable()
    if not is_run or run.read_recipe().objective != "masked-patches":
        return None
    if next(run.list_checkpoints(), None) is None:
        warn_user(f"{run.path} has no checkpoint any more, which has the prediction of masked patches: they are not drawn.")
        return None
    objective = load_objective(run.path)
    assert isinstance(objective, MaskedPatches)
    return objective


def print_distances(found: "Inspection") -> None:
    if found.distances is None:
        return
    rows = [
        (f"layer {layer}", f"{row.mean():.1f}", f"{row.min():.1f}", f"{row.max():.1f}")
        for layer, row in enumerate(found.distances.among_patches)
    ]
    print_table((f"attention distance, {found.distances.num_images} images", "mean of heads, px", "nearest", "furthest"), rows)
