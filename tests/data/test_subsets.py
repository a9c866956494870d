"""Tests of data/subsets.py.

Subsets lie within one another, whatever is asked for; parts held out are exact; lists of files leave out what they name.
Lists of names are read back as they were written.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrine.core.console import VitrineWarning
from vitrine.data.source import ArraySource, Label, Labels, Source
from vitrine.data.subsets import SubsetSource, exclude_images, hold_out, read_exclude_list, select_subset, write_exclude_list

CLASSES = ("ant", "bee", "cat", "dog", "elk")


def make_source(labels: Labels) -> ArraySource:
    """One pixel each, which says the image's number."""
    numbers = np.arange(len(labels), dtype=np.uint32)
    pixels = numbers.view(np.uint8).reshape(-1, 4)[:, None, None, :3]
    return ArraySource(np.ascontiguousarray(pixels), labels, CLASSES, "images")


def make_balanced(num_images: int, num_classes: int = 5) -> ArraySource:
    return make_source(Labels.one_each(np.arange(num_images) % num_classes))


def numbers(source: Source) -> list[int]:
    """Which images of the whole they are, told by their pixels."""
    return [int(np.frombuffer(source.fetch(index).tobytes() + b"\0", "<u4")[0]) for index in range(len(source))]


ONE = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(Labels.one_each)
SEVERAL = st.lists(st.lists(st.integers(0, 4), unique=True, max_size=3), min_size=1, max_size=60).map(Labels.several_each)
SHARES = st.floats(0.001, 1.0)
SEEDS = st.integers(0, 5)


@settings(deadline=None, max_examples=50)
@given(ONE | SEVERAL, SHARES, SHARES, SEEDS)
def test_a_smaller_share_lies_within_a_larger_one(labels: Labels, first: float, second: float, seed: int) -> None:
    source = make_source(labels)
    small, large = (numbers(select_subset(source, repr(share), seed)) for share in sorted((first, second)))
    assert set(small) <= set(large)
    assert len(small) == max(1, round(min(first, second) * len(source)))
    assert small == sorted(small)  # in the order of the source


@settings(deadline=None, max_examples=50)
@given(ONE | SEVERAL, SHARES, SHARES, SEEDS)
def test_a_smaller_share_of_each_class_lies_within_a_larger_one(labels: Labels, first: float, second: float, seed: int) -> None:
    source = make_source(labels)
    if len(labels.values) == 0:
        return
    low, high = sorted((first, second))
    small, large = (select_subset(source, f"{share!r}/class", seed) for share in (low, high))
    assert set(numbers(small)) <= set(numbers(large))
    total, kept = (np.bincount(part.labels.values, minlength=5) for part in (source, small))
    assert (kept >= [round(low * count) for count in total]).all()
    assert (kept[total > 0] >= 1).all()
    if not labels.has_several:
        assert kept.tolist() == [max(1, round(low * count)) if count else 0 for count in total.tolist()]


@settings(deadline=None, max_examples=50)
@given(ONE | SEVERAL, st.data(), SEEDS)
def test_numbers_lie_within_one_another_and_within_shares(labels: Labels, data: st.DataObject, seed: int) -> None:
    source = make_source(labels)
    few, many = sorted(data.draw(st.integers(1, len(source))) for _ in range(2))
    small, large = (numbers(select_subset(source, str(count), seed)) for count in (few, many))
    assert (len(small), len(large)) == (few, many)
    assert set(small) <= set(large)
    share = numbers(select_subset(source, repr(data.draw(st.floats(many / len(source), 1.0))), seed))
    assert set(large) <= set(share)


def test_percent_and_share_are_one() -> None:
    source = make_balanced(200)
    for percent, share in (("10%", "0.1"), ("2.5%", "0.025"), ("10%/class", "1e-1/class"), ("100%", "all")):
        assert numbers(select_subset(source, percent)) == numbers(select_subset(source, share))
    assert set(numbers(select_subset(source, "10%"))) <= set(numbers(select_subset(source, "30%")))
    assert set(numbers(select_subset(source, "10%/class"))) <= set(numbers(select_subset(source, "30%/class")))


