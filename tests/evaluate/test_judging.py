"""Small models judged on small made sets, against scikit-learn and figures counted by hand: plain, ReaL, ObjectNet's way."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix
from torch import Tensor

from tests.data.sources.test_imagenet import make_imagenet
from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.core.notices import Notice
from vitrine.data.opening import open_data, open_test
from vitrine.data.relabel import Relabelled
from vitrine.data.source import Labels, Source
from vitrine.evaluate import judging
from vitrine.evaluate.config import ReadingConfig
from vitrine.evaluate.judging import Difference, Judged, compare, judge, write_differences, write_findings
from vitrine.formats.checkpoint import Checkpoint
from vitrine.models.config import ModelConfig

READING = ReadingConfig(batch_size=8, num_workers=0)
NUM_EACH = 6


def write_images(folder: Path, class_names: tuple[str, ...], num_each: int = NUM_EACH) -> Path:
    random = np.random.default_rng(0)
    for name in class_names:
        (folder / name).mkdir(parents=True)
        for index in range(num_each):
            low = random.integers(0, 200, (3,))
            pixels = random.integers(low, low + 56, (26, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


@torch.no_grad()
def predict(checkpoint: Checkpoint, source: Source) -> Tensor:
    """Logits, image by image and not by our loop."""
    images = torch.stack([checkpoint.preprocessing.load(path) for path in source.files()[: len(source)]])
    return checkpoint.model.eval()(checkpoint.preprocessing.normalise(images))


def make_varied(config: ModelConfig, source: Source, class_names: tuple[str, ...] | None, seed: int = 0) -> Checkpoint:
    """A model whose answers differ from image to image: another head for each seed, with equal chances of all classes."""
    checkpoint = replace(make_checkpoint(config), class_names=class_names)
    layer = checkpoint.model.head
    layer = layer if isinstance(layer, torch.nn.Linear) else [*layer.modules()][-1]
    with torch.no_grad():
        layer.weight.normal_(generator=torch.Generator().manual_seed(seed))
        logits = predict(checkpoint, source)
        layer.bias -= logits.mean(dim=0)
        layer.weight.mul_((4 / logits.std(dim=0))[:, None])
        layer.bias -= predict(checkpoint, source).mean(dim=0)
    assert len(set(predict(checkpoint, source).argmax(dim=1).tolist())) > 1
    return checkpoint


NAMES = tuple(f"class {index}" for index in range(5))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return open_data(write_images(tmp_path_factory.mktemp("images") / "five", NAMES))


@pytest.fixture(scope="module")
def checkpoint(source: Source) -> Checkpoint:
    return make_varied(cases.VIT, source, NAMES)


@pytest.fixture(scope="module")
def judged(checkpoint: Checkpoint, source: Source) -> Judged:
    return judge(checkpoint, source, READING)


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_the_report_is_that_of_the_model_image_by_image(judged: Judged, checkpoint: Checkpoint, source: Source) -> None:
    answers = predict(checkpoint, source).argmax(dim=1).numpy()
    assert judged.report.num_images == 5 * NUM_EACH
    assert judged.report.top1.value == pytest.approx(accuracy_score(source.labels.values, answers))
    assert 0 < judged.report.top1.value < 1
    recalls = confusion_matrix(source.labels.values, answers).diagonal() / NUM_EACH
    assert [each.top1.value for each in judged.report.classes] == pytest.approx(recalls.tolist())
    assert [each.name for each in judged.report.classes] == list(NAMES)


def test_names_of_answers_and_labels(judged: Judged, checkpoint: Checkpoint, source: Source) -> None:
    answers = predict(checkpoint, source).argmax(dim=1).tolist()
    assert [judged.name_answer(row) for row in range(30)] == [NAMES[answer] for answer in answers]
    assert [judged.name_labels(index) for index in range(30)] == [name for name in NAMES for _ in range(NUM_EACH)]


def test_classes_in_another_order_are_the_same_classes(judged: Judged, source: Source) -> None:
    """The same model with its outputs, and their names, turned around."""
    turned = replace(make_varied(cases.VIT, source, None), class_names=NAMES[::-1])
    with torch.no_grad():
        for parameter in (turned.model.head.weight, turned.model.head.bias):
            parameter.copy_(parameter.flip(0))
    found = judge(turned, source, READING)
    assert found.report.top1 == judged.report.top1
    assert {each.name: each.top1 for each in found.report.classes} == {each.name: each.top1 for each in judged.report.classes}
    assert [found.name_labels(index) for index in range(30)] == [judged.name_labels(index) for index in range(30)]
    assert compare(found, judged)[1] == []


def test_some_classes_of_the_model_s_are_enough(checkpoint: Checkpoint, tmp_path: Path) -> None:
    part = open_data(write_images(tmp_path / "two", ("class 3", "class 1")))
    report = judge(checkpoint, part, READING).report
    assert [each.name for each in report.classes] == ["class 1", "class 3"]
    answers = predict(checkpoint, part).argmax(dim=1).numpy()
    assert report.top1.value == pytest.approx(accuracy_score(np.repeat([1, 3], NUM_EACH), answers))


def test_one_image_of_one_class(tmp_path: Path) -> None:
    alone = open_data(write_images(tmp_path / "one", ("only",), 1))
    found = judge(replace(make_checkpoint(replace(cases.VIT, num_classes=1)), class_names=("only",)), alone, READING)
    assert (found.report.num_images, found.report.top1.value, found.report.top5.value) == (1, 1, 1)
    assert found.report.loss.value == pytest.approx(0, abs=1e-6)
    assert write_findings(found, tmp_path / "out") == ["classes.csv", "confusion.png"]


def test_a_bad_image_is_left_out_of_all_figures(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "five", NAMES)
    whole = open_data(folder)
    answers = predict(checkpoint, whole).argmax(dim=1).numpy()
    (folder / "class 2" / "0.png").write_bytes(b"no image")
    kept = np.delete(np.arange(30), 12)
    skipping = ReadingConfig(num_workers=0, bad_images="skip")
    with pytest.warns(Notice, match=r"Skipped class 2/0\.png"):
        found = judge(checkpoint, open_data(folder), skipping)
    assert found.report.num_images == 29
    assert [each.num_images for each in found.report.classes] == [6, 6, 5, 6, 6]
    assert found.report.top1.value == pytest.approx(accuracy_score(whole.labels.values[kept], answers[kept]))
    assert "mistakes.png" in write_findings(found, tmp_path / "out")
    with pytest.raises(ValueError, match=r"^class 2/0\.png is not an image that can be read"):
        judge(checkpoint, open_data(folder), READING)


REAL = [[2], [], [0, 1], [0, 1, 2], []]  # what the five images of `make_imagenet` show


def test_with_labels_of_real_any_of_them_is_right_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    """As ReaL's own code counts: `is_correct = [pred in real_labels[i] for i, pred if real_labels[i]]`."""
    folder = make_imagenet(tmp_path / "imagenet")
    (folder / "real.json").write_text(json.dumps(REAL))
    real = open_test(str(folder), "real")
    checkpoint = make_varied(replace(cases.VIT, num_classes=3), real, None)
    order = predict(checkpoint, real).argsort(dim=1, descending=True).tolist()
    expected = [answers[0] in labels for answers, labels in zip(order, REAL, strict=True) if labels]
    report = judge(checkpoint, real, READING).report
    assert (report.num_images, report.num_left_out) == (3, 2)
    assert report.top1.value == pytest.approx(np.mean(expected))
    assert report.top5.value == 1
    assert (report.loss, report.classes) == (None, [])


