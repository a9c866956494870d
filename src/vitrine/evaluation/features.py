"""Image features of a frozen model: their extraction, and a cache on disk.

Letters: B images of a batch, N in all, D features, K classes.

The cache finds features without reading any image: a fingerprint of the files (sizes, modification times) leads to the hash of
their content, which together with the hash of the model leads to the features. Copied or renamed images have the same content
hash, so their features are found too. Both files carry a checksum; a damaged one is made again.
"""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitrine.core.caches import cache_folder
from vitrine.core.checksums import seal, unseal
from vitrine.core.console import join_names, summarise_error, warn_user
from vitrine.core.files import atomic_file, make_folder
from vitrine.data.batch import Batch, copy_to_device
from vitrine.data.config import BadImages
from vitrine.data.scan import content_fingerprint, file_fingerprint
from vitrine.data.source import Source
from vitrine.evaluation.linear_heads import require_one_class_each
from vitrine.formats.checkpoint import compute_checksum

KEY = re.compile(r"[0-9a-f]{32}")
CHECKSUM_KEY = "vitrine_checksum"  # in the metadata of cached features
MAX_BYTES = 20 * 10**9  # of all cached features; the least recently used are deleted first


@dataclass(frozen=True)
class Features:
    """Features and labels of N images, one row for each, in the order of the batches."""

    values: Tensor
    """float32 (N, D) on the CPU; all finite."""
    labels: Tensor
    """int64 (N), or float (N, K) for images with several labels."""
    index: Tensor
    """int64 (N): index of each image in its source."""

    def __post_init__(self) -> None:
        shapes = [tuple(tensor.shape) for tensor in (self.values, self.labels, self.index)]
        if tuple(map(len, shapes)) not in ((2, 1, 1), (2, 2, 1)) or len({shape[0] for shape in shapes}) > 1:
            raise ValueError(f"values, labels, index have shapes {shapes}; expected (N, D), (N) or (N, K), and (N).")
        is_bad = ~self.values.isfinite().all(dim=1)
        if is_bad.any():
            where = f"{int(is_bad.sum())} of {len(self)} images (first: index {int(self.index[is_bad][0])})"
            raise ValueError(f"Features of {where} are not finite: check the model's weights, or use a higher precision.")

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class FeatureSplit:
    """Features to fit a classifier to, and features to test it on."""

    train: Features
    test: Features
    num_classes: int

    def __post_init__(self) -> None:
        require_one_class_each(self.train.labels, self.num_classes, "The training labels")
        require_one_class_each(self.test.labels, self.num_classes, "The test labels")
        if self.train.values.shape[1] != self.test.values.shape[1]:
            train, test = self.train.values.shape[1], self.test.values.shape[1]
            raise ValueError(f"Training images have {train} features and test images {test}: use one model for both.")


def extract_features(
    compute_features: Callable[[Tensor], Tensor],
    batches: Iterable[Batch],
    device: torch.device | str = "cpu",
    *,
    is_part: bool = False,
) -> Features:
    """Collect the features of all batches on the CPU; `compute_features` maps raw images on the device to (B, D).

    `is_part` says that other ranks have the rest of the images, so that there may be none here.
    """
    values, labels, index = list[Tensor](), list[Tensor](), list[Tensor]()
    for batch in batches:
        filled = batch.filled()
        with torch.no_grad():  # not inference_mode: a sharded model would keep its tensors for the next training step
            rows = compute_features(copy_to_device(filled.image, device))
        if rows.ndim != 2 or len(rows) != len(filled):
            raise ValueError(f"compute_features gave {tuple(rows.shape)} for {len(batch)} images; expected ({len(batch)}, D).")
        values.append(rows[: len(batch)].float().cpu())
        labels.append(batch.target.cpu())
        index.append(batch.index)
    if not index or (sum(map(len, index)) == 0 and not is_part):
        raise ValueError("There are no images to extract features from: check the data and its split.")
    return Features(values=torch.cat(values), labels=torch.cat(labels), index=torch.cat(index))


