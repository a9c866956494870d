"""`vitrine demo` as a user runs it: to its end, stopped and gone on with, and with what cannot be had."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.demo.stage import make_checkpoint, make_images
from vitrine.cli import main
from vitrine.commands import demo
from vitrine.demo.config import DemoConfig
from vitrine.demo.report import COLUMNS
from vitrine.training.progress import Progress

pytestmark = pytest.mark.usefixtures("short_runs")

SHORT: dict[str, Any] = {"steps": 3, "pretrain_steps": 3, "num_drawn": 2, "num_measured": 4}


@pytest.fixture(autouse=True)
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All else is as the command makes it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "DemoConfig", lambda **given: DemoConfig(**given, **SHORT))


def stop(*words: str) -> object:
    with pytest.raises(SystemExit) as error:
        main(["demo", *words])
    return error.value.code


def test_the_story_on_built_in_data(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--out", "told", "--device", "cpu", "--json", "found.json"])
    output = capsys.readouterr()
    table = output.out.splitlines()
    assert table[0].split("  ")[0] == "step"
    assert all(column in table[0] for column in COLUMNS)
    keys = ["pretrain", "transfer", "few-shot", "scratch", "resnet", "hybrid", "inspect"]
    assert [line.split()[0] for line in table[1:8]] == keys
    assert table[8].startswith("Accuracies are on 360 images. The report")
    assert output.err.startswith("digits: 100 images to learn from, 360 to test on. 7 steps")
    assert [f"{number}/7" in output.err for number in range(1, 8)] == [True] * 7
    assert [each["key"] for each in json.loads(Path("found.json").read_text())["results"]] == keys
    text = Path("told/report.html").read_text()
    assert "vitrine train demo-shapes" in text
    assert "interpolated to the higher resolution" in text


def test_it_is_stopped_and_goes_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(Path("images"))
    make_checkpoint(Path("tiny"))
    words = ["--data", "images", "--model", "tiny", "--out", "told", "--device", "cpu"]
    monkeypatch.setattr("sys.argv", ["vitrine", "demo", *words])
    update = Progress.update

    def interrupt(self: Progress, *given: Any) -> None:
        update(self, *given)
        if self.title == "scratch" and self.step == 10:
            self.title = "stopped"  # once; a second time would stop it at once, before the next step
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(demo, "DemoConfig", lambda **given: DemoConfig(**given, **SHORT | {"steps": 12}))
        patch.setattr(Progress, "update", interrupt)
        assert stop(*words) == 130
        said = capsys.readouterr().err.splitlines()
        assert (
            said[-1]
            == f"Stopped at step 11 of 12, and saved. To go on, give the same command again: vitrine demo {' '.join(words)}"
        )
        assert not Path("told/report.html").exists()
        patch.setattr(Progress, "update", update)
        main(["demo", *words])
    output = capsys.readouterr()
    assert "Going on from step 11, saved in told/scratch." in output.err
    assert output.err.count("Going on") == 1
    assert Path("told/report.html").is_file()
    assert len(output.out.splitlines()) == 8


def test_an_interrupt_between_runs_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(config: DemoConfig, json: Path | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    monkeypatch.setattr("sys.argv", ["vitrine", "demo"])
    assert stop() == 130
    assert capsys.readouterr().err == "Stopped, and saved. To go on, give the same command again: vitrine demo\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "nowhere"], "There is no data at nowhere: give a folder"),
        (["--model", "nowhere"], "No checkpoint at nowhere; in that place: "),
        (["--device", "warp"], "warp"),
        (["--json", "no/such/file.json"], "Cannot write no/such/file.json: the folder no/such does not exist."),
        (["--seed", "-1"], "seed=-1 must be at least 0."),
    ],
)
def test_a_mistake_costs_a_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stop(*words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("vitrine: ")
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not Path("demo").exists()
