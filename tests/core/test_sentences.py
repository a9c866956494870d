"""Foreign words in our sentences."""

from vitrine.core.sentences import list_names, summarise


def test_long_lists_are_cut() -> None:
    assert list_names([str(number) for number in range(8)]) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert list_names([str(number) for number in range(12)], limit=2) == "0, 1 and 10 more"


def test_a_name_stays_on_its_line() -> None:
    assert list_names(["a", "two\nlines"]) == "a, 'two\\nlines'"


def test_an_error_is_its_first_sentence() -> None:
    assert summarise(RuntimeError("No room. Try again.\nframe 0")) == "No room"
    assert summarise(KeyError()) == "KeyError"
    assert len(summarise(ValueError("x" * 1000))) == 200
