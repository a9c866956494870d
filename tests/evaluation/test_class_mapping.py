"""Classes of the data as the model's: by name, by number, by order, and by a file that says which are which."""

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


def fit(given: Sequence[str], names: Sequence[str] | None, num_classes: int, mapping: Path | None = None) -> Source:
    """Of a source with one image of each class, in their order."""
    return map_classes(make_source(given, Labels.one_each(range(len(given)))), names, num_classes, mapping)


def write_mapping(folder: Path, content: Any) -> Path:
    path = folder / "mapping.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_same_classes_stay_as_they_are() -> None:
    fitted = fit(ANIMALS, ANIMALS, 4)
    assert list_labels(fitted) == [0, 1, 2, 3]
    assert fitted.class_names == ANIMALS


@given(st.permutations(ANIMALS), st.integers(1, 4))
def test_names_are_found_wherever_the_model_has_them(order: list[str], count: int) -> None:
    fitted = fit(order[:count], ANIMALS, 4)
    assert [fitted.class_names[label] for label in list_labels(fitted)] == order[:count]
    assert fitted.class_names == ANIMALS


def test_images_stay_the_same() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 2, 3), dtype=np.uint8)
    source = ArraySource(pixels, Labels.one_each([1, 0, 1]), ("dog", "ant"), "made")
    fitted = map_classes(source, ANIMALS, 4)
    assert list_labels(fitted) == [0, 3, 0]
    assert np.array_equal(fitted.fetch(2), pixels[2])
    assert fitted.name(2) == source.name(2)
    assert list_labels(source) == [1, 0, 1]


def test_several_labels_are_numbered_too_and_none_stay_none() -> None:
    labels = Labels.several_each([[0, 1], [], [1]])
    fitted = map_classes(make_source(("dog", "ant"), labels), ANIMALS, 4)
    assert [set(each) for each in list_labels(fitted)] == [{3, 0}, set(), {0}]


@pytest.mark.parametrize("names", [None, ANIMALS])
def test_numbers_are_the_model_s(names: Sequence[str] | None) -> None:
    fitted = fit(("3", "0", "02"), names, 4)
    assert list_labels(fitted) == [3, 0, 2]
    assert fitted.class_names == (names or ("0", "1", "02", "3"))


def test_names_come_before_numbers() -> None:
    """A model of digits may have them in another order."""
    assert match_classes(["1", "0"], ["1", "0", "2"], 3) == [0, 1]


def test_as_many_classes_under_other_names_are_taken_in_order_and_aloud() -> None:
    with pytest.warns(
        VitrineWarning, match=r"^The 4 classes of the data are not called as the model's \(n01 and ant, \.\.\), and are taken"
    ):
        fitted = fit(("n01", "n02", "n03", "n04"), ANIMALS, 4)
    assert list_labels(fitted) == [0, 1, 2, 3]
    assert fitted.class_names == ANIMALS


def test_a_model_without_names_takes_those_of_the_data() -> None:
    fitted = fit(("cat", "größer", "猫"), None, 3)
    assert list_labels(fitted) == [0, 1, 2]
    assert fitted.class_names == ("cat", "größer", "猫")


def test_numbers_beyond_the_model_s_are_names() -> None:
    assert match_classes(["1", "2", "3"], None, 3) == [0, 1, 2]
    with pytest.raises(
        ValueError, match=r"The data has 2 classes, the model 3, and these are not among its own: 1, 3\. Say by"
    ):
        match_classes(["1", "3"], None, 3)


def test_one_class_of_one() -> None:
    assert list_labels(fit(("cat",), ("cat",), 1)) == [0]
    assert list_labels(fit(("cat",), None, 1)) == [0]


@pytest.mark.parametrize("names", [ANIMALS, None])
def test_strangers_are_named(names: Sequence[str] | None) -> None:
    with pytest.raises(
        ValueError, match=r"The data has 2 classes, the model 4, .*: .*emu.* --mapping FILE .* fine-tune the model"
    ):
        fit(("cat", "emu"), names, 4)


def test_only_strangers_are_named() -> None:
    with pytest.raises(ValueError, match=r"not among its own: emu, yak\. Say"):
        fit(("cat", "emu", "yak"), ANIMALS, 4)


def test_what_is_no_classifier_or_has_no_labels_costs_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"The model has no head, and a classifier was needed: fine-tune it first"):
        fit(ANIMALS, None, 0)
    with pytest.raises(
        ValueError, match=r"The images have no labels, and some were needed .*: give images in folders by class"
    ):
        map_classes(make_source((), Labels.none_each(2)), ANIMALS, 4)


