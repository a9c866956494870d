"""Subsets lie within one another; held-out parts have exact sizes; exclude lists leave out what they name."""

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
    """Images of one pixel that encodes their index."""
    indices = np.arange(len(labels), dtype=np.uint32)
    pixels = indices.view(np.uint8).reshape(-1, 4)[:, None, None, :3]
    return ArraySource(np.ascontiguousarray(pixels), labels, CLASSES, "images")


def make_balanced(num_images: int, num_classes: int = 5) -> ArraySource:
    return make_source(Labels.one_each(np.arange(num_images) % num_classes))


def indices_of(source: Source) -> list[int]:
    """Indices in the whole source, read from the pixels."""
    return [int(np.frombuffer(source.fetch(index).tobytes() + b"\0", "<u4")[0]) for index in range(len(source))]


ONE = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(Labels.one_each)
SEVERAL = st.lists(st.lists(st.integers(0, 4), unique=True, max_size=3), min_size=1, max_size=60).map(Labels.several_each)
FRACTIONS = st.floats(0.001, 1.0)
SEEDS = st.integers(0, 5)


@settings(deadline=None, max_examples=50)
@given(ONE | SEVERAL, FRACTIONS, FRACTIONS, SEEDS)
def test_smaller_fraction_lies_within_a_larger_one(labels: Labels, first: float, second: float, seed: int) -> None:
    source = make_source(labels)
    small, large = (indices_of(select_subset(source, repr(fraction), seed)) for fraction in sorted((first, second)))
    assert set(small) <= set(large)
    assert len(small) == max(1, round(min(first, second) * len(source)))
    assert small == sorted(small)  # in the order of the source


@settings(deadline=None, max_examples=50)
@given(ONE | SEVERAL, FRACTIONS, FRACTIONS, SEEDS)
def test_smaller_fraction_per_class_lies_within_a_larger_one(labels: Labels, first: float, second: float, seed: int) -> None:
    source = make_source(labels)
    if len(labels.values) == 0:
        return
    low, high = sorted((first, second))
    small, large = (select_subset(source, f"{fraction!r}/class", seed) for fraction in (low, high))
    assert set(indices_of(small)) <= set(indices_of(large))
    total, kept = (np.bincount(part.labels.values, minlength=5) for part in (source, small))
    assert (kept >= [round(low * count) for count in total]).all()
    assert (kept[total > 0] >= 1).all()
    if not labels.has_several:
        assert kept.tolist() == [max(1, round(low * count)) if count else 0 for count in total.tolist()]


@settings(deadline=None, max_examples=50)
@given(ONE | SEVERAL, st.data(), SEEDS)
def test_counts_lie_within_one_another_and_within_fractions(labels: Labels, data: st.DataObject, seed: int) -> None:
    source = make_source(labels)
    few, many = sorted(data.draw(st.integers(1, len(source))) for _ in range(2))
    small, large = (indices_of(select_subset(source, str(count), seed)) for count in (few, many))
    assert (len(small), len(large)) == (few, many)
    assert set(small) <= set(large)
    fraction = indices_of(select_subset(source, repr(data.draw(st.floats(many / len(source), 1.0))), seed))
    assert set(large) <= set(fraction)


def test_percent_equals_fraction() -> None:
    source = make_balanced(200)
    for percent, fraction in (("10%", "0.1"), ("2.5%", "0.025"), ("10%/class", "1e-1/class"), ("100%", "all")):
        assert indices_of(select_subset(source, percent)) == indices_of(select_subset(source, fraction))
    assert set(indices_of(select_subset(source, "10%"))) <= set(indices_of(select_subset(source, "30%")))
    assert set(indices_of(select_subset(source, "10%/class"))) <= set(indices_of(select_subset(source, "30%/class")))


