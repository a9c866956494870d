"""Lists of images: classes, splits, columns, files written by pandas, quoting by RFC 4180, and all kinds of mistakes."""

import csv
import json
import os
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.sources.failing import fail_to_open
from vitrine.core.console import VitrineWarning
from vitrine.data.image import BadImage
from vitrine.data.source import Source
from vitrine.data.sources.annotations import MAX_CLASSES
from vitrine.data.sources.manifest import FORMAT, Row, read_rows

COLOURS = {"bird": (200, 30, 10), "cat": (20, 180, 40), "dog": (5, 60, 220)}


def make_manifest(folder: Path) -> Path:
    path = folder / "images.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for split, count in (("train", 2), ("val", 1)):
            for name, colour in COLOURS.items():
                for index in range(count):
                    (folder / "pixels").mkdir(exist_ok=True)
                    Image.new("RGB", (6, 4), colour).save(folder / "pixels" / f"{split}, {name} {index}.png")
                    writer.writerow([f"pixels/{split}, {name} {index}.png", name, split])
    return path


def write_manifest(folder: Path, content: str | bytes, name: str = "list.csv") -> Path:
    """Write a list and its first image, a.png; the other images need not exist."""
    Image.new("RGB", (2, 3)).save(folder / "a.png")
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


def write_json_lines(folder: Path, *rows: object) -> Path:
    return write_manifest(folder, "".join(json.dumps(row) + "\n" for row in rows), "list.jsonl")


def names_of(source: Source) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def labels_of(source: Source) -> list[object]:
    return [source.labels[index] for index in range(len(source))]


def check_error(path: Path, match: str) -> None:
    message = fail_to_open(FORMAT, path, None)
    assert re.search(match, message), message
    assert path.name in message


def test_csv_with_splits(tmp_path: Path) -> None:
    path = make_manifest(tmp_path)
    assert FORMAT.matches(path)
    assert FORMAT.list_splits(path) == ("train", "val")
    for split, count in (("train", 2), ("val", 1)):
        source = FORMAT.open(path, split)
        assert source.class_names == ("bird", "cat", "dog")
        assert names_of(source) == [f"pixels/{split}, {name} {index}.png" for name in COLOURS for index in range(count)]
        for index in range(len(source)):
            image, label = source.read(index)
            expected = np.broadcast_to(np.uint8(list(COLOURS.values())[label]), (4, 6, 3))
            np.testing.assert_array_equal(image.to_numpy(), expected)
        assert set(source.files()) == {path, *(tmp_path / name for name in names_of(source))}


def test_lists_without_labels(tmp_path: Path) -> None:
    for path in (
        write_manifest(tmp_path, "path,height\na.png,3\nb.png,4\n"),
        write_manifest(tmp_path, "path,label\na.png,\nb.png,\n", "empty.csv"),
        write_json_lines(tmp_path, {"path": "a.png"}, {"path": "b.png", "label": None}),
    ):
        source = FORMAT.open(path, None)
        assert (labels_of(source), source.class_names, source.labels.has_several) == ([(), ()], (), True)


def test_several_labels(tmp_path: Path) -> None:
    as_csv = write_manifest(tmp_path, "path,labels\na.png,dog; cat;\nb.png,\nc.png,cat\nd.png,a|b\ne.png,cat;cat\n")
    as_json = write_json_lines(
        tmp_path,
        {"path": "a.png", "labels": ["dog", " cat "]},
        {"path": "b.png", "labels": []},
        {"path": "c.png", "labels": "cat"},
        {"path": "d.png", "labels": ["a|b"]},
        {"path": "e.png", "labels": ["cat", "cat"]},
    )
    for path in (as_csv, as_json):
        source = FORMAT.open(path, None)
        assert source.class_names == ("a|b", "cat", "dog")
        assert labels_of(source) == [(2, 1), (), (1,), (0,), (1,)]
        np.testing.assert_array_equal(source.labels.to_targets(np.array([0, 1]), 3), [[0, 1, 1], [0, 0, 0]])


def test_missing_label_gives_a_warning(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, "path,label\na.png,cat\nb.png,\nc.png,dog\n")
    with pytest.warns(VitrineWarning, match=r"1 images .*b\.png"):
        source = FORMAT.open(path, None)
    assert labels_of(source) == [(0,), (), (1,)]


