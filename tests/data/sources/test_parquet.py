"""Tests of data/sources/parquet.py.

Parquet files written by pyarrow in the hub's layout, and by `datasets` itself; odd and damaged ones.
Columns by their names and notes, and labels of every type that Arrow and `datasets` have for them.
"""

import io
import json
import os
import pickle
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.failing import fail_to_open
from vitrine.core.console import VitrineWarning
from vitrine.data.image import BadImage
from vitrine.data.source import Labels
from vitrine.data.sources import parquet
from vitrine.data.sources.annotations import validate_labels
from vitrine.data.sources.parquet import FORMAT, Columns, choose_columns, parse_labels

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAMES = ["cat", "dog", "fox"]
CLASS_LABEL = {"names": NAMES, "_type": "ClassLabel"}


def draw(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def make_images(seeds: range) -> Any:
    return pa.array([{"bytes": draw(seed), "path": f"{seed}.png"} for seed in seeds], IMAGE)


def write(path: Path, columns: dict[str, Any], features: dict[str, Any] | None = None, group: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=group)
    return path


def write_split(path: Path, seeds: range) -> None:
    labels = pa.array([seed % 3 for seed in seeds], pa.int64())
    features = {"image": {"_type": "Image"}, "label": CLASS_LABEL}
    write(path, {"image": make_images(seeds), "label": labels}, features)


def make_parquet(folder: Path) -> Path:
    write_split(folder / "data" / "train-00000-of-00002.parquet", range(5))
    write_split(folder / "data" / "train-00001-of-00002.parquet", range(5, 8))
    write_split(folder / "data" / "validation-00000-of-00001.parquet", range(8, 11))
    return folder


def fails(path: Path, split: str | None = None) -> str:
    return fail_to_open(FORMAT, path, split)


def test_splits_of_the_hub(tmp_path: Path) -> None:
    folder = make_parquet(tmp_path)
    assert FORMAT.matches(folder)
    assert FORMAT.list_splits(folder) == ("train", "val")
    train, val = FORMAT.open(folder, "train"), FORMAT.open(folder, "val")
    assert [train.fetch(index) for index in range(8)] == [draw(seed) for seed in range(8)]
    assert [train.labels[index] for index in range(8)] == [seed % 3 for seed in range(8)]
    assert [train.name(index) for index in (0, 4, 5, 7)] == [
        "data/train-00000-of-00002.parquet[0]",
        "data/train-00000-of-00002.parquet[4]",
        "data/train-00001-of-00002.parquet[0]",
        "data/train-00001-of-00002.parquet[2]",
    ]
    assert [val.fetch(index) for index in range(3)] == [draw(8), draw(9), draw(10)]
    assert train.class_names == val.class_names == ("cat", "dog", "fox")
    image, label = train.read(7)
    assert (image.width, image.height, label) == (7, 5, 1)
    assert [path.name for path in train.files()] == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]


def test_a_single_file_and_an_undivided_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "b.parquet", {"img": [draw(0), draw(1)], "label": [1, 0]})
    write(tmp_path / "a.parquet", {"img": [draw(2)], "label": [3]})
    assert FORMAT.matches(path)
    assert FORMAT.list_splits(path) == FORMAT.list_splits(tmp_path) == ()
    assert FORMAT.open(path, None).class_names == ("0", "1")
    source = FORMAT.open(tmp_path, None)
    assert [source.name(index) for index in range(3)] == ["a.parquet[0]", "b.parquet[0]", "b.parquet[1]"]
    assert [source.fetch(index) for index in range(3)] == [draw(2), draw(0), draw(1)]
    assert source.class_names == ("0", "1", "2", "3")


def test_what_datasets_writes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=NAMES)})
    rows = {"picture": [{"bytes": draw(seed), "path": None} for seed in range(4)], "kind": [2, 1, 0, 2]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "train.parquet")
    source = FORMAT.open(tmp_path, "train")
    assert [source.fetch(index) for index in range(4)] == [draw(seed) for seed in range(4)]
    assert (source.labels.values.tolist(), source.class_names) == ([2, 1, 0, 2], tuple(NAMES))


