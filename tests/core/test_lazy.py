"""Names that are imported when first used."""

import sys

import pytest

from vitrine.core.lazy import lazy_names


def test_a_name_is_found_where_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    find = lazy_names("package", {"rgb_to_hsv": "colorsys"})
    assert "colorsys" not in sys.modules
    assert find("rgb_to_hsv")(1, 0, 0) == (0, 1, 1)


def test_an_unknown_name_lists_the_known() -> None:
    find = lazy_names("package", {"rgb_to_hsv": "colorsys"})
    with pytest.raises(AttributeError, match=r"module 'package' has no attribute 'rgb'; it has: rgb_to_hsv\."):
        find("rgb")