def test_unlabelled_split_does_not_affect_others(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, "path,label,split\na.png,cat,train\nb.png,,test\nc.png,dog,train\nd.png,dog,val\n")
    assert FORMAT.list_splits(path) == ("train", "val", "test")
    train, val, test = (FORMAT.open(path, split) for split in ("train", "val", "test"))
    assert (labels_of(train), labels_of(val), labels_of(test)) == ([0, 1], [1], [()])
    assert (train.class_names, val.class_names, test.class_names) == (("cat", "dog"), ("cat", "dog"), ())


def test_all_splits_have_sets_if_one_has(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, "path,label,split\na.png,cat;dog,train\nb.png,dog,test\n")
    assert labels_of(FORMAT.open(path, "test")) == [(1,)]


@pytest.mark.parametrize("spelling", ["val", "valid", "Validation", " DEV "])
def test_spellings_of_splits(tmp_path: Path, spelling: str) -> None:
    path = write_manifest(tmp_path, f"path,split\na.png,training\nb.png,{spelling}\nc.png,testing\n")
    assert FORMAT.list_splits(path) == ("train", "val", "test")
    assert names_of(FORMAT.open(path, "val")) == ["b.png"]


def test_whole_numbers_are_class_indices(tmp_path: Path) -> None:
    for path in (
        write_manifest(tmp_path, "path,label\na.png,10\nb.png, 2\nc.png,0\n"),
        write_json_lines(
            tmp_path, *({"path": f"{name}.png", "label": label} for name, label in zip("abc", (10, "2", 0), strict=True))
        ),
    ):
        source = FORMAT.open(path, None)
        assert labels_of(source) == [10, 2, 0]
        assert source.class_names == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10")


def test_codes_with_leading_zeros_are_names(tmp_path: Path) -> None:
    source = FORMAT.open(write_manifest(tmp_path, "path,label\na.png,007\nb.png,10\n"), None)
    assert (source.class_names, labels_of(source)) == (("007", "10"), [0, 1])


@pytest.mark.parametrize(
    ("labels", "listed", "names", "indices"),
    [
        (("dog", "cat"), "dog\ncat\nemu\n", ("dog", "cat", "emu"), [0, 1]),
        (("2", "0"), "dog\ncat\nemu\n", ("dog", "cat", "emu"), [2, 0]),
        (("1", "2"), "1\n2\n3\n", ("1", "2", "3"), [0, 1]),  # numbers that are names in the list
        (("n2", "n1"), "n1\ttench\nn2\tshark\n", ("tench", "shark"), [1, 0]),
    ],
)
def test_class_list_beside(
    tmp_path: Path, labels: tuple[str, str], listed: str, names: tuple[str, ...], indices: list[int]
) -> None:
    (tmp_path / "classes.txt").write_text(listed)
    path = write_manifest(tmp_path, f"path,label\na.png,{labels[0]}\nb.png,{labels[1]}\n")
    source = FORMAT.open(path, None)
    assert (source.class_names, labels_of(source)) == (names, indices)
    assert tmp_path / "classes.txt" in source.files()


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (("cat", "emu"), r"line 3 .*'emu'.*classes\.txt"),
        (("cat", "3"), r"line 3 .*'3'.*classes\.txt"),
        (("0", "2"), r"line 3 .* 2, .*classes\.txt.* 2 classes"),
    ],
)
def test_labels_missing_from_the_class_list_are_errors(tmp_path: Path, labels: tuple[str, str], match: str) -> None:
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    check_error(write_manifest(tmp_path, f"path,label\na.png,{labels[0]}\nb.png,{labels[1]}\n"), match)


def test_class_indices_are_limited(tmp_path: Path) -> None:
    for label in (str(MAX_CLASSES), "9" * 5000):
        check_error(write_manifest(tmp_path, f"path,label\na.png,0\nb.png,{label}\n"), "limit is 999999")
    path = write_manifest(tmp_path, '{"path": "a.png", "label": ' + "9" * 5000 + "}", "list.jsonl")
    check_error(path, "line 1 is not JSON")


@pytest.mark.parametrize("label", ["-1", "2.0"])
def test_numbers_that_are_not_class_indices(tmp_path: Path, label: str) -> None:
    check_error(write_manifest(tmp_path, f"path,label\na.png,0\nb.png,{label}\n"), f"line 3 .*{label} among numbers")
    source = FORMAT.open(write_manifest(tmp_path, f"path,label\na.png,zero\nb.png,{label}\n"), None)
    assert source.class_names == (label, "zero")


