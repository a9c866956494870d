"""`vitrine convert`: what it writes, prints and rejects."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.formats import cases
from tests.formats.cases import assert_same_weights, forget, load_quietly, make_checkpoint, save_quietly
from tests.hub_server import Repository, serve_hub
from vitrine.cli import main
from vitrine.formats import convert as converting
from vitrine.formats.load import load_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "ours", "vitrine")
    return tmp_path / "ours"


def fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["convert", *map(str, arguments)])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("vitrine: ")
    assert err.count("\n") == 1
    return err


def test_verified_conversion_to_hugging_face(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    main(["convert", str(folder), str(tmp_path / "hf"), "--format", "hf", "--verify", "--json", str(target)])
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'hf'}: 5,429 parameters, 24 x 24 pixels, 5 classes")
    assert [line.split()[0] for line in rows] == ["vitrine", "transformers"]
    assert all(line.rstrip().endswith("8 of 8  equal") for line in rows)
    report = json.loads(target.read_text())
    assert [(row["reader"], row["is_equal"], row["num_images"]) for row in report] == [
        ("vitrine", True, 8),
        ("transformers", True, 8),
    ]
    assert set(report[0]) == {
        *("reader", "max_difference", "max_logit", "max_feature_difference", "max_feature"),
        *("same_answers", "num_images", "same_description", "is_equal"),
    }


def test_a_difference_is_an_error_after_the_report(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_another(checkpoint: object, path: Path, format: object) -> None:
        save_quietly(make_checkpoint(replace(cases.VIT, gelu="erf")), path, format)

    monkeypatch.setattr(converting, "save_checkpoint", save_another)
    options = ["--format", "vitrine", "--verify", "--json", tmp_path / "report.json"]
    assert "vitrine: logits" in fail(capsys, folder, tmp_path / "out", *options)
    assert json.loads((tmp_path / "report.json").read_text())[0]["is_equal"] is False
    assert (tmp_path / "out").exists()


def test_a_model_survives_every_format(folder: Path, tmp_path: Path) -> None:
    source = folder
    for fmt in ("hf", "google-2020", "timm", "torchvision", "google-linen", "vitrine"):
        target = tmp_path / f"to-{fmt}{cases.ENDINGS[fmt]}"
        main(["convert", str(source), str(target), "--format", fmt])
        source = target
    assert_same_weights(load_checkpoint(source).model, load_checkpoint(folder).model)
    assert load_checkpoint(source).class_names == load_checkpoint(folder).class_names


def test_another_size_and_real_images(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        Image.fromarray(rng.integers(0, 256, (50, 70, 3), dtype=np.uint8)).save(tmp_path / name)
    out = tmp_path / "out"
    arguments = ["convert", str(folder), str(out), "--format", "vitrine", "--image-size", "32x44", "--verify", "--images"]
    main([*arguments, str(tmp_path / "a.png"), str(tmp_path / "b.png")])
    assert "2 of 2  equal" in capsys.readouterr().out
    checkpoint = load_checkpoint(out)
    assert checkpoint.model.config.image_size == checkpoint.preprocessing.crop == (32, 44)


def test_options_for_a_file_without_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_quietly(make_checkpoint(cases.OBLONG), tmp_path / "a.safetensors", "timm")
    forget(tmp_path / "a.safetensors")
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\ndog\nelk\n")
    options = ["--num-heads", "2", "--gelu", "erf", "--norm-eps", "1e-6", "--grid", "3x7", "--preprocess", "inception"]
    names = ["--class-names", str(tmp_path / "names.txt")]
    main(["convert", str(tmp_path / "a.safetensors"), str(tmp_path / "out"), "--format", "vitrine", *options, *names])
    assert capsys.readouterr().err == ""  # nothing was left to assume
    checkpoint = load_checkpoint(tmp_path / "out")
    assert checkpoint.model.config == cases.OBLONG
    assert checkpoint.class_names == ("ant", "bee", "cat", "dog", "elk")
    assert checkpoint.preprocessing.resize == (12, 28)


def test_assumptions_and_a_new_head_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "a.npz", "google-2020")
    forget(tmp_path / "a.npz")
    main(["convert", str(tmp_path / "a.npz"), str(tmp_path / "out"), "--format", "vitrine", "--num-classes", "3"])
    first, second = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "a.npz") in first
    assert "tanh GELU (--gelu)" in first
    assert "5 classes, not 3" in second


def test_an_existing_file_needs_overwrite(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.npz").write_text("precious")
    assert "--overwrite" in fail(capsys, folder, tmp_path / "a.npz", "--format", "google-2020")
    assert (tmp_path / "a.npz").read_text() == "precious"
    main(["convert", str(folder), str(tmp_path / "a.npz"), "--format", "google-2020", "--overwrite"])
    assert load_quietly(tmp_path / "a.npz").model.config == cases.VIT


def test_mistakes_write_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert "No checkpoint at" in fail(capsys, tmp_path / "none", out, "--format", "hf")
    assert "cannot hold models of the kind ViT" in fail(capsys, folder, tmp_path / "o.npz", "--format", "bit")
    assert "--image-size big" in fail(capsys, folder, out, "--format", "hf", "--image-size", "big")
    for option, value in (("--json", tmp_path / "j"), ("--seed", 1), ("--device", "cuda"), ("--images", tmp_path / "i")):
        assert "--verify" in fail(capsys, folder, out, "--format", "hf", option, value)
    assert "--image-size" in fail(capsys, folder, out, "--format", "hf", "--resize-method", "timm")
    assert ".npz" in fail(capsys, tmp_path / "none", out, "--format", "google-2020")
    assert "does not exist" in fail(capsys, folder, tmp_path / "no" / "out", "--format", "hf")
    assert f"--images {tmp_path / 'i'}" in fail(capsys, folder, out, "--format", "hf", "--verify", "--images", tmp_path / "i")
    assert "toaster" in fail(capsys, folder, out, "--format", "hf", "--verify", "--device", "toaster")
    assert "no.txt" in fail(capsys, folder, out, "--format", "hf", "--class-names", tmp_path / "no.txt")
    assert "keras" in fail(capsys, folder, out, "--format", "keras")
    assert "hf://owner/name" in fail(capsys, "hf://google", out, "--format", "hf")
    (tmp_path / "bad.jpg").write_text("not an image")
    assert "bad.jpg" in fail(capsys, folder, out, "--format", "hf", "--verify", "--images", tmp_path / "bad.jpg")
    (tmp_path / "names").write_text("a\nb\nc\nd\ne\nf\n")
    assert "6 class names" in fail(capsys, folder, out, "--format", "hf", "--class-names", tmp_path / "names")
    assert not out.exists()


@pytest.mark.xdist_group("hub")
def test_from_the_hub(tmp_path: Path) -> None:
    """Convert from a hub on this machine, then offline from the cache."""
    checkpoint = make_checkpoint(cases.VIT)
    save_quietly(checkpoint, tmp_path / "hf", "hf")
    files = {path.name: path.read_bytes() for path in (tmp_path / "hf").iterdir()}
    with serve_hub({"owner/vit": Repository(revisions={"main": files, "v2": files})}) as hub:
        run_convert(tmp_path, "online", hub.endpoint, "hf://owner/vit@v2")
    run_convert(tmp_path, "offline", hub.endpoint, "hf://owner/vit@v2", HF_HUB_OFFLINE="1")
    for name in ("online", "offline"):
        again = load_checkpoint(tmp_path / name)
        assert_same_weights(again.model, checkpoint.model)
        assert again.preprocessing == checkpoint.preprocessing


def run_convert(folder: Path, out: str, endpoint: str, source: str, **settings: str) -> None:
    patient = {"HF_HUB_ETAG_TIMEOUT": "300", "HF_HUB_DOWNLOAD_TIMEOUT": "300"}
    environment = {**os.environ, **patient, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "cache"), **settings}
    command = [sys.executable, "-m", "vitrine", "convert", source, str(folder / out), "--format", "vitrine"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
