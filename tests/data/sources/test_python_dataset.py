"""Datasets given as Python objects: torch datasets, Hugging Face datasets, dicts of them, and sources."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

from vitrine.data.config import DataConfig
from vitrine.data.image import BadImage
from vitrine.data.loader import build_eval_loader
from vitrine.data.open_data import find_data, open_data, open_test, open_train_and_test, open_train_data
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import ArraySource, Labels, Source

datasets = pytest.importorskip("datasets")

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)  # (N, H, W, C)


class Pictures(Dataset[Any]):
    """Six images, counting how often each is read."""

    def __init__(self, labels: Sequence[Any] = (0, 2, 1, 0, 2, 1)) -> None:
        self.item_labels = labels
        self.num_reads = 0

    def __len__(self) -> int:
        return len(self.item_labels)

    def __getitem__(self, index: int) -> Any:
        self.num_reads += 1
        return Image.fromarray(PIXELS[index]), self.item_labels[index]


class TorchvisionLike(Pictures):
    """Labels and class names as attributes, like torchvision's datasets."""

    classes = ("cat", "dog", "emu")

    def __init__(self, labels: Sequence[Any] = (0, 2, 1, 0, 2, 1)) -> None:
        super().__init__(labels)
        self.targets = torch.tensor(labels)


def make_hugging_face(labels: Sequence[Any] = (0, 2, 1, 0, 2, 1), **features: Any) -> Any:
    columns = {"image": [Image.fromarray(PIXELS[index]) for index in range(len(labels))], "label": list(labels)}
    return datasets.Dataset.from_dict(columns, datasets.Features({"image": datasets.Image(), **features}) if features else None)


NAMED = {"label": datasets.ClassLabel(names=["cat", "dog", "emu"])}


def read_all(source: Source) -> np.ndarray:
    return np.stack([source.read(index)[0].to_numpy() for index in range(len(source))])


@pytest.mark.parametrize("dataset", [Pictures(), TorchvisionLike(), make_hugging_face(), make_hugging_face(**NAMED)])
def test_images_labels_and_classes(dataset: Any) -> None:
    handle = find_data(dataset)
    assert (handle.name, handle.kind, handle.splits) == (type(dataset).__name__, "python", ())
    source = handle.open()
    assert np.array_equal(read_all(source), PIXELS)
    assert source.labels.values.tolist() == [0, 2, 1, 0, 2, 1]
    has_names = isinstance(dataset, TorchvisionLike) or "names" in str(getattr(dataset, "features", ""))
    assert source.class_names == (("cat", "dog", "emu") if has_names else ("0", "1", "2"))
    assert len({source.name(index) for index in range(6)}) == 6
    assert source.files() == []
    assert np.array_equal(read_all(pickle.loads(pickle.dumps(source))), PIXELS)


@pytest.mark.parametrize("dataset", [Pictures(), make_hugging_face()])
def test_worker_processes_read_the_same_images(dataset: Any) -> None:
    preprocessing = Preprocessing(resize=(4, 4), crop=(4, 4))
    loaders = [build_eval_loader(open_data(dataset), preprocessing, batch_size=2, num_workers=number) for number in (0, 2)]
    here, there = ([batch.image for batch in loader.read_epoch()] for loader in loaders)
    assert torch.equal(torch.cat(here), torch.cat(there))


def test_images_are_read_lazily() -> None:
    dataset = TorchvisionLike()
    source = open_data(dataset)
    assert dataset.num_reads <= 2  # the first and the last, to check the labels
    before = dataset.num_reads
    source.read(3)
    assert dataset.num_reads == before + 1


def test_items_decide_if_the_label_attribute_disagrees() -> None:
    dataset = TorchvisionLike()
    dataset.targets = dataset.targets + 1
    assert open_data(dataset).labels.values.tolist() == [0, 2, 1, 0, 2, 1]
    dataset = TorchvisionLike()
    dataset.target_transform = lambda label: label
    dataset.targets[3] = 1
    assert open_data(dataset).labels.values.tolist() == [0, 2, 1, 0, 2, 1]


