"""Packing: pixels are those of the data or Pillow's reduction of them, and a set is there whole or not at all."""

import io
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.core.test_console import Terminal, show_on
from tests.data.test_image import ORIENTATION, VARIANTS, build_smooth, encode
from vitrine.core.console import VitrineWarning
from vitrine.data.augment.transforms import EvalTransform, TrainTransform, Transform
from vitrine.data.config import AugmentConfig, LoaderConfig
from vitrine.data.image import BadImage, decode_image
from vitrine.data.loader import Loader
from vitrine.data.open_data import DatasetHandle, find_data
from vitrine.data.pack import pack_data
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.image_files import FileSource
from vitrine.data.subsets import SubsetSource, exclude_images, hold_out, select_subset

CLASSES = ("ant", "bee", "cat")


def make_data(folder: Path, contents: dict[str, bytes], labels: Labels | None = None) -> DatasetHandle:
    """Files under their names, not divided; the classes go round."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    labels = labels or Labels.one_each(np.arange(len(contents)) % 3)
    source = FileSource(folder, list(contents), labels, CLASSES)
    return DatasetHandle(str(folder), "files", (), lambda split: source)


def make_pngs(folder: Path, count: int = 6, size: tuple[int, int] = (20, 30), labels: Labels | None = None) -> DatasetHandle:
    return make_data(folder, {f"{index}.png": draw_png(index, size) for index in range(count)}, labels)


def draw_png(seed: int, size: tuple[int, int]) -> bytes:
    return encode(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)), "PNG")


def pack_and_open(data: DatasetHandle, out: Path, size: int, **options: object) -> Source:
    pack_data(data, out, size, **options)
    return find_data(out).open()


@pytest.mark.parametrize("num_channels", [3, 1])
def test_what_is_small_enough_is_packed_as_it_is(num_channels: int, tmp_path: Path) -> None:
    contents = {f"{name.replace(';', '')}.bin": content for name, content in VARIANTS.items()}
    data = make_data(tmp_path / "data", contents)
    packed = pack_and_open(data, tmp_path / "out", 11, num_channels=num_channels)
    assert len(packed) == len(contents)
    for index, (name, content) in enumerate(contents.items()):
        image, label = packed.read(index)
        assert (image.name, label) == (name, index % 3)
        expected = np.asarray(decode_image(content, name, num_channels)).reshape(11, 17, num_channels)
        np.testing.assert_array_equal(image.to_numpy(num_channels), expected)
        assert packed.fetch(index).shape == expected.shape


@pytest.mark.parametrize("num_channels", [3, 1])
@pytest.mark.parametrize("format", ["PNG", "JPEG"])
@pytest.mark.parametrize(("size", "shape"), [(64, (64, 96)), (63, (63, 94)), (40, (40, 60)), (16, (16, 24)), (1, (1, 2))])
def test_larger_images_are_shrunk_as_pillow_shrinks_them(
    format: str, num_channels: int, size: int, shape: tuple[int, int], tmp_path: Path
) -> None:
    content = encode(build_smooth(96, 64), format, **({"quality": 95} if format == "JPEG" else {}))
    packed = pack_and_open(make_data(tmp_path / "data", {"smooth": content}), tmp_path / "out", size, num_channels=num_channels)
    pixels = packed.fetch(0)
    assert pixels.shape == (*shape, num_channels)
    whole = decode_image(content, "smooth", num_channels)
    expected = np.asarray(whole.resize(shape[::-1], Image.Resampling.BICUBIC)).reshape(pixels.shape)
    # A PNG is resized from the whole; of a JPEG, part of the way is done by its decoder, which filters by boxes.
    assert np.abs(pixels.astype(int) - expected).max() <= (0 if format == "PNG" else 12)


@pytest.mark.parametrize(
    ("given", "size", "packed"),
    [
        ((10, 40), 5, (5, 20)),
        ((40, 10), 5, (20, 5)),
        ((10, 40), 10, (10, 40)),
        ((10, 40), 100, (10, 40)),
        ((1, 500), 1, (1, 500)),
        ((3, 500), 1, (1, 167)),
        ((7, 10), 6, (6, 9)),
    ],
)
def test_the_short_side_is_bound_and_nothing_is_enlarged(
    given: tuple[int, int], size: int, packed: tuple[int, int], tmp_path: Path
) -> None:
    data = make_data(tmp_path / "data", {"a.png": draw_png(0, given)})
    image, _ = pack_and_open(data, tmp_path / "out", size).read(0)
    assert (image.height, image.width) == packed


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_turned_images_are_packed_upright(format: str, orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = encode(build_smooth(96, 64), format, exif=exif)
    upright = decode_image(content, "upright")
    for size in (200, 16):
        image, _ = pack_and_open(make_data(tmp_path / "data", {"a": content}), tmp_path / f"{size}", size).read(0)
        short = min(size, 64)
        width, height = (round(side * short / 64) for side in upright.size)
        assert (image.height, image.width) == (height, width)
        expected = np.asarray(upright.resize((width, height), Image.Resampling.BICUBIC), dtype=int)
        assert np.abs(image.to_numpy() - expected).max() <= 12


def test_a_strip_longer_than_any_jpeg_can_be_opened_after_it_was_packed(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", {"strip.png": encode(Image.new("L", (70_000, 2), 7), "PNG")})
    image, _ = pack_and_open(data, tmp_path / "out", 64).read(0)
    assert (image.height, image.width) == (2, 70_000)


LABELS = {
    "one": Labels.one_each([2, 0, 1, 1, 0, 2]),
    "several": Labels.several_each([(0, 1), (), (2,), (2, 1, 0), (), (1,)]),
    "none": Labels.none_each(6),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_and_names_come_along(kind: str, tmp_path: Path) -> None:
    packed = pack_and_open(make_pngs(tmp_path / "data", labels=LABELS[kind]), tmp_path / "out", 8)
    assert packed.class_names == CLASSES
    assert packed.labels.has_several == LABELS[kind].has_several
    assert [packed.read(index)[1] for index in range(6)] == [LABELS[kind][index] for index in range(6)]
    assert [packed.name(index) for index in range(6)] == [f"{index}.png" for index in range(6)]


def test_images_without_classes(tmp_path: Path) -> None:
    source = ArraySource(np.zeros((3, 4, 4, 3), np.uint8), Labels.none_each(3), (), "blank")
    packed = pack_and_open(DatasetHandle("blank", "array", (), lambda split: source), tmp_path / "out", 8)
    assert (packed.class_names, len(packed), packed.read(2)[1], packed.name(2)) == ((), 3, (), "blank[2]")


def test_names_that_are_not_unicode_come_along(tmp_path: Path) -> None:
    """File names are bytes; FileSource reads such files, so they can be packed."""
    name = os.fsdecode(b"caf\xe9.png")
    packed = pack_and_open(make_data(tmp_path / "data", {name: draw_png(0, (4, 4))}), tmp_path / "out", 8)
    assert os.fsencode(packed.name(0)) == b"caf\xe9.png"


def list_files(split: str | None, count: int) -> list[str]:
    return [f"{split}/{index}.png" for index in range(count)]


def open_split(root: Path, sizes: dict[str, int], split: str | None) -> FileSource:
    count = sizes[str(split)]
    return FileSource(root, list_files(split, count), Labels.one_each(np.arange(count) % 3), CLASSES)


def make_splits(root: Path, **sizes: int) -> DatasetHandle:
    for split, count in sizes.items():
        (root / split).mkdir(parents=True)
        for index, name in enumerate(list_files(split, count)):
            (root / name).write_bytes(draw_png(len(name) * index, (6 + index, 9)))
    return DatasetHandle(str(root), "files", tuple(sizes), partial(open_split, root, sizes))


def assert_same(packed: Source, data: Source) -> None:
    assert len(packed) == len(data)
    for index in range(len(data)):
        (image, label), (other, other_label) = packed.read(index), data.read(index)
        assert (image.name, label) == (other.name, other_label)
        np.testing.assert_array_equal(image.to_numpy(), other.to_numpy())


def test_splits_stay_apart(tmp_path: Path) -> None:
    data = make_splits(tmp_path / "data", train=7, val=3, test=2)
    report = pack_data(data, tmp_path / "out", 64)
    found = find_data(tmp_path / "out")
    assert found.splits == ("train", "val", "test")
    for split in found.splits:
        assert_same(found.open(split), data.open(split))
    assert [(part.split, len(part.sizes), part.num_skipped) for part in report] == [
        ("train", 7, 0),
        ("val", 3, 0),
        ("test", 2, 0),
    ]
    assert sum(part.num_bytes for part in report) == (tmp_path / "out" / "images.bin").stat().st_size


def test_some_splits_only(tmp_path: Path) -> None:
    data = make_splits(tmp_path / "data", train=7, val=3, test=2)
    pack_data(data, tmp_path / "out", 64, splits=("test", "train"))
    found = find_data(tmp_path / "out")
    assert sorted(found.splits) == ["test", "train"]
    assert_same(found.open("train"), data.open("train"))
    assert_same(found.open("test"), data.open("test"))


def test_splits_that_are_not_there_cost_a_sentence(tmp_path: Path) -> None:
    data = make_splits(tmp_path / "data", train=2, val=2)
    with pytest.raises(ValueError, match=r"no split 'test'"):
        pack_data(data, tmp_path / "out", 8, splits=("train", "test"))
    with pytest.raises(ValueError, match=r"no splits, but 'train'"):
        pack_data(make_pngs(tmp_path / "flat"), tmp_path / "out", 8, splits=("train",))
    assert sorted(os.listdir(tmp_path)) == ["data", "flat"]


def make_arrays(**splits: tuple[Labels, tuple[str, ...]]) -> DatasetHandle:
    def open_array(split: str | None) -> Source:
        labels, class_names = splits[str(split)]
        return ArraySource(np.zeros((len(labels), 4, 4, 3), np.uint8), labels, class_names, str(split))

    return DatasetHandle("arrays", "arrays", tuple(splits), open_array)


def test_splits_with_other_kinds_of_labels_cost_a_sentence(tmp_path: Path) -> None:
    data = make_arrays(train=(LABELS["one"], CLASSES), val=(LABELS["several"], CLASSES))
    with pytest.raises(ValueError, match=r"several labels"):
        pack_data(data, tmp_path / "out", 8)
    assert os.listdir(tmp_path) == []
    pack_data(data, tmp_path / "out", 8, splits=("val",))
    assert find_data(tmp_path / "out").open("val").read(3)[1] == (2, 1, 0)


@pytest.mark.parametrize(
    ("names", "labels"),
    [(("bee", "ant", "cat"), [0, 1]), (("cow", "bee", "cat"), [0, 1]), (("ant", "bee", "cat", "dog"), [0, 3])],
    ids=["in another order", "of another name", "one more"],
)
def test_splits_with_other_classes_cost_a_sentence(names: tuple[str, ...], labels: list[int], tmp_path: Path) -> None:
    """A set has one list of classes: packed under it, the images of the other split would be called something else."""
    data = make_arrays(train=(Labels.one_each([0, 1]), CLASSES), val=(Labels.one_each(labels), names))
    with pytest.raises(ValueError, match="class"):
        pack_data(data, tmp_path / "out", 8)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [0, -1])
def test_no_size_costs_a_sentence(size: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^size={size} must be at least 1: the short side of the images, in pixels\.$"):
        pack_data(make_pngs(tmp_path / "data"), tmp_path / "out", size)


@pytest.mark.parametrize("num_channels", [0, 2, 4])
def test_other_channels_cost_a_sentence(num_channels: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^num_channels={num_channels} must be 1 \(grey\) or 3"):
        pack_data(make_pngs(tmp_path / "data"), tmp_path / "out", 8, num_channels=num_channels)
    assert os.listdir(tmp_path) == ["data"]


def make_partly_bad(folder: Path) -> DatasetHandle:
    contents = {f"{index}.png": draw_png(index, (9, 9)) for index in range(8)}
    contents["0.png"] = b""
    contents["3.png"] = contents["3.png"][:-60]
    contents["7.png"] = b"a note, not a picture"
    return make_data(folder, contents)


def test_a_bad_image_stops_packing_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match=r"0\.png"):
        pack_data(make_partly_bad(tmp_path / "data"), tmp_path / "out", 8)
    assert os.listdir(tmp_path) == ["data"]


def test_bad_images_are_left_out_counted_and_told(tmp_path: Path) -> None:
    data = make_partly_bad(tmp_path / "data")
    with pytest.warns(VitrineWarning, match=r"^Skipped 0\.png, 3\.png, 7\.png: cannot be read \(3 of 8 images\)\.$"):
        (report,) = pack_data(data, tmp_path / "out", 64, bad_images="skip")
    assert (report.num_skipped, len(report.sizes)) == (3, 5)
    packed = find_data(tmp_path / "out").open()
    assert_same(packed, SubsetSource(data.open(), np.array([1, 2, 4, 5, 6])))


def test_a_link_to_nowhere_is_a_bad_image_like_any_other(tmp_path: Path) -> None:
    data = make_pngs(tmp_path / "data")
    (tmp_path / "data" / "2.png").unlink()
    (tmp_path / "data" / "2.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(BadImage, match=r"^2\.png cannot be read \(No such file or directory\)"):
        pack_data(data, tmp_path / "out", 8)
    with pytest.warns(VitrineWarning, match=r"^Skipped 2\.png: cannot be read \(1 of 6 images\)"):
        pack_data(data, tmp_path / "out", 8, bad_images="skip")
    assert len(find_data(tmp_path / "out").open()) == 5


@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
def test_nothing_but_bad_images_cost_a_sentence(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", {"a.png": b"bad", "b.png": b"worse"})
    with pytest.raises(ValueError, match=r"\.$"):
        pack_and_open(data, tmp_path / "out", 8, bad_images="skip")


class Failing(ArraySource):
    """Something happens when the fifth image is read: a bug, a key pressed, a disk that is full."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(np.zeros((50, 4, 4, 3), np.uint8), Labels.none_each(50), (), "failing")
        self.error = error

    def fetch(self, index: int) -> np.ndarray:
        if index == 5:
            raise self.error
        return super().fetch(index)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt(), MemoryError(), SystemExit(1)], ids=repr)
