"""Names of splits, and errors about splits that do not exist."""

import pytest

from vitrine.data.dataset_format import SPLITS, normalise_split, order_splits, require_split


@pytest.mark.parametrize(("split", "splits"), [(None, ()), ("train", ("train",)), ("test", SPLITS)])
def test_valid_splits_pass(split: str | None, splits: tuple[str, ...]) -> None:
    require_split("data", split, splits)


@pytest.mark.parametrize(
    ("split", "splits", "message"),
    [
        (None, ("train", "val"), "data/cats has the splits train, val"),
        ("test", ("train", "val"), "no split 'test'.* train, val"),
        ("Train", ("train",), "no split 'Train'"),
        ("", ("train",), "no split ''"),
        ("train", (), "no splits, but 'train'"),
        ("", (), "no splits, but ''"),
    ],
)
def test_invalid_splits_are_errors(split: str | None, splits: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_split("data/cats", split, splits)


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


def test_splits_are_ordered() -> None:
    assert order_splits({"test": 1, "other": 2, "train": 3}) == ("train", "test")
    assert order_splits([]) == ()
