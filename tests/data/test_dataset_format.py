"""A split is named exactly where there are some, and whoever does not is told what there is."""

import re
from pathlib import Path

import pytest

from vitrine.data.dataset_format import SPLITS, normalise_split, order_splits, require_split


@pytest.mark.parametrize(("split", "splits"), [(None, ()), ("train", ("train",)), ("test", SPLITS)])
def test_what_fits_passes(split: str | None, splits: tuple[str, ...]) -> None:
    require_split("data", split, splits)


@pytest.mark.parametrize(
    ("split", "splits", "message"),
    [
        (None, ("train", "val"), "data/cats has the splits train, val: say which one is meant."),
        ("test", ("train", "val"), "data/cats has the splits train, val, and 'test' was asked for: take one of these."),
        ("Train", ("train",), "data/cats has the splits train, and 'Train' was asked for: take one of these."),
        ("", ("train",), "data/cats has the splits train, and '' was asked for: take one of these."),
        ("train", (), "data/cats has no splits, and 'train' was asked for: take all of it."),
        ("", (), "data/cats has no splits, and '' was asked for: take all of it."),
    ],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_what_does_not_costs_a_sentence(kind: type, split: str | None, splits: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        require_split(kind("data/cats"), split, splits)


@pytest.mark.parametrize(
    ("split", "spellings"),
    [
        ("train", ["train", "Training", " TRAIN\n"]),
        ("val", ["val", "valid", "Validation", "dev"]),
        ("test", ["test", "TESTING"]),
        (None, ["", "trains", "fold1", "real", "eval"]),
    ],
)
def test_spellings_of_splits(split: str | None, spellings: list[str]) -> None:
    assert {normalise_split(spelling) for spelling in spellings} == {split}


def test_splits_come_in_their_order() -> None:
    assert order_splits({"test": 1, "other": 2, "train": 3}) == ("train", "test")
    assert order_splits([]) == ()