def test_findings_with_labels_of_real_are_the_mistakes_alone(tmp_path: Path) -> None:
    folder = make_imagenet(tmp_path / "imagenet")
    plain = open_test(str(folder))
    checkpoint = make_varied(replace(cases.VIT, num_classes=3), plain, None)
    answers = predict(checkpoint, plain).argmax(dim=1).tolist()
    wrong = [sorted({0, 1, 2} - {answer}) for answer in answers]
    (folder / "real.json").write_text(json.dumps([wrong[0], [], *([answer] for answer in answers[2:])]))
    found = judge(checkpoint, open_test(str(folder), "real"), READING)
    assert write_findings(found, tmp_path / "out") == ["mistakes.png"]
    names = ("tench, Tinca tinca", "goldfish, Carassius auratus", "crane")
    assert found.name_labels(0) == ", ".join(names[label] for label in wrong[0])
    assert found.name_labels(1) == ""
    (folder / "real.json").write_text(json.dumps([[answer] for answer in answers]))
    assert write_findings(judge(checkpoint, open_test(str(folder), "real"), READING), tmp_path / "none") == []


def test_a_set_like_objectnet_is_judged_by_what_its_classes_stand_for(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "objects", ("Bathrobe", "Chair", "Ladle", "Weight (exercise)"))
    data = open_data(folder)
    names = ("robe", "rocking chair", "folding chair", "ladle", "dumbbell; barbell")
    mapping = tmp_path / "objectnet_to_model.json"
    content = {"Chair": "rocking chair; folding chair", "Ladle": 3, "Weight (exercise)": "dumbbell; barbell", "Teapot": "robe"}
    mapping.write_text(json.dumps(content))
    checkpoint = make_varied(cases.VIT, data, names)
    answers = predict(checkpoint, data).argmax(dim=1).tolist()
    right = [set()] * NUM_EACH + [{1, 2}] * NUM_EACH + [{3}] * NUM_EACH + [{4}] * NUM_EACH
    expected = [answer in labels for answer, labels in zip(answers, right, strict=True) if labels]
    with pytest.warns(Notice, match=r"^1 of 4 classes stand for none of the model's and do not count: Bathrobe\.$"):
        found = judge(checkpoint, data, READING, mapping=mapping)
    assert (found.report.num_images, found.report.num_left_out) == (3 * NUM_EACH, NUM_EACH)
    assert found.report.top1.value == pytest.approx(np.mean(expected))
    assert found.name_labels(NUM_EACH) == "rocking chair, folding chair"
    assert found.source.class_names == names


