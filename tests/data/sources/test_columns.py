"""Columns by their names and notes, and labels of every type that Arrow and `datasets` have for them."""

from typing import Any

import pytest

from vitrine.core.notices import Notice
from vitrine.data.source import Labels
from vitrine.data.sources.columns import Columns, choose_columns, find_labels
from vitrine.data.sources.labelling import settle_labels

pa = pytest.importorskip("pyarrow")

NAMES = ("cat", "dog", "fox")
CLASS_LABEL = {"names": list(NAMES), "_type": "ClassLabel"}
IMAGE = {"_type": "Image"}


def label(values: Any, *others: Any, names: tuple[str, ...] | None = None) -> tuple[Labels, tuple[str, ...]]:
    found = find_labels(pa.chunked_array([values]), [pa.chunked_array([other]) for other in others], names, "here")
    return settle_labels(*found, "here", "{}.png".format)


@pytest.mark.parametrize(
    ("images", "features", "chosen"),
    [
        (["image", "mask"], {}, "image"),
        (["mask", "img"], {}, "img"),
        (["picture", "other"], {"picture": IMAGE}, "picture"),
        (["image", "picture"], {"picture": IMAGE}, "picture"),
        (["mask", "image"], {"mask": IMAGE, "image": IMAGE}, "image"),
        (["left", "right"], {"left": IMAGE, "right": IMAGE}, None),
        (["picture"], {}, None),
        ([], {"image": IMAGE}, None),
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
        (["colour", "label"], {"colour": CLASS_LABEL}, "label", None),
        (["shape"], {"shape": CLASS_LABEL}, "shape", NAMES),
        (["label"], {"label": {"feature": CLASS_LABEL, "_type": "Sequence"}}, "label", NAMES),
        (["labels"], {"labels": {"feature": CLASS_LABEL, "_type": "List"}}, "labels", NAMES),
        (["labels"], {"labels": [CLASS_LABEL]}, "labels", NAMES),
        (["label"], {"label": {"_type": "ClassLabel", "names": None}}, "label", None),
        (["label"], {"label": {"_type": "Value", "names": 3}}, "label", None),
        (["label"], {"label": 3}, "label", None),
    ],
)
def test_which_column_is_the_label(columns: list[str], features: Any, chosen: str | None, names: Any) -> None:
    assert choose_columns(["image", *columns], ["image"], features, "here") == Columns("image", chosen, names)


def test_of_several_classes_none_is_taken_aloud() -> None:
    features = {"colour": CLASS_LABEL, "shape": CLASS_LABEL}
    with pytest.warns(Notice, match="here has the classes colour, shape and none called label"):
        assert choose_columns(["image", *features], ["image"], features, "here").label is None
    for names in ([1, 2], "cat", {"0": "cat"}):
        with pytest.raises(ValueError, match="no list of names"):
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
    assert label(pa.array([1]), names=NAMES)[1] == NAMES
    assert label(pa.array(["fox", "dog"]), names=NAMES)[0].values.tolist() == [2, 1]
    assert label(pa.array([-1, -1]), names=NAMES)[1] == ()


def test_classes_are_counted_over_all_splits() -> None:
    labels, names = label(pa.array(["b", "d"]), pa.array(["c", "b"]), pa.array([None], pa.string()))
    assert (labels.values.tolist(), names) == ([0, 2], ("b", "c", "d"))
    assert label(pa.array([1]), pa.array([4], pa.int8()), pa.nulls(3))[1] == tuple("01234")


@pytest.mark.parametrize(
    ("values", "names", "told"),
    [
        (pa.array([0, -1, 2]), None, r"1\.png is the first of 1 images without"),
        (pa.array(["a", "b", None]), None, r"2\.png is the first of 1 images without"),
        (pa.array([[0], [1, -1]]), None, r"1\.png is the first of 1 images without"),
        (pa.array(["cat", "cow"]), NAMES, r"1\.png is the first of 1 images without"),
        (pa.array([[0], None]), None, "here has null for some lists"),
        (pa.array([0, 3]), NAMES, r"1\.png has the label 3, and here names 3 classes"),
        (pa.array([0.5]), None, "labels of type double"),
        (pa.array([True]), None, "labels of type bool"),
        (pa.array([{"a": 1}]), None, "labels of type struct"),
        (pa.array([2**40]), None, "more than 1000000 classes"),
        (pa.array([2**63, 1], pa.uint64()), NAMES, r"0\.png is the first of 1 images without"),
    ],
)
def test_labels_that_are_refused(values: Any, names: tuple[str, ...] | None, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        label(values, names=names)


def test_numbers_and_strings_do_not_mix() -> None:
    with pytest.raises(ValueError, match="numbers as labels in one split and strings in another"):
        label(pa.array([1]), pa.array(["a"]))