def test_subset_depends_on_the_seed_only() -> None:
    for text in ("20%", "40", "20%/class", "8/class"):
        first, again, other = (indices_of(select_subset(make_balanced(200), text, seed)) for seed in (3, 3, 4))
        assert len(first) == 40
        assert first == again
        assert len(set(first) & set(other)) < 25  # 8 of the 40 are expected in both


def test_subset_is_pinned() -> None:
    """Recorded runs refer to their subset by fraction and seed."""
    assert indices_of(select_subset(make_balanced(1000), "10", 0)) == indices_of(
        select_subset(make_source(Labels.none_each(1000)), "1%", 0)
    )
    assert indices_of(select_subset(make_balanced(1000), "10", 0)) == PINNED


PINNED = [134, 143, 173, 201, 376, 382, 406, 618, 626, 761]


def test_subset_is_spread_over_the_source() -> None:
    chosen = np.array(indices_of(select_subset(make_balanced(10_000), "10%")))
    counts = np.bincount(chosen // 1000, minlength=10)
    assert (np.abs(counts - 100) < 45).all()  # 4.7 standard deviations of a fair draw


def test_all_is_the_source_itself() -> None:
    source = make_balanced(20)
    for text in ("all", "1.0", "100%"):
        assert select_subset(source, text) is source
    assert indices_of(select_subset(source, "20")) == list(range(20))
    assert indices_of(select_subset(source, "100%/class")) == list(range(20))


@pytest.mark.parametrize(
    "labels",
    [Labels.one_each([0, 1, 2, 3, 4, 0]), Labels.several_each([(0, 1), (), (2,), (3, 4), (1,), ()])],
    ids=["one", "several"],
)
def test_subset_source(labels: Labels) -> None:
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
def test_subset_of_a_subset_refers_to_the_whole(data: st.DataObject) -> None:
    source: Source = make_balanced(30)
    expected = np.arange(30)
    for _ in range(3):
        indices = np.array(data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, unique=True)))
        source, expected = SubsetSource(source, indices), expected[indices]
    assert indices_of(source) == expected.tolist()
    assert not isinstance(source.source, SubsetSource)
    assert [source.labels[index] for index in range(len(source))] == (expected % 5).tolist()


def test_half_and_then_a_fifth_is_a_tenth() -> None:
    """Images are ordered by their indices in the whole source."""
    source = make_balanced(1000)
    assert indices_of(select_subset(select_subset(source, "50%"), "20%")) == indices_of(select_subset(source, "10%"))
    assert indices_of(select_subset(select_subset(source, "50%/class"), "20%/class")) == indices_of(
        select_subset(source, "10%/class")
    )


def test_excluding_a_few_files_changes_a_subset_little(tmp_path: Path) -> None:
    source = make_balanced(1000)
    excluded = {7, 123, 124, 125, 900}
    kept = exclude_images(source, write_names(tmp_path, [f"images[{number}]" for number in excluded]))
    assert len(kept) == 995
    for text in ("10%", "100", "10%/class", "20/class"):
        before, after = set(indices_of(select_subset(source, text))), set(indices_of(select_subset(kept, text)))
        assert not after & excluded
        assert len((before - excluded) - after) <= 5
        assert len(after - before) <= 5


def test_excluding_a_file_changes_a_held_out_part_little(tmp_path: Path) -> None:
    """Otherwise one more excluded file would move held-out images of one run to the training images of the next."""
    source = make_balanced(1000)
    kept = exclude_images(source, write_names(tmp_path, ["images[123]"]))
    before, after = (set(indices_of(hold_out(part, 0.1)[1])) for part in (source, kept))
    assert len(before & after) >= 95


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("21", "subset=21 .*20 images"),
        ("5/class", "subset=5/class .*4 images of class ant"),
        ("0", "subset='0'"),
    ],
)
def test_impossible_subsets_are_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_subset(make_balanced(20), text)


def test_subset_per_class_needs_labels() -> None:
    source = make_source(Labels.none_each(10))
    assert len(select_subset(source, "30%")) == 3
    with pytest.raises(ValueError, match="needs labels"):
        select_subset(source, "1/class")


