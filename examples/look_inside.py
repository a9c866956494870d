"""Look inside a checkpoint: what it attends to, how far its heads look, and all the paper's figures of it on a page.

    python examples/look_inside.py [MODEL IMAGE OUT]

The page is OUT/index.html. Without arguments: a small ViT, and the image of a digit.
"""

import sys
from pathlib import Path

import vitrine
from small import train_small_model, write_small_folder
from vitrine.inspection.config import InspectConfig, RolloutConfig
from vitrine.inspection.inspect_model import inspect_model
from vitrine.inspection.report import write_inspection


def main(model: str, image: str, out: str) -> None:
    checkpoint = vitrine.load_checkpoint(model)
    found = inspect_model(checkpoint, [Path(image)], InspectConfig(), RolloutConfig())
    if found.distances is not None:  # a ResNet has no attention
        heat = found.rollouts[0]  # (rows, columns): how much of each patch there is in what comes out
        row, column = divmod(int(heat.argmax()), heat.shape[1])
        print(f"it looks most at row {row}, column {column} of its {heat.shape[0]} x {heat.shape[1]} patches")
        for layer, distances in enumerate(found.distances.among_patches):
            print(f"layer {layer}: heads look {distances.min():.1f} to {distances.max():.1f} pixels far")
    print(f"the page is {write_inspection(found, Path(out), title=model)}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), f"{write_small_folder()}/test/even/2-is-a-4.png", "runs/example-inside"]))
