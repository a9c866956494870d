"""Concatenated, relabelled and in-memory sources give the images of the sources that they are made of."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrine.core.console import VitrineWarning
from vitrine.data import wrappers
from vitrine.data.image import BadImage
from vitrine.data.loader import build_eval_loader
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.image_files import FileSource
from vitrine.data.subsets import SubsetSource, hold_out, select_subset
from vitrine.data.wrappers import ConcatSource, RelabelledSource, load_into_memory

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def make_array(pixels: np.ndarray, labels: list[int], title: str) -> ArraySource:
    return ArraySource(pixels, Labels.one_each(labels), ("a", "b"), title)


@pytest.fixture
def concatenated() -> ConcatSource:
    first = SubsetSource(make_array(PIXELS[:4], [0, 1, 1, 0], "first"), np.array([0, 2, 3]))
    return ConcatSource([first, make_array(PIXELS[4:], [1, 0], "second")])


def test_concatenated_images_come_part_by_part(concatenated: ConcatSource) -> None:
    assert len(concatenated) == 5
    assert concatenated.class_names == ("a", "b")
    assert concatenated.labels.values.tolist() == [0, 1, 0, 1, 0]
    assert [concatenated.name(index) for index in range(5)] == ["first[0]", "first[2]", "first[3]", "second[0]", "second[1]"]
    for index, position in enumerate((0, 2, 3, 4, 5)):
        image, label = concatenated.read(index)
        np.testing.assert_array_equal(image.to_numpy(), PIXELS[position])
        assert label == concatenated.labels[index]


@pytest.mark.parametrize("indices", [[], [4, 0, 3, 1, 3], [2], [3]])
def test_block_of_concatenated_arrays_has_the_requested_order(concatenated: ConcatSource, indices: list[int]) -> None:
    block = concatenated.read_block(np.array(indices, np.int64))
    np.testing.assert_array_equal(block, PIXELS[np.array([0, 2, 3, 4, 5])[indices]])


def test_no_block_of_several_sizes_or_of_files(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[0]).save(tmp_path / "x.png")
    files = FileSource(tmp_path, ["x.png"], Labels.one_each([1]), ("a", "b"))
    small = make_array(PIXELS[:2, :4, :4], [0, 1], "small")
    for other in (files, small):
        mixed = ConcatSource([make_array(PIXELS, [0] * 6, "first"), other])
        assert mixed.read_block(np.arange(2)) is None
        np.testing.assert_array_equal(mixed.read(6)[0].to_numpy(), other.read(0)[0].to_numpy())
    assert ConcatSource([files, files]).files() == [tmp_path / "x.png"]


def test_concatenated_source_can_be_pickled(concatenated: ConcatSource) -> None:
    copy = pickle.loads(pickle.dumps(concatenated))
    np.testing.assert_array_equal(copy.read(3)[0].to_numpy(), PIXELS[4])


PREPROCESSING = build_inception_preprocessing((8, 8))
PIXELS_RELABEL = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
OLD = Labels.one_each([0, 1, 1, 0])


@pytest.fixture(params=["files", "array"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    if request.param == "array":
        return ArraySource(PIXELS_RELABEL, OLD, ("a", "b"), "made")
    names = [f"größe {index}.png" for index in range(4)]
    for name, pixels in zip(names, PIXELS_RELABEL, strict=True):
        Image.fromarray(pixels).save(tmp_path / name)
    return FileSource(tmp_path, names, OLD, ("a", "b"))


@pytest.mark.parametrize(
    "labels", [Labels.one_each([2, 2, 0, 1]), Labels.several_each([[2, 0], [], [1], []]), Labels.none_each(4)]
)
def test_relabelled_images_are_unchanged(source: Source, labels: Labels) -> None:
    other = RelabelledSource(source, labels, ("x", "y", "z"))
    assert len(other) == 4
    assert other.class_names == ("x", "y", "z")
    assert other.files() == source.files()
    for index in range(4):
        image, label = other.read(index)
        assert label == labels[index]
        assert image.to_numpy().tobytes() == source.read(index)[0].to_numpy().tobytes()
        assert other.name(index) == source.name(index)
    assert [source.labels[index] for index in range(4)] == [0, 1, 1, 0]


def test_relabelled_arrays_are_read_as_a_block(source: Source) -> None:
    other, numbers = RelabelledSource(source, Labels.none_each(4), ()), np.array([3, 1])
    if isinstance(source, FileSource):
        assert other.read_block(numbers) is None
    else:
        assert np.array_equal(other.read_block(numbers), PIXELS_RELABEL[[3, 1]])


def test_batches_have_the_new_labels(source: Source) -> None:
    other = RelabelledSource(source, Labels.several_each([[2, 0], [], [1], []]), ("x", "y", "z"))
    [batch] = build_eval_loader(other, PREPROCESSING, batch_size=4, num_workers=0).read_epoch()
    assert batch.target.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert torch.equal(batch.image, torch.from_numpy(PIXELS_RELABEL).permute(0, 3, 1, 2))


def test_relabelled_source_can_be_pickled_and_split(source: Source) -> None:
    other = pickle.loads(pickle.dumps(RelabelledSource(source, Labels.one_each([5, 5, 6, 6]), tuple("abcdefg"))))
    rest, held_out = hold_out(other, 0.5)
    for part in (rest, held_out):
        assert part.labels.values.tolist() == [5, 6]  # half of each of the new classes
        assert part.class_names == tuple("abcdefg")


PIXELS_MEMORY = np.random.default_rng(0).integers(0, 256, (6, 7, 9, 3), dtype=np.uint8)
PATHS = [f"{'cat' if index % 2 else 'dog'}/{index}.png" for index in range(6)]


def make_files(folder: Path, labels: Labels | None = None) -> FileSource:
    for path, pixels in zip(PATHS, PIXELS_MEMORY, strict=True):
        (folder / path).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / path)
    return FileSource(folder, PATHS, labels or Labels.one_each([0, 1] * 3), ("dog", "cat"))


def list_names(source: Source) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def test_images_in_memory_equal_the_files(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    held = load_into_memory(files)
    assert (list_names(held), held.class_names, held.files()) == (PATHS, ("dog", "cat"), files.files())
    for index in range(6):
        image, label = held.read(index)
        assert (image.name, label) == (PATHS[index], index % 2)
        np.testing.assert_array_equal(image.to_numpy(), PIXELS_MEMORY[index])
    np.testing.assert_array_equal(held.read_block(np.array([5, 0, 0])), PIXELS_MEMORY[[5, 0, 0]])


def test_files_are_read_only_once(tmp_path: Path) -> None:
    held = load_into_memory(make_files(tmp_path))
    for path in PATHS:
        (tmp_path / path).unlink()
    np.testing.assert_array_equal(held.read(4)[0].to_numpy(), PIXELS_MEMORY[4])
    sent = pickle.loads(pickle.dumps(held))
    assert sent.name(4) == PATHS[4]
    np.testing.assert_array_equal(sent.read_block(np.arange(6)), PIXELS_MEMORY)


@pytest.mark.parametrize("labels", [Labels.several_each([(0, 1), (), (1,), (), (0,), (1,)]), Labels.none_each(6)])
def test_sets_of_labels_in_memory(labels: Labels, tmp_path: Path) -> None:
    held = load_into_memory(make_files(tmp_path, labels))
    assert [held.labels[index] for index in range(6)] == [labels[index] for index in range(6)]


def test_grey_images_in_memory(tmp_path: Path) -> None:
    source = make_files(tmp_path)
    grey = Image.fromarray(PIXELS_MEMORY[2]).convert("L")
    grey.save(tmp_path / PATHS[2])
    held = load_into_memory(source)
    np.testing.assert_array_equal(held.read(2)[0].to_numpy(1)[..., 0], np.asarray(grey))
    np.testing.assert_array_equal(held.read_block(np.array([2]))[0], np.repeat(np.asarray(grey)[..., None], 3, axis=2))


def test_array_sources_are_returned_unchanged() -> None:
    source = ArraySource(PIXELS_MEMORY[..., :1], Labels.one_each([0, 1] * 3), ("dog", "cat"), "array")
    assert load_into_memory(source) is source
    part = SubsetSource(source, np.array([1, 4]))
    assert load_into_memory(part) is part


def test_only_the_subset_is_loaded(tmp_path: Path) -> None:
    part = SubsetSource(make_files(tmp_path), np.array([4, 1]))
    (tmp_path / PATHS[0]).unlink()
    held = load_into_memory(part)
    assert (list_names(held), len(held)) == ([PATHS[4], PATHS[1]], 2)
    np.testing.assert_array_equal(held.read_block(np.arange(2)), PIXELS_MEMORY[[4, 1]])


def test_subset_of_images_in_memory(tmp_path: Path) -> None:
    held = load_into_memory(make_files(tmp_path))
    subset = select_subset(held, "3")
    block = subset.read_block(np.arange(3))
    for position in range(3):
        np.testing.assert_array_equal(block[position], PIXELS_MEMORY[PATHS.index(subset.name(position))])
    left, part = hold_out(held, 1 / 3)
    assert sorted([*list_names(left), *list_names(part)]) == sorted(PATHS)


@pytest.mark.parametrize("shape", [(7, 8), (8, 9), (9, 7)])
def test_images_of_several_sizes_are_an_error(shape: tuple[int, int], tmp_path: Path) -> None:
    source = make_files(tmp_path)
    Image.new("RGB", shape[::-1]).save(tmp_path / PATHS[3])
    with pytest.raises(ValueError, match=rf"cat/3\.png is {shape[0]} x {shape[1]}.*7 x 9"):
        load_into_memory(source)


def test_bad_image_is_an_error_that_names_it(tmp_path: Path) -> None:
    source = make_files(tmp_path)
    (tmp_path / PATHS[3]).write_bytes(b"")
    with pytest.raises(BadImage, match=r"^cat/3\.png "):
        load_into_memory(source)


@pytest.mark.parametrize("bad", [(0,), (5,), (0, 1, 4)])
def test_bad_images_are_left_out_with_a_warning(bad: tuple[int, ...], tmp_path: Path) -> None:
    source = make_files(tmp_path, Labels.several_each([(0,), (1,), (0, 1), (), (1,), (0,)]))
    for index in bad:
        (tmp_path / PATHS[index]).write_bytes((tmp_path / PATHS[index]).read_bytes()[:-40])
    with pytest.warns(VitrineWarning, match=rf"{PATHS[bad[-1]]}.*{len(bad)} of 6"):
        held = load_into_memory(source, "skip")
    good = [index for index in range(6) if index not in bad]
    assert list_names(held) == [PATHS[index] for index in good]
    assert [held.labels[index] for index in range(len(held))] == [source.labels[index] for index in good]
    np.testing.assert_array_equal(held.read_block(np.arange(len(good))), PIXELS_MEMORY[good])


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
def test_only_bad_images_are_an_error(tmp_path: Path) -> None:
    source = make_files(tmp_path)
    for path in PATHS:
        (tmp_path / path).write_bytes(b"bad")
    with pytest.raises(BadImage, match="None of the 6 images"):
        load_into_memory(source, "skip")


def test_too_much_memory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_files(tmp_path)
    monkeypatch.setattr(wrappers, "MAX_BYTES", PIXELS_MEMORY.nbytes)
    load_into_memory(source)
    monkeypatch.setattr(wrappers, "MAX_BYTES", PIXELS_MEMORY.nbytes - 1)
    with pytest.raises(ValueError, match="6 images of 7 x 9"):
        load_into_memory(source)


def test_paths_of_images_pass_through_every_wrapper(tmp_path: Path) -> None:
    files = FileSource(tmp_path, ["x/0.png", "x/1.png", "y/2.png"], Labels.one_each([0, 0, 1]), ("a", "b"))
    subset = SubsetSource(SubsetSource(files, np.array([2, 0])), np.array([1, 0]))
    both = ConcatSource([subset, make_array(PIXELS[:1], [0], "pixels")])
    wrapped = RelabelledSource(both, both.labels, ("c", "d"))
    assert [wrapped.image_path(index) for index in range(3)] == [tmp_path / "x/0.png", tmp_path / "y/2.png", None]
