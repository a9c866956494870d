"""Mapping of the data's classes to the model's: by name, by number, by order, and by a mapping file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrine.core.console import VitrineWarning
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.evaluation.class_mapping import map_classes, map_to_sets, match_classes, read_mapping

ANIMALS = ("ant", "bee", "cat", "dog")


def make_source(class_names: Sequence[str], labels: Labels) -> Source:
    return ArraySource(np.zeros((len(labels), 2, 2, 3), np.uint8), labels, tuple(class_names), "made")


def list_labels(source: Source) -> list[object]:
    return [source.labels[index] for index in range(len(source))]


def map_names(given: Sequence[str], names: Sequence[str] | None, num_classes: int, mapping: Path | None = None) -> Source:
    """Map the classes of a source with one image of each class, in order."""
    return map_classes(make_source(given, Labels.one_each(range(len(given)))), names, num_classes, mapping)


def write_mapping(folder: Path, content: Any) -> Path:
    path = folder / "mapping.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_equal_classes_stay_unchanged() -> None:
    mapped = map_names(ANIMALS, ANIMALS, 4)
    assert list_labels(mapped) == [0, 1, 2, 3]
    assert mapped.class_names == ANIMALS


@given(st.permutations(ANIMALS), st.integers(1, 4))
def test_classes_are_matched_by_name(order: list[str], count: int) -> None:
    mapped = map_names(order[:count], ANIMALS, 4)
    assert [mapped.class_names[label] for label in list_labels(mapped)] == order[:count]
    assert mapped.class_names == ANIMALS


def test_images_are_unchanged() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 2, 3), dtype=np.uint8)
    source = ArraySource(pixels, Labels.one_each([1, 0, 1]), ("dog", "ant"), "made")
    mapped = map_classes(source, ANIMALS, 4)
    assert list_labels(mapped) == [0, 3, 0]
    assert np.array_equal(mapped.fetch(2), pixels[2])
    assert mapped.name(2) == source.name(2)
    assert list_labels(source) == [1, 0, 1]


def test_several_labels_are_mapped() -> None:
    labels = Labels.several_each([[0, 1], [], [1]])
    mapped = map_classes(make_source(("dog", "ant"), labels), ANIMALS, 4)
    assert [set(each) for each in list_labels(mapped)] == [{3, 0}, set(), {0}]


@pytest.mark.parametrize("names", [None, ANIMALS])
def test_numeric_names_are_class_numbers(names: Sequence[str] | None) -> None:
    mapped = map_names(("3", "0", "02"), names, 4)
    assert list_labels(mapped) == [3, 0, 2]
    assert mapped.class_names == (names or ("0", "1", "02", "3"))


def test_names_take_precedence_over_numbers() -> None:
    """A model of digits may list them in another order."""
    assert match_classes(["1", "0"], ["1", "0", "2"], 3) == [0, 1]


def test_equally_many_unknown_names_are_matched_by_order_with_a_warning() -> None:
    with pytest.warns(VitrineWarning, match="n01 and ant"):
        mapped = map_names(("n01", "n02", "n03", "n04"), ANIMALS, 4)
    assert list_labels(mapped) == [0, 1, 2, 3]
    assert mapped.class_names == ANIMALS


def test_model_without_names_takes_those_of_the_data() -> None:
    mapped = map_names(("cat", "größer", "猫"), None, 3)
    assert list_labels(mapped) == [0, 1, 2]
    assert mapped.class_names == ("cat", "größer", "猫")


def test_numbers_beyond_the_models_classes_are_names() -> None:
    assert match_classes(["1", "2", "3"], None, 3) == [0, 1, 2]
    with pytest.raises(ValueError, match="1, 3"):
        match_classes(["1", "3"], None, 3)


def test_single_class() -> None:
    assert list_labels(map_names(("cat",), ("cat",), 1)) == [0]
    assert list_labels(map_names(("cat",), None, 1)) == [0]


@pytest.mark.parametrize("names", [ANIMALS, None])
def test_unknown_classes_are_rejected(names: Sequence[str] | None) -> None:
    with pytest.raises(ValueError, match=r"2 classes.* 4.*emu.*mapping"):
        map_names(("cat", "emu"), names, 4)


def test_error_lists_only_unknown_classes() -> None:
    with pytest.raises(ValueError, match=r": emu, yak\."):
        map_names(("cat", "emu", "yak"), ANIMALS, 4)


def test_model_without_head_and_data_without_labels_are_rejected() -> None:
    with pytest.raises(ValueError, match="head"):
        map_names(ANIMALS, None, 0)
    with pytest.raises(ValueError, match="no labels"):
        map_classes(make_source((), Labels.none_each(2)), ANIMALS, 4)


def test_mapping_entries_are_numbers_names_or_lists(tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"pet": ["cat", 3], "insect": [1, 0, 1], "hound": "dog", "first": 0})
    assert read_mapping(path, ("hound", "pet", "insect", "first"), ANIMALS, 4) == [[3], [2, 3], [0, 1], [0]]


def test_mapping_entry_with_semicolons(tmp_path: Path) -> None:
    """As in objectnet_to_imagenet_1k; a class name that contains a semicolon is still found."""
    names = ("tie, necktie", "bow tie; bowtie", "mug", "脚")
    path = write_mapping(tmp_path, {"Tie": "tie, necktie; mug ;", "Bow": "bow tie; bowtie", "Foot": "脚"})
    assert read_mapping(path, ("Tie", "Bow", "Foot"), names, 4) == [[0, 2], [1], [3]]


def test_unmapped_classes_have_no_label_and_are_listed(tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"pet": ["cat", "dog"], "air": [], "sea": "", "of another set": 1})
    with pytest.warns(VitrineWarning, match=r"3 of 4 .*: air, sea, fire"):
        mapped = map_names(("pet", "air", "sea", "fire"), ANIMALS, 4, path)
    assert list_labels(mapped) == [(2, 3), (), (), ()]
    assert mapped.class_names == ANIMALS


def test_mapping_takes_precedence_over_names(tmp_path: Path) -> None:
    """The same word may mean something else in the data."""
    path = write_mapping(tmp_path, {"cat": "dog", "dog": "cat"})
    assert list_labels(map_names(("cat", "dog"), ANIMALS, 4, path)) == [(3,), (2,)]


def test_mapping_to_a_model_without_names_needs_numbers(tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"pet": [2, 3]})
    mapped = map_names(("pet",), None, 4, path)
    assert list_labels(mapped) == [(2, 3)]
    assert mapped.class_names == ("0", "1", "2", "3")
    with pytest.raises(ValueError, match="'cat'"):
        map_names(("pet",), None, 4, write_mapping(tmp_path, {"pet": "cat"}))


@pytest.mark.parametrize("entry", ["emu", "cat; emu", ["cat", "emu"], 4, -1, [0, 4], 1.0, True, None, [[0]], {"cat": 1}])
def test_mapping_to_unknown_classes_is_rejected(entry: object, tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"pet": entry})
    with pytest.raises(ValueError, match=r"mapping\.json maps pet to .* 0 to 3\."):
        map_names(("pet",), ANIMALS, 4, path)


def test_mapping_without_the_datas_classes_is_rejected(tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"hammer": [1]})
    with pytest.raises(ValueError, match="pet, tool"):
        map_names(("pet", "tool"), ANIMALS, 4, path)


@pytest.mark.parametrize("text", ["[1, 2]", "pet: 3", "", '{"pet": 1'])
def test_file_that_is_not_a_json_object_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "mapping.json").write_text(text)
    with pytest.raises(ValueError, match=r"mapping\.json .*JSON"):
        map_names(("pet",), ANIMALS, 4, tmp_path / "mapping.json")


@given(st.data())
def test_labels_are_the_union_of_the_mapped_sets(data: st.DataObject) -> None:
    sets = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=4, unique=True).map(sorted), min_size=1, max_size=5))
    given = data.draw(st.lists(st.lists(st.integers(0, len(sets) - 1), max_size=3), max_size=6))
    mapped = map_to_sets(Labels.several_each(given), sets)
    assert mapped.has_several
    expected = [tuple(sorted({number for label in each for number in sets[label]})) for each in given]
    assert [mapped[index] for index in range(len(mapped))] == expected
    single = [each[0] for each in given if each]
    mapped = map_to_sets(Labels.one_each(single), sets)
    assert [mapped[index] for index in range(len(mapped))] == [tuple(sets[label]) for label in single]


def test_ambiguous_name_of_the_model() -> None:
    """ImageNet has two classes named crane."""
    assert match_classes(["ant", "dog"], ["dog", "crane", "crane", "ant"], 4) == [3, 0]
    with pytest.raises(ValueError, match=r"crane"):
        match_classes(["crane"], ["dog", "crane", "crane", "ant"], 4)


def test_mapping_to_an_ambiguous_name_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "mapping.json").write_text(json.dumps({"bird": "crane"}))
    with pytest.raises(ValueError, match=r"crane"):
        read_mapping(tmp_path / "mapping.json", ["bird"], ["dog", "crane", "crane", "ant"], 4)