def test_several_labels_as_datasets_writes_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "labels": datasets.List(datasets.ClassLabel(names=NAMES))})
    rows = {"image": [{"bytes": draw(seed), "path": None} for seed in range(3)], "labels": [[2, 0], [], [1]]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "x.parquet")
    source = FORMAT.open(tmp_path, None)
    assert [source.labels[index] for index in range(3)] == [(2, 0), (), (1,)]
    assert source.class_names == tuple(NAMES)


def test_no_label_column(tmp_path: Path) -> None:
    source = FORMAT.open(write(tmp_path / "x.parquet", {"image": make_images(range(2)), "caption": ["a", "b"]}), None)
    assert (source.labels[0], source.labels.has_several, source.class_names) == ((), True, ())


def test_classes_are_counted_over_all_splits(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", {"image": make_images(range(2)), "label": ["b", "d"]})
    write(tmp_path / "test-0.parquet", {"image": make_images(range(2)), "label": ["c", "b"]})
    train, test = FORMAT.open(tmp_path, "train"), FORMAT.open(tmp_path, "test")
    assert train.class_names == test.class_names == ("b", "c", "d")
    assert (train.labels.values.tolist(), test.labels.values.tolist()) == ([0, 2], [1, 0])
    write(tmp_path / "test-0.parquet", {"image": make_images(range(2)), "label": [1, 9]})
    assert "numbers as labels in one split and strings in another" in fails(tmp_path, "test")


def test_shards_that_do_not_agree(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"image": make_images(range(1)), "label": [0]})
    write(tmp_path / "b.parquet", {"image": make_images(range(1)), "label": ["x"]})
    assert "b.parquet has other columns or classes than" in fails(tmp_path)
    write(tmp_path / "b.parquet", {"image": make_images(range(1))})
    assert "b.parquet has other columns or classes than" in fails(tmp_path)
    write(tmp_path / "b.parquet", {"image": make_images(range(1)), "label": [0]}, {"label": CLASS_LABEL})
    assert "b.parquet has other columns or classes than" in fails(tmp_path)


def test_columns_that_hold_no_images(tmp_path: Path) -> None:
    assert "has the columns text, label" in fails(write(tmp_path / "x.parquet", {"text": ["a"], "label": [1]}))
    assert "one with the bytes of images was needed" in fails(write(tmp_path / "x.parquet", {"image": ["a.png"], "label": [1]}))
    empty = {"image": pa.array([], IMAGE), "label": pa.array([], pa.int64())}
    assert len(FORMAT.open(write(tmp_path / "x.parquet", empty), None)) == 0  # what opens data says so for every kind


def test_a_table_beside_image_files_is_not_taken_for_the_data(tmp_path: Path) -> None:
    path = write(tmp_path / "metadata.parquet", {"image": ["cat/1.png"], "label": [0]})
    assert FORMAT.matches(path)
    assert FORMAT.matches(tmp_path)  # alone it is looked into, and opening says what it lacks
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(draw(0))
    assert not FORMAT.matches(tmp_path)
    write(path, {"image": make_images(range(2)), "label": [0, 1]})
    assert FORMAT.matches(tmp_path)
    path.write_bytes(b"PAR1")
    assert not FORMAT.matches(tmp_path)
    path.unlink()
    write_split(tmp_path / "data" / "train-00000-of-00001.parquet", range(2))
    assert FORMAT.matches(tmp_path)
    assert not FORMAT.matches(tmp_path / "cat")


def test_rows_without_an_image(tmp_path: Path) -> None:
    rows = [{"bytes": draw(0), "path": None}, {"bytes": None, "path": "/etc/passwd"}, None, {"bytes": b"", "path": "x"}]
    source = FORMAT.open(write(tmp_path / "x.parquet", {"image": pa.array(rows, IMAGE)}), None)
    assert source.fetch(0) == draw(0)
    for index in range(1, len(rows)):
        with pytest.raises(BadImage, match=rf"x\.parquet\[{index}\]"):
            source.read(index)


