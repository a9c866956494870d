"""What the main process leaves in files, and that the others leave nothing."""

from pathlib import Path

import pytest
import torch

from vitrine.core.runtime import Runtime
from vitrine.recipe import Recipe
from vitrine.run.folder import RunFolder
from vitrine.run.reporting import open_reporter
from vitrine.train.config import ReportConfig
from vitrine.train.metrics_file import read_records

RECIPE = Recipe(epochs=1, report=ReportConfig(tensorboard=True))
CPU = torch.device("cpu")


def test_records_go_to_every_file_and_losses_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path)
    with open_reporter(RECIPE, folder, Runtime(CPU), "shades", 0, 20) as reporter:
        reporter.report(10, {"loss": 0.5, "rate": 0.1})
        reporter.report(10, {"val_top1": 0.25})
        reporter.say("a word")
    assert read_records(folder.metrics) == [{"step": 10, "loss": 0.5, "rate": 0.1}, {"step": 10, "val_top1": 0.25}]
    assert list(folder.tensorboard.iterdir())
    said = capsys.readouterr().err
    assert "step 10/20  loss 0.5" in said
    assert "a word" in said
    assert "val_top1" not in said


def test_a_resumed_run_says_where_it_goes_on_and_drops_what_it_will_do_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 5, "loss": 1.0}\n{"step": 9, "loss": 0.9}\n')
    with open_reporter(Recipe(epochs=1), folder, Runtime(CPU), "shades", 5, 20):
        pass
    assert [record["step"] for record in read_records(folder.metrics)] == [5]
    assert f"Going on from step 5, saved in {tmp_path}." in capsys.readouterr().err


def test_the_other_processes_are_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_reporter(RECIPE, RunFolder(tmp_path), Runtime(CPU, rank=1, num_ranks=2), "shades", 3, 20) as reporter:
        reporter.report(10, {"loss": 0.5})
        reporter.say("a word")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""
