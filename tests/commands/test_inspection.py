"""`vitrine inspect` from the command line: report, output, errors."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.inspection.networks import build
from tests.run.test_build import make_masked
from tests.run.test_run import write_data
from vitrine.cli import main
from vitrine.data.preprocessing import Preprocessing
from vitrine.formats.save import save_model
from vitrine.run.run import run_recipe


@pytest.fixture
def model(tmp_path: Path) -> str:
    save_model(build("oblong"), tmp_path / "model", preprocessing=Preprocessing(resize=28, crop=(24, 48)))
    return str(tmp_path / "model")


@pytest.fixture
def image(tmp_path: Path) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return str(tmp_path / "image.png")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["inspect", *arguments])
    return int(caught.value.code or 0)


def test_report_is_written(model: str, image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", model, image, "--out", str(tmp_path / "out"), "--query", "1,2", "--rollout.fusion", "max"])
    printed = capsys.readouterr().out
    assert "attention distance, 1 images" in printed
    assert "layer 2" in printed
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layers", "5"), "layer 5"),
        (("--heads", "2"), "head 2"),
        (("--query", "9,9"), "3 x 6"),
        (("--rollout.dropped-share", "1"), "dropped_share=1.0"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...], message: str, model: str, image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, image, "--out", str(tmp_path / "out"), *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_unreadable_image_is_named(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.png").write_bytes(b"nothing")
    assert run(model, str(tmp_path / "broken.png"), "--out", str(tmp_path / "out")) == 2
    assert "broken.png" in capsys.readouterr().err


def test_no_images_are_an_error(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--out", str(tmp_path / "out")) == 2
    assert "image" in capsys.readouterr().err


def test_masked_patches_of_a_run(tmp_path: Path, image: str) -> None:
    source = write_data(tmp_path / "shades.npz")
    run_recipe(make_masked(source, total_steps=3), tmp_path / "run")
    main(["inspect", str(tmp_path / "run" / "model"), image, "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "masked.png").is_file()


def test_run_without_checkpoints_draws_the_rest(tmp_path: Path, image: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_data(tmp_path / "shades.npz")
    run_recipe(make_masked(source, total_steps=3), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    main(["inspect", str(tmp_path / "run" / "model"), image, "--out", str(tmp_path / "out")])
    assert "no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "out" / "masked.png").exists()
    assert (tmp_path / "out" / "index.html").is_file()