def test_a_set_is_there_whole_or_not_at_all(error: BaseException, tmp_path: Path) -> None:
    source = Failing(error)
    data = DatasetHandle("failing", "array", (), lambda split: source)
    with pytest.raises(type(error)):
        pack_data(data, tmp_path / "out", 8)
    assert os.listdir(tmp_path) == []
    good = make_pngs(tmp_path / "data")
    pack_data(good, tmp_path / "out", 8)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(type(error)):
        pack_data(data, tmp_path / "out", 8)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert sorted(os.listdir(tmp_path)) == ["data", "out"]


def test_a_packed_set_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    pack_data(make_pngs(tmp_path / "data"), tmp_path / "out", 8)
    packed = pack_and_open(make_pngs(tmp_path / "other", count=2), tmp_path / "out", 8)
    assert len(packed) == 2
    (tmp_path / "out" / "notes.txt").write_text("precious")
    with pytest.raises(FileExistsError, match=r"holds other files \(notes\.txt\)"):
        pack_data(make_pngs(tmp_path / "data"), tmp_path / "out", 8)
    assert (tmp_path / "out" / "notes.txt").read_text() == "precious"
    (tmp_path / "file").write_text("precious")
    with pytest.raises(FileExistsError, match="holds other files"):
        pack_data(make_pngs(tmp_path / "data"), tmp_path / "file", 8)
    assert (tmp_path / "file").read_text() == "precious"