def test_the_same_every_time_and_another_for_another_seed() -> None:
    for text in ("20%", "40", "20%/class", "8/class"):
        first, again, other = (numbers(select_subset(make_balanced(200), text, seed)) for seed in (3, 3, 4))
        assert len(first) == 40
        assert first == again
        assert len(set(first) & set(other)) < 25  # 8 of the 40 are expected in both


def test_the_choice_is_one_for_ever() -> None:
    """Recorded runs name their subset by share and seed alone."""
    assert numbers(select_subset(make_balanced(1000), "10", 0)) == numbers(
        select_subset(make_source(Labels.none_each(1000)), "1%", 0)
    )
    assert numbers(select_subset(make_balanced(1000), "10", 0)) == PINNED


PINNED = [134, 143, 173, 201, 376, 382, 406, 618, 626, 761]


def test_a_subset_is_spread_over_the_source() -> None:
    chosen = np.array(numbers(select_subset(make_balanced(10_000), "10%")))
    counts = np.bincount(chosen // 1000, minlength=10)
    assert (np.abs(counts - 100) < 45).all()  # 4.7 standard deviations of a fair draw


def test_all_is_the_source_itself() -> None:
    source = make_balanced(20)
    for text in ("all", "1.0", "100%"):
        assert select_subset(source, text) is source
    assert numbers(select_subset(source, "20")) == list(range(20))
    assert numbers(select_subset(source, "100%/class")) == list(range(20))


@pytest.mark.parametrize(
    "labels",
    [Labels.one_each([0, 1, 2, 3, 4, 0]), Labels.several_each([(0, 1), (), (2,), (3, 4), (1,), ()])],
    ids=["one", "several"],
)
def test_a_selection_is_a_source(labels: Labels) -> None:
    source = make_source(labels)
    selection = SubsetSource(source, np.array([4, 1, 3]))
    assert (len(selection), selection.class_names, selection.files()) == (3, CLASSES, [])
    assert [selection.labels[index] for index in range(3)] == [labels[4], labels[1], labels[3]]
    assert [selection.name(index) for index in range(3)] == ["images[4]", "images[1]", "images[3]"]
    assert [selection.read(index)[1] for index in range(3)] == [labels[4], labels[1], labels[3]]
    assert selection.read(0)[0].name == "images[4]"
    np.testing.assert_array_equal(selection.read_block(np.array([2, 0])), source.pixels[[3, 4]])
    with pytest.raises(IndexError):
        selection.read(3)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_selection_of_a_selection_is_one_of_the_whole(data: st.DataObject) -> None:
    source: Source = make_balanced(30)
    expected = np.arange(30)
    for _ in range(3):
        indices = np.array(data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, unique=True)))
        source, expected = SubsetSource(source, indices), expected[indices]
    assert numbers(source) == expected.tolist()
    assert not isinstance(source.source, SubsetSource)
    assert [source.labels[index] for index in range(len(source))] == (expected % 5).tolist()


def test_a_subset_of_a_subset_is_of_the_same_choice() -> None:
    """Half of the whole and then a fifth of that are a tenth of the whole: images are ranked by their numbers there."""
    source = make_balanced(1000)
    assert numbers(select_subset(select_subset(source, "50%"), "20%")) == numbers(select_subset(source, "10%"))
    assert numbers(select_subset(select_subset(source, "50%/class"), "20%/class")) == numbers(
        select_subset(source, "10%/class")
    )


def test_leaving_out_a_few_files_changes_a_subset_little(tmp_path: Path) -> None:
    source = make_balanced(1000)
    excluded = {7, 123, 124, 125, 900}
    kept = exclude_images(source, write_names(tmp_path, [f"images[{number}]" for number in excluded]))
    assert len(kept) == 995
    for text in ("10%", "100", "10%/class", "20/class"):
        before, after = set(numbers(select_subset(source, text))), set(numbers(select_subset(kept, text)))
        assert not after & excluded
        assert len((before - excluded) - after) <= 5
        assert len(after - before) <= 5


