"""`vitrine probe` from the command line: results against features computed by hand, output, errors."""

import json
from pathlib import Path

import pytest
from scipy.stats import binomtest
from sklearn.neighbors import KNeighborsClassifier

from tests.commands.test_evaluate import fail, run
from tests.commands.test_few_shot import CLASSES, split_by_hand
from tests.formats import cases
from tests.formats.cases import make_checkpoint, save_quietly
from tests.photos import draw_classes, draw_divided, draw_images
from vitrine.evaluation.config import ProbeConfig, ProbeKind
from vitrine.evaluation.probes import fit_probe

pytestmark = pytest.mark.usefixtures("cache")

NO_WORKERS = ("--num-workers", 0)
KINDS: tuple[ProbeKind, ...] = ("logistic", "neighbours", "means")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write `model`, and `photos` with splits."""
    folder = tmp_path_factory.mktemp("probe")
    save_quietly(make_checkpoint(cases.VIT), folder / "model", "vitrine")
    draw_divided(folder / "photos", CLASSES, 6, 8)
    return folder


def test_results_equal_features_by_hand(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("probe", folder / "model", folder / "photos", "--json", tmp_path / "report.json", *NO_WORKERS)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["model"], report["data"]) == (str(folder / "model"), str(folder / "photos"))
    assert report["num_test_images"] == 24
    split = split_by_hand(folder, "photos")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "18 images, tested on 24 top-1 95 % interval setting"
    for kind, result, line in zip(KINDS, report["results"], lines[1:], strict=True):
        expected = fit_probe(kind, split, ProbeConfig())
        num_hits = int(expected.hits.sum())
        interval = binomtest(num_hits, 24).proportion_ci(method="wilson")
        assert (result["kind"], result["setting"]) == (kind, expected.setting)
        assert result["top1"] == pytest.approx({"value": num_hits / 24, "low": interval.low, "high": interval.high})
        value, low, high = (f"{100 * fraction:.2f}" for fraction in (num_hits / 24, interval.low, interval.high))
        assert line == f"{kind} {value} % {low} .. {high} % {expected.setting}"


def test_settings_are_used(folder: Path, tmp_path: Path) -> None:
    settings = ("--num-neighbours", 1, "--temperature", 0.5, "--penalties", 0.5, 2, "--choice-share", 0.4, "--seed", 3)
    run("probe", folder / "model", folder / "photos", *settings, "--json", tmp_path / "report.json", *NO_WORKERS)
    results = json.loads((tmp_path / "report.json").read_text())["results"]
    split = split_by_hand(folder, "photos")
    config = ProbeConfig(num_neighbours=1, temperature=0.5, penalties=(0.5, 2.0), choice_share=0.4, seed=3)
    assert [result["top1"]["value"] for result in results] == [fit_probe(kind, split, config).accuracy for kind in KINDS]
    assert results[0]["setting"].endswith("of 2 on 6 held-out images")  # 40 % of six images, for each of three classes
    assert results[1]["setting"] == "1 neighbours, temperature 0.5"
    nearest = KNeighborsClassifier(1, metric="cosine").fit(split.train.values.double(), split.train.labels)
    assert results[1]["top1"]["value"] == pytest.approx(nearest.score(split.test.values.double(), split.test.labels))


def test_chosen_kinds_in_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("probe", folder / "model", folder / "photos", "--kinds", "means", "neighbours", *NO_WORKERS)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["means", "neighbours"]


def test_seed_divides_undivided_data(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 12, "bee": 8})
    texts = []
    for seed in (0, 0, 1, 2):
        run("probe", folder / "model", data, "--held-out", 0.5, "--kinds", "means", "neighbours", "--seed", seed, *NO_WORKERS)
        texts.append(capsys.readouterr().out)
    assert all(text.startswith("10 images, tested on 10 ") for text in texts)
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_one_image_per_class(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = draw_divided(tmp_path / "photos", ("ant", "bee"), 1, 2)
    run("probe", folder / "model", data, "--kinds", "neighbours", "means", *NO_WORKERS)
    out = capsys.readouterr().out
    assert out.startswith("2 images, tested on 4 ")
    assert "2 neighbours, temperature 0.07" in out
    err = fail(capsys, "probe", folder / "model", data, *NO_WORKERS)
    assert "only one training image" in err


def test_features_are_cached_unless_turned_off(folder: Path, cache: Path) -> None:
    arguments = ("probe", folder / "model", folder / "photos", "--kinds", "means", *NO_WORKERS)
    run(*arguments, "--no-cache")
    assert not cache.exists()
    run(*arguments)
    assert len(list(cache.rglob("*.safetensors"))) == 2


def test_errors_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, photos = folder / "model", folder / "photos"

    def error_of(*arguments: object) -> str:
        return fail(capsys, "probe", *arguments, *NO_WORKERS)

    assert "--kinds means means" in error_of(model, photos, "--kinds", "means", "means")
    assert "trees" in error_of(model, photos, "--kinds", "trees")
    assert "penalties=(0.0,)" in error_of(model, photos, "--penalties", 0)
    assert "choice_share=1.0" in error_of(model, photos, "--choice-share", 1)
    assert "num_neighbours=0" in error_of(model, photos, "--num-neighbours", 0)
    assert "temperature=0.0" in error_of(model, photos, "--temperature", 0)
    assert "seed=-1" in error_of(model, photos, "--seed", -1)
    assert "held_out=1.0" in error_of(model, photos / "train", "--held-out", 1)
    assert str(tmp_path / "none") in error_of(tmp_path / "none", photos)
    assert str(tmp_path / "none") in error_of(model, tmp_path / "none")
    assert str(tmp_path / "no") in error_of(model, photos, "--json", tmp_path / "no" / "a.json")
    assert "DATA" in error_of(model)
    draw_images(tmp_path / "broken" / "ant", 2)
    draw_images(tmp_path / "broken" / "bee", 2)[0].write_text("no image")
    assert "bee/0.png" in error_of(model, tmp_path / "broken", "--held-out", 0.5)