def test_the_data_itself_is_never_replaced(tmp_path: Path) -> None:
    data = make_pngs(tmp_path / "data")
    for out in (tmp_path / "data", tmp_path / "data" / "packed"):
        with pytest.raises(ValueError, match=r"is inside"):
            pack_data(data, out, 8)
    assert len(os.listdir(tmp_path / "data")) == 6


def test_a_packed_set_can_be_packed(tmp_path: Path) -> None:
    data = make_splits(tmp_path / "data", train=7, val=3)
    pack_data(data, tmp_path / "first", 64)
    pack_data(find_data(tmp_path / "first"), tmp_path / "second", 64)
    pack_data(find_data(tmp_path / "second"), tmp_path / "third", 4)
    for split in ("train", "val"):
        assert_same(find_data(tmp_path / "second").open(split), data.open(split))
    small = find_data(tmp_path / "third").open("train")
    assert {min(small.read(index)[0].height, small.read(index)[0].width) for index in range(7)} == {4}
    assert small.name(6) == "train/6.png"


def test_a_packed_set_notices_that_the_one_it_was_made_of_has_changed(tmp_path: Path) -> None:
    pack_data(make_pngs(tmp_path / "data"), tmp_path / "first", 8)
    pack_data(find_data(tmp_path / "first"), tmp_path / "second", 8)
    find_data(tmp_path / "second").open()
    os.utime(tmp_path / "first" / "images.bin", (1, 1))
    with pytest.warns(VitrineWarning, match=r"first has changed since it was packed into .*second \(.*images\.bin\)"):
        find_data(tmp_path / "second").open()