def test_only_the_first_file_must_exist(tmp_path: Path) -> None:
    source = FORMAT.open(write_manifest(tmp_path, "path\na.png\ngone.png\n"), None)
    assert source.read(0)[0].height == 3
    with pytest.raises(BadImage, match=r"gone\.png.*No such file"):
        source.read(1)
    path = write_manifest(tmp_path, "path\npictures/b.png\na.png\n")
    with pytest.raises(FileNotFoundError, match=r"line 2 .*pictures/b\.png"):
        FORMAT.open(path, None)


def test_devices_are_not_images(tmp_path: Path) -> None:
    source = FORMAT.open(write_manifest(tmp_path, "path\na.png\n/dev/zero\n."), None)
    for index, reason in ((1, "not a regular file"), (2, "not a regular file")):
        with pytest.raises(BadImage, match=reason):
            source.read(index)


def test_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    Image.new("RGB", (5, 5)).save(tmp_path / "there.png")
    path = write_manifest(tmp_path / "lists", f"path\n{tmp_path}/there.png\n../there2.png\n")
    source = FORMAT.open(path, None)
    assert names_of(source) == [f"{tmp_path}/there.png", "../there2.png"]
    assert source.read(0)[0].width == 5


@pytest.mark.parametrize("second", ["a.png", "./a.png", "x/../a.png", "{folder}/a.png"])
def test_repeated_images_are_errors(tmp_path: Path, second: str) -> None:
    second = second.format(folder=tmp_path)
    path = write_manifest(tmp_path, f"path,label\na.png,1\n\nb.png,1\n{second},0\n")
    check_error(path, "line 5 .* line 2")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "no images"),
        ("\n \n", "no images"),
        ("path,label\n", "no images"),
        ("path,split\na.png,train\nb.png,fold1\n", "line 3 .*'fold1'"),
        ("path,split\na.png,train\nb.png,\n", "line 3 has no split"),
    ],
)
def test_bad_lists(tmp_path: Path, content: str, match: str) -> None:
    check_error(write_manifest(tmp_path, content), match)


def test_split_in_only_some_rows_is_an_error(tmp_path: Path) -> None:
    with_split, without = {"path": "a.png", "split": "train"}, {"path": "b.png"}
    check_error(write_json_lines(tmp_path, with_split, without), "line 2 has no split")
    check_error(write_json_lines(tmp_path, {"path": "a.png"}, {"path": "b.png", "split": "train"}), "line 2 .*'train'")


def test_other_paths_are_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    check_error(tmp_path / "absent.csv", "does not exist")
    check_error(tmp_path / "folder.csv", "Is a directory")
    for name in ("absent.csv", "folder.csv"):
        assert not FORMAT.matches(tmp_path / name)
    assert not FORMAT.matches(write_manifest(tmp_path, "path\na.png\n", "list.json"))
    assert FORMAT.matches(write_manifest(tmp_path, "", "list.TSV"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_lists_give_a_one_line_error_or_images(tmp_path: Path, data: st.DataObject) -> None:
    name, content = data.draw(
        st.sampled_from(
            [
                ("list.csv", b'path,label,split\r\n"a.png",cat;dog,train\r\nb.png,1,val\r\n'),
                ("list.jsonl", b'{"path": "a.png", "label": ["cat", 1]}\n{"path": "b.png", "label": 7}\n'),
            ]
        )
    )
    position = data.draw(st.integers(0, len(content)))
    cut = data.draw(st.integers(0, 3))
    path = write_manifest(tmp_path, content[:position] + data.draw(st.binary(max_size=3)) + content[position + cut :], name)
    caught = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VitrineWarning)
            source = FORMAT.open(path, next(iter(FORMAT.list_splits(path)), None))
        assert len(source) == len(names_of(source)) >= 1
    except (ValueError, FileNotFoundError) as error:
        caught = error
    assert type(caught) in (type(None), ValueError, FileNotFoundError)
    assert caught is None or (str(path) in str(caught) and "\n" not in str(caught))


def test_pickled_source_works_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_manifest(tmp_path)
    monkeypatch.chdir(tmp_path)
    source = FORMAT.open(Path("images.csv"), "train")
    source.read(0)
    packed = pickle.dumps(source)
    monkeypatch.chdir("/")
    again = pickle.loads(packed)
    np.testing.assert_array_equal(again.read(2)[0].to_numpy(), source.read(2)[0].to_numpy())
    assert (again.name(2), again.labels[2], again.class_names) == ("pixels/train, cat 0.png", 1, source.class_names)
    assert all(os.path.isabs(path) and path.exists() for path in again.files())


def read(path: Path) -> list[tuple[str, list[str]]]:
    return [(row.path, row.labels) for row in read_rows(path)]


def test_rows_have_their_line(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, "label,path,split\n\ncat; dog,a.png,Train\n")
    assert list(read_rows(path)) == [Row(f"{path} line 3", 3, "a.png", ["cat", "dog"], "Train")]
    path = write_json_lines(tmp_path, {"file": "a.png", "label": [3, "cat"]}, {"split": "val", "file": "b.png"})
    assert list(read_rows(path)) == [
        Row(f"{path} line 1", 1, "a.png", ["3", "cat"], None),
        Row(f"{path} line 2", 2, "b.png", [], "val"),
    ]


@pytest.mark.parametrize("name", ["list.csv", "list.TSV", "list.jsonl"])
def test_files_written_by_pandas(tmp_path: Path, name: str) -> None:
    pandas = pytest.importorskip("pandas")
    names = ["a.png", 'quo"te.png', "com,ma.png", "tab\tbed.png", "ü \u2028.png", "semi;colon.png", "'x'.png"]
    labels = ["dog", "cat, wild", "dog", 'the "cat"', "dog", "élan", "b\tc"]
    frame = pandas.DataFrame({"note": ["one\ntwo"] * 7, "Class": labels, "FileName": names})
    path = write_manifest(tmp_path, "", name)
    if name.endswith("jsonl"):
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="\t" if name.endswith("TSV") else ",")
    assert read(path) == [(name, [label]) for name, label in zip(names, labels, strict=True)]


