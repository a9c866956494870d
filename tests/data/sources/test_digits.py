"""The digits against scikit-learn itself."""

import pickle

import numpy as np
from sklearn.datasets import load_digits

from vitrine.data.sources.digits import SPLITS, open_digits


def test_both_splits_together_are_scikit_learns_digits_in_its_order() -> None:
    digits = load_digits()
    train, test = (open_digits(split) for split in SPLITS)
    assert (len(train), len(test)) == (1437, 360)
    images = [source.read(index)[0].to_numpy(1) for source in (train, test) for index in range(len(source))]
    expected = [[[round(value * 255 / 16) for value in row] for row in image] for image in digits.images.tolist()]
    np.testing.assert_array_equal(np.stack(images)[..., 0], expected)
    assert (np.min(images), np.max(images)) == (0, 255)
    np.testing.assert_array_equal(np.concatenate([train.labels.values, test.labels.values]), digits.target)
    assert train.class_names == test.class_names == tuple(map(str, digits.target_names))


def test_names_pickling_and_files() -> None:
    test = open_digits("test")
    assert (test.name(0), test.files()) == ("digits/test[0]", [])
    again = pickle.loads(pickle.dumps(test))
    np.testing.assert_array_equal(again.read(7)[0].to_numpy(), test.read(7)[0].to_numpy())
