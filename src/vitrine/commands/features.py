"""`vitrine features`: what a frozen model makes of images, as arrays in a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions
from vitrine.core.files import atomic_file, check_output_file
from vitrine.data.dataset_format import normalise_split
from vitrine.evaluation.config import InferenceConfig

if TYPE_CHECKING:
    from vitrine.data.open_data import DatasetHandle
    from vitrine.data.source import Source


def features(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    data: Annotated[Positional[str], arg(metavar="DATA")],
    out: Path,
    split: str | None = None,
    no_cache: bool = False,
    device: str | None = None,
    *,
    reading: Annotated[InferenceConfig, arg(name="")],
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """The features that a model's head reads, of every image, as .npz.

    Arrays: features float32 (N, D); labels int64 (N), or float32 (N, K) where images have several; names of the images (N);
    class_names (K); and splits (N), where the data is divided.

    Args:
        model: A folder or file in any known format, or hf://org/name[@revision].
        data: Images, with or without labels.
        out: The .npz file to write.
        split: Which part of the data; all of it, if you do not say.
        no_cache: Compute the features anew, and do not keep them.
        device: Where to compute, as cuda; a GPU where there is one, if you do not say.
    """
    if out.suffix != ".npz":
        raise ValueError(f"--out {out} must end with .npz, the only form that is written: rename it.")
    check_output_file(out)

    import numpy as np

    from vitrine.core.runtime import choose_device
    from vitrine.data.open_data import find_data
    from vitrine.evaluation.features import open_feature_cache
    from vitrine.evaluation.predictor import featurise_images

    found, chosen = find_data(data), choose_device(device)
    cache = None if no_cache else open_feature_cache()
    sources = open_splits(found, split)
    loaded = checkpoint.load(model)
    columns: dict[str, list[Any]] = {"features": [], "labels": [], "names": [], "splits": []}
    for name, source in sources.items():
        rows = featurise_images(loaded, source, reading, chosen, cache, f"features {name}".strip())
        columns["features"].append(rows.values.numpy())
        columns["labels"].append(rows.labels.numpy())
        columns["names"].append(np.array([source.name(index) for index in rows.index.tolist()]))
        columns["splits"].append(np.full(len(rows), name))
    arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
    if not found.splits:
        del arrays["splits"]
    class_names = next(iter(sources.values())).class_names
    arrays["class_names"] = np.array(class_names, dtype=str)
    with atomic_file(out) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]  (an array is taken for its flag)
    print(f"{out}: {arrays['features'].shape[0]:,} images, {arrays['features'].shape[1]} features")


def open_splits(data: "DatasetHandle", split: str | None) -> "dict[str, Source]":
    """The one that was named, or all; what is not divided has an empty name."""
    if not data.splits:
        return {"": data.open(split)}
    named = None if split is None else split if split in data.splits else normalise_split(split) or split
    sources = {name: data.open(name) for name in (data.splits if named is None else (named,))}
    if len({source.labels.has_several for source in sources.values()}) > 1:
        raise ValueError(
            f"{data.name} has splits with one label for each image and others with several ({', '.join(sources)}), which no "
            "array holds together: name one by --split."
        )
    return sources
