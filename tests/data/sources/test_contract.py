"""The contract of every dataset format: a new one is tested by being listed here."""

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.sources.test_cifar import make_cifar
from tests.data.sources.test_flowers import make_flowers
from tests.data.sources.test_folder import make_folder
from tests.data.sources.test_idx import make_idx
from tests.data.sources.test_imagenet import make_imagenet
from tests.data.sources.test_manifest import make_manifest
from tests.data.sources.test_npz import make_arrays
from tests.data.sources.test_packed import make_packed
from tests.data.sources.test_parquet import make_parquet
from tests.data.sources.test_pets import make_pets
from tests.data.sources.test_vtab import make_vtab
from tests.data.sources.test_webdataset import make_tar_shards
from vitrine.data.augment.transforms import TrainTransform
from vitrine.data.config import AugmentConfig, LoaderConfig
from vitrine.data.dataset_format import order_splits
from vitrine.data.image import LazyImage
from vitrine.data.loader import Loader
from vitrine.data.open_data import BUILT_IN, DATASET_FORMATS, DatasetHandle, find_data, load_format
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.scan import map_images
from vitrine.data.source import Source
from vitrine.data.sources.hub import match_splits, open_loaded
from vitrine.data.subsets import SubsetSource, select_subset

MAKERS: dict[str, Callable[[Path], Path]] = {
    "packed": make_packed,
    "vtab": make_vtab,
    "cifar": make_cifar,
    "idx": make_idx,
    "pets": make_pets,
    "flowers": make_flowers,
    "imagenet": make_imagenet,
    "webdataset": make_tar_shards,
    "parquet": make_parquet,
    "npz": make_arrays,
    "manifest": make_manifest,
    "folder": make_folder,
}


def test_every_format_is_listed() -> None:
    assert set(MAKERS) == set(DATASET_FORMATS)


