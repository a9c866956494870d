"""What the pictures show: the matrix is scikit-learn's, the images are those that were given, and any name will do."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import confusion_matrix

from vitrine.evaluate import pictures
from vitrine.evaluate.pictures import draw_confusions, draw_mistakes

ODD_NAMES = ("$5 to $6_", "größer 猫 🐈", "W" * 80)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they would be saved, with the layout that drawing gives them."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        FigureCanvasAgg(figure).draw()
        figures.append(figure)

    monkeypatch.setattr(pictures, "save_figure", keep)
    return figures


def draw_answers(num_classes: int, num_images: int = 200) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(num_classes)
    labels = random.integers(num_classes, size=num_images)
    answers = np.where(random.random(num_images) < 0.6, labels, random.integers(num_classes, size=num_images))
    return labels, answers


def name_classes(num_classes: int) -> list[str]:
    return [f"class {number}" for number in range(num_classes)]


def list_texts(labels: list) -> list[str]:
    return [label.get_text() for label in labels]


def test_a_matrix_shows_the_shares_of_each_class(drawn: list[Figure]) -> None:
    labels, answers = draw_answers(7)
    counts = confusion_matrix(labels, answers, labels=range(7))
    draw_confusions(counts, name_classes(7), Path("not written.png"))
    panel = drawn[0].axes[0]
    [image] = panel.get_images()
    expected = confusion_matrix(labels, answers, labels=range(7), normalize="true")
    np.testing.assert_allclose(image.get_array(), expected)
    assert image.get_clim() == (0, 1)
    assert (panel.get_ylabel(), panel.get_xlabel()) == ("label", "answer")
    assert list_texts(panel.get_xticklabels()) == list_texts(panel.get_yticklabels()) == name_classes(7)


def test_counts_stand_in_their_cells(drawn: list[Figure]) -> None:
    counts = np.array([[12, 0, 1], [0, 0, 0], [3, 4, 0]])
    draw_confusions(counts, name_classes(3), Path("not written.png"))
    texts = {text.get_position(): text.get_text() for text in drawn[0].axes[0].texts}
    assert texts == {(0, 0): "12", (2, 0): "1", (0, 2): "3", (1, 2): "4"}  # (answer, label)
    assert np.isfinite(drawn[0].axes[0].get_images()[0].get_array()).all()  # a class without images has no shares


@pytest.mark.parametrize(
    ("num_classes", "has_counts", "has_names"), [(1, 1, 1), (20, 1, 1), (21, 0, 1), (60, 0, 1), (61, 0, 0)]
)
def test_only_what_can_be_read_is_written(num_classes: int, has_counts: int, has_names: int, drawn: list[Figure]) -> None:
    draw_confusions(np.eye(num_classes, dtype=np.int64), name_classes(num_classes), Path("not written.png"))
    panel = drawn[0].axes[0]
    assert len(panel.texts) == has_counts * num_classes
    assert (list_texts(panel.get_yticklabels()) == name_classes(num_classes)) == bool(has_names)


def test_neighbouring_names_stand_clear_of_each_other(drawn: list[Figure]) -> None:
    draw_confusions(np.eye(60, dtype=np.int64), ["W" * 28] * 60, Path("not written.png"))
    panel = drawn[0].axes[0]
    for labels, side in ((panel.get_yticklabels(), "y"), (panel.get_xticklabels(), "x")):
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: getattr(box, f"{side}0"))
        assert all(getattr(first, f"{side}1") <= getattr(second, f"{side}0") for first, second in itertools.pairwise(boxes))
    edges = drawn[0].bbox
    for label in (*panel.get_yticklabels(), *panel.get_xticklabels()):
        box = label.get_window_extent()
        assert edges.x0 <= box.x0 <= box.x1 <= edges.x1
        assert edges.y0 <= box.y0 <= box.y1 <= edges.y1


def test_any_name_will_do(tmp_path: Path) -> None:
    """Also one of letters that the font lacks, or that reads like a formula."""
    draw_confusions(np.eye(3, dtype=np.int64), ODD_NAMES, tmp_path / "confusion.png")
    image = np.zeros((4, 4, 3), np.uint8)
    draw_mistakes([image] * 3, [(name, name) for name in ODD_NAMES], tmp_path / "mistakes.png")
    for name in ("confusion.png", "mistakes.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.format == "PNG"


def test_names_are_taken_as_they_are(drawn: list[Figure]) -> None:
    draw_confusions(np.eye(3, dtype=np.int64), ("$a$", "b_{1}", "x^2"), Path("not written.png"))
    labels = drawn[0].axes[0].get_yticklabels()
    assert not any(label.get_parse_math() for label in labels)
    assert list_texts(labels) == ["$a$", "b_{1}", "x^2"]


def test_a_thousand_classes_are_drawn(tmp_path: Path) -> None:
    draw_confusions(np.eye(1000, dtype=np.int64), name_classes(1000), tmp_path / "confusion.png")
    with Image.open(tmp_path / "confusion.png") as picture:
        assert picture.size == (1100, 990)  # (9 + 1) x 9 inches at 110 dots


@pytest.mark.parametrize("num_images", [1, 5, 6, 20])
def test_mistakes_are_shown_in_order_between_answer_and_label(num_images: int, drawn: list[Figure]) -> None:
    images = [np.full((3, 4, 3), 10 * number, np.uint8) for number in range(num_images)]
    titles = [(f"answer {number}", f"label {number}") for number in range(num_images)]
    draw_mistakes(images, titles, Path("not written.png"))
    panels = drawn[0].axes
    assert [(panel.get_title(), panel.get_xlabel()) for panel in panels] == titles
    for panel, image in zip(panels, images, strict=True):
        assert np.array_equal(panel.get_images()[0].get_array(), image)
    places = [(-round(panel.get_position().y0, 2), round(panel.get_position().x0, 2)) for panel in panels]
    assert places == sorted(places)  # line by line
    assert len({x for _, x in places}) == min(5, num_images)


def test_grey_images_are_shown_grey_from_black_to_white(drawn: list[Figure]) -> None:
    image = np.array([[[100], [120]]], np.uint8)
    draw_mistakes([image], [("answer", "label")], Path("not written.png"))
    [shown] = drawn[0].axes[0].get_images()
    assert np.array_equal(shown.get_array(), [[100, 120]])
    colours = shown.cmap(shown.norm(shown.get_array()))[..., :3]
    np.testing.assert_allclose(colours, np.array([[[100] * 3, [120] * 3]]) / 255, atol=1 / 255)


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 300, 3), (300, 1, 1)])
def test_images_of_any_shape_are_drawn(shape: tuple[int, int, int], tmp_path: Path) -> None:
    draw_mistakes([np.zeros(shape, np.uint8)] * 2, [("a", "b")] * 2, tmp_path / "mistakes.png")
    assert (tmp_path / "mistakes.png").stat().st_size > 0


def test_names_that_are_no_utf_8_can_be_drawn(tmp_path: Path) -> None:
    draw_confusions(np.eye(2, dtype=np.int64), (os.fsdecode(b"a\xff"), "b"), tmp_path / "confusion.png")