def test_csv_by_rfc_4180(tmp_path: Path) -> None:
    header = b'\xef\xbb\xbf path ,"label"\r\n'  # with the byte order mark of Excel
    content = header + b'"a.png",cat\r\n\r\n"b ""2"".png","c,d"\r\n   \r\n,\r\nc.png,cat'
    assert read(write_manifest(tmp_path, content)) == [("a.png", ["cat"]), ('b "2".png', ["c,d"]), ("c.png", ["cat"])]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a.png,cat\nb.png,bee\n", [("a.png", ["cat"]), ("b.png", ["bee"])]),
        ("a.png\nb.png\n", [("a.png", []), ("b.png", [])]),
        ("a.png,image\nb.png,label\n", [("a.png", ["image"]), ("b.png", ["label"])]),  # classes named like columns
    ],
)
def test_csv_without_a_header(tmp_path: Path, content: str, rows: list[tuple[str, list[str]]]) -> None:
    assert read(write_manifest(tmp_path, content)) == rows


@pytest.mark.parametrize("path_name", ["path", "file", "filename", "file_name", "image", "image_path", "img", "IMG"])
@pytest.mark.parametrize("label_name", ["label", "labels", "class", "category", "class_name", "target", "Target"])
def test_names_of_columns(tmp_path: Path, path_name: str, label_name: str) -> None:
    rows = [("a.png", "x"), ("b.png", "y")]
    tables = [
        write_manifest(tmp_path, f"id,{label_name},{path_name}\n" + "".join(f"7,{label},{path}\n" for path, label in rows)),
        write_json_lines(tmp_path, *({label_name: label, "id": 7, path_name: path} for path, label in rows)),
    ]
    for table in tables:
        assert read(table) == [("a.png", ["x"]), ("b.png", ["y"])]


def test_json_string_is_one_label(tmp_path: Path) -> None:
    assert read(write_json_lines(tmp_path, {"path": "a.png", "label": "salt; pepper"})) == [("a.png", ["salt; pepper"])]