def test_parts_of_a_packed_set_are_those_of_the_data(tmp_path: Path) -> None:
    data = make_pngs(tmp_path / "data", count=40, size=(4, 4))
    packed, files = pack_and_open(data, tmp_path / "out", 8), data.open()
    assert_same(select_subset(packed, "30%"), select_subset(files, "30%"))
    assert_same(select_subset(packed, "5/class"), select_subset(files, "5/class"))
    for part, other in zip(hold_out(packed, 0.2), hold_out(files, 0.2), strict=True):
        assert_same(part, other)
    (tmp_path / "names.txt").write_text("3.png\n17.png\n")
    assert_same(exclude_images(packed, tmp_path / "names.txt"), exclude_images(files, tmp_path / "names.txt"))
    subset = select_subset(packed, "30%")
    block = subset.read_block(np.array([4, 0]))
    np.testing.assert_array_equal(block, np.stack([subset.fetch(4), subset.fetch(0)]))


def test_generated_data_is_packed_and_never_said_to_have_changed(tmp_path: Path) -> None:
    packed = pack_and_open(
        DatasetHandle("blank", "array", (), lambda split: make_arrays(a=(LABELS["one"], CLASSES)).open("a")),
        tmp_path / "out",
        8,
    )
    assert len(packed) == 6
    assert json.loads((tmp_path / "out" / "pack.json").read_text())["data"] == "blank"


