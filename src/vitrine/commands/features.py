"""`vitrine features`: extract image features to an .npz file."""

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions
from vitrine.core.console import print_error, print_lines
from vitrine.core.files import check_output_files
from vitrine.evaluation.config import InferenceConfig


def features(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[str], arg(metavar="DATA")],
    out: Path,
    split: str | None = None,
    no_cache: bool = False,
    device: str | None = None,
    *,
    inference: Annotated[InferenceConfig, arg(name="")],
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Extract the features that a model's head reads, for every image, to .npz.

    Arrays: features float32 (N, D); labels int64 (N), or float32 (N, K) for images with several labels; names of the images
    (N); class_names (K); and splits (N), if the data has splits. Exits with status 1 if --bad-images skip left out some.

    Args:
        model: Checkpoint folder or file in any known format, or hf://org/name[@revision].
        data: Images, with or without labels.
        out: The .npz file to write.
        split: Split to use (default: all).
        no_cache: Compute the features again, and do not cache them.
        device: Device, e.g. cuda (default: GPU if available).
    """
    if out.suffix != ".npz":
        raise ValueError(f"--out {out} must end with .npz.")
    check_output_files(out)
    loaded = checkpoint.load(model)

    from vitrine.evaluation.predictor import features as extract

    result = extract(loaded, data, split, device=device, inference=inference, use_cache=not no_cache)
    result.save(out)
    print_lines(f"{out}: {len(result.features):,} images, {result.features.shape[1]} features")
    if result.num_skipped:
        print_error(f"Could not read {result.num_skipped:,} of {len(result.features) + result.num_skipped:,} images.")
        sys.exit(1)
