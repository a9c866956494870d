"""Features that were computed once, on disk, by the content of model and images: for whoever needs them next.

Two steps lead to them, so that finding them takes no reading of images: what the disk says of the files leads to the key of
their content, and this one, with the model's, to the features. Images that were copied or renamed are found by the second.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vitrine.core.files import find_cache_folder, make_folder, whole_file
from vitrine.core.notices import notice
from vitrine.core.sentences import list_names, summarise
from vitrine.data.config import BadImages
from vitrine.data.fingerprint import compute_content_key, compute_disk_key
from vitrine.data.source import Source
from vitrine.evaluate.features import Features
from vitrine.formats.checkpoint import Checkpoint, compute_checksum
from vitrine.models.description import describe_config

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
                notice(f"Without {list_names([source.name(index) for index in lost])}: could not be read.")
            return found
        computed = compute()
        self.save(path, computed)
        return computed

    def locate(self, checkpoint: Checkpoint, source: Source) -> Path:
        disk_key = compute_disk_key(source)
        pointer = None if disk_key is None else self.folder / f"{disk_key}.images"
        content_key = None if pointer is None else read_pointer(pointer)
        if content_key is None:
            content_key = compute_content_key(source)
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
            with whole_file(path, by_many=True) as partial:
                write(partial)
        except (OSError, SafetensorError) as error:
            notice(f"The features could not be kept for the next time ({summarise(error)}).")
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
        describe_config(checkpoint.model.config),
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
        labels = torch.from_numpy(source.labels.to_batch(index.numpy(), len(source.class_names)))
        return Features(values, labels, index)
    except (SafetensorError, KeyError, ValueError, OSError, IndexError) as error:
        notice(f"{path} is damaged ({summarise(error)}) and is computed again.")
        return None
