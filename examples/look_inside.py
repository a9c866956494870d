"""Inspect a checkpoint: where it attends, how far its heads look, and the paper's figures on one page.

    python examples/look_inside.py [MODEL IMAGE OUT]

The page is OUT/index.html. Without arguments: a small ViT, and the image of a digit.
"""

import sys
from pathlib import Path

import vitrine
from small import train_small_model, write_small_folder


def main(model: str, image: str, out: str) -> None:
    inspection = vitrine.inspect(model, [image])
    if inspection.attention is not None:  # a ResNet has none
        heat = inspection.attention.rollouts[0]  # (rows, columns): contribution of each patch to the output
        row, column = divmod(int(heat.argmax()), heat.shape[1])
        print(f"most attention at row {row}, column {column} of {heat.shape[0]} x {heat.shape[1]} patches")
        for layer, distances in enumerate(inspection.attention.distances.among_patches):
            print(f"layer {layer}: mean attention distance of its heads {distances.min():.1f} to {distances.max():.1f} pixels")
    print(f"the page is {vitrine.write_inspection(inspection, Path(out), title=model)}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [train_small_model(), f"{write_small_folder()}/test/even/2-is-a-4.png", "runs/example-inside"]))
