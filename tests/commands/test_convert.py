"""`vitrine convert` as a user runs it: what it prints, what it writes, its mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.formats import cases
from tests.formats.cases import assert_same_weights, forget, load_quietly, make_checkpoint, save_quietly
from tests.hub_server import Repository, serve_hub
from vitrine.cli import main
from vitrine.formats.load import load_checkpoint


@pytest.fixture
def ours(tmp_path: Path) -> Path:
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


def test_to_hugging_face_and_verified(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    main(["convert", str(ours), str(tmp_path / "hf"), "--format", "hf", "--verify", "--json", str(target)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        "read",
        "by",
        "largest",
        "difference",
        "of",
        "logits",
        "of",
        "features",
        "largest",
        "logit",
        "same",
        "answer",
    ]
    assert lines[0] == f"{tmp_path / 'hf'}: 5,429 parameters, 24 x 24 pixels, 5 classes, hf"
    assert [line.split()[0] for line in lines[2:]] == ["vitrine", "transformers"]
    assert all(line.rstrip().endswith("8 of 8  equal") for line in lines[2:])
    report = json.loads(target.read_text())
    assert [(row["reader"], row["is_equal"], row["num_images"]) for row in report] == [
        ("vitrine", True, 8),
        ("transformers", True, 8),
    ]


def test_there_and_back_through_every_format(ours: Path, tmp_path: Path) -> None:
    source = ours
    for form in ("hf", "google-2020", "timm", "torchvision", "google-linen", "vitrine"):
        target = tmp_path / f"to-{form}{cases.ENDINGS[form]}"
        main(["convert", str(source), str(target), "--format", form])
        source = target
    assert_same_weights(load_checkpoint(source).model, load_checkpoint(ours).model)
    assert load_checkpoint(source).class_names == load_checkpoint(ours).class_names


def test_another_size_and_real_images(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        Image.fromarray(rng.integers(0, 256, (50, 70, 3), dtype=np.uint8)).save(tmp_path / name)
    out = tmp_path / "out"
    arguments = ["convert", str(ours), str(out), "--format", "vitrine", "--image-size", "32x44", "--verify", "--images"]
    main([*arguments, str(tmp_path / "a.png"), str(tmp_path / "b.png")])
    assert "2 of 2  equal" in capsys.readouterr().out
    checkpoint = load_checkpoint(out)
    assert checkpoint.model.config.image_size == checkpoint.preprocessing.crop == (32, 44)


def test_words_on_a_bare_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert first.startswith(f"vitrine: {tmp_path / 'a.npz'} does not say, and was taken as usual for google-2020: tanh GELU")
    assert second.startswith(f"vitrine: {tmp_path / 'a.npz'} has 5 classes and 3 were asked for")


def test_what_exists_is_not_overwritten_unasked(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.npz").write_text("precious")
    assert "a.npz exists: choose another name, or add --overwrite" in fail(
        capsys, ours, tmp_path / "a.npz", "--format", "google-2020"
    )
    assert (tmp_path / "a.npz").read_text() == "precious"
    main(["convert", str(ours), str(tmp_path / "a.npz"), "--format", "google-2020", "--overwrite"])
    assert load_quietly(tmp_path / "a.npz").model.config == cases.VIT


def test_mistakes_cost_a_sentence(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert "No checkpoint at" in fail(capsys, tmp_path / "none", out, "--format", "hf")
    assert "cannot hold models of the kind ViT" in fail(capsys, ours, tmp_path / "o.npz", "--format", "bit")
    assert "--image-size big must be one number" in fail(capsys, ours, out, "--format", "hf", "--image-size", "big")
    for option, value in (("--json", tmp_path / "j"), ("--seed", 1), ("--device", "cuda"), ("--images", tmp_path / "i")):
        assert "belong to --verify" in fail(capsys, ours, out, "--format", "hf", option, value)
    assert "belongs to --image-size" in fail(capsys, ours, out, "--format", "hf", "--resize-method", "timm")
    assert "a file ending in .npz" in fail(capsys, tmp_path / "none", out, "--format", "google-2020")
    assert "does not exist. Create it first" in fail(capsys, ours, tmp_path / "no" / "out", "--format", "hf")
    assert "i is no file" in fail(capsys, ours, out, "--format", "hf", "--verify", "--images", tmp_path / "i")
    assert "--device toaster is not" in fail(capsys, ours, out, "--format", "hf", "--verify", "--device", "toaster")
    assert "must be a text file" in fail(capsys, ours, out, "--format", "hf", "--class-names", tmp_path / "no.txt")
    assert "invalid choice" in fail(capsys, ours, out, "--format", "keras")
    assert "does not name a model on the hub" in fail(capsys, "hf://google", out, "--format", "hf")
    bad = write(tmp_path / "bad.jpg", "no picture")
    assert "bad.jpg" in fail(capsys, ours, out, "--format", "hf", "--verify", "--images", bad)
    assert "6 class names" in fail(
        capsys, ours, out, "--format", "hf", "--class-names", write(tmp_path / "names", "a\nb\nc\nd\ne\nf\n")
    )
    assert not out.exists()


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.xdist_group("hub")
def test_from_the_hub(tmp_path: Path) -> None:
    """A repository as Hugging Face's, served here; then offline, from the cache."""
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