def test_a_mapping_to_a_name_that_the_model_has_not_is_refused(checkpoint: Checkpoint, source: Source, tmp_path: Path) -> None:
    (tmp_path / "mapping.json").write_text(json.dumps({"class 0": "class 0; class nought"}))
    with pytest.raises(ValueError, match=r"mapping\.json has 'class nought' for class 0, and a class of the model was needed"):
        judge(checkpoint, source, READING, mapping=tmp_path / "mapping.json")


def test_findings_have_the_table_of_classes_of_the_report(judged: Judged, tmp_path: Path) -> None:
    assert write_findings(judged, tmp_path / "new" / "out") == ["classes.csv", "confusion.png", "mistakes.png"]
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == [
        "classes.csv",
        "confusion.png",
        "mistakes.png",
    ]
    head, *rows = read_csv(tmp_path / "new" / "out" / "classes.csv")
    assert head == ["class", "images", "top1", "low", "high", "mistaken_for"]
    for row, each in zip(rows, judged.report.classes, strict=True):
        assert row[:2] == [each.name, str(each.num_images)]
        assert [float(cell) for cell in row[2:5]] == [each.top1.value, each.top1.low, each.top1.high]
        assert row[5] == (each.mistaken_for or "")


def test_the_pictured_mistakes_are_the_surest_as_the_model_saw_them(
    judged: Judged, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[list[np.ndarray], list[tuple[str, str]], Path]] = []
    monkeypatch.setattr(judging, "draw_mistakes", lambda *arguments: drawn.append(arguments))
    write_findings(judged, tmp_path)
    [(images, titles, path)] = drawn
    shares = predict(judged.checkpoint, source).softmax(dim=1)
    wrong = np.flatnonzero(shares.argmax(dim=1).numpy() != source.labels.values)
    surest = wrong[np.argsort(-shares.max(dim=1).values.numpy()[wrong], kind="stable")][:20].tolist()
    assert path == tmp_path / "mistakes.png"
    assert len(images) == len(surest)
    for image, title, place in zip(images, titles, surest, strict=True):
        seen = judged.checkpoint.preprocessing.load(source.files()[place])
        assert np.array_equal(image, seen.permute(1, 2, 0).numpy())
        assert title == (f"{shares[place].max():.0%} {NAMES[shares[place].argmax()]}", NAMES[source.labels[place]])


def test_without_a_mistake_there_is_no_picture_of_them(checkpoint: Checkpoint, source: Source, tmp_path: Path) -> None:
    answers = predict(checkpoint, source).argmax(dim=1).numpy()
    right = judge(checkpoint, Relabelled(source, Labels.one_each(answers), NAMES), READING)
    assert right.report.top1.value == 1
    assert write_findings(right, tmp_path) == ["classes.csv", "confusion.png"]
    assert all(row[5] == "" for row in read_csv(tmp_path / "classes.csv")[1:])


def test_findings_of_a_grey_model(source: Source, tmp_path: Path) -> None:
    grey = make_varied(replace(cases.VIT, num_channels=1), source, NAMES)
    assert "mistakes.png" in write_findings(judge(grey, source, READING), tmp_path)


def test_names_with_commas_and_of_other_scripts(tmp_path: Path) -> None:
    names = ('drake, "duck"', "größer $5_", "猫 🐈")
    data = open_data(write_images(tmp_path / "images", names))
    found = judge(make_varied(replace(cases.VIT, num_classes=3), data, None), data, READING)
    write_findings(found, tmp_path / "out")
    assert [row[0] for row in read_csv(tmp_path / "out" / "classes.csv")[1:]] == sorted(names)


def test_a_model_against_itself_is_no_different(judged: Judged) -> None:
    paired, differences = compare(judged, judged)
    assert (paired.num_images, paired.only_first, paired.only_second, paired.p_value) == (30, 0, 0, 1)
    assert differences == []


