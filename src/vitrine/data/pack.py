"""Write the packed format: decode a dataset once and store it resized, as plain pixels in one memory-mapped file."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitrine.core.checksums import CrcWriter, hash_bytes
from vitrine.core.console import progress_bar
from vitrine.core.files import atomic_folder, write_json
from vitrine.data.config import BadImages
from vitrine.data.image import LazyImage
from vitrine.data.open_data import DataLike, find_data
from vitrine.data.scan import map_images
from vitrine.data.source import Labels, PackedStrings, Source
from vitrine.data.sources.packed import DESCRIPTION, FORMAT_VERSION, IMAGES, INDEX, OWN_FILES, PackDescription, take_stamps
from vitrine.data.subsets import SubsetSource


@dataclass(frozen=True)
class PackedSplit:
    """What was packed of one split."""

    split: str | None
    source: Source
    """The packed images, without skipped ones."""
    sizes: np.ndarray  # (N, 2) heights and widths
    num_skipped: int
    num_bytes: int
    seconds: float


def pack_data(
    data: DataLike,
    out: str | Path,
    size: int,
    *,
    splits: Sequence[str] = (),
    num_channels: int = 3,
    bad_images: BadImages = "error",
    show_progress: bool = False,
) -> list[PackedSplit]:
    """Write a dataset, its short sides resized to at most `size`, to the folder `out`: what `vitrine data pack` does."""
    if size < 1:
        raise ValueError(f"size={size} must be at least 1: the short side of the images, in pixels.")
    dataset, out = find_data(data), Path(out)
    folder = Path(dataset.name).resolve()
    if folder.is_dir() and out.resolve().is_relative_to(folder):
        raise ValueError(f"{out} is inside {dataset.name}, which is to be packed: choose a folder outside of it.")
    sources = {split: dataset.open(split) for split in splits or dataset.splits or (None,)}
    require_equal_classes(sources)
    stamps = take_stamps(dataset.name, sorted({file for source in sources.values() for file in source.files()}))
    packed = []
    with atomic_folder(out, OWN_FILES) as folder:
        with open(folder / IMAGES, "wb") as file:
            images = CrcWriter(file)
            for split, source in sources.items():
                packed.append(write_split(split, source, images, size, num_channels, bad_images, show_progress))
        np.savez(folder / INDEX, **build_index(packed, num_channels))  # pyright: ignore[reportArgumentType]
        description = build_pack_description(packed, size, num_channels, dataset.name, stamps)
        description = description.with_checksums(images.checksum(), hash_bytes((folder / INDEX).read_bytes()))
        write_json(folder / DESCRIPTION, asdict(description))
    return packed


def require_equal_classes(sources: dict[str | None, Source]) -> None:
    """Raise ValueError if splits differ in their classes, or in whether images have several labels."""
    if len({source.class_names for source in sources.values()}) > 1:
        names = " and ".join(str(split) for split in sources)
        raise ValueError(f"The splits {names} do not have the same classes: pack them one by one.")
    several = [str(split) for split, source in sources.items() if source.labels.has_several]
    if several and len(several) < len(sources):
        names = " and ".join(several)
        raise ValueError(f"Images of {names} have several labels, those of the other splits one: choose the splits to pack.")


def write_split(
    split: str | None,
    source: Source,
    file: CrcWriter,
    size: int,
    num_channels: int,
    bad_images: BadImages,
    show_progress: bool,
) -> PackedSplit:
    """Append the resized images of one split to `file`."""
    start_s, start_byte = time.perf_counter(), file.num_bytes
    good, sizes = [], []
    images = map_images(source, lambda image: resize_to_short_side(image, size, num_channels), bad_images)
    for index, pixels in progress_bar(images, len(source), split or "packing", show_progress):
        file.write(pixels.data)
        good.append(index)
        sizes.append(pixels.shape[:2])
    if not good:
        raise ValueError(f"None of the {len(source)} images of {split or 'the data'} can be read: check the files.")
    return PackedSplit(
        split=split,
        source=source if len(good) == len(source) else SubsetSource(source, np.array(good, np.int64)),
        sizes=np.array(sizes, np.int64).reshape(-1, 2),
        num_skipped=len(source) - len(good),
        num_bytes=file.num_bytes - start_byte,
        seconds=time.perf_counter() - start_s,
    )


def resize_to_short_side(image: LazyImage, size: int, num_channels: int) -> np.ndarray:
    """Return pixels (H, W, C) with the short side at most `size` and the aspect ratio kept."""
    short = min(image.height, image.width)
    if short <= size:
        return np.ascontiguousarray(image.to_numpy(num_channels))
    height, width = (max(1, round(side * size / short)) for side in (image.height, image.width))
    pixels = image.to_numpy(num_channels, at_least=(height, width))
    whole = Image.fromarray(pixels[..., 0] if num_channels == 1 else pixels)
    return np.asarray(whole.resize((width, height), Image.Resampling.BICUBIC)).reshape(height, width, num_channels)


def build_index(packed: list[PackedSplit], num_channels: int) -> dict[str, np.ndarray]:
    """Return the arrays of index.npz."""
    heights, widths = np.concatenate([part.sizes for part in packed]).T
    lengths = heights * widths * num_channels
    names = PackedStrings.pack(part.source.name(index) for part in packed for index in range(len(part.sizes)))
    labels = Labels.concatenate([part.source.labels for part in packed])
    index = {"offsets": np.cumsum(lengths) - lengths, "heights": heights, "widths": widths}
    index |= {"name_starts": names.starts, "name_bytes": names.text, "labels": labels.values}
    return index if labels.starts is None else index | {"label_starts": labels.starts}


def build_pack_description(
    packed: list[PackedSplit], size: int, num_channels: int, data: str, stamps: dict[str, list[int]]
) -> PackDescription:
    """Return the content of pack.json."""
    ends = np.cumsum([0, *(len(part.sizes) for part in packed)]).tolist()
    return PackDescription(
        format=FORMAT_VERSION,
        num_images=ends[-1],
        num_bytes=sum(part.num_bytes for part in packed),
        num_channels=num_channels,
        size=size,
        class_names=list(packed[0].source.class_names),
        splits={part.split: [*ends[number : number + 2]] for number, part in enumerate(packed) if part.split is not None},
        data=os.path.abspath(data) if os.path.exists(data) else data,
        stamps=stamps,
    )