@dataclass(frozen=True)
class FeatureCache:
    """Features on disk, found by the content of model and images."""

    folder: Path

    def find(self, model_key: str, source: Source, bad_images: BadImages, compute: Callable[[], Features]) -> Features:
        """Return cached features, or compute and save them; `model_key` is `Engine.fingerprint()`, labels are the source's."""
        path = self.locate(model_key, source)
        cached = load_features(path, source)
        if cached is not None and (len(cached) == len(source) or bad_images == "skip"):
            with suppress(OSError):  # the cache may be read-only
                os.utime(path)
            if len(cached) < len(source):
                unread = sorted(set(range(len(source))) - set(cached.index.tolist()))
                warn_user(f"Skipped {join_names([source.name(index) for index in unread])}: cannot be read.")
            return cached
        computed = compute()
        self.save(path, {"values": computed.values.contiguous(), "index": computed.index})
        return computed

    def save(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Write features with their checksum, and delete others if there is not enough room."""
        metadata = {CHECKSUM_KEY: compute_checksum(tensors)}
        if self.write(path, lambda partial: save_file(tensors, partial, metadata)):
            self.make_room()

    def locate(self, model_key: str, source: Source) -> Path:
        """Return the file for the features of these images by this model."""
        fingerprint = file_fingerprint(source)
        pointer = None if fingerprint is None else self.folder / f"{fingerprint}.images"
        content_key = None if pointer is None else read_pointer(pointer)
        if content_key is None:
            content_key = content_fingerprint(source)
            if pointer is not None:
                self.write(pointer, lambda partial: partial.write_bytes(seal(content_key.encode())))
        return self.folder / f"{model_key}-{content_key}.safetensors"

    def write(self, path: Path, write: Callable[[Path], object]) -> bool:
        """Write a file of the cache; return False, with a warning, when that fails, e.g. because the disk is full."""
        try:
            make_folder(self.folder)
            with atomic_file(path, is_concurrent=True) as partial:
                write(partial)
        except (OSError, SafetensorError) as error:
            warn_user(f"Features could not be cached ({summarise_error(error)}).")
            return False
        return True

    def make_room(self) -> None:
        """Delete the least recently used features until the rest fit into MAX_BYTES."""
        with suppress(OSError):  # another process may be deleting too
            files = sorted(self.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
            total = sum(path.stat().st_size for path in files)
            for path in files[:-1]:
                if total <= MAX_BYTES:
                    break
                total -= path.stat().st_size
                path.unlink()


def open_feature_cache() -> FeatureCache:
    """Return the user's feature cache (VITRINE_CACHE/features)."""
    return FeatureCache(cache_folder("features"))


def read_pointer(path: Path) -> str | None:
    """Return the content hash that a pointer file holds; None if it is missing or damaged."""
    if not path.is_file():
        return None
    try:
        content = unseal(path.read_bytes()).decode()
        if not KEY.fullmatch(content):
            raise ValueError("it holds no key")
    except (OSError, ValueError) as error:
        warn_user(f"{path} is damaged ({summarise_error(error)}); reading the images again to find their features.")
        return None
    return content


def load_features(path: Path, source: Source) -> Features | None:
    """Read cached features and add the source's labels; None if the file is missing or damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            values, index = file.get_tensor("values"), file.get_tensor("index")
            metadata: dict[str, str] | None = file.metadata()  # None: from before there were checksums
        if metadata is not None and metadata.get(CHECKSUM_KEY) != compute_checksum({"values": values, "index": index}):
            raise ValueError("it does not match its checksum")
        labels = torch.from_numpy(source.labels.to_targets(index.numpy(), len(source.class_names)))
        return Features(values, labels, index)
    except (SafetensorError, KeyError, ValueError, OSError, IndexError) as error:
        warn_user(f"{path} is damaged ({summarise_error(error)}); computing the features again.")
        return None