PREPROCESSING = Preprocessing(resize=16, crop=(16, 16))
TRANSFORMS: dict[str, Transform] = {
    "training": TrainTransform(AugmentConfig(), PREPROCESSING),
    "evaluation": EvalTransform(PREPROCESSING),
}
OBLONG, SQUARE = (20, 30), (16, 16)  # read one by one, and in blocks


@pytest.mark.parametrize(
    ("kind", "size", "num_workers"),
    [
        ("training", OBLONG, 0),
        ("training", OBLONG, 2),
        ("training", SQUARE, 0),
        ("evaluation", OBLONG, 0),
        ("evaluation", SQUARE, 2),
    ],
)
def test_batches_of_a_packed_set_are_those_of_the_files(
    kind: str, size: tuple[int, int], num_workers: int, tmp_path: Path
) -> None:
    data = make_pngs(tmp_path / "data", count=10, size=size)
    packed, files = pack_and_open(data, tmp_path / "out", 64), data.open()
    config = LoaderConfig(batch_size=4, num_workers=num_workers)
    batches, others = (list(Loader(source, TRANSFORMS[kind], config, seed=1).read(0, 5)) for source in (packed, files))
    for batch, other in zip(batches, others, strict=True):
        assert batch.index.tolist() == other.index.tolist()
        assert batch.target.tolist() == other.target.tolist()
        # Small squares are resized by matrices, others by torch: the two agree to one level.
        assert (batch.image.int() - other.image.int()).abs().max() <= 1


@pytest.mark.parametrize(("is_terminal", "is_wanted"), [(True, True), (True, False), (False, True)])
def test_progress_is_shown_to_people_who_want_it(
    is_terminal: bool, is_wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = show_on(Terminal() if is_terminal else io.StringIO(), monkeypatch)
    pack_data(make_splits(tmp_path / "data", train=7, val=3), tmp_path / "out", 8, show_progress=is_wanted)
    if is_terminal and is_wanted:
        assert all(text in screen.getvalue() for text in ("train", "7/7", "val", "3/3"))
    else:
        assert screen.getvalue() == ""
