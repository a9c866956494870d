"""Class numbers that are given to a source, or refused."""

from pathlib import Path

import numpy as np
import pytest

from vitrine.data.source import Labels
from vitrine.data.sources.files import FileSource
from vitrine.data.sources.labelling import give_labels, number_classes

NAMES = ("cat", "dog", "fox")


def label(labels: Labels, class_names: tuple[str, ...] = NAMES) -> FileSource:
    source = FileSource(Path(), [f"{index}.png" for index in range(len(labels))], Labels.none_each(len(labels)), ())
    give_labels(source, labels, class_names, "here")
    return source


def test_labels_among_the_classes() -> None:
    source = label(Labels.one_each([2, 0]))
    assert (source.labels.values.tolist(), source.class_names) == ([2, 0], NAMES)
    several = label(Labels.several_each([[2, 0], [], [1]]))
    assert ([several.labels[index] for index in range(3)], several.class_names) == ([(2, 0), (), (1,)], NAMES)
    assert number_classes(3) == ("0", "1", "2")


@pytest.mark.parametrize("labels", [Labels.one_each([-1, -1]), Labels.several_each([[], []])])
def test_none_at_all(labels: Labels) -> None:
    source = label(labels)
    assert (len(source), source.labels[1], source.class_names) == (2, (), ())


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (Labels.one_each([0, -1, -2]), r"here has 1 labels, and 1\.png is the first of 2 images without"),
        (Labels.several_each([[0], [1, 2, -1]]), r"1\.png is the first of 1 images without"),
        (Labels.several_each([[-1], [-1]]), r"0\.png is the first of 2 images without"),
        (Labels.one_each([0, 3]), r"1\.png has the label 3, and here names 3 classes"),
        (Labels.several_each([[0], [], [1, 9]]), r"2\.png has the label \(1, 9\), and here names 3 classes"),
        (Labels.one_each(np.array([2**62])), "names 3 classes"),
    ],
)
def test_what_is_refused(labels: Labels, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        label(labels)