def test_two_models_differ_where_one_is_right(judged: Judged, source: Source) -> None:
    other = make_varied(cases.VIT, source, NAMES, seed=5)
    paired, differences = compare(judged, judge(other, source, READING))
    truth = source.labels.values
    answers = [predict(each, source).argmax(dim=1).numpy() for each in (judged.checkpoint, other)]
    first, second = (each == truth for each in answers)
    assert (paired.only_first, paired.only_second) == (int((first & ~second).sum()), int((second & ~first).sum()))
    assert paired.difference.value == pytest.approx(first.mean() - second.mean())
    places = np.flatnonzero(first != second).tolist()
    assert len(places) > 2
    assert differences == [
        Difference(
            image=source.name(place),
            label=NAMES[truth[place]],
            first=NAMES[answers[0][place]],
            second=NAMES[answers[1][place]],
            right="first" if first[place] else "second",
        )
        for place in places
    ]


def test_two_models_with_classes_of_their_own_are_compared_where_both_know_the_label(tmp_path: Path) -> None:
    data = open_data(write_images(tmp_path / "objects", ("cup", "hat", "pen")))
    mappings = {"first": {"cup": [0], "hat": [1, 2]}, "second": {"hat": [0], "pen": [1]}}
    both = []
    for seed, (name, content) in enumerate(mappings.items()):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        checkpoint = make_varied(replace(cases.VIT, num_classes=3), data, None, seed)
        with pytest.warns(Notice, match=r"1 of 3 classes stand for none"):
            both.append(judge(checkpoint, data, READING, mapping=tmp_path / f"{name}.json"))
    paired, differences = compare(*both)
    assert paired.num_images == NUM_EACH  # hats
    assert all(each.image.startswith("hat/") and each.label == "1, 2" for each in differences)
    first, second = (predict(each.checkpoint, data).argmax(dim=1)[NUM_EACH : 2 * NUM_EACH] for each in both)
    assert paired.only_first - paired.only_second == int((first != 0).sum()) - int((second == 0).sum())


def test_bad_images_that_both_skip_change_no_pair(checkpoint: Checkpoint, source: Source, tmp_path: Path) -> None:
    other = make_varied(cases.VIT, source, NAMES, seed=5)
    folder = write_images(tmp_path / "five", NAMES)
    (folder / "class 0" / "0.png").write_bytes(b"no image")
    data, skipping = open_data(folder), ReadingConfig(num_workers=0, bad_images="skip")
    with pytest.warns(Notice):
        both = [judge(each, data, skipping) for each in (checkpoint, other)]
    paired, differences = compare(*both)
    assert paired.num_images == 29
    hits = [predict(each, source).argmax(dim=1).numpy() == source.labels.values for each in (checkpoint, other)]
    unlike = [place for place in np.flatnonzero(hits[0] != hits[1]).tolist() if place != 0]  # the images are those of `source`
    assert [each.image for each in differences] == [source.name(place) for place in unlike]
    assert len(differences) == paired.only_first + paired.only_second > 2


def test_differences_are_written_as_a_table(tmp_path: Path) -> None:
    differences = [Difference("a/größe, 1.png", "cat", "cat", "dog", "first"), Difference("猫.png", "", "x", '"y"', "second")]
    write_differences(differences, tmp_path / "differences.csv")
    assert read_csv(tmp_path / "differences.csv") == [
        ["image", "label", "first", "second", "right"],
        ["a/größe, 1.png", "cat", "cat", "dog", "first"],
        ["猫.png", "", "x", '"y"', "second"],
    ]
    write_differences([], tmp_path / "none.csv")
    assert read_csv(tmp_path / "none.csv") == [["image", "label", "first", "second", "right"]]


def test_a_model_that_answers_not_a_number_costs_a_sentence(tmp_path: Path) -> None:
    broken = make_checkpoint(cases.VIT)
    with torch.no_grad():
        broken.model.head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"not a number|finite"):
        judge(
            broken,
            open_data(write_images(tmp_path / "images", tuple(f"class {index}" for index in range(5)), num_each=1)),
            READING,
        )


def test_images_that_only_one_of_two_models_can_take_are_left_out(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tuple(f"class {index}" for index in range(5)), num_each=1)
    Image.new("LAB", (24, 24)).save(folder / "class 0" / "lab.tif")  # Pillow makes no grey of it
    grey, skipping = make_checkpoint(replace(cases.VIT, num_channels=1)), ReadingConfig(num_workers=0, bad_images="skip")
    with pytest.warns(Notice):
        both = [judge(each, open_data(folder), skipping) for each in (checkpoint, grey)]
    assert compare(*both)[0].num_images == 5


def test_a_long_name_does_not_hide_how_sure_the_model_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrine.evaluate import pictures

    figures = []
    monkeypatch.setattr(pictures, "save_figure", lambda figure, path: figures.append(figure))
    names = tuple(f"Norwegian elkhound, elkhound, number {index}" for index in range(5))
    source = open_data(write_images(tmp_path / "images", names))
    write_findings(judge(replace(make_checkpoint(cases.VIT), class_names=names), source, READING), tmp_path / "out")
    assert all(re.match(r"\d+%", panel.get_title()) for panel in figures[-1].axes)
