"""`vitrine few-shot` as a user runs it: its figures against features computed by hand, what it prints, its mistakes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, rankdata

from tests.commands.test_evaluate import fail, run
from tests.commands.test_options import draw_classes, draw_divided
from tests.evaluation.test_predictor import draw_images, featurise_by_hand
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly
from vitrine.evaluation.features import Features, FeatureSplit
from vitrine.evaluation.few_shot import L2_GRID, evaluate_few_shot

pytestmark = pytest.mark.usefixtures("cache")

HERE = ("--num-workers", 0)
CLASSES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model`, and `photos` and `more`, both divided; `more` has fewer to train on."""
    folder = tmp_path_factory.mktemp("place")
    save_quietly(make_checkpoint(cases.VIT), folder / "model", "vitrine")
    draw_divided(folder / "photos", CLASSES, 6, 8)
    draw_divided(folder / "more", CLASSES, 3, 5)
    return folder


def split_by_hand(place: Path, name: str) -> FeatureSplit:
    checkpoint = load_quietly(place / "model")
    parts = []
    for part in ("train", "test"):
        files = sorted((place / name / part).rglob("*.png"))
        labels = torch.tensor([CLASSES.index(file.parent.name) for file in files])
        parts.append(Features(featurise_by_hand(checkpoint, files), labels, torch.arange(len(files))))
    return FeatureSplit(*parts, len(CLASSES))


def measure(place: Path, *arguments: object, out: Path) -> list[dict[str, Any]]:
    run("few-shot", place / "model", *arguments, "--json", out, *HERE)
    report = json.loads(out.read_text())
    assert report["model"] == str(place / "model")
    return report["results"]