def test_leaving_out_a_few_files_changes_a_held_out_part_little(tmp_path: Path) -> None:
    """Or what was held out of one run would be trained on in the next, for one file more on the list."""
    source = make_balanced(1000)
    kept = exclude_images(source, write_names(tmp_path, ["images[123]"]))
    before, after = (set(numbers(hold_out(part, 0.1)[1])) for part in (source, kept))
    assert len(before & after) >= 95


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("21", r"^subset 21 is more than the 20 images that there are: take fewer, or all\.$"),
        ("5/class", r"^subset 5/class is more than the 4 images of class ant: take fewer\.$"),
        ("0", "subset='0'"),
        ("101%", "must be a share"),
        ("-1", "must be a share"),
        ("nan", "must be a share"),
        ("10/classes", "must be a share"),
        ("10/", "must be a share"),
        ("", "must be a share"),
        ("all/class", "must be a share"),
        ("²", "must be a share"),
    ],
)
def test_what_cannot_be_chosen_costs_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_subset(make_balanced(20), text)


def test_no_labels_no_classes_to_choose_from() -> None:
    source = make_source(Labels.none_each(10))
    assert len(select_subset(source, "30%")) == 3
    with pytest.raises(ValueError, match=r"^subset \.\./class needs labels, and these images have none: leave /class out\.$"):
        select_subset(source, "1/class")


def test_the_class_that_lacks_most_is_named() -> None:
    source = make_source(Labels.one_each([0, 0, 0, 3, 3, 1, 1, 1]))
    with pytest.raises(ValueError, match="subset 3/class is more than the 2 images of class dog"):
        select_subset(source, "3/class")
    several = make_source(Labels.several_each([(0, 1), (0, 1), (1,), ()]))
    with pytest.raises(ValueError, match="subset 3/class is more than the 2 images of class ant"):
        select_subset(several, "3/class")
    assert numbers(select_subset(several, "2/class")) in ([0, 1], [0, 1, 2])


@settings(deadline=None, max_examples=50)
@given(ONE | SEVERAL, st.floats(0.01, 0.99), SEEDS)
def test_a_part_held_out_is_exact(labels: Labels, share: float, seed: int) -> None:
    source = make_source(labels)
    num_held = round(share * len(source))
    if not 0 < num_held < len(source):
        with pytest.raises(ValueError, match=r"leaves one of the parts empty: take another share\.$"):
            hold_out(source, share, seed)
        return
    left, held = hold_out(source, share, seed)
    assert len(held) == num_held
    assert sorted([*numbers(left), *numbers(held)]) == list(range(len(source)))
    assert numbers(held) == sorted(numbers(held))
    if not labels.has_several:
        total, kept = (np.bincount(part.labels.values, minlength=5) for part in (source, held))
        assert (np.abs(kept - total * num_held / len(source)) < 1 + 1e-9).all()


