"""Images held in memory are those of the source, under their names; what cannot be held says why."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.core.notices import Notice
from vitrine.data import memory
from vitrine.data.decode import BadImage
from vitrine.data.memory import hold_in_memory
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.files import FileSource
from vitrine.data.subset import Selection, hold_out, select

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 7, 9, 3), dtype=np.uint8)
PATHS = [f"{'cat' if index % 2 else 'dog'}/{index}.png" for index in range(6)]


def make_files(folder: Path, labels: Labels | None = None) -> FileSource:
    for path, pixels in zip(PATHS, PIXELS, strict=True):
        (folder / path).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / path)
    return FileSource(folder, PATHS, labels or Labels.one_each([0, 1] * 3), ("dog", "cat"))


def list_names(source: Source) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def test_the_same_images_under_their_names(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    held = hold_in_memory(files)
    assert (list_names(held), held.class_names, held.files()) == (PATHS, ("dog", "cat"), files.files())
    for index in range(6):
        image, label = held.read(index)
        assert (image.name, label) == (PATHS[index], index % 2)
        np.testing.assert_array_equal(image.pixels(), PIXELS[index])
    np.testing.assert_array_equal(held.read_block(np.array([5, 0, 0])), PIXELS[[5, 0, 0]])


def test_nothing_is_read_again(tmp_path: Path) -> None:
    held = hold_in_memory(make_files(tmp_path))
    for path in PATHS:
        (tmp_path / path).unlink()
    np.testing.assert_array_equal(held.read(4)[0].pixels(), PIXELS[4])
    sent = pickle.loads(pickle.dumps(held))
    assert sent.name(4) == PATHS[4]
    np.testing.assert_array_equal(sent.read_block(np.arange(6)), PIXELS)


@pytest.mark.parametrize("labels", [Labels.several_each([(0, 1), (), (1,), (), (0,), (1,)]), Labels.none_each(6)])
def test_labels_of_any_kind(labels: Labels, tmp_path: Path) -> None:
    held = hold_in_memory(make_files(tmp_path, labels))
    assert [held.labels[index] for index in range(6)] == [labels[index] for index in range(6)]


def test_grey_images_hold_their_grey(tmp_path: Path) -> None:
    source = make_files(tmp_path)
    grey = Image.fromarray(PIXELS[2]).convert("L")
    grey.save(tmp_path / PATHS[2])
    held = hold_in_memory(source)
    np.testing.assert_array_equal(held.read(2)[0].pixels(1)[..., 0], np.asarray(grey))
    np.testing.assert_array_equal(held.read_block(np.array([2]))[0], np.repeat(np.asarray(grey)[..., None], 3, axis=2))


def test_what_is_in_memory_stays_as_it_is() -> None:
    source = ArraySource(PIXELS[..., :1], Labels.one_each([0, 1] * 3), ("dog", "cat"), "array")
    assert hold_in_memory(source) is source
    part = Selection(source, np.array([1, 4]))
    assert hold_in_memory(part) is part


def test_a_selection_is_held_alone(tmp_path: Path) -> None:
    part = Selection(make_files(tmp_path), np.array([4, 1]))
    (tmp_path / PATHS[0]).unlink()
    held = hold_in_memory(part)
    assert (list_names(held), len(held)) == ([PATHS[4], PATHS[1]], 2)
    np.testing.assert_array_equal(held.read_block(np.arange(2)), PIXELS[[4, 1]])


def test_a_subset_of_what_is_held(tmp_path: Path) -> None:
    held = hold_in_memory(make_files(tmp_path))
    subset = select(held, "3")
    block = subset.read_block(np.arange(3))
    for place in range(3):
        np.testing.assert_array_equal(block[place], PIXELS[PATHS.index(subset.name(place))])
    left, part = hold_out(held, 1 / 3)
    assert sorted([*list_names(left), *list_names(part)]) == sorted(PATHS)


@pytest.mark.parametrize("shape", [(7, 8), (8, 9), (9, 7)])
def test_images_of_several_sizes_cost_a_sentence(shape: tuple[int, int], tmp_path: Path) -> None:
    source = make_files(tmp_path)
    Image.new("RGB", shape[::-1]).save(tmp_path / PATHS[3])
    message = (
        rf"^in_memory needs images of one size, and cat/3\.png is {shape[0]} x {shape[1]} where others are 7 x 9: "
        r"pack them instead \(vitrine data pack\)\.$"
    )
    with pytest.raises(ValueError, match=message):
        hold_in_memory(source)


def test_a_bad_image_is_an_error_that_names_it(tmp_path: Path) -> None:
    source = make_files(tmp_path)
    (tmp_path / PATHS[3]).write_bytes(b"")
    with pytest.raises(BadImage, match=r"^cat/3\.png is not an image"):
        hold_in_memory(source)


@pytest.mark.parametrize("bad", [(0,), (5,), (0, 1, 4)])
def test_bad_images_are_left_out_and_told(bad: tuple[int, ...], tmp_path: Path) -> None:
    source = make_files(tmp_path, Labels.several_each([(0,), (1,), (0, 1), (), (1,), (0,)]))
    for index in bad:
        (tmp_path / PATHS[index]).write_bytes((tmp_path / PATHS[index]).read_bytes()[:-40])
    with pytest.warns(Notice, match=rf"^Skipped .*{PATHS[bad[-1]]}: cannot be read \({len(bad)} of 6 images\)"):
        held = hold_in_memory(source, "skip")
    good = [index for index in range(6) if index not in bad]
    assert list_names(held) == [PATHS[index] for index in good]
    assert [held.labels[index] for index in range(len(held))] == [source.labels[index] for index in good]
    np.testing.assert_array_equal(held.read_block(np.arange(len(good))), PIXELS[good])


@pytest.mark.filterwarnings("ignore::vitrine.core.notices.Notice")
def test_nothing_but_bad_images_cost_a_sentence(tmp_path: Path) -> None:
    source = make_files(tmp_path)
    for path in PATHS:
        (tmp_path / path).write_bytes(b"bad")
    with pytest.raises(BadImage, match=r"^None of the 6 images can be read: fetch the data again\.$"):
        hold_in_memory(source, "skip")


def test_too_much_for_memory_costs_a_sentence_before_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_files(tmp_path)
    monkeypatch.setattr(memory, "MAX_BYTES", PIXELS.nbytes)
    hold_in_memory(source)
    monkeypatch.setattr(memory, "MAX_BYTES", PIXELS.nbytes - 1)
    with pytest.raises(ValueError, match=r"^in_memory would take 0 GB for 6 images of 7 x 9: pack them instead"):
        hold_in_memory(source)
