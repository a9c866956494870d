"""`vitrine few-shot` from the command line: results against features computed by hand, output, errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, rankdata

from tests.commands.test_evaluate import fail, run
from tests.evaluation.test_predictor import featurise_by_hand
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly
from tests.photos import draw_classes, draw_divided, draw_images
from vitrine.evaluation.features import Features, FeatureSplit
from vitrine.evaluation.few_shot import L2_GRID, evaluate_few_shot

pytestmark = pytest.mark.usefixtures("cache")

NO_WORKERS = ("--num-workers", 0)
CLASSES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write `model`, and `photos` and `more` with splits; `more` has fewer training images."""
    folder = tmp_path_factory.mktemp("few_shot")
    save_quietly(make_checkpoint(cases.VIT), folder / "model", "vitrine")
    draw_divided(folder / "photos", CLASSES, 6, 8)
    draw_divided(folder / "more", CLASSES, 3, 5)
    return folder


def split_by_hand(folder: Path, name: str) -> FeatureSplit:
    checkpoint = load_quietly(folder / "model")
    parts = []
    for part in ("train", "test"):
        files = sorted((folder / name / part).rglob("*.png"))
        labels = torch.tensor([CLASSES.index(file.parent.name) for file in files])
        parts.append(Features(featurise_by_hand(checkpoint, files), labels, torch.arange(len(files))))
    return FeatureSplit(*parts, len(CLASSES))


def measure(folder: Path, *arguments: object, out: Path) -> list[dict[str, Any]]:
    run("few-shot", folder / "model", *arguments, "--json", out, *NO_WORKERS)
    report = json.loads(out.read_text())
    assert report["model"] == str(folder / "model")
    return report["results"]


