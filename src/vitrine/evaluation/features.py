"""Features, FeatureSplit, extraction, cache.

What a frozen model makes of images: one row of features for each, with its label, for everything that is fitted to them.

Letters: B images of a batch, N in all, D features, K classes.
Features that were computed once, on disk, by the content of model and images: for whoever needs them next.

Two steps lead to them, so that finding them takes no reading of images: what the disk says of the files leads to the key of
their content, and this one, with the model's, to the features. Images that were copied or renamed are found by the second.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrine.core.console import join_names, summarise_error, warn_user
from vitrine.core.files import atomic_file, find_cache_folder, make_folder
from vitrine.data.batch import Batch
from vitrine.data.config import BadImages
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.scan import content_fingerprint, file_fingerprint
from vitrine.data.source import Source
from vitrine.evaluation.linear_heads import require_one_class_each
from vitrine.formats.checkpoint import Checkpoint, compute_checksum
from vitrine.models.model import Model
from vitrine.models.registry import config_to_json

Featurise = Callable[[Tensor], Tensor]  # from raw images, as in `Batch.image`, to features (B, D)


@dataclass(frozen=True)
class Features:
    """Rows in the order of the batches."""

    values: Tensor
    """float32 (N, D), on the processor; all finite."""
    labels: Tensor
    """int64 (N), or float (N, K) where images have several."""
    index: Tensor
    """int64 (N): the number of each image in its source."""

    def __post_init__(self) -> None:
        shapes = [tuple(tensor.shape) for tensor in (self.values, self.labels, self.index)]
        if tuple(map(len, shapes)) not in ((2, 1, 1), (2, 2, 1)) or len({shape[0] for shape in shapes}) > 1:
            raise ValueError(
                f"values, labels and index have shapes {', '.join(map(str, shapes))}, and (N, D), (N) or (N, K), and (N) with "
                "the same N were needed: give one row for each image."
            )
        is_bad = ~self.values.isfinite().all(dim=1)
        if is_bad.any():
            raise ValueError(
                f"The features of {int(is_bad.sum())} of {len(self)} images (the first has index "
                f"{int(self.index[is_bad][0])}) are infinite or not a number, and finite ones were needed: check the model's "
                "weights, or compute in higher precision."
            )

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class FeatureSplit:
    """To fit something to, and to measure it on."""

    train: Features
    test: Features
    num_classes: int

    def __post_init__(self) -> None:
        require_one_class_each(self.train.labels, self.num_classes, "The labels to train on")
        require_one_class_each(self.test.labels, self.num_classes, "The labels to test on")
        if self.train.values.shape[1] != self.test.values.shape[1]:
            raise ValueError(
                f"Images to train on have {self.train.values.shape[1]} features, those to test on "
                f"{self.test.values.shape[1]}, and as many were needed: compute both with the same model."
            )


def build_featuriser(model: Model, preprocessing: Preprocessing) -> Featurise:
    """Normalise, encode, pool: what the last linear layer reads (`pre_logits` in the released code).

    The model stays in the mode that it is in: for features that do not change from one call to the next, call
    `model.eval()` first, or dropout is at work.
    """

    def featurise(images: Tensor) -> Tensor:
        return model.pool(model.encode(preprocessing.normalise(images)))

    return featurise


def extract_features(featurise: Featurise, batches: Iterable[Batch], device: torch.device | str = "cpu") -> Features:
    """Over batches that bring every image once, as `Loader.read_epoch` does, given to `featurise` on the device.

    No model is put into evaluation mode here: that is the caller's, as for `build_featuriser`.
    """
    values: list[Tensor] = []
    labels: list[Tensor] = []
    index: list[Tensor] = []
    for batch in batches:
        with torch.no_grad():  # not inference_mode, whose tensors a sharded model would keep for its next training step
            rows = featurise(batch.image.to(device, non_blocking=True))
        if rows.ndim != 2 or len(rows) != len(batch):
            raise ValueError(
                f"featurise gave shape {tuple(rows.shape)} for {len(batch)} images, and ({len(batch)}, D) was needed: "
                "pool what the model returns."
            )
        values.append(rows.float().cpu())
        labels.append(batch.target.cpu())
        index.append(batch.index)
    if sum(map(len, index)) == 0:
        raise ValueError("There is no image to compute features of: check the data and its split.")
    # Joined outside of inference mode, features are tensors like others, on which a layer can be trained.
    return Features(values=torch.cat(values), labels=torch.cat(labels), index=torch.cat(index))


VERSION = 1  # raise it when the same model makes other features of the same images
KEY = re.compile(r"[0-9a-f]{32}")
MAX_BYTES = 20 * 10**9  # of all features; those not used for longest make room


@dataclass(frozen=True)
class FeatureCache:
    folder: Path

    def find(self, checkpoint: Checkpoint, source: Source, bad_images: BadImages, compute: Callable[[], Features]) -> Features:
        """Those that are there, or else computed and kept. Labels are the source's of now: no features depend on them."""
        path = self.locate(checkpoint, source)
        found = load_features(path, source)
        if found is not None and (len(found) == len(source) or bad_images == "skip"):
            with suppress(OSError):  # a cache that may only be read
                os.utime(path)
            if len(found) < len(source):
                lost = sorted(set(range(len(source))) - set(found.index.tolist()))
                warn_user(f"Without {join_names([source.name(index) for index in lost])}: could not be read.")
            return found
        computed = compute()
        self.save(path, computed)
        return computed

    def locate(self, checkpoint: Checkpoint, source: Source) -> Path:
        disk_key = file_fingerprint(source)
        pointer = None if disk_key is None else self.folder / f"{disk_key}.images"
        content_key = None if pointer is None else read_pointer(pointer)
        if content_key is None:
            content_key = content_fingerprint(source)
            if pointer is not None:
                self.write(pointer, lambda partial: partial.write_text(content_key))
        return self.folder / f"{compute_model_key(checkpoint)}-{content_key}.safetensors"

    def save(self, path: Path, features: Features) -> None:
        tensors = {"values": features.values.contiguous(), "index": features.index}
        if self.write(path, lambda partial: save_file(tensors, partial)):
            self.make_room()

    def write(self, path: Path, write: Callable[[Path], object]) -> bool:
        """Whether it could be written: a disk that is full is no reason to lose what was computed."""
        try:
            make_folder(self.folder)
            with atomic_file(path, is_concurrent=True) as partial:
                write(partial)
        except (OSError, SafetensorError) as error:
            warn_user(f"The features could not be kept for the next time ({summarise_error(error)}).")
            return False
        return True

    def make_room(self) -> None:
        with suppress(OSError):  # another process may be at it
            files = sorted(self.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
            total = sum(path.stat().st_size for path in files)
            for path in files[:-1]:
                if total <= MAX_BYTES:
                    break
                total -= path.stat().st_size
                path.unlink()


def open_feature_cache() -> FeatureCache:
    return FeatureCache(find_cache_folder() / "features")


def read_pointer(path: Path) -> str | None:
    """None where there is none, or none that can be relied on."""
    try:
        content = path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return content if KEY.fullmatch(content) else None


def compute_model_key(checkpoint: Checkpoint) -> str:
    """Of all that makes features out of images."""
    parts = (
        VERSION,
        config_to_json(checkpoint.model.config),
        checkpoint.preprocessing.to_json(),
        compute_checksum(dict(checkpoint.model.state_dict())),
    )
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def load_features(path: Path, source: Source) -> Features | None:
    """None where there are none, or none that can be read."""
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        values, index = tensors["values"], tensors["index"]
        labels = torch.from_numpy(source.labels.to_targets(index.numpy(), len(source.class_names)))
        return Features(values, labels, index)
    except (SafetensorError, KeyError, ValueError, OSError, IndexError) as error:
        warn_user(f"{path} is damaged ({summarise_error(error)}) and is computed again.")
        return None