@pytest.fixture(scope="module", params=[*MAKERS, *BUILT_IN, "shapes:shape+colour@16", "hub"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DatasetHandle:
    name = request.param
    if name == "hub":
        return load_as_from_hub(make_parquet(tmp_path_factory.mktemp(name)), tmp_path_factory.mktemp("cache"))
    return find_data(MAKERS[name](tmp_path_factory.mktemp(name)) if name in MAKERS else name)


def load_as_from_hub(folder: Path, cache: Path) -> DatasetHandle:
    """Load a local folder with the package `datasets`, like a dataset of the hub."""
    datasets = pytest.importorskip("datasets", reason="data of the hub needs the package datasets")
    datasets.disable_progress_bars()
    loaded = datasets.load_dataset(str(folder), cache_dir=str(cache))
    return DatasetHandle(str(folder), "hub", order_splits(match_splits(list(loaded))), partial(open_loaded, loaded, "data"))


@pytest.fixture(scope="module")
def source(data: DatasetHandle) -> Source:
    return data.open_train()


def read_pixels(source: Source, index: int) -> bytes:
    return source.read(index)[0].to_numpy().tobytes()


def list_some(source: Source) -> list[int]:
    return sorted({0, 1, len(source) // 2, len(source) - 1} & set(range(len(source))))


def test_format_is_recognised(data: DatasetHandle) -> None:
    if data.kind in {load_format(name).name for name in DATASET_FORMATS}:
        path = Path(data.name)
        first = next(load_format(name).name for name in DATASET_FORMATS if load_format(name).matches(path))
        assert first == data.kind


def test_splits_have_known_names_and_the_same_classes(data: DatasetHandle, source: Source) -> None:
    assert set(data.splits) <= {"train", "val", "test", "real", "train800val200"}
    others = [split for split in data.splits if split != "train"]
    assert {data.open(split).class_names for split in others} <= {source.class_names}


def test_split_must_be_named_if_there_are_splits(data: DatasetHandle) -> None:
    with pytest.raises(ValueError, match=r"splits"):
        data.open(None if data.splits else "train")
    with pytest.raises(ValueError, match=r"'holiday'"):
        data.open("holiday")


def test_images_have_pixels_and_a_valid_label(source: Source) -> None:
    assert len(source) >= 2
    for index in list_some(source):
        image, label = source.read(index)
        pixels = image.to_numpy()
        assert pixels.shape == (image.height, image.width, 3)
        assert pixels.dtype == np.uint8
        labels = label if source.labels.has_several else (label,)
        assert all(isinstance(each, int) and 0 <= each < len(source.class_names) for each in labels)
        assert label == source.labels[index]


def test_labels_are_class_indices(source: Source) -> None:
    values = source.labels.values
    assert values.dtype == np.int64
    assert len(values) == 0 or 0 <= values.min() <= values.max() < len(source.class_names)
    assert len(set(source.class_names)) == len(source.class_names)


def test_index_out_of_range_is_an_error(source: Source) -> None:
    for index in (-1, len(source)):
        with pytest.raises(IndexError, match=rf"index={index} .*{len(source)}"):
            source.read(index)


def test_names_are_unique_and_independent_of_the_location(data: DatasetHandle, source: Source) -> None:
    names = [source.name(index) for index in range(len(source))]
    assert len(set(names)) == len(names)
    assert all(name == name.strip() and "\n" not in name for name in names)
    if data.kind not in BUILT_IN:
        assert not any(str(Path(data.name).parent) in name for name in names)


def test_reading_and_opening_again_give_the_same(data: DatasetHandle) -> None:
    split = data.splits[-1] if data.splits else None  # the smaller one of generated data
    source, again = data.open(split), data.open(split)
    for index in list_some(source):
        assert read_pixels(source, index) == read_pixels(source, index) == read_pixels(again, index)
        assert source.name(index) == again.name(index)
        assert source.labels[index] == again.labels[index]


def test_threads_read_the_same_images(source: Source) -> None:
    indices = np.arange(64) % len(source)
    read = [pixels.tobytes() for _, pixels in map_images(SubsetSource(source, indices), LazyImage.to_numpy)]
    assert read == [read_pixels(source, index) for index in indices.tolist()]


def test_block_equals_single_images(source: Source) -> None:
    indices = np.array(list_some(source)[::-1])
    block = source.read_block(indices)
    if block is None:
        pytest.skip("images are not in memory with one size")
    assert block.shape[0] == len(indices)
    for row, index in enumerate(indices.tolist()):
        np.testing.assert_array_equal(np.broadcast_to(block[row], (*block.shape[1:3], 3)), source.read(index)[0].to_numpy())


def test_source_can_be_pickled_after_reading(source: Source) -> None:
    expected = [read_pixels(source, index) for index in list_some(source)]
    copy = pickle.loads(pickle.dumps(source))
    assert [read_pixels(copy, index) for index in list_some(copy)] == expected


inherited: list[Source] = []


def read_inherited(index: int) -> bytes:
    return read_pixels(inherited[0], index)


def list_positions(files: list[Path]) -> dict[int, int]:
    """Return {descriptor: position} of this process for the given files."""
    known, positions = {(status.st_dev, status.st_ino) for status in map(os.stat, files)}, {}
    for descriptor in range(256):
        with suppress(OSError):  # the descriptor is closed
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) in known:
                positions[descriptor] = os.lseek(descriptor, 0, os.SEEK_CUR)
    return positions


def test_forked_process_moves_no_file_position(source: Source) -> None:
    """Otherwise two processes that read at the same time could read at each other's positions."""
    expected = {index: read_pixels(source, index) for index in list_some(source)}
    fork = get_context("fork")  # inherits the source without pickling
    with ProcessPoolExecutor(1, mp_context=fork, initializer=inherited.append, initargs=(source,)) as pool:
        before = list_positions(source.files())
        for index, pixels in reversed(expected.items()):  # ends at another position
            assert pool.submit(read_inherited, index).result() == pixels
        assert list_positions(source.files()) == before


def test_files_exist(data: DatasetHandle, source: Source) -> None:
    files = source.files()
    assert all(file.is_file() for file in files)
    assert bool(files) == (data.kind not in BUILT_IN)


def test_loader_reads_batches(source: Source) -> None:
    augmentation = TrainTransform(AugmentConfig(), build_inception_preprocessing((16, 16)))
    loader = Loader(source, augmentation, LoaderConfig(batch_size=4, num_workers=0))
    batch = next(loader.read(start_step=5))
    assert batch.image.shape == (4, 3, 16, 16)
    expected = source.labels.to_targets(batch.index.numpy(), len(source.class_names))
    assert torch.equal(batch.target, torch.from_numpy(expected))


def test_subset_reads_the_same_images(source: Source) -> None:
    half = select_subset(source, "50%")
    names = {source.name(index): index for index in range(len(source))}
    for index in list_some(half):
        assert read_pixels(half, index) == read_pixels(source, names[half.name(index)])
        assert half.labels[index] == source.labels[names[half.name(index)]]