def test_damaged_files(tmp_path: Path) -> None:
    write_split(tmp_path / "x.parquet", range(4))
    whole = (tmp_path / "x.parquet").read_bytes()
    for content in (b"", b"PAR1", whole[:100], whole[:-1], whole[1:], b"x" * 1000):
        (tmp_path / "x.parquet").write_bytes(content)
        assert "a Parquet file was needed" in fails(tmp_path / "x.parquet")
    write(tmp_path / "x.parquet", {"image": make_images(range(1))}, {})
    for notes in (b"{", b"\xff", b"[1]", b'{"info": {"features": 3}}', b"[" * 100_000):
        table = pa.table({"image": make_images(range(1))}).replace_schema_metadata({b"huggingface": notes})
        pq.write_table(table, tmp_path / "x.parquet")
        assert "a Parquet file was needed" in fails(tmp_path / "x.parquet")


def test_every_byte_may_be_wrong(tmp_path: Path) -> None:
    """Whatever is changed, there is a sentence or an image, right or wrong, and no other exception."""
    path = tmp_path / "x.parquet"
    write_split(path, range(4))
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(150):
        spoilt = bytearray(whole)
        for at in random.integers(0, len(whole), 3):
            spoilt[at] = random.integers(256)
        path.write_bytes(spoilt)
        with suppress(ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore", VitrineWarning)
            source = FORMAT.open(path, None)
            for index in range(len(source)):
                source.read(index)


def test_large_row_groups_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_split(tmp_path / "x.parquet", range(4))
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 100)
    assert "a row group of over 2 GB" in fails(tmp_path / "x.parquet")


def test_a_file_changed_after_opening(tmp_path: Path) -> None:
    write_split(tmp_path / "x.parquet", range(4))
    source = FORMAT.open(tmp_path, None)
    write_split(tmp_path / "x.parquet", range(6))
    with pytest.raises(ValueError, match=r"x\.parquet has changed since it was opened"):
        source.fetch(0)


def test_row_groups_in_order_are_read_once(tmp_path: Path) -> None:
    source = FORMAT.open(make_parquet(tmp_path), "train")
    parquet.read_images.cache_clear()
    for index in range(8):
        source.fetch(index)
    assert parquet.read_images.cache_info().misses == 5  # groups of 2: 3 in the first file, 2 in the second
    assert parquet.read_images.cache_info().currsize == 4