def test_what_is_held_out_is_drawn() -> None:
    source = make_balanced(500)
    first, again, other = (numbers(hold_out(source, 0.2, seed)[1]) for seed in (1, 1, 2))
    assert first == again
    assert 2 < len(set(first) & set(other)) < 50  # 20 of the 100 are expected in both
    assert np.bincount(np.array(first) % 5).tolist() == [20] * 5
    assert np.bincount(np.array(first) // 100).min() >= 8  # not the beginning of each class


def test_what_is_held_out_and_a_subset_have_nothing_to_do_with_each_other() -> None:
    source = make_balanced(1000)
    held, subset = set(numbers(hold_out(source, 0.2)[1])), set(numbers(select_subset(source, "20%")))
    assert 15 < len(held & subset) < 70  # 40 expected


@pytest.mark.parametrize("share", [0.0, 0.01, 0.99, 1.0])
def test_an_empty_part_costs_a_sentence(share: float) -> None:
    with pytest.raises(ValueError, match=rf"^held_out={share} of 10 images leaves one of the parts empty"):
        hold_out(make_balanced(10), share)


def test_parts_of_an_excluded_source_keep_their_images_apart(tmp_path: Path) -> None:
    kept = exclude_images(make_balanced(100), write_names(tmp_path, ["images[3]", "images[4]"]))
    left, held = hold_out(select_subset(kept, "50%"), 0.25)
    assert (len(left), len(held)) == (37, 12)
    assert not set(numbers(left)) & set(numbers(held))
    assert not {3, 4} & {*numbers(left), *numbers(held)}
    assert [left.labels[index] for index in range(37)] == [number % 5 for number in numbers(left)]


def write_names(folder: Path, lines: list[str], end: str = "\n") -> Path:
    path = folder / "leave_out.txt"
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_named_files_are_left_out(tmp_path: Path, end: str) -> None:
    lines = ["# blurred ones", "images[1]", "", "   ", "images[3]  ", "images[1]", "# images[2]"]
    source = exclude_images(make_balanced(6), write_names(tmp_path, lines, end))
    assert numbers(source) == [0, 2, 4, 5]
    assert [source.labels[index] for index in range(4)] == [0, 2, 4, 0]


def test_a_last_line_without_an_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "leave_out.txt"
    path.write_text("images[1]\nimages[2]")
    assert numbers(exclude_images(make_balanced(4), path)) == [0, 3]


@pytest.mark.parametrize("lines", [[], ["# nothing", ""]])
def test_an_empty_list_leaves_out_nothing(tmp_path: Path, lines: list[str]) -> None:
    source = make_balanced(4)
    assert exclude_images(source, write_names(tmp_path, lines)) is source


def test_names_that_are_not_there_are_told(tmp_path: Path) -> None:
    path = write_names(tmp_path, ["images[2]", *(f"gone/{number}.jpg" for number in range(5))])
    with pytest.warns(VitrineWarning) as notices:
        source = exclude_images(make_balanced(6), path)
    assert [str(notice.message) for notice in notices] == [
        f"5 names in {path} are not in the data, as gone/0.jpg, gone/1.jpg, gone/2.jpg and 2 more."
    ]
    assert numbers(source) == [0, 1, 3, 4, 5]


def test_a_list_of_other_names_costs_a_sentence(tmp_path: Path) -> None:
    path = write_names(tmp_path, ["/data/images[2]", "images"])
    message = (
        r"^None of the 2 names in .*leave_out\.txt is in the data, whose images are called as images\[0\]: write such names\.$"
    )
    with pytest.raises(ValueError, match=message):
        exclude_images(make_balanced(6), path)


def test_a_list_of_all_costs_a_sentence(tmp_path: Path) -> None:
    path = write_names(tmp_path, [f"images[{number}]" for number in range(6)])
    with pytest.raises(ValueError, match=r"leave_out\.txt excludes all 6 images: nothing is left\.$"):
        exclude_images(make_balanced(6), path)


def test_a_list_that_cannot_be_read_costs_a_sentence(tmp_path: Path) -> None:
    binary = tmp_path / "names.bin"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\0\xff")
    for path in (tmp_path / "gone.txt", tmp_path, binary):
        with pytest.raises(
            ValueError, match=r"^exclude=\S+ must be a text file with the name of an image on each line: .+\.$"
        ) as error:
            exclude_images(make_balanced(6), path)
        assert "\n" not in str(error.value)


def test_exclusion_works_on_what_was_selected(tmp_path: Path) -> None:
    half = select_subset(make_balanced(20), "50%")
    name = half.name(4)
    kept = exclude_images(half, write_names(tmp_path, [name]))
    assert [kept.name(index) for index in range(9)] == [half.name(index) for index in range(10) if index != 4]


def test_labels_stay_with_their_images_through_everything() -> None:
    labels: list[Label] = [(number % 5, (number + 1) % 5) if number % 3 else () for number in range(100)]
    source = select_subset(hold_out(make_source(Labels.several_each(labels)), 0.3)[0], "50%/class")
    assert [source.labels[index] for index in range(len(source))] == [labels[number] for number in numbers(source)]


def test_names_come_back(tmp_path: Path) -> None:
    names = ["train/cat/a.jpg", "train/dög/b c.jpg", "bad\udce9.png", "#1.png"]
    write_exclude_list(tmp_path / "list.txt", names, "Left out.")
    assert read_exclude_list(tmp_path / "list.txt") == set(names)
    assert (tmp_path / "list.txt").read_bytes().startswith(b"# Left out.\n")


@pytest.mark.parametrize("name", [" a.png", "a.png\n", "a\nb.png", "# a.png"])
def test_names_that_would_not_come_back_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot stand on a line"):
        write_exclude_list(tmp_path / "list.txt", [name], "Left out.")
    assert not (tmp_path / "list.txt").exists()


def test_no_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a text file with the name of an image on each line"):
        read_exclude_list(tmp_path / "missing.txt")
