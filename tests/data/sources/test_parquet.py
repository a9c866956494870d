"""Parquet files written by pyarrow and by `datasets`, damaged ones, and columns and labels of every type."""

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


def test_splits_in_the_layout_of_the_hub(tmp_path: Path) -> None:
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


def test_single_file_and_folder_without_splits(tmp_path: Path) -> None:
    path = write(tmp_path / "b.parquet", {"img": [draw(0), draw(1)], "label": [1, 0]})
    write(tmp_path / "a.parquet", {"img": [draw(2)], "label": [3]})
    assert FORMAT.matches(path)
    assert FORMAT.list_splits(path) == FORMAT.list_splits(tmp_path) == ()
    assert FORMAT.open(path, None).class_names == ("0", "1")
    source = FORMAT.open(tmp_path, None)
    assert [source.name(index) for index in range(3)] == ["a.parquet[0]", "b.parquet[0]", "b.parquet[1]"]
    assert [source.fetch(index) for index in range(3)] == [draw(2), draw(0), draw(1)]
    assert source.class_names == ("0", "1", "2", "3")


def test_files_written_by_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=NAMES)})
    rows = {"picture": [{"bytes": draw(seed), "path": None} for seed in range(4)], "kind": [2, 1, 0, 2]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "train.parquet")
    source = FORMAT.open(tmp_path, "train")
    assert [source.fetch(index) for index in range(4)] == [draw(seed) for seed in range(4)]
    assert (source.labels.values.tolist(), source.class_names) == ([2, 1, 0, 2], tuple(NAMES))


def test_several_labels_written_by_datasets(tmp_path: Path) -> None:
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


def test_splits_have_the_same_classes(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", {"image": make_images(range(2)), "label": ["b", "d"]})
    write(tmp_path / "test-0.parquet", {"image": make_images(range(2)), "label": ["c", "b"]})
    train, test = FORMAT.open(tmp_path, "train"), FORMAT.open(tmp_path, "test")
    assert train.class_names == test.class_names == ("b", "c", "d")
    assert (train.labels.values.tolist(), test.labels.values.tolist()) == ([0, 2], [1, 0])
    write(tmp_path / "test-0.parquet", {"image": make_images(range(2)), "label": [1, 9]})
    assert "numbers as labels" in fails(tmp_path, "test")


def test_files_with_different_columns_are_errors(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"image": make_images(range(1)), "label": [0]})
    write(tmp_path / "b.parquet", {"image": make_images(range(1)), "label": ["x"]})
    assert "b.parquet has other columns" in fails(tmp_path)
    write(tmp_path / "b.parquet", {"image": make_images(range(1))})
    assert "b.parquet has other columns" in fails(tmp_path)
    write(tmp_path / "b.parquet", {"image": make_images(range(1)), "label": [0]}, {"label": CLASS_LABEL})
    assert "b.parquet has other columns" in fails(tmp_path)


def test_tables_without_images(tmp_path: Path) -> None:
    assert "columns text, label" in fails(write(tmp_path / "x.parquet", {"text": ["a"], "label": [1]}))
    assert "columns image, label" in fails(write(tmp_path / "x.parquet", {"image": ["a.png"], "label": [1]}))
    empty = {"image": pa.array([], IMAGE), "label": pa.array([], pa.int64())}
    assert len(FORMAT.open(write(tmp_path / "x.parquet", empty), None)) == 0  # DatasetHandle.open raises for every format


def test_table_beside_image_files_is_not_the_dataset(tmp_path: Path) -> None:
    path = write(tmp_path / "metadata.parquet", {"image": ["cat/1.png"], "label": [0]})
    assert FORMAT.matches(path)
    assert FORMAT.matches(tmp_path)  # alone it is recognised, and opening fails
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
        assert "expected a Parquet file" in fails(tmp_path / "x.parquet")
    write(tmp_path / "x.parquet", {"image": make_images(range(1))}, {})
    for notes in (b"{", b"\xff", b"[1]", b'{"info": {"features": 3}}', b"[" * 100_000):
        table = pa.table({"image": make_images(range(1))}).replace_schema_metadata({b"huggingface": notes})
        pq.write_table(table, tmp_path / "x.parquet")
        assert "expected a Parquet file" in fails(tmp_path / "x.parquet")


def test_damaged_bytes_give_an_error_or_an_image(tmp_path: Path) -> None:
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


def test_large_row_groups_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_split(tmp_path / "x.parquet", range(4))
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 100)
    assert "over 2 GB" in fails(tmp_path / "x.parquet")


