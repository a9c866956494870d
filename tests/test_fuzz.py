"""Damaged files of every kind besides checkpoints and images (tests/formats, tests/data): an error of one line, never another
exception, a crash or a hang; and never other content where a checksum exists.
"""

import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from tests.corruptions import ANY_FILE, DAMAGED_ZIP, JSON, SAFETENSORS, ZIP, Corruption
from tests.data.sources.test_contract import MAKERS
from tests.filling import build_filled
from tests.formats.originals import CONFIG
from tests.formats.watching import require_clean
from vitrine.core.caches import clear_caches
from vitrine.data.fingerprint import DataFingerprint
from vitrine.data.image import BadImage
from vitrine.data.open_data import find_data
from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.data.quality import image_stats
from vitrine.data.quality.image_stats import compute_image_stats, stats_to_arrays
from vitrine.data.source import Source
from vitrine.data.sources.webdataset import INDEX
from vitrine.evaluation.features import FeatureCache, Features
from vitrine.formats.checkpoint import Checkpoint
from vitrine.recipes.registry import find_recipe
from vitrine.run.folder import RunFolder, RunProgress, load_resume_point
from vitrine.training.metrics_log import read_records

BY_ENDING = {".npz": ZIP, ".json": JSON, ".safetensors": SAFETENSORS}


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is made, how it is read, and what damage to it may do."""

    make: Callable[[Path], Path]
    """Write the files into a folder, and return what `read` takes."""
    read: Callable[[Path], object]
    """Return everything that the files hold, to be compared; damaged content raises ValueError or OSError."""
    damaged: str = "**/*"
    corruptions: tuple[Corruption, ...] = ()
    """Instead of those for the ending of the file."""
    is_exact: bool = False
    """Whether the content must be the same if it is read: there is a checksum."""
    is_rebuilt: bool = False
    """Whether it must be read whatever the damage: it is a cache."""


def read_data(path: Path) -> object:
    """Return names, labels, pixels and classes of all splits; a damaged image is a part of the content."""
    data = find_data(path)
    return {split: read_source(data.open(split)) for split in data.splits or (None,)}


def read_source(source: Source) -> object:
    return [
        (source.name(index), source.labels[index], read_pixels(source, index)) for index in range(len(source))
    ], source.class_names


def read_pixels(source: Source, index: int) -> bytes | str:
    try:
        return source.read(index)[0].to_numpy().tobytes()
    except BadImage as error:
        return str(error)


def make_with_cache(folder: Path) -> Path:
    MAKERS["folder"](folder / "data")
    read_features(folder)
    read_stats(folder)
    return folder


def open_cached(folder: Path) -> Source:
    (data,) = (folder / "data").iterdir()
    return find_data(data).open_train()


def read_features(folder: Path) -> object:
    """Look for features in the cache, or compute the same ones: only damage that is not noticed gives others."""
    source = open_cached(folder)
    values = torch.arange(4.0 * len(source)).reshape(-1, 4)
    right = Features(values, torch.from_numpy(source.labels.values), torch.arange(len(source)))
    found = FeatureCache(folder / "cache").find("0" * 32, source, "error", lambda: right)
    return found.values.numpy().tobytes(), found.labels.tolist(), found.index.tolist()


def read_stats(folder: Path) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_stats, "cache_folder", lambda kind: folder / "stats")
        stats = compute_image_stats(open_cached(folder), "")
    return {name: array.tobytes() for name, array in stats_to_arrays(stats).items()}


def make_shards(folder: Path) -> Path:
    path = MAKERS["webdataset"](folder)
    read_data(path)
    assert (path / INDEX).exists()
    return path


def make_arrays(save: Callable[..., None], folder: Path) -> Path:
    random = np.random.default_rng(0)
    arrays = {f"x_{split}": random.integers(0, 256, (9, 8, 8, 3), dtype=np.uint8) for split in ("train", "test")}
    arrays |= {f"y_{split}": random.integers(0, 3, 9) for split in ("train", "test")}
    save(folder / "data.npz", **arrays, class_names=np.array(["ant", "bee", "cat"]))
    return folder / "data.npz"


def make_run(folder: Path) -> Path:
    checkpoint = Checkpoint(build_filled(CONFIG), build_imagenet_preprocessing(CONFIG.image_size), ("cat", "dog", "eel"))
    run = RunFolder(folder)
    run.open(find_recipe("digits")(), DataFingerprint({}, 1))
    run.save_training(
        checkpoint, {"momentum": torch.arange(500.0), "average": torch.ones(300)}, RunProgress(step=7), keep_last=1
    )
    run.metrics.write_text("".join(f'{{"step": {step}, "loss": {step / 7}}}\n' for step in range(20)))
    return folder


def read_checkpoint(folder: Path) -> object:
    point = load_resume_point(folder / "checkpoints" / "step-00000007")
    tensors = point.checkpoint.model.state_dict() | point.training
    facts = point.checkpoint.model.config, point.checkpoint.preprocessing, point.checkpoint.class_names, point.progress
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, facts


def read_run(folder: Path) -> object:
    return RunFolder(folder).read_recipe(), read_records(RunFolder(folder).metrics)


KINDS: dict[str, Kind] = {
    **{name: Kind(make, read_data) for name, make in MAKERS.items() if name != "packed"},
    "pack": Kind(MAKERS["packed"], read_data, "packed/*", is_exact=True),
    "arrays": Kind(partial(make_arrays, np.savez), read_data, corruptions=DAMAGED_ZIP, is_exact=True),
    "compressed arrays": Kind(partial(make_arrays, np.savez_compressed), read_data, corruptions=DAMAGED_ZIP, is_exact=True),
    "shard index": Kind(make_shards, read_data, f"**/{INDEX}", DAMAGED_ZIP, is_exact=True, is_rebuilt=True),
    "features": Kind(make_with_cache, read_features, "cache/*.safetensors", is_exact=True, is_rebuilt=True),
    "pointer": Kind(make_with_cache, read_features, "cache/*.images", ANY_FILE, is_exact=True, is_rebuilt=True),
    "image stats": Kind(make_with_cache, read_stats, "stats/**/*.npz", DAMAGED_ZIP, is_exact=True, is_rebuilt=True),
    "training state": Kind(make_run, read_checkpoint, "checkpoints/**/*", is_exact=True),
    "run": Kind(make_run, read_run, "*.json*"),
}


@pytest.mark.parametrize("count", [25, pytest.param(300, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_file(kind: str, count: int, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = KINDS[kind].make(tmp_path)
    originals = {path: path.read_bytes() for path in sorted(tmp_path.glob(KINDS[kind].damaged)) if path.is_file()}
    originals = {path: content for path, content in originals.items() if len(content) >= 8}
    assert originals
    labels = [f"{seed}" for seed in range(count)]
    require_clean(partial(check_variant, kind, source, originals), labels)


def check_variant(kind: str, source: Path, originals: dict[Path, bytes], label: str) -> str | None:
    """Damage one of the files, read it, and describe what is wrong with the outcome."""
    restore(originals)
    expected, random = read_expected(kind, source), Random(f"{kind} {label}")
    restore(originals)
    path = random.choice(list(originals))
    corruption = random.choice(list_corruptions(kind, path))
    path.write_bytes(corruption(random, originals[path]))
    problem = judge(KINDS[kind], source, expected)
    return problem and f"{path.name} by {corruption.__name__}: {problem}"


def restore(originals: dict[Path, bytes]) -> None:
    for path, content in originals.items():
        path.write_bytes(content)
    clear_caches()  # files written within a tick of the clock look the same, and might count as verified


@cache
def read_expected(kind: str, source: Path) -> object:
    return KINDS[kind].read(source)


def list_corruptions(kind: str, path: Path) -> Sequence[Corruption]:
    return KINDS[kind].corruptions or BY_ENDING.get(path.suffix, ANY_FILE)


def judge(kind: Kind, source: Path, expected: object) -> str | None:
    try:
        content = kind.read(source)
    except (ValueError, OSError) as error:
        if len(str(error).splitlines()) != 1:
            return f"its error is not one line: {str(error)[:300]!r}"
        return f"it was not built again: {error}" if kind.is_rebuilt else None
    except BaseException as error:  # a panic in Rust is not an Exception
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} from {place.filename}:{place.lineno}: {str(error)[:300]!r}"
    return "it was read as something else" if kind.is_exact and content != expected else None