def test_subsets_keep_classes_and_labels() -> None:
    for dataset in (Subset(TorchvisionLike(), [5, 1]), make_hugging_face(**NAMED).select([5, 1])):
        source = open_data(dataset)
        assert source.labels.values.tolist() == [1, 2]
        assert source.class_names == ("cat", "dog", "emu")
        assert np.array_equal(read_all(source), PIXELS[[5, 1]])


@pytest.mark.parametrize("make", [Pictures, make_hugging_face])
def test_dicts_have_splits_with_the_same_classes(make: Any) -> None:
    parts = {"train": make([0, 1, 0]), "validation": make([3, 1])}
    data = datasets.DatasetDict(parts) if make is make_hugging_face else parts
    assert find_data(data).splits == ("train", "val")
    train, val = open_train_and_test(data)
    assert (len(train), len(val)) == (3, 2)
    assert train.class_names == val.class_names == ("0", "1", "2", "3")
    assert open_test(data).labels.values.tolist() == [3, 1]
    assert train.name(0) != val.name(0)
    with pytest.raises(ValueError, match=r"train.*val"):
        open_data(data)


def test_open_train_data_takes_the_dataset() -> None:
    train, held_out = open_train_data(DataConfig(source="Pictures", held_out=0.5), Pictures())
    assert held_out is not None
    assert len(train) == len(held_out) == 3


def test_sources_are_used_as_they_are() -> None:
    source = ArraySource(PIXELS, Labels.none_each(6), (), "x")
    assert open_data(source) is source
    assert open_data({"train": source, "test": source}, "test") is source


def test_kinds_of_labels() -> None:
    assert open_data(Pictures([torch.tensor(1), np.int64(0)])).labels.values.tolist() == [1, 0]
    several = open_data(Pictures([[0, 1], (2,), []])).labels
    assert [several[index] for index in range(3)] == [(0, 1), (2,), ()]
    assert open_data(Pictures([None, None])).class_names == ()
    assert open_data([Image.fromarray(each) for each in PIXELS]).labels.has_several  # images alone
    for label in ("cat", 0.5, torch.tensor([0.0, 1.0])):
        with pytest.raises(ValueError, match="class index"):
            open_data(Pictures([0, label]))
    with pytest.raises(ValueError, match="3 classes"):
        open_data(TorchvisionLike([0, 3]))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_modes_equal_those_of_files(mode: str) -> None:
    image = Image.new("I;16", (5, 4), 30_000) if mode == "I;16" else Image.fromarray(PIXELS[0]).convert(mode)
    source = open_data([(image, 0)])
    expected = (np.asarray(image) >> 8).astype(np.uint8)[..., None] if mode == "I;16" else np.asarray(image.convert("RGB"))
    assert np.array_equal(source.read(0)[0].to_numpy(), np.broadcast_to(expected, (4, 5, 3)))


def test_unreadable_images_are_bad_images() -> None:
    class Broken(Pictures):
        targets = (0, 2, 1, 0, 2, 1)

        def __getitem__(self, index: int) -> Any:
            if index == 2:
                raise OSError("truncated")
            return super().__getitem__(index)

    source = open_data(Broken())
    with pytest.raises(BadImage, match="truncated"):
        source.read(2)


@pytest.mark.parametrize("data", [None, 3, iter([]), {"train": 3}, datasets.IterableDataset.from_generator(lambda: iter([]))])
def test_other_objects_are_errors(data: Any) -> None:
    with pytest.raises(ValueError, match="not a dataset"):
        find_data(data)


def test_tensors_are_not_images() -> None:
    with pytest.raises(ValueError, match=r"Tensor.*PIL image"):
        open_data([(torch.zeros(3, 4, 4), 0)])
