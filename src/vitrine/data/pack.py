"""Decoding once: a data set's images, shrunk, as plain pixels in one file that is mapped into memory."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from vitrine.core.console import progress_bar
from vitrine.core.files import atomic_folder, write_json
from vitrine.data.config import BadImages
from vitrine.data.image import LazyImage
from vitrine.data.open_data import DatasetHandle
from vitrine.data.scan import map_images
from vitrine.data.source import Labels, PackedStrings, Source
from vitrine.data.sources.packed import DESCRIPTION, FORMAT, IMAGES, INDEX, OWN_FILES, Description, take_stamps
from vitrine.data.subsets import SubsetSource


@dataclass(frozen=True)
class PackedSplit:
    """One split as it was packed."""

    split: str | None
    source: Source
    """The images that are in, others having been skipped."""
    sizes: np.ndarray  # (N, 2) heights and widths
    num_skipped: int
    num_bytes: int
    seconds: float


def pack(
    data: DatasetHandle,
    out: Path,
    size: int,
    *,
    splits: Sequence[str] = (),
    num_channels: int = 3,
    bad_images: BadImages = "error",
    show_progress: bool = False,
) -> list[PackedSplit]:
    """Write the data, or some of its splits, to `out`: images with a short side above `size` shrunk to it, none enlarged."""
    if size < 1:
        raise ValueError(f"size={size} must be at least 1: the short side of the images, in pixels.")
    require_outside(out, data)
    sources = {split: data.open(split) for split in splits or data.splits or (None,)}
    require_like_labels(sources)
    stamps = take_stamps(data.name, sorted({file for source in sources.values() for file in source.files()}))
    packed = []
    with atomic_folder(out, OWN_FILES) as folder:
        with open(folder / IMAGES, "wb") as file:
            for split, source in sources.items():
                packed.append(write_split(split, source, file, size, num_channels, bad_images, show_progress))
        np.savez(folder / INDEX, **build_index(packed, num_channels))  # pyright: ignore[reportArgumentType]
        write_json(folder / DESCRIPTION, asdict(build_pack_description(packed, size, num_channels, data, stamps)))
    return packed


def require_outside(out: Path, data: DatasetHandle) -> None:
    """Or the data would change by being packed."""
    folder = Path(data.name).resolve()
    if folder.is_dir() and out.resolve().is_relative_to(folder):
        raise ValueError(f"{out} lies in {data.name}, which is to be packed: write it somewhere else.")


def require_like_labels(sources: dict[str | None, Source]) -> None:
    """One packed set has one list of classes, and labels of one form."""
    if len({source.class_names for source in sources.values()}) > 1:
        names = " and ".join(str(split) for split in sources)
        raise ValueError(f"The splits {names} do not have the same classes, as one packed set needs: pack them one by one.")
    several = [str(split) for split, source in sources.items() if source.labels.has_several]
    if several and len(several) < len(sources):
        raise ValueError(
            f"The images of {' and '.join(several)} have several labels each and those of the other splits one, which one "
            "packed set cannot hold: name the splits to pack."
        )


def write_split(
    split: str | None,
    source: Source,
    file: BinaryIO,
    size: int,
    num_channels: int,
    bad_images: BadImages,
    show_progress: bool,
) -> PackedSplit:
    start_s, start_byte = time.perf_counter(), file.tell()
    good, sizes = [], []
    images = map_images(source, lambda image: shrink(image, size, num_channels), bad_images)
    for index, pixels in progress_bar(images, len(source), split or "packing", show_progress):
        file.write(pixels.data)
        good.append(index)
        sizes.append(pixels.shape[:2])
    if not good:
        raise ValueError(f"None of the {len(source)} images of {split or 'the data'} can be read: fetch them again.")
    return PackedSplit(
        split=split,
        source=source if len(good) == len(source) else SubsetSource(source, np.array(good, np.int64)),
        sizes=np.array(sizes, np.int64).reshape(-1, 2),
        num_skipped=len(source) - len(good),
        num_bytes=file.tell() - start_byte,
        seconds=time.perf_counter() - start_s,
    )


def shrink(image: LazyImage, size: int, num_channels: int) -> np.ndarray:
    """Pixels (H, W, C) with the short side at most `size`, the aspect kept."""
    short = min(image.height, image.width)
    if short <= size:
        return np.ascontiguousarray(image.to_numpy(num_channels))
    height, width = (max(1, round(side * size / short)) for side in (image.height, image.width))
    pixels = image.to_numpy(num_channels, at_least=(height, width))
    whole = Image.fromarray(pixels[..., 0] if num_channels == 1 else pixels)
    return np.asarray(whole.resize((width, height), Image.Resampling.BICUBIC)).reshape(height, width, num_channels)


def build_index(packed: list[PackedSplit], num_channels: int) -> dict[str, np.ndarray]:
    heights, widths = np.concatenate([part.sizes for part in packed]).T
    lengths = heights * widths * num_channels
    names = PackedStrings.pack(part.source.name(index) for part in packed for index in range(len(part.sizes)))
    index = {
        "offsets": np.cumsum(lengths) - lengths,
        "heights": heights,
        "widths": widths,
        "name_starts": names.starts,
        "name_bytes": names.text,
    }
    labels = Labels.concatenate([part.source.labels for part in packed])
    return index | {"labels": labels.values} | ({} if labels.starts is None else {"label_starts": labels.starts})


def build_pack_description(
    packed: list[PackedSplit], size: int, num_channels: int, data: DatasetHandle, stamps: dict[str, list[int]]
) -> Description:
    ends = np.cumsum([0, *(len(part.sizes) for part in packed)]).tolist()
    return Description(
        format=FORMAT,
        num_images=ends[-1],
        num_bytes=sum(part.num_bytes for part in packed),
        num_channels=num_channels,
        size=size,
        class_names=list(packed[0].source.class_names),
        splits={part.split: [*ends[number : number + 2]] for number, part in enumerate(packed) if part.split is not None},
        data=os.path.abspath(data.name) if os.path.exists(data.name) else data.name,
        stamps=stamps,
    )