def test_smallest_class_is_named() -> None:
    source = make_source(Labels.one_each([0, 0, 0, 3, 3, 1, 1, 1]))
    with pytest.raises(ValueError, match="2 images of class dog"):
        select_subset(source, "3/class")
    several = make_source(Labels.several_each([(0, 1), (0, 1), (1,), ()]))
    with pytest.raises(ValueError, match="2 images of class ant"):
        select_subset(several, "3/class")
    assert indices_of(select_subset(several, "2/class")) in ([0, 1], [0, 1, 2])


@settings(deadline=None, max_examples=50)
@given(ONE | SEVERAL, st.floats(0.01, 0.99), SEEDS)
def test_held_out_part_has_the_exact_size(labels: Labels, fraction: float, seed: int) -> None:
    source = make_source(labels)
    num_held = round(fraction * len(source))
    if not 0 < num_held < len(source):
        with pytest.raises(ValueError, match="empty"):
            hold_out(source, fraction, seed)
        return
    left, held = hold_out(source, fraction, seed)
    assert len(held) == num_held
    assert sorted([*indices_of(left), *indices_of(held)]) == list(range(len(source)))
    assert indices_of(held) == sorted(indices_of(held))
    if not labels.has_several:
        total, kept = (np.bincount(part.labels.values, minlength=5) for part in (source, held))
        assert (np.abs(kept - total * num_held / len(source)) < 1 + 1e-9).all()


def test_held_out_part_is_random_and_stratified() -> None:
    source = make_balanced(500)
    first, again, other = (indices_of(hold_out(source, 0.2, seed)[1]) for seed in (1, 1, 2))
    assert first == again
    assert 2 < len(set(first) & set(other)) < 50  # 20 of the 100 are expected in both
    assert np.bincount(np.array(first) % 5).tolist() == [20] * 5
    assert np.bincount(np.array(first) // 100).min() >= 8  # not the beginning of each class


def test_held_out_part_and_subset_are_independent() -> None:
    source = make_balanced(1000)
    held, subset = set(indices_of(hold_out(source, 0.2)[1])), set(indices_of(select_subset(source, "20%")))
    assert 15 < len(held & subset) < 70  # 40 expected


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.99, 1.0])
def test_empty_part_is_an_error(fraction: float) -> None:
    with pytest.raises(ValueError, match=f"held_out={fraction} of 10 images"):
        hold_out(make_balanced(10), fraction)


def test_parts_after_exclusion_are_disjoint(tmp_path: Path) -> None:
    kept = exclude_images(make_balanced(100), write_names(tmp_path, ["images[3]", "images[4]"]))
    left, held = hold_out(select_subset(kept, "50%"), 0.25)
    assert (len(left), len(held)) == (37, 12)
    assert not set(indices_of(left)) & set(indices_of(held))
    assert not {3, 4} & {*indices_of(left), *indices_of(held)}
    assert [left.labels[index] for index in range(37)] == [number % 5 for number in indices_of(left)]


def write_names(folder: Path, lines: list[str], end: str = "\n") -> Path:
    path = folder / "leave_out.txt"
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_exclude_list(tmp_path: Path, end: str) -> None:
    lines = ["# blurred ones", "images[1]", "", "   ", "images[3]  ", "images[1]", "# images[2]"]
    source = exclude_images(make_balanced(6), write_names(tmp_path, lines, end))
    assert indices_of(source) == [0, 2, 4, 5]
    assert [source.labels[index] for index in range(4)] == [0, 2, 4, 0]


def test_last_line_without_line_break_counts(tmp_path: Path) -> None:
    path = tmp_path / "leave_out.txt"
    path.write_text("images[1]\nimages[2]")
    assert indices_of(exclude_images(make_balanced(4), path)) == [0, 3]