def test_json_lines_with_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    content = '\ufeff{"path": "a.png"}\r\n\r\n{"path": "b.png"}'
    assert read(write_manifest(tmp_path, content, "list.jsonl")) == [("a.png", []), ("b.png", [])]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("name,label\na.png,1\n", "line 1 has name, label; .*path"),
        ("\n\nname,label\n", "line 3 has name, label"),
        ("b.png,cat\na.png,dog\n", "without a header"),
        ("a.png,1,train\n", "3 columns without a header"),
        ("path,label\na.png,1\nb.png\n", "line 3 has 1 cells.* 2"),
        ("path,label\na.png,1\nb,c.png,1\n", "line 3 has 3 cells.* 2"),
        ("path,label\n,1\n", "line 2 has no path"),
        ("path,file,label\na.png,a.png,1\n", "line 1 .*path, file"),
        ("path,label,class\na.png,1,cat\n", "line 1 .*label, class"),
        ('path,label\n"a.png,1\nb.png,1\n', "is not CSV .unexpected end"),
        ('path,label\n"a.png"x,1\n', "line 2 is not CSV"),
        ('path,label\na.png,1\n"b.png,1\nc.png",1\n', r"line 4 .*'b\.png,1\\nc\.png'"),
        ("path,label\na.png\0,1\n", r"line 2 .*'a\.png\\x00'"),
        ("path,label\na.png," + "x" * 200_000, "line 2 is not CSV .field larger"),
        ("path,label\na.png,caf\xe9\n".encode("latin-1"), "not UTF-8"),
        ("path,label\na.png,1\n".encode("utf-16"), "not UTF-8"),
        ("path,label\na.png,1\n".encode("utf-16-le"), "line 1 has"),
    ],
)
def test_bad_csv(tmp_path: Path, content: str | bytes, match: str) -> None:
    check_error(write_manifest(tmp_path, content), match)


@pytest.mark.parametrize(
    ("second", "match"),
    [
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON .nested"),
        ('["b.png", 1]', "line 2 .*list"),
        ("{}", "line 2 has nothing"),
        ('{"label": 1}', "line 2 has label"),
        ('{"path": "b.png", "path": "c.png"}', "line 2 .*repeats"),
        ('{"path": "b.png", "Path": "c.png"}', "line 2 .*path, Path"),
        ('{"path": 3}', "line 2 has the path 3"),
        ('{"path": null}', "line 2 has the path None"),
        ('{"path": ""}', "line 2 has no path"),
        ('{"path": "b\\u0000.png"}', r"line 2 .*b\\x00\.png"),
        ('{"path": "\\ud800.png"}', r"line 2 .*\\ud800\.png"),
        ('{"path": "b.png", "label": 1.5}', r"line 2 has the label 1\.5"),
        ('{"path": "b.png", "label": true}', "line 2 has the label True"),
        ('{"path": "b.png", "label": ["x", ["y"]]}', r"line 2 has the label \['y'\]"),
        ('{"path": "b.png", "label": {"x": 1}}', "line 2 has the label {'x': 1}"),
        ('{"path": "b.png", "label": NaN}', "line 2 has the label nan"),
        ('{"path": "b.png", "split": 1}', "line 2 has the split 1"),
    ],
)
def test_bad_json_lines(tmp_path: Path, second: str, match: str) -> None:
    check_error(write_manifest(tmp_path, '{"path": "a.png", "label": "x"}\n' + second, "list.jsonl"), match)


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("path;label\na.png;cat\nb.png;dog\n", [0, 1]),  # as spreadsheets write it where numbers have a decimal comma
        ('\n\n"path";"label"\na.png;cat\nb.png;dog\n', [0, 1]),
        ("path\tlabel\na.png\tcat\nb.png\tdog\n", [0, 1]),  # tabs in a .csv
        ("a.png;cat\nb.png;dog\n", [0, 1]),  # no header
        ("a.png\tcat\nb.png\tdog\n", [0, 1]),
        ("path,label\na.png,cat;dog\nb.png,dog\n", [(0, 1), (1,)]),  # semicolons within a cell stay several labels
        ("path;label\na.png;cat|dog\nb.png;dog\n", [(0, 1), (1,)]),
        ("path\tlabel\na.png\tcat;dog\nb.png\tdog\n", [(0, 1), (1,)]),
    ],
)
def test_other_separators_of_columns(content: str, labels: list[object], tmp_path: Path) -> None:
    source = FORMAT.open(write_manifest(tmp_path, content), None)
    assert names_of(source) == ["a.png", "b.png"]
    assert source.class_names == ("cat", "dog")
    assert labels_of(source) == labels


def test_a_list_of_paths_with_semicolons_has_one_column(tmp_path: Path) -> None:
    Image.new("RGB", (2, 3)).save(tmp_path / "a;b.png")
    assert names_of(FORMAT.open(write_manifest(tmp_path, "a;b.png\nc;d.png\n"), None)) == ["a;b.png", "c;d.png"]


def test_lines_are_counted_from_the_top_of_the_file(tmp_path: Path) -> None:
    check_error(write_manifest(tmp_path, "\n\npath;label\na.png;cat;x\n"), r"line 4 .*semicolons")