def test_results_equal_features_by_hand(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--shots", 1, 4, "all", "--seeds", 5, 6, "--l2", 2.5)
    results = measure(folder, folder / "photos", *arguments, out=tmp_path / "report.json")
    split = split_by_hand(folder, "photos")
    assert json.loads((tmp_path / "report.json").read_text())["seeds"] == [5, 6]
    for result, shots in zip(results, (1, 4, None), strict=True):
        found = evaluate_few_shot(split, shots, (5, 6), 2.5)
        assert (result["data"], result["num_test_images"], result["l2"]) == (str(folder / "photos"), 24, 2.5)
        assert (result["shots"], result["std"]) == (shots, found.std)
        assert result["accuracies"] == pytest.approx(found.accuracies)
        assert result["mean"] == pytest.approx(np.mean(found.accuracies))
    out, err = capsys.readouterr()
    assert err == ""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "data shots l2 top-1 95 % interval by seed"
    assert [line.split()[:3] for line in lines[1:]] == [["photos", shots, "2.5"] for shots in ("1", "4", "all")]


def test_row_has_mean_std_interval_and_every_seed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [result] = measure(folder, folder / "photos", "--shots", 2, out=tmp_path / "report.json")
    first, second, third = (f"{100 * accuracy:.2f} %" for accuracy in result["accuracies"])
    line = " ".join(capsys.readouterr().out.splitlines()[1].split())
    assert line.startswith(f"photos 2 1024 {100 * result['mean']:.2f} ± {100 * result['std']:.2f} % ")
    assert line.endswith(f" % {first}, {second}, {third}")


def test_single_fit_has_no_std(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [result] = measure(folder, folder / "photos", "--shots", "all", out=tmp_path / "report.json")
    assert (result["shots"], result["std"], len(result["accuracies"])) == (None, None, 1)
    interval = binomtest(round(24 * result["mean"]), 24).proportion_ci(method="wilson")
    percent = f"{100 * result['mean']:.2f} %"
    line = " ".join(capsys.readouterr().out.splitlines()[1].split())
    assert line == f"photos all 1024 {percent} {100 * interval.low:.2f} .. {100 * interval.high:.2f} % {percent}"


def test_defaults(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With six images per class, 1 and 5 shots are measured; 10 and 25 are skipped."""
    results = measure(folder, folder / "photos", out=tmp_path / "report.json")
    assert [(result["shots"], result["l2"], len(result["accuracies"])) for result in results] == [(1, 1024, 3), (5, 1024, 3)]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert all(f"{shots} shots" in warning for shots, warning in zip((10, 25), warnings, strict=True))


def test_several_data_sets(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = measure(folder, folder / "photos", folder / "more", "--shots", 2, 5, out=tmp_path / "report.json")
    assert [(Path(result["data"]).name, result["shots"]) for result in results] == [("photos", 2), ("more", 2), ("photos", 5)]
    for result in results:
        split = split_by_hand(folder, Path(result["data"]).name)
        assert result["accuracies"] == pytest.approx(evaluate_few_shot(split, result["shots"]).accuracies)
    assert "5 shots" in capsys.readouterr().err


def test_mean_rank_chooses_one_l2_for_all_data_sets(folder: Path, tmp_path: Path) -> None:
    names = ("photos", "more")
    results = measure(folder, *(folder / name for name in names), "--shots", 1, 3, "--mean-rank", out=tmp_path / "report.json")
    splits = [split_by_hand(folder, name) for name in names]
    for shots, found in ((1, results[:2]), (3, results[2:])):
        means = [[evaluate_few_shot(split, shots, l2=l2).mean for l2 in L2_GRID] for split in splits]
        ranks = np.mean([rankdata([-mean for mean in row]) for row in means], axis=0)
        best = int(ranks.argmin())
        assert len(set(ranks)) > 1
        assert [result["l2"] for result in found] == [L2_GRID[best]] * 2
        assert [result["mean"] for result in found] == pytest.approx([row[best] for row in means])


def test_held_out_fraction_of_undivided_data(folder: Path, tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 8, "bee": 4})
    [result] = measure(folder, data, "--shots", 1, "--held-out", 0.5, out=tmp_path / "report.json")
    assert result["num_test_images"] == 6
    arguments = (folder / "photos", data, "--shots", 1, "--held-out", 0.5)  # of two datasets, only one is divided
    assert [each["num_test_images"] for each in measure(folder, *arguments, out=tmp_path / "both.json")] == [24, 6]


def test_held_out_has_no_effect_on_divided_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("few-shot", "probe"):
        assert "held_out=0.5" in fail(capsys, command, folder / "model", folder / "photos", "--held-out", 0.5, *NO_WORKERS)


def test_features_are_cached_unless_turned_off(folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("few-shot", folder / "model", folder / "photos", "--shots", 1, *NO_WORKERS)
    run(*arguments, "--no-cache")
    fresh = capsys.readouterr()
    assert not cache.exists()
    run(*arguments)
    assert len(list(cache.rglob("*.safetensors"))) == 2
    assert capsys.readouterr() == fresh
    run(*arguments)
    assert capsys.readouterr() == fresh


def test_errors_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, photos = folder / "model", folder / "photos"

    def error_of(*arguments: object) -> str:
        return fail(capsys, "few-shot", *arguments)

    assert "DATA" in error_of(model)
    assert "MODEL" in error_of()
    for shots in ("0", "-1", "many", "2.5"):
        assert f"--shots {shots}" in error_of(model, photos, "--shots", shots)
    assert "--mean-rank" in error_of(model, photos, "--l2", 3, "--mean-rank")
    assert "--l2 0" in error_of(model, photos, "--l2", 0, "--shots", 1, *NO_WORKERS)
    assert "seeds=(-1,)" in error_of(model, photos, "--seeds", -1, "--shots", 1, *NO_WORKERS)
    assert str(tmp_path / "none") in error_of(tmp_path / "none", photos)
    assert str(tmp_path / "none") in error_of(model, tmp_path / "none")
    assert str(tmp_path / "no") in error_of(model, photos, "--json", tmp_path / "no" / "a.json")
    one = draw_classes(tmp_path / "one", {"ant": 10})
    assert "ant" in error_of(model, one, *NO_WORKERS)
    draw_images(tmp_path / "train-only" / "train" / "ant", 2)
    assert "train" in error_of(model, tmp_path / "train-only", *NO_WORKERS)


def test_too_many_shots_are_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run("few-shot", folder / "model", folder / "photos", "--shots", 7, 9, *NO_WORKERS)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "7 or 9" in err.splitlines()[-1]
