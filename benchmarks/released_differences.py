"""How far our choices lie from the released code where we differ on purpose: the filter of resizing, the pool of BiT's root.

    python benchmarks/released_differences.py FOLDER [--every 5]

FOLDER holds photographs, at any depth. The released input pipelines resize bilinearly without antialiasing (TensorFlow), ours
with it (Pillow). BiT pads its first pool with zeros; big_vision's version of it does not. The ResNets have random weights.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from torch import Tensor
from torch.nn import functional as F

from parity import fill
from vitrine.core.console import print_table
from vitrine.data.image import read_image
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.models.registry import build_model

PREPROCESSING = build_inception_preprocessing((224, 224))
ENDINGS = (".jpg", ".jpeg", ".png")


def compare_filters(path: Path) -> tuple[float, float]:
    """Return the mean and the largest difference in levels of 255 between the two filters, from an image to 224 x 224."""
    image = read_image(path, 3)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
    without = F.interpolate(pixels, (224, 224), mode="bilinear", align_corners=False, antialias=False)[0]
    difference = (PREPROCESSING.prepare(image).float() - without).abs()
    return float(difference.mean()), float(difference.max())


@torch.no_grad()
def compare_paddings(name: str, images: Tensor) -> float:
    """Return the largest difference of the logits between the two paddings, over the largest logit."""
    logits: list[Tensor] = []
    for pool_padding in ("zeros", "none"):
        model = build_model(name, pool_padding=pool_padding).eval()
        fill(model)
        logits.append(model(PREPROCESSING.normalise(images)))
    return float((logits[0] - logits[1]).abs().max() / logits[0].abs().max())


def main(folder: Annotated[Path, tyro.conf.Positional], every: int = 5) -> None:
    """Print the differences."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)[::every]
    means, largest = zip(*map(compare_filters, paths), strict=True)
    rows = [["resize filters", f"mean {np.mean(means):.2f} of 255", f"largest {max(largest):.0f} ({len(paths)} photographs)"]]
    images = torch.stack([PREPROCESSING.load(path) for path in paths[:8]])
    rows += [
        [f"pool of {name}", f"{compare_paddings(name, images):.1e} of the largest logit", "8 photographs"]
        for name in ("R50x1", "R101x1")
    ]
    print_table(("difference", "size", "of"), rows)


if __name__ == "__main__":
    tyro.cli(main)