def test_threads_decode_a_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three groups, all of which are kept, so that no order of the threads makes one be decoded again."""
    source = FORMAT.open(make_parquet(tmp_path) / "data" / "train-00000-of-00002.parquet", "train")
    decode, decoded = pq.ParquetFile.read_row_group, list[int]()
    meeting = Barrier(8, timeout=600)

    def decode_slowly(file: Any, group: int, **options: Any) -> Any:
        decoded.append(group)
        time.sleep(0.01)  # so that others come meanwhile; whether they do changes nothing
        return decode(file, group, **options)

    def read_from(start: int) -> list[Any]:
        meeting.wait()
        images = {index % 5: source.fetch(index % 5) for index in range(start, start + 5)}
        return [images[index] for index in range(5)]

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", decode_slowly)
    parquet.read_images.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read_from, range(8))) == [[draw(seed) for seed in range(5)]] * 8
    assert sorted(decoded) == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # by which Python 3.12 speaks of forking beside threads
def test_a_process_forked_off_while_a_group_is_read_does_not_wait_for_it(tmp_path: Path) -> None:
    source = FORMAT.open(make_parquet(tmp_path), "train")
    with parquet.LOCKS.setdefault(os.getpid(), Lock()):
        process = get_context("fork").Process(target=source.fetch, args=(0,))
        process.start()
        process.join(timeout=600)
    process.kill()  # where it waits after all
    assert process.exitcode == 0


def test_pickled_before_and_after_reading(tmp_path: Path) -> None:
    source = FORMAT.open(make_parquet(tmp_path), "train")
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(source))
        assert [copy.fetch(index) for index in range(8)] == [draw(seed) for seed in range(8)]
        assert len(pickle.dumps(source)) < 10_000
        source.fetch(0)


def test_another_working_folder_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_parquet(tmp_path)
    monkeypatch.chdir(tmp_path)
    source = FORMAT.open(Path(), "val")
    monkeypatch.chdir("/")
    assert (source.name(1), source.fetch(1)) == ("data/validation-00000-of-00001.parquet[1]", draw(9))


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_parquet(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert FORMAT.matches(path)
    assert "pip install 'vitrine[parquet]'" in fails(path, "train")


pa_columns = pytest.importorskip("pyarrow")

NAMES_COLUMNS = ("cat", "dog", "fox")
CLASS_LABEL_COLUMNS = {"names": list(NAMES_COLUMNS), "_type": "ClassLabel"}
IMAGE_COLUMNS = {"_type": "Image"}


def label(values: Any, *others: Any, names: tuple[str, ...] | None = None) -> tuple[Labels, tuple[str, ...]]:
    found = parse_labels(
        pa_columns.chunked_array([values]), [pa_columns.chunked_array([other]) for other in others], names, "here"
    )
    return validate_labels(*found, "here", "{}.png".format)


@pytest.mark.parametrize(
    ("images", "features", "chosen"),
    [
        (["image", "mask"], {}, "image"),
        (["mask", "img"], {}, "img"),
        (["picture", "other"], {"picture": IMAGE_COLUMNS}, "picture"),
        (["image", "picture"], {"picture": IMAGE_COLUMNS}, "picture"),
        (["mask", "image"], {"mask": IMAGE_COLUMNS, "image": IMAGE_COLUMNS}, "image"),
        (["left", "right"], {"left": IMAGE_COLUMNS, "right": IMAGE_COLUMNS}, None),
        (["picture"], {}, None),
        ([], {"image": IMAGE_COLUMNS}, None),
    ],
)
def test_which_column_is_the_image(images: list[str], features: dict[str, Any], chosen: str | None) -> None:
    if chosen is not None:
        assert choose_columns([*images, "text"], images, features, "here") == Columns(chosen, None, None)
        return
    with pytest.raises(ValueError, match=r"here has the columns .*text, and one with the bytes of images was needed"):
        choose_columns([*images, "text"], images, features, "here")


@pytest.mark.parametrize(
    ("columns", "features", "chosen", "names"),
    [
        (["caption"], {}, None, None),
        (["label"], {}, "label", None),
        (["coarse_label", "fine_label"], {}, "fine_label", None),  # as CIFAR-100 has them
        (["colour", "label"], {"colour": CLASS_LABEL_COLUMNS}, "label", None),
        (["shape"], {"shape": CLASS_LABEL_COLUMNS}, "shape", NAMES_COLUMNS),
        (["label"], {"label": {"feature": CLASS_LABEL_COLUMNS, "_type": "Sequence"}}, "label", NAMES_COLUMNS),
        (["labels"], {"labels": {"feature": CLASS_LABEL_COLUMNS, "_type": "List"}}, "labels", NAMES_COLUMNS),
        (["labels"], {"labels": [CLASS_LABEL_COLUMNS]}, "labels", NAMES_COLUMNS),
        (["label"], {"label": {"_type": "ClassLabel", "names": None}}, "label", None),
        (["label"], {"label": {"_type": "Value", "names": 3}}, "label", None),
        (["label"], {"label": 3}, "label", None),
    ],
)
def test_which_column_is_the_label(columns: list[str], features: Any, chosen: str | None, names: Any) -> None:
    assert choose_columns(["image", *columns], ["image"], features, "here") == Columns("image", chosen, names)


def test_of_several_classes_none_is_taken_aloud() -> None:
    features = {"colour": CLASS_LABEL_COLUMNS, "shape": CLASS_LABEL_COLUMNS}
    with pytest.warns(VitrineWarning, match="here has the classes colour, shape and none called label"):
        assert choose_columns(["image", *features], ["image"], features, "here").label is None
    for names in ([1, 2], "cat", {"0": "cat"}):
        with pytest.raises(ValueError, match="no list of names"):
            choose_columns(["image", "label"], ["image"], {"label": {"_type": "ClassLabel", "names": names}}, "here")


@pytest.mark.parametrize(
    ("values", "labels", "names"),
    [
        (pa_columns.array([2, 0], pa_columns.uint8()), [2, 0], ("0", "1", "2")),
        (pa_columns.array(["fox", "cat", "fox"]), [1, 0, 1], ("cat", "fox")),
        (pa_columns.array(["fox", "cat"], pa_columns.large_string()), [1, 0], ("cat", "fox")),
        (pa_columns.array(["fox", "cat", "fox"]).dictionary_encode(), [1, 0, 1], ("cat", "fox")),
        (pa_columns.array([["fox"], [], ["cat", "fox"]]), [(1,), (), (0, 1)], ("cat", "fox")),
        (pa_columns.array([[0, 1], [1, 2]], pa_columns.list_(pa_columns.int64(), 2)), [(0, 1), (1, 2)], ("0", "1", "2")),
        (pa_columns.array([[1], [0]], pa_columns.large_list(pa_columns.int8())), [(1,), (0,)], ("0", "1")),
        (pa_columns.array([-1, -1]), [(), ()], ()),
        (pa_columns.array([None, None], pa_columns.int64()), [(), ()], ()),
        (pa_columns.nulls(2), [(), ()], ()),
        (pa_columns.array([None, None], pa_columns.string()), [(), ()], ()),
        (pa_columns.array([None, None], pa_columns.float64()), [(), ()], ()),
        (pa_columns.array([None, None], pa_columns.struct([("a", pa_columns.int64())])), [(), ()], ()),
        (pa_columns.array([None, None], pa_columns.list_(pa_columns.int64())), [(), ()], ()),
    ],
)
def test_kinds_of_labels(values: Any, labels: list[Any], names: tuple[str, ...]) -> None:
    found, class_names = label(values)
    assert ([found[index] for index in range(len(found))], class_names) == (labels, names)


def test_known_names() -> None:
    assert label(pa_columns.array([1]), names=NAMES_COLUMNS)[1] == NAMES_COLUMNS
    assert label(pa_columns.array(["fox", "dog"]), names=NAMES_COLUMNS)[0].values.tolist() == [2, 1]
    assert label(pa_columns.array([-1, -1]), names=NAMES_COLUMNS)[1] == ()


def test_classes_are_counted_over_all_splits_columns() -> None:
    labels, names = label(
        pa_columns.array(["b", "d"]), pa_columns.array(["c", "b"]), pa_columns.array([None], pa_columns.string())
    )
    assert (labels.values.tolist(), names) == ([0, 2], ("b", "c", "d"))
    assert label(pa_columns.array([1]), pa_columns.array([4], pa_columns.int8()), pa_columns.nulls(3))[1] == tuple("01234")


@pytest.mark.parametrize(
    ("values", "names", "told"),
    [
        (pa_columns.array([0, -1, 2]), None, r"1\.png is the first of 1 images without"),
        (pa_columns.array(["a", "b", None]), None, r"2\.png is the first of 1 images without"),
        (pa_columns.array([[0], [1, -1]]), None, r"1\.png is the first of 1 images without"),
        (pa_columns.array(["cat", "cow"]), NAMES_COLUMNS, r"1\.png is the first of 1 images without"),
        (pa_columns.array([[0], None]), None, "here has null for some lists"),
        (pa_columns.array([0, 3]), NAMES_COLUMNS, r"1\.png has the label 3, and here names 3 classes"),
        (pa_columns.array([0.5]), None, "labels of type double"),
        (pa_columns.array([True]), None, "labels of type bool"),
        (pa_columns.array([{"a": 1}]), None, "labels of type struct"),
        (pa_columns.array([2**40]), None, "more than 1000000 classes"),
        (pa_columns.array([2**63, 1], pa_columns.uint64()), NAMES_COLUMNS, r"0\.png is the first of 1 images without"),
    ],
)
def test_labels_that_are_refused(values: Any, names: tuple[str, ...] | None, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        label(values, names=names)


def test_numbers_and_strings_do_not_mix() -> None:
    with pytest.raises(ValueError, match="numbers as labels in one split and strings in another"):
        label(pa_columns.array([1]), pa_columns.array(["a"]))