def test_a_mapping_takes_numbers_names_and_lists_of_them(tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"pet": ["cat", 3], "insect": [1, 0, 1], "hound": "dog", "first": 0})
    assert read_mapping(path, ("hound", "pet", "insect", "first"), ANIMALS, 4) == [[3], [2, 3], [0, 1], [0]]


def test_a_mapping_takes_several_names_in_one_text(tmp_path: Path) -> None:
    """As objectnet_to_imagenet_1k has them; a name with a semicolon of its own is still one."""
    names = ("tie, necktie", "bow tie; bowtie", "mug", "脚")
    path = write_mapping(tmp_path, {"Tie": "tie, necktie; mug ;", "Bow": "bow tie; bowtie", "Foot": "脚"})
    assert read_mapping(path, ("Tie", "Bow", "Foot"), names, 4) == [[0, 2], [1], [3]]


def test_classes_that_stand_for_none_do_not_count_and_are_named(tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"pet": ["cat", "dog"], "air": [], "sea": "", "of another set": 1})
    with pytest.warns(
        VitrineWarning, match=r"^3 of 4 classes stand for none of the model's and do not count: air, sea, fire\.$"
    ):
        fitted = fit(("pet", "air", "sea", "fire"), ANIMALS, 4, path)
    assert list_labels(fitted) == [(2, 3), (), (), ()]
    assert fitted.class_names == ANIMALS


def test_a_mapping_goes_before_names(tmp_path: Path) -> None:
    """The same word may mean something else in the data."""
    path = write_mapping(tmp_path, {"cat": "dog", "dog": "cat"})
    assert list_labels(fit(("cat", "dog"), ANIMALS, 4, path)) == [(3,), (2,)]


def test_a_model_without_names_is_mapped_to_by_number(tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"pet": [2, 3]})
    fitted = fit(("pet",), None, 4, path)
    assert list_labels(fitted) == [(2, 3)]
    assert fitted.class_names == ("0", "1", "2", "3")
    with pytest.raises(ValueError, match=r"has 'cat' for pet, and a class of the model was needed: .* its number, 0 to 3\."):
        fit(("pet",), None, 4, write_mapping(tmp_path, {"pet": "cat"}))


@pytest.mark.parametrize("entry", ["emu", "cat; emu", ["cat", "emu"], 4, -1, [0, 4], 1.0, True, None, [[0]], {"cat": 1}])
def test_what_is_no_class_of_the_model_is_refused(entry: object, tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"pet": entry})
    with pytest.raises(ValueError, match=r"mapping\.json has .* for pet, and a class of the model was needed: .* 0 to 3\.$"):
        fit(("pet",), ANIMALS, 4, path)


def test_a_mapping_of_something_else_is_refused(tmp_path: Path) -> None:
    path = write_mapping(tmp_path, {"hammer": [1]})
    with pytest.raises(ValueError, match=r"has none of the data's classes, which are pet, tool: .*, as {\"pet\": \[3, 7\]}\.$"):
        fit(("pet", "tool"), ANIMALS, 4, path)


@pytest.mark.parametrize("text", ["[1, 2]", "pet: 3", "", '{"pet": 1'])
def test_a_file_that_is_no_object_of_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "mapping.json").write_text(text)
    with pytest.raises(ValueError, match=r"mapping\.json (is not JSON|must be an object of JSON)"):
        fit(("pet",), ANIMALS, 4, tmp_path / "mapping.json")


@given(st.data())
def test_each_image_has_all_that_its_classes_stand_for(data: st.DataObject) -> None:
    sets = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=4, unique=True).map(sorted), min_size=1, max_size=5))
    given = data.draw(st.lists(st.lists(st.integers(0, len(sets) - 1), max_size=3), max_size=6))
    mapped = map_to_sets(Labels.several_each(given), sets)
    assert mapped.has_several
    expected = [tuple(sorted({number for label in each for number in sets[label]})) for each in given]
    assert [mapped[index] for index in range(len(mapped))] == expected
    single = [each[0] for each in given if each]
    mapped = map_to_sets(Labels.one_each(single), sets)
    assert [mapped[index] for index in range(len(mapped))] == [tuple(sets[label]) for label in single]


def test_a_name_that_the_model_has_twice_hinders_no_other() -> None:
    """ImageNet's list has crane, the bird and the machine."""
    assert match_classes(["ant", "dog"], ["dog", "crane", "crane", "ant"], 4) == [3, 0]
    with pytest.raises(ValueError, match=r"crane"):
        match_classes(["crane"], ["dog", "crane", "crane", "ant"], 4)


def test_a_mapping_to_a_name_that_the_model_has_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mapping.json").write_text(json.dumps({"bird": "crane"}))
    with pytest.raises(ValueError, match=r"crane"):
        read_mapping(tmp_path / "mapping.json", ["bird"], ["dog", "crane", "crane", "ant"], 4)
