"""`vitrine probe` as a user runs it: its figures against features computed by hand, what it prints, its mistakes."""

import json
from pathlib import Path

import pytest
from scipy.stats import binomtest
from sklearn.neighbors import KNeighborsClassifier

from tests.commands.test_evaluate import fail, run
from tests.commands.test_few_shot import CLASSES, split_by_hand
from tests.photos import draw_classes, draw_divided
from tests.evaluation.test_predictor import draw_images
from tests.formats import cases
from tests.formats.cases import make_checkpoint, save_quietly
from vitrine.evaluation.config import ProbeConfig, ProbeKind
from vitrine.evaluation.probes import fit_probe

pytestmark = pytest.mark.usefixtures("cache")

HERE = ("--num-workers", 0)
KINDS: tuple[ProbeKind, ...] = ("logistic", "neighbours", "means")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model`, and `photos`, divided."""
    folder = tmp_path_factory.mktemp("place")
    save_quietly(make_checkpoint(cases.VIT), folder / "model", "vitrine")
    draw_divided(folder / "photos", CLASSES, 6, 8)
    return folder


def test_figures_are_those_of_the_features_by_hand(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("probe", place / "model", place / "photos", "--json", tmp_path / "report.json", *HERE)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["model"], report["data"]) == (str(place / "model"), str(place / "photos"))
    assert report["num_test_images"] == 24
    split = split_by_hand(place, "photos")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "18 images, tested on 24 top-1 95 % interval setting"
    for kind, result, line in zip(KINDS, report["results"], lines[1:], strict=True):
        expected = fit_probe(kind, split, ProbeConfig())
        num_hits = int(expected.hits.sum())
        interval = binomtest(num_hits, 24).proportion_ci(method="wilson")
        assert (result["kind"], result["setting"]) == (kind, expected.setting)
        assert result["top1"] == pytest.approx({"value": num_hits / 24, "low": interval.low, "high": interval.high})
        value, low, high = (f"{100 * share:.2f}" for share in (num_hits / 24, interval.low, interval.high))
        assert line == f"{kind} {value} % {low} .. {high} % {expected.setting}"


def test_settings_are_the_user_s(place: Path, tmp_path: Path) -> None:
    settings = ("--num-neighbours", 1, "--temperature", 0.5, "--penalties", 0.5, 2, "--choice-share", 0.4, "--seed", 3)
    run("probe", place / "model", place / "photos", *settings, "--json", tmp_path / "report.json", *HERE)
    results = json.loads((tmp_path / "report.json").read_text())["results"]
    split = split_by_hand(place, "photos")
    config = ProbeConfig(num_neighbours=1, temperature=0.5, penalties=(0.5, 2.0), choice_share=0.4, seed=3)
    assert [result["top1"]["value"] for result in results] == [fit_probe(kind, split, config).accuracy for kind in KINDS]
    assert results[0]["setting"].endswith("of 2 on 6 held-out images")  # 40 % of six, of each of three classes
    assert results[1]["setting"] == "1 neighbours, temperature 0.5"
    nearest = KNeighborsClassifier(1, metric="cosine").fit(split.train.values.double(), split.train.labels)
    assert results[1]["top1"]["value"] == pytest.approx(nearest.score(split.test.values.double(), split.test.labels))


def test_some_kinds_in_the_order_asked_for(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("probe", place / "model", place / "photos", "--kinds", "means", "neighbours", *HERE)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["means", "neighbours"]


def test_the_seed_divides_data_that_is_not_divided(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 12, "bee": 8})
    texts = []
    for seed in (0, 0, 1, 2):
        run("probe", place / "model", data, "--held-out", 0.5, "--kinds", "means", "neighbours", "--seed", seed, *HERE)
        texts.append(capsys.readouterr().out)
    assert all(text.startswith("10 images, tested on 10 ") for text in texts)
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_one_image_of_each_class_is_enough_for_two_of_them(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_divided(tmp_path / "photos", ("ant", "bee"), 1, 2)
    run("probe", place / "model", data, "--kinds", "neighbours", "means", *HERE)
    out = capsys.readouterr().out
    assert out.startswith("2 images, tested on 4 ")
    assert "2 neighbours, temperature 0.07" in out
    err = fail(capsys, "probe", place / "model", data, *HERE)
    assert "holds images out to choose its penalty, and every class has one only" in err


def test_features_are_kept_unless_they_should_not_be(place: Path, cache: Path) -> None:
    arguments = ("probe", place / "model", place / "photos", "--kinds", "means", *HERE)
    run(*arguments, "--no-cache")
    assert not cache.exists()
    run(*arguments)
    assert len(list(cache.rglob("*.safetensors"))) == 2


def test_mistakes_cost_a_sentence(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, photos = place / "model", place / "photos"

    def wrong(*arguments: object) -> str:
        return fail(capsys, "probe", *arguments, *HERE)

    assert "--kinds means means must name one or more of them, each once" in wrong(model, photos, "--kinds", "means", "means")
    assert "invalid choice 'trees'" in wrong(model, photos, "--kinds", "trees")
    assert "penalties=(0.0,) must be one or more numbers above 0" in wrong(model, photos, "--penalties", 0)
    assert "choice_share=1.0 must be above 0 and below 1" in wrong(model, photos, "--choice-share", 1)
    assert "num_neighbours=0 must be at least 1" in wrong(model, photos, "--num-neighbours", 0)
    assert "temperature=0.0 must be above 0" in wrong(model, photos, "--temperature", 0)
    assert "seed=-1 must be at least 0" in wrong(model, photos, "--seed", -1)
    assert "held_out=1.0 of 18 images leaves one of the parts" in wrong(model, photos / "train", "--held-out", 1)
    assert "No checkpoint at" in wrong(tmp_path / "none", photos)
    assert "There is no data at" in wrong(model, tmp_path / "none")
    assert "does not exist. Create it first" in wrong(model, photos, "--json", tmp_path / "no" / "a.json")
    assert "DATA" in wrong(model)
    draw_images(tmp_path / "broken" / "ant", 2)
    draw_images(tmp_path / "broken" / "bee", 2)[0].write_text("no image")
    assert "bee/0.png is not a readable image" in wrong(model, tmp_path / "broken", "--held-out", 0.5)
