"""Rows of manifests against what pandas writes, RFC 4180's quoting, and files with every kind of mistake."""

import re
from pathlib import Path

import pytest

from tests.data.sources.test_manifest import write_json_lines, write_manifest
from vitrine.data.sources.manifest_rows import Row, read_rows


def read(path: Path) -> list[tuple[str, list[str]]]:
    return [(row.path, row.labels) for row in read_rows(path)]


def refuses_rows(path: Path, needle: str, kind: type[Exception] = ValueError) -> None:
    with pytest.raises(kind, match=re.escape(needle)) as caught:
        list(read_rows(path))
    assert type(caught.value) is kind  # not a UnicodeDecodeError or JSONDecodeError, which are ValueErrors too
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


def test_a_row_knows_its_place(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, "label,path,split\n\ncat; dog,a.png,Train\n")
    assert list(read_rows(path)) == [Row(f"{path} line 3", 3, "a.png", ["cat", "dog"], "Train")]
    path = write_json_lines(tmp_path, {"file": "a.png", "label": [3, "cat"]}, {"split": "val", "file": "b.png"})
    assert list(read_rows(path)) == [
        Row(f"{path} line 1", 1, "a.png", ["3", "cat"], None),
        Row(f"{path} line 2", 2, "b.png", [], "val"),
    ]


@pytest.mark.parametrize("name", ["list.csv", "list.TSV", "list.jsonl"])
def test_what_pandas_writes(tmp_path: Path, name: str) -> None:
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
    header = b'\xef\xbb\xbf path ,"label"\r\n'  # with the mark that Excel puts first
    content = header + b'"a.png",cat\r\n\r\n"b ""2"".png","c,d"\r\n   \r\n,\r\nc.png,cat'
    assert read(write_manifest(tmp_path, content)) == [("a.png", ["cat"]), ('b "2".png', ["c,d"]), ("c.png", ["cat"])]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a.png,cat\nb.png,bee\n", [("a.png", ["cat"]), ("b.png", ["bee"])]),
        ("a.png\nb.png\n", [("a.png", []), ("b.png", [])]),
        ("a.png,image\nb.png,label\n", [("a.png", ["image"]), ("b.png", ["label"])]),  # classes called like columns
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


def test_a_json_string_is_one_label(tmp_path: Path) -> None:
    assert read(write_json_lines(tmp_path, {"path": "a.png", "label": "salt; pepper"})) == [("a.png", ["salt; pepper"])]


def test_json_lines_with_a_mark_and_windows_line_ends(tmp_path: Path) -> None:
    content = '\ufeff{"path": "a.png"}\r\n\r\n{"path": "b.png"}'
    assert read(write_manifest(tmp_path, content, "list.jsonl")) == [("a.png", []), ("b.png", [])]


@pytest.mark.parametrize(
    ("name", "content"), [("list.csv", ""), ("list.csv", "\n \n"), ("list.csv", "path\n"), ("list.jsonl", "\n")]
)
def test_lists_of_nothing(tmp_path: Path, name: str, content: str) -> None:
    assert read(write_manifest(tmp_path, content, name)) == []


@pytest.mark.parametrize(
    ("content", "needle"),
    [
        ("name,label\na.png,1\n", "line 1 has name, label, and a path named as one of path, file, "),
        ("path;label\na.png;1\n", "line 1 has path;label, and a path named"),
        ("\n\nname,label\n", "line 3 has name, label, and a path"),
        ("b.png,cat\na.png,dog\n", "or, without names of columns, the path of a file in the first cell"),
        ("a.png,1,train\n", "has 3 columns without names"),
        ("path,label\na.png,1\nb.png\n", "line 3 has 1 cells, and the first line has 2"),
        ("path,label\na.png,1\nb,c.png,1\n", "line 3 has 3 cells, and the first line has 2"),
        ("path,label\n,1\n", "line 2 has no path"),
        ("path,file,label\na.png,a.png,1\n", "line 1 has path, file, which could all be meant"),
        ("path,label,class\na.png,1,cat\n", "line 1 has label, class, which could all be meant"),
        ('path,label\n"a.png,1\nb.png,1\n', "is not CSV (unexpected end of data)"),
        ('path,label\n"a.png"x,1\n', "line 2 is not CSV (',' expected after '\"')"),
        ('path,label\na.png,1\n"b.png,1\nc.png",1\n', "line 4 has the path 'b.png,1\\nc.png', and line breaks"),
        ("path,label\na.png\0,1\n", "line 2 has the path 'a.png\\x00', and line breaks, zero bytes"),
        ("path,label\na.png," + "x" * 200_000, "line 2 is not CSV (field larger than field limit"),
        ("path,label\na.png,caf\xe9\n".encode("latin-1"), "is not text in UTF-8"),
        ("path,label\na.png,1\n".encode("utf-16"), "is not text in UTF-8"),
        ("path,label\na.png,1\n".encode("utf-16-le"), "line 1 has"),
    ],
)
def test_bad_csv(tmp_path: Path, content: str | bytes, needle: str) -> None:
    refuses_rows(write_manifest(tmp_path, content), needle)


@pytest.mark.parametrize(
    ("second", "needle"),
    [
        ("{", "line 2 is not JSON (Expecting property name"),
        ("[" * 100_000, "line 2 is not JSON (nested too deeply)"),
        ('["b.png", 1]', "line 2 is list in JSON, and one object was needed"),
        ("{}", "line 2 has nothing, and a path named as one of path"),
        ('{"label": 1}', "line 2 has label, and a path named as one of path"),
        ('{"path": "b.png", "path": "c.png"}', "line 2 is not JSON (a name stands twice in an object)"),
        ('{"path": "b.png", "Path": "c.png"}', "line 2 has path, Path, which could all be meant"),
        ('{"path": 3}', "line 2 has the path 3, and text was needed"),
        ('{"path": null}', "line 2 has the path None, and text was needed"),
        ('{"path": ""}', "line 2 has no path"),
        ('{"path": "b\\u0000.png"}', "zero bytes and halves of characters cannot"),
        ('{"path": "\\ud800.png"}', "has the path '\\ud800.png', and line breaks, zero bytes and halves of characters"),
        ('{"path": "b.png", "label": 1.5}', "line 2 has the label 1.5, and text or a whole number was needed"),
        ('{"path": "b.png", "label": true}', "line 2 has the label True, and text or a whole number was needed"),
        ('{"path": "b.png", "label": ["x", ["y"]]}', "line 2 has the label ['y'], and text or a whole number"),
        ('{"path": "b.png", "label": {"x": 1}}', "line 2 has the label {'x': 1}, and text or a whole number"),
        ('{"path": "b.png", "label": NaN}', "line 2 has the label nan, and text or a whole number"),
        ('{"path": "b.png", "split": 1}', "line 2 has the split 1, and text was needed"),
    ],
)
def test_bad_json_lines(tmp_path: Path, second: str, needle: str) -> None:
    refuses_rows(write_manifest(tmp_path, '{"path": "a.png", "label": "x"}\n' + second, "list.jsonl"), needle)


def test_what_cannot_be_read_costs_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    refuses_rows(tmp_path / "absent.csv", "does not exist, and a list of images was needed", FileNotFoundError)
    refuses_rows(tmp_path / "folder.csv", "cannot be read (Is a directory), and a list of images was needed: give another.")
