"""Class numbers that are given to a source, or refused."""

import numpy as np
import pytest

from vitrine.data.source import Labels
from vitrine.data.sources.labelling import number_classes, settle_labels

NAMES = ("cat", "dog", "fox")


def settle(labels: Labels) -> tuple[Labels, tuple[str, ...]]:
    return settle_labels(labels, NAMES, "here", "{}.png".format)


def test_labels_among_the_classes() -> None:
    labels, names = settle(Labels.one_each([2, 0]))
    assert (labels.values.tolist(), names) == ([2, 0], NAMES)
    several, names = settle(Labels.several_each([[2, 0], [], [1]]))
    assert ([several[index] for index in range(3)], names) == ([(2, 0), (), (1,)], NAMES)
    assert number_classes(3) == ("0", "1", "2")


@pytest.mark.parametrize("labels", [Labels.one_each([-1, -1]), Labels.several_each([[], []])])
def test_none_at_all(labels: Labels) -> None:
    none, names = settle(labels)
    assert (len(none), none[1], names) == (2, (), ())


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
        settle(labels)
