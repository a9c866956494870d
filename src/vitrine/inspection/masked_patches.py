"""What masked patch prediction makes of images: what the network was shown, what it had to say, what it said."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrine.core.figures import save_figure
from vitrine.data.batch import Batch
from vitrine.inspection.pictures import get_aspect, make_panels, show
from vitrine.models.patches import cut_patches, join_patches
from vitrine.objectives.masked_patches import MaskedPatches, expand, to_byte_range

GREY = 127.0  # where a patch was masked


@dataclass(frozen=True)
class MaskedPictures:
    """Bytes (B, H, W, C) each, in the size that the network sees."""

    image: np.ndarray
    shown: np.ndarray
    """Masked patches grey, replaced ones as the patches that they were replaced by."""
    target: np.ndarray
    """The image, with what was to be predicted in place of the corrupted patches."""
    prediction: np.ndarray


def picture_masked_patches(objective: MaskedPatches, batch: Batch) -> MaskedPictures:
    """The patches that a training step would corrupt in these images, in this step."""
    corruption = objective.draw(batch)
    with torch.no_grad():
        answers = objective.target.answer(objective.predict(batch.image, corruption))
        targets = objective.read_targets(batch.image, corruption.places)
        patches = cut_patches(to_byte_range(batch.image), objective.patch_size)
        shown = corruption.apply(patches, torch.full_like(patches[0, 0], GREY))
        places = expand(corruption.places, patches)
        target, prediction = (patches.scatter(1, places, objective.render(each)) for each in (targets, answers))

    def join(each: Tensor) -> np.ndarray:
        images = join_patches(each, objective.encoder.config.grid, objective.patch_size)
        return images.round().byte().permute(0, 2, 3, 1).cpu().numpy()

    return MaskedPictures(join(patches), join(shown), join(target), join(prediction))


def draw_masked_patches(pictures: MaskedPictures, path: Path, names: Sequence[str] = ()) -> None:
    """A row for each image, written as PNG."""
    columns = {
        "image": pictures.image,
        "shown": pictures.shown,
        "to be predicted": pictures.target,
        "predicted": pictures.prediction,
    }
    figure, panels = make_panels(len(pictures.image), len(columns), get_aspect(pictures.image[0]))
    for column, (title, images) in enumerate(columns.items()):
        panels[0, column].set_title(title, fontsize=10)
        for row, image in enumerate(images):
            show(panels[row, column], image)
    for row, name in enumerate(names):
        panels[row, 0].set_ylabel(name, fontsize=9, parse_math=False)
    save_figure(figure, path)