def test_file_changed_after_opening_is_an_error(tmp_path: Path) -> None:
    write_split(tmp_path / "x.parquet", range(4))
    source = FORMAT.open(tmp_path, None)
    write_split(tmp_path / "x.parquet", range(6))
    with pytest.raises(ValueError, match=r"x\.parquet has changed"):
        source.fetch(0)


def test_row_groups_in_order_are_read_once(tmp_path: Path) -> None:
    source = FORMAT.open(make_parquet(tmp_path), "train")
    parquet.read_group.cache_clear()
    for index in range(8):
        source.fetch(index)
    assert parquet.read_group.cache_info().misses == 5  # groups of 2: 3 in the first file, 2 in the second
    assert parquet.read_group.cache_info().currsize == 4


def test_threads_decode_a_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three groups fit into the cache, so that the order of the threads does not matter."""
    source = FORMAT.open(make_parquet(tmp_path) / "data" / "train-00000-of-00002.parquet", "train")
    decode, decoded = pq.ParquetFile.read_row_group, list[int]()
    meeting = Barrier(8, timeout=600)

    def decode_slowly(file: Any, group: int, **options: Any) -> Any:
        decoded.append(group)
        time.sleep(0.01)  # lets other threads arrive meanwhile
        return decode(file, group, **options)

    def read_from(start: int) -> list[Any]:
        meeting.wait()
        images = {index % 5: source.fetch(index % 5) for index in range(start, start + 5)}
        return [images[index] for index in range(5)]

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", decode_slowly)
    parquet.read_group.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read_from, range(8))) == [[draw(seed) for seed in range(5)]] * 8
    assert sorted(decoded) == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12: forking while threads run
def test_forked_process_does_not_wait_for_a_lock_of_its_parent(tmp_path: Path) -> None:
    source = FORMAT.open(make_parquet(tmp_path), "train")
    with parquet.LOCKS.setdefault(os.getpid(), Lock()):
        process = get_context("fork").Process(target=source.fetch, args=(0,))
        process.start()
        process.join(timeout=600)
    process.kill()  # if it waits
    assert process.exitcode == 0


def test_pickled_before_and_after_reading(tmp_path: Path) -> None:
    source = FORMAT.open(make_parquet(tmp_path), "train")
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(source))
        assert [copy.fetch(index) for index in range(8)] == [draw(seed) for seed in range(8)]
        assert len(pickle.dumps(source)) < 10_000
        source.fetch(0)


def test_relative_paths_after_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


IMAGE_FEATURE = {"_type": "Image"}


def label(values: Any, *others: Any, names: tuple[str, ...] | None = None) -> tuple[Labels, tuple[str, ...]]:
    found = parse_labels(pa.chunked_array([values]), [pa.chunked_array([other]) for other in others], names, "here")
    return validate_labels(*found, "here", "{}.png".format)


@pytest.mark.parametrize(
    ("images", "features", "chosen"),
    [
        (["image", "mask"], {}, "image"),
        (["mask", "img"], {}, "img"),
        (["picture", "other"], {"picture": IMAGE_FEATURE}, "picture"),
        (["image", "picture"], {"picture": IMAGE_FEATURE}, "picture"),
        (["mask", "image"], {"mask": IMAGE_FEATURE, "image": IMAGE_FEATURE}, "image"),
        (["left", "right"], {"left": IMAGE_FEATURE, "right": IMAGE_FEATURE}, None),
        (["picture"], {}, None),
        ([], {"image": IMAGE_FEATURE}, None),
    ],
)
def test_which_column_is_the_image(images: list[str], features: dict[str, Any], chosen: str | None) -> None:
    if chosen is not None:
        assert choose_columns([*images, "text"], images, features, "here") == Columns(chosen, None, None)
        return
    with pytest.raises(ValueError, match=r"here has the columns .*text"):
        choose_columns([*images, "text"], images, features, "here")


@pytest.mark.parametrize(
    ("columns", "features", "chosen", "names"),
    [
        (["caption"], {}, None, None),
        (["label"], {}, "label", None),
        (["coarse_label", "fine_label"], {}, "fine_label", None),  # CIFAR-100
        (["colour", "label"], {"colour": CLASS_LABEL}, "label", None),
        (["shape"], {"shape": CLASS_LABEL}, "shape", tuple(NAMES)),
        (["label"], {"label": {"feature": CLASS_LABEL, "_type": "Sequence"}}, "label", tuple(NAMES)),
        (["labels"], {"labels": {"feature": CLASS_LABEL, "_type": "List"}}, "labels", tuple(NAMES)),
        (["labels"], {"labels": [CLASS_LABEL]}, "labels", tuple(NAMES)),
        (["label"], {"label": {"_type": "ClassLabel", "names": None}}, "label", None),
        (["label"], {"label": {"_type": "Value", "names": 3}}, "label", None),
        (["label"], {"label": 3}, "label", None),
    ],
)
def test_which_column_is_the_label(columns: list[str], features: Any, chosen: str | None, names: Any) -> None:
    assert choose_columns(["image", *columns], ["image"], features, "here") == Columns("image", chosen, names)


def test_several_label_columns_give_a_warning() -> None:
    features = {"colour": CLASS_LABEL, "shape": CLASS_LABEL}
    with pytest.warns(VitrineWarning, match="colour, shape"):
        assert choose_columns(["image", *features], ["image"], features, "here").label is None
    for names in ([1, 2], "cat", {"0": "cat"}):
        with pytest.raises(ValueError, match="ClassLabel"):
            choose_columns(["image", "label"], ["image"], {"label": {"_type": "ClassLabel", "names": names}}, "here")


@pytest.mark.parametrize(
    ("values", "labels", "names"),
    [
        (pa.array([2, 0], pa.uint8()), [2, 0], ("0", "1", "2")),
        (pa.array(["fox", "cat", "fox"]), [1, 0, 1], ("cat", "fox")),
        (pa.array(["fox", "cat"], pa.large_string()), [1, 0], ("cat", "fox")),
        (pa.array(["fox", "cat", "fox"]).dictionary_encode(), [1, 0, 1], ("cat", "fox")),
        (pa.array([["fox"], [], ["cat", "fox"]]), [(1,), (), (0, 1)], ("cat", "fox")),
        (pa.array([[0, 1], [1, 2]], pa.list_(pa.int64(), 2)), [(0, 1), (1, 2)], ("0", "1", "2")),
        (pa.array([[1], [0]], pa.large_list(pa.int8())), [(1,), (0,)], ("0", "1")),
        (pa.array([-1, -1]), [(), ()], ()),
        (pa.array([None, None], pa.int64()), [(), ()], ()),
        (pa.nulls(2), [(), ()], ()),
        (pa.array([None, None], pa.string()), [(), ()], ()),
        (pa.array([None, None], pa.float64()), [(), ()], ()),
        (pa.array([None, None], pa.struct([("a", pa.int64())])), [(), ()], ()),
        (pa.array([None, None], pa.list_(pa.int64())), [(), ()], ()),
    ],
)
def test_kinds_of_labels(values: Any, labels: list[Any], names: tuple[str, ...]) -> None:
    found, class_names = label(values)
    assert ([found[index] for index in range(len(found))], class_names) == (labels, names)


def test_known_names() -> None:
    assert label(pa.array([1]), names=tuple(NAMES))[1] == tuple(NAMES)
    assert label(pa.array(["fox", "dog"]), names=tuple(NAMES))[0].values.tolist() == [2, 1]
    assert label(pa.array([-1, -1]), names=tuple(NAMES))[1] == ()


def test_classes_of_other_columns_count() -> None:
    labels, names = label(pa.array(["b", "d"]), pa.array(["c", "b"]), pa.array([None], pa.string()))
    assert (labels.values.tolist(), names) == ([0, 2], ("b", "c", "d"))
    assert label(pa.array([1]), pa.array([4], pa.int8()), pa.nulls(3))[1] == tuple("01234")


@pytest.mark.parametrize(
    ("values", "names", "match"),
    [
        (pa.array([0, -1, 2]), None, r"1\.png is the first of 1 images without"),
        (pa.array(["a", "b", None]), None, r"2\.png is the first of 1 images without"),
        (pa.array([[0], [1, -1]]), None, r"1\.png is the first of 1 images without"),
        (pa.array(["cat", "cow"]), tuple(NAMES), r"1\.png is the first of 1 images without"),
        (pa.array([[0], None]), None, "here has null"),
        (pa.array([0, 3]), tuple(NAMES), r"1\.png has label 3"),
        (pa.array([0.5]), None, "labels of type double"),
        (pa.array([True]), None, "labels of type bool"),
        (pa.array([{"a": 1}]), None, "labels of type struct"),
        (pa.array([2**40]), None, "limit is 1000000"),
        (pa.array([2**63, 1], pa.uint64()), tuple(NAMES), r"0\.png is the first of 1 images without"),
    ],
)
def test_invalid_labels_are_errors(values: Any, names: tuple[str, ...] | None, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        label(values, names=names)
