"""Other labels, the same images."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrine.data.loader import build_plain_loader
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.relabel import Relabelled
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.files import FileSource
from vitrine.data.subset import hold_out

PREPROCESSING = build_inception_preprocessing((8, 8))
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
OLD = Labels.one_each([0, 1, 1, 0])


@pytest.fixture(params=["files", "array"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    if request.param == "array":
        return ArraySource(PIXELS, OLD, ("a", "b"), "made")
    names = [f"größe {index}.png" for index in range(4)]
    for name, pixels in zip(names, PIXELS, strict=True):
        Image.fromarray(pixels).save(tmp_path / name)
    return FileSource(tmp_path, names, OLD, ("a", "b"))


@pytest.mark.parametrize(
    "labels", [Labels.one_each([2, 2, 0, 1]), Labels.several_each([[2, 0], [], [1], []]), Labels.none_each(4)]
)
def test_labels_are_new_and_images_are_not(source: Source, labels: Labels) -> None:
    other = Relabelled(source, labels, ("x", "y", "z"))
    assert len(other) == 4
    assert other.class_names == ("x", "y", "z")
    assert other.files() == source.files()
    for index in range(4):
        image, label = other.read(index)
        assert label == labels[index]
        assert image.pixels().tobytes() == source.read(index)[0].pixels().tobytes()
        assert other.name(index) == source.name(index)
    assert [source.labels[index] for index in range(4)] == [0, 1, 1, 0]


def test_images_in_memory_are_still_read_as_a_block(source: Source) -> None:
    other, numbers = Relabelled(source, Labels.none_each(4), ()), np.array([3, 1])
    if isinstance(source, FileSource):
        assert other.read_block(numbers) is None
    else:
        assert np.array_equal(other.read_block(numbers), PIXELS[[3, 1]])


def test_batches_have_the_new_labels(source: Source) -> None:
    other = Relabelled(source, Labels.several_each([[2, 0], [], [1], []]), ("x", "y", "z"))
    [batch] = build_plain_loader(other, PREPROCESSING, batch_size=4, num_workers=0).read_once()
    assert batch.label.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert torch.equal(batch.image, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))


def test_it_can_be_sent_and_divided(source: Source) -> None:
    other = pickle.loads(pickle.dumps(Relabelled(source, Labels.one_each([5, 5, 6, 6]), tuple("abcdefg"))))
    rest, held_out = hold_out(other, 0.5)
    for part in (rest, held_out):
        assert part.labels.values.tolist() == [5, 6]  # half of each of the new classes
        assert part.class_names == tuple("abcdefg")
