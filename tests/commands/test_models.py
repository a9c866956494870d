"""`vitrine models`: the tables, the same figures as JSON, and mistakes."""

import json
from pathlib import Path

import pytest

from vitrine.cli import main
from vitrine.formats.pretrained import list_starting_points
from vitrine.models.cost import compute_cost
from vitrine.models.registry import MODELS


def test_every_listed_model_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["model", *MODELS]
    assert "86,567,656     197   17.56" in next(line for line in lines if line.startswith("ViT-B/16"))


def test_options_change_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", "--image-size", "384x518", "ViT-H/14", "--num-classes", "0", "--images", "303e6", "--epochs", "14"])
    header, row = capsys.readouterr().out.splitlines()
    cost = compute_cost("ViT-H/14", (384, 518), num_classes=0)
    assert header.split()[-1] == "exaFLOPs"
    assert row.split()[:3] == ["ViT-H/14", f"{cost.num_parameters:,}", str(27 * 37 + 1)]
    assert float(row.split()[-1].replace(",", "")) == pytest.approx(cost.compute_exaflops(303e6, 14), rel=1e-3)


def test_json_has_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "costs.json"
    main(["models", "ViT-L/16", "R50x1", "--images", "303e6", "--epochs", "7", "--json", str(target)])
    assert "ViT-L/16" in capsys.readouterr().out
    first, second = json.loads(target.read_text())
    assert (first["name"], first["num_parameters"], second["name"]) == ("ViT-L/16", 304_326_632, "R50x1")
    assert first["exaflops"] == pytest.approx(783.3, abs=0.05)
    assert (first["image_size"], first["num_classes"], first["images"], first["epochs"]) == ([224, 224], 1000, 303e6, 7)
    assert first["training_weight_bytes"] == 16 * 304_326_632


def test_pretrained_models_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "pretrained.json"
    main(["models", "--pretrained", "--json", str(target)])
    header, *rows = capsys.readouterr().out.splitlines()
    points = list_starting_points()
    assert header.split()[:2] == ["name", "licence"]
    assert [row.split()[:4] for row in rows] == [
        [point.name, point.licence, str(point.image_size), f"{point.num_parameters:,}"] for point in points
    ]
    best = next(row for row in rows if "vit_base_patch16_224.augreg_in21k " in row)
    assert "17.56         85.49 %" in best
    assert best.endswith("README: AugReg of this size at 384 px")
    assert json.loads(target.read_text()) == [point.to_json() for point in points]


def test_pretrained_models_are_found_by_a_part_of_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models", "--pretrained", "bit", "ViT-L/14"])
    _, *rows = capsys.readouterr().out.splitlines()
    expected = [point.name for point in list_starting_points() if point.family == "BiT" or point.model == "ViT-L/14"]
    assert [row.split()[0] for row in rows] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pretrained", "--image-size", "384"], "--image-size 384 has no effect with --pretrained"),
        (["--pretrained", "--num-classes", "10"], "--num-classes 10 has no effect with --pretrained"),
        (["--pretrained", "--images", "1e6"], "--images 1000000.0 has no effect with --pretrained"),
        (["--pretrained", "--epochs", "7"], "--epochs 7.0 has no effect with --pretrained"),
        (["--pretrained", "ViT-B/16", "swin"], "'swin'"),
        (["--pretrained", "--json", "nowhere/table.json"], "nowhere"),
        (["ViT-B/16", "--image-size", "8"], "16 x 16"),
        (["--image-size", "8x8x8"], "--image-size 8x8x8"),
        (["--image-size", "small"], "--image-size small"),
        (["--image-size", "0"], "image_size=(0, 0)"),
        (["--images", "-1"], "images=-1"),
        (["--images", "nan"], "images=nan"),
        (["--images", "inf"], "images=inf"),
        (["--epochs", "7"], "epochs=7"),
        (["--num-classes", "-3"], "num_classes=-3"),
        (["ViT-B/16", "--json", "nowhere/costs.json"], "nowhere"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["models", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
