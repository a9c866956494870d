"""Images of a fit: thinned out evenly, and looked at only if there is time."""

from pathlib import Path

import numpy as np
import pytest

from tests.fitting.colours import write_colours, write_divided
from vitrine.data.open_data import find_data, open_data
from vitrine.fitting.images import are_oblong, cap_classes, count_least, look_at_images, open_images, thin_out


def test_small_classes_keep_their_images(tmp_path: Path) -> None:
    source = open_data(write_colours(tmp_path / "photos", {"red": 40, "green": 3, "blue": 12}))
    for total, expected in ((55, [12, 3, 40]), (30, [12, 3, 15]), (20, [8, 3, 8]), (9, [3, 3, 3]), (1, [1, 1, 1])):
        part = cap_classes(source, total, seed=0)
        assert np.bincount(part.labels.values).tolist() == expected
    smaller, larger = (
        {part.name(index) for index in range(len(part))} for part in (cap_classes(source, n, 0) for n in (9, 20))
    )
    assert smaller < larger


def test_test_images_are_thinned_out_too(tmp_path: Path) -> None:
    images = thin_out(open_images(find_data(write_divided(tmp_path / "photos"))), 30, 12, seed=0)
    assert images.test is not None
    assert (len(images.train), len(images.test)) == (30, 12)
    assert images.is_thinned
    assert count_least(images) == 15


@pytest.mark.parametrize(("size", "expected"), [((20, 20), False), ((20, 21), False), ((20, 30), True), ((30, 20), True)])
def test_oblong_images(size: tuple[int, int], expected: bool, tmp_path: Path) -> None:
    assert are_oblong(open_data(write_colours(tmp_path / "photos", {"red": 5, "blue": 5}, size=size))) == expected


def test_looking_takes_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_images(find_data(write_divided(tmp_path / "photos")))
    assert look_at_images(images, None).was_searched
    monkeypatch.setattr("vitrine.fitting.images.MIN_LOOK_S", 0.0)
    hurried = look_at_images(images, 1e-6)
    assert not hurried.was_searched
    assert len(hurried.train) == len(images.train)


def test_uneven_classes(tmp_path: Path) -> None:
    for number, (counts, expected) in enumerate((({"red": 9, "blue": 3}, False), ({"red": 10, "blue": 3}, True))):
        assert open_images(find_data(write_colours(tmp_path / str(number), counts))).is_uneven == expected