@pytest.mark.parametrize("lines", [[], ["# nothing", ""]])
def test_empty_exclude_list(tmp_path: Path, lines: list[str]) -> None:
    source = make_balanced(4)
    assert exclude_images(source, write_names(tmp_path, lines)) is source


def test_unknown_names_give_a_warning(tmp_path: Path) -> None:
    path = write_names(tmp_path, ["images[2]", *(f"gone/{number}.jpg" for number in range(5))])
    with pytest.warns(VitrineWarning, match=r"^5 names .*gone/0\.jpg"):
        source = exclude_images(make_balanced(6), path)
    assert indices_of(source) == [0, 1, 3, 4, 5]


def test_exclude_list_of_unknown_names_is_an_error(tmp_path: Path) -> None:
    path = write_names(tmp_path, ["/data/images[2]", "images"])
    with pytest.raises(ValueError, match=r"images\[0\]"):
        exclude_images(make_balanced(6), path)


def test_excluding_all_images_is_an_error(tmp_path: Path) -> None:
    path = write_names(tmp_path, [f"images[{number}]" for number in range(6)])
    with pytest.raises(ValueError, match="all 6 images"):
        exclude_images(make_balanced(6), path)


def test_unreadable_exclude_list_is_an_error(tmp_path: Path) -> None:
    binary = tmp_path / "names.bin"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\0\xff")
    for path in (tmp_path / "gone.txt", tmp_path, binary):
        with pytest.raises(ValueError, match="exclude=") as error:
            exclude_images(make_balanced(6), path)
        assert "\n" not in str(error.value)


def test_exclusion_from_a_subset(tmp_path: Path) -> None:
    half = select_subset(make_balanced(20), "50%")
    name = half.name(4)
    kept = exclude_images(half, write_names(tmp_path, [name]))
    assert [kept.name(index) for index in range(9)] == [half.name(index) for index in range(10) if index != 4]


def test_labels_stay_with_their_images() -> None:
    labels: list[Label] = [(number % 5, (number + 1) % 5) if number % 3 else () for number in range(100)]
    source = select_subset(hold_out(make_source(Labels.several_each(labels)), 0.3)[0], "50%/class")
    assert [source.labels[index] for index in range(len(source))] == [labels[number] for number in indices_of(source)]


def test_exclude_list_round_trip(tmp_path: Path) -> None:
    names = ["train/cat/a.jpg", "train/dög/b c.jpg", "bad\udce9.png", "#1.png"]
    write_exclude_list(tmp_path / "list.txt", names, "Left out.")
    assert read_exclude_list(tmp_path / "list.txt") == set(names)
    assert (tmp_path / "list.txt").read_bytes().startswith(b"# Left out.\n")


@pytest.mark.parametrize("name", [" a.png", "a.png\n", "a\nb.png", "# a.png"])
def test_names_that_cannot_be_read_back_are_errors(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rename"):
        write_exclude_list(tmp_path / "list.txt", [name], "Left out.")
    assert not (tmp_path / "list.txt").exists()


@pytest.mark.parametrize(
    ("sizes", "held"),
    [((5, 3, 2), (1, 1, 1)), ((14, 3, 3), (4, 1, 1)), ((9, 9, 2), (3, 3, 0)), ((10, 10, 10), (3, 3, 3))],
)
def test_held_out_images_are_divided_by_the_largest_remainders(sizes: tuple[int, ...], held: tuple[int, ...]) -> None:
    """Three tenths of each class; what rounding leaves goes to the largest fractions: 1.5, 0.9, 0.6 is 1, 1, 1."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    source = ArraySource(np.zeros((len(labels), 2, 2, 3), np.uint8), Labels.one_each(labels), tuple("abc"), "sizes")
    train, held_out = hold_out(source, 0.3)
    assert tuple(np.bincount(held_out.labels.values, minlength=3)) == held
    assert len(train) + len(held_out) == len(source)
