"""Time of masked patch prediction compared with the encoder alone: `python benchmarks/masked_patches.py`.

Forward and backward pass of ViT-Ti/16 at 224 pixels from bytes, for each of the three targets; the loss of the encoder alone is
the mean of its patch tokens. Drawing the masks and computing the targets are included. Takes a few minutes on two cores;
`--json FILE` saves the results.
"""

from dataclasses import asdict
from pathlib import Path
from typing import get_args

import torch
import tyro
from rich.console import Console

from measure import Step, build_table, compute_figures, measure
from vitrine.core.files import write_json
from vitrine.data.batch import Batch
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.models.registry import build_model
from vitrine.objectives.config import MaskedPatchesConfig, PatchTarget
from vitrine.objectives.masked_patches import MaskedPatches

ALONE = "encoder alone"
MAX_RATIOS: dict[str, float] = {"mean-colour": 1.05}  # by target, of the encoder's time
MODEL, IMAGE_SIZE = "ViT-Ti/16", (224, 224)


def main(rounds: int = 10, batch_size: int = 16, threads: int = 2, json: Path | None = None) -> None:
    """Measure the encoder alone and each target alternately; print and save the ratios."""
    if rounds < 2:
        raise SystemExit(f"--rounds {rounds} must be at least 2.")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    image = torch.randint(0, 256, (batch_size, 3, *IMAGE_SIZE), dtype=torch.uint8)
    batch = Batch(image, torch.zeros(batch_size, dtype=torch.int64), torch.arange(batch_size), step=0)
    title = f"masked patches: {MODEL} at {IMAGE_SIZE[0]}, batch {batch_size}"
    figures = compute_figures(measure(build_steps(batch), rounds, title), ALONE)
    console = Console()
    console.print(build_table(title, figures, ratio="ratio"))
    for figure in figures:
        if figure.name in MAX_RATIOS:
            limit = MAX_RATIOS[figure.name]
            verdict = "met" if figure.ratio <= limit else "missed"
            console.print(f"{figure.name}: {figure.ratio:.3f} times the encoder alone (needs <= {limit:g}: {verdict})")
    if json is not None:
        write_json(json, {"torch": torch.__version__, "threads": threads, "figures": [asdict(figure) for figure in figures]})


def build_steps(batch: Batch) -> dict[str, Step]:
    """Build one forward and backward pass of the encoder alone and of each prediction target."""
    preprocessing = build_inception_preprocessing(IMAGE_SIZE)
    encoder = build_model(MODEL, image_size=IMAGE_SIZE, num_classes=0, gelu="erf")

    def run_alone() -> None:
        encoder.zero_grad()
        encoder.encode(preprocessing.normalise(batch.image)).patches.mean().backward()

    def build(target: PatchTarget) -> Step:
        objective = MaskedPatches(encoder, preprocessing, MaskedPatchesConfig(target=target))

        def run() -> None:
            objective.zero_grad()
            objective(batch).loss.backward()

        return run

    return {ALONE: run_alone, **{target: build(target) for target in get_args(PatchTarget)}}


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