def test_figures_are_those_of_the_features_by_hand(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--shots", 1, 4, "all", "--seeds", 5, 6, "--l2", 2.5)
    results = measure(place, place / "photos", *arguments, out=tmp_path / "report.json")
    split = split_by_hand(place, "photos")
    assert json.loads((tmp_path / "report.json").read_text())["seeds"] == [5, 6]
    for result, shots in zip(results, (1, 4, None), strict=True):
        found = evaluate_few_shot(split, shots, (5, 6), 2.5)
        assert (result["data"], result["num_test_images"], result["l2"]) == (str(place / "photos"), 24, 2.5)
        assert (result["shots"], result["std"]) == (shots, found.std)
        assert result["accuracies"] == pytest.approx(found.accuracies)
        assert result["mean"] == pytest.approx(np.mean(found.accuracies))
    out, err = capsys.readouterr()
    assert err == ""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "data shots l2 top-1 95 % interval by seed"
    assert [line.split()[:3] for line in lines[1:]] == [["photos", shots, "2.5"] for shots in ("1", "4", "all")]


def test_a_line_has_mean_and_std_an_interval_and_every_seed(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [result] = measure(place, place / "photos", "--shots", 2, out=tmp_path / "report.json")
    first, second, third = (f"{100 * accuracy:.2f} %" for accuracy in result["accuracies"])
    line = " ".join(capsys.readouterr().out.splitlines()[1].split())
    assert line.startswith(f"photos 2 1024 {100 * result['mean']:.2f} ± {100 * result['std']:.2f} % ")
    assert line.endswith(f" % {first}, {second}, {third}")


def test_a_single_fit_has_no_std_and_wilson_s_interval(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [result] = measure(place, place / "photos", "--shots", "all", out=tmp_path / "report.json")
    assert (result["shots"], result["std"], len(result["accuracies"])) == (None, None, 1)
    interval = binomtest(round(24 * result["mean"]), 24).proportion_ci(method="wilson")
    share = f"{100 * result['mean']:.2f} %"
    line = " ".join(capsys.readouterr().out.splitlines()[1].split())
    assert line == f"photos all 1024 {share} {100 * interval.low:.2f} .. {100 * interval.high:.2f} % {share}"


def test_the_default_is_the_paper_s_shots_three_seeds_and_1024(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of six images of each class, 1 and 5 shots; 10 and 25 are not there to be taken."""
    results = measure(place, place / "photos", out=tmp_path / "report.json")
    assert [(result["shots"], result["l2"], len(result["accuracies"])) for result in results] == [(1, 1024, 3), (5, 1024, 3)]
    data = place / "photos"
    assert capsys.readouterr().err.splitlines() == [
        f"vitrine: {data} has at most 6 training images of a class: {shots} shots are left out." for shots in (10, 25)
    ]


def test_several_data_sets_are_rows_of_one_table(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = measure(place, place / "photos", place / "more", "--shots", 2, 5, out=tmp_path / "report.json")
    assert [(Path(result["data"]).name, result["shots"]) for result in results] == [("photos", 2), ("more", 2), ("photos", 5)]
    for result in results:
        split = split_by_hand(place, Path(result["data"]).name)
        assert result["accuracies"] == pytest.approx(evaluate_few_shot(split, result["shots"]).accuracies)
    assert "more has at most 3 training images of a class: 5 shots are left out" in capsys.readouterr().err


def test_mean_rank_chooses_one_l2_for_all_data_sets(place: Path, tmp_path: Path) -> None:
    names = ("photos", "more")
    results = measure(place, *(place / name for name in names), "--shots", 1, 3, "--mean-rank", out=tmp_path / "report.json")
    splits = [split_by_hand(place, name) for name in names]
    for shots, found in ((1, results[:2]), (3, results[2:])):
        means = [[evaluate_few_shot(split, shots, l2=l2).mean for l2 in L2_GRID] for split in splits]
        ranks = np.mean([rankdata([-mean for mean in row]) for row in means], axis=0)
        best = int(ranks.argmin())
        assert len(set(ranks)) > 1
        assert [result["l2"] for result in found] == [L2_GRID[best]] * 2
        assert [result["mean"] for result in found] == pytest.approx([row[best] for row in means])


def test_data_that_is_not_divided_is_divided_by_the_share(place: Path, tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 8, "bee": 4})
    [result] = measure(place, data, "--shots", 1, "--held-out", 0.5, out=tmp_path / "report.json")
    assert result["num_test_images"] == 6


def test_features_are_kept_unless_they_should_not_be(place: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("few-shot", place / "model", place / "photos", "--shots", 1, *HERE)
    run(*arguments, "--no-cache")
    fresh = capsys.readouterr()
    assert not cache.exists()
    run(*arguments)
    assert len(list(cache.rglob("*.safetensors"))) == 2
    assert capsys.readouterr() == fresh
    run(*arguments)
    assert capsys.readouterr() == fresh


def test_mistakes_cost_a_sentence(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, photos = place / "model", place / "photos"

    def wrong(*arguments: object) -> str:
        return fail(capsys, "few-shot", *arguments)

    assert "no DATA was given, and one or more were needed" in wrong(model)
    assert "MODEL" in wrong()
    for shots in ("0", "-1", "many", "2.5"):
        assert f"--shots {shots} must be a whole number of at least 1, or all" in wrong(model, photos, "--shots", shots)
    assert "--l2 and --mean-rank were both given" in wrong(model, photos, "--l2", 3, "--mean-rank")
    assert "--l2 0 must be a finite number above 0" in wrong(model, photos, "--l2", 0, "--shots", 1, *HERE)
    assert "seeds=(-1,) must be one or more whole numbers" in wrong(model, photos, "--seeds", -1, "--shots", 1, *HERE)
    assert "No checkpoint at" in wrong(tmp_path / "none", photos)
    assert "There is no data at" in wrong(model, tmp_path / "none")
    assert "does not exist. Create it first" in wrong(model, photos, "--json", tmp_path / "no" / "a.json")
    one = draw_classes(tmp_path / "one", {"ant": 10})
    assert "has one class only, ant, and nothing to tell it from" in wrong(model, one, *HERE)
    draw_images(tmp_path / "train-only" / "train" / "ant", 2)
    assert "has the splits train, and test or val was needed" in wrong(model, tmp_path / "train-only", *HERE)


def test_more_shots_than_there_are_is_a_mistake(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run("few-shot", place / "model", place / "photos", "--shots", 7, 9, *HERE)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "vitrine: No class has as many as 7 or 9 training images: give lower --shots, or all."
