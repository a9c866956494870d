"""`vitrine demo` finished, interrupted and resumed, and with invalid arguments."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.demo.stage import make_checkpoint, make_images
from vitrine.cli import main
from vitrine.commands import demo
from vitrine.demo import steps
from vitrine.demo.config import DemoConfig
from vitrine.demo.plan import FAMILIES, Plan, Step
from vitrine.demo.report import COLUMNS
from vitrine.demo.results import StepResult
from vitrine.demo.steps import describe_step
from vitrine.inspection.inspect_model import Inspection, inspect
from vitrine.studies import children
from vitrine.studies.runner import Read, StudyRun

pytestmark = pytest.mark.usefixtures("short_runs")

SHORT: dict[str, Any] = {"steps": 3, "pretrain_steps": 3, "num_drawn": 2, "num_measured": 4}


@pytest.fixture(autouse=True)
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the runs; everything else is as the command makes it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "DemoConfig", lambda **fields: DemoConfig(**fields, **SHORT))


def exit_status(*words: str) -> object:
    with pytest.raises(SystemExit) as error:
        main(["demo", *words])
    return error.value.code


def test_demo_on_built_in_data(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--out", "out", "--device", "cpu", "--jobs", "1", "--quick", "--json", "results.json"])
    output = capsys.readouterr()
    table = output.out.splitlines()
    assert table[0].split("  ")[0] == "step"
    assert all(column in table[0] for column in COLUMNS)
    keys = [f"{family}-{kind}" for family in FAMILIES for kind in ("pretrain", "transfer", "few-shot", "scratch")]
    keys.append("vit-inspect")
    assert [line.split()[0] for line in table[1:14]] == keys
    assert "360 images" in table[14]
    assert "out/report.html" in table[14]
    assert output.err.startswith("digits: 100 training and 360 test images. 9 runs, 1 at a time")
    assert [f"{number}/9" in output.err for number in range(1, 10)] == [True] * 9
    content = json.loads(Path("results.json").read_text())
    assert [step["key"] for step in content["results"]] == keys
    assert (content["data"], content["num_train_images"], content["num_test_images"], content["seed"], content["quick"]) == (
        "digits",
        100,
        360,
        0,
        True,
    )
    assert all(0 <= step["accuracy"]["low"] <= step["accuracy"]["value"] <= 1 for step in content["results"][:-1])
    text = Path("out/report.html").read_text()
    assert "vitrine train demo-glyphs-vit" in text
    assert "interpolated" in text
    assert "Made with --quick" in text


def test_interrupted_demo_is_resumed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(Path("images"))
    make_checkpoint(Path("tiny"))
    words = ["--data", "images", "--model", "tiny", "--out", "out", "--device", "cpu", "--jobs", "1"]
    monkeypatch.setattr("sys.argv", ["vitrine", "demo", *words])

    def interrupt(run: StudyRun, out: Path, read: Read) -> object:
        signal.raise_signal(signal.SIGTERM)
        return start_child(run, out, read)

    def look(plan: Plan, step: Step) -> tuple[StepResult, Inspection]:
        inspection = inspect(plan.checkpoint, next(Path("images").rglob("*.png")), device="cpu")
        return StepResult(**describe_step(step), seconds=1.0), inspection

    start_child = children.start_child
    with monkeypatch.context() as patch:
        patch.setattr(steps, "run_inspection", look)  # which takes longest
        with monkeypatch.context() as interrupted:
            interrupted.setattr(children, "start_child", interrupt)
            assert exit_status(*words) == 128 + signal.SIGTERM
        last_line = capsys.readouterr().err.splitlines()[-1]
        assert f"vitrine demo {' '.join(words)}" in last_line
        assert not Path("out/report.html").exists()
        main(["demo", *words])
    output = capsys.readouterr()
    assert "4/4" in output.err
    assert Path("out/report.html").is_file()
    assert len(output.out.splitlines()) == 8


def test_interrupt_between_runs_prints_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(config: DemoConfig) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "run_demo", interrupt)
    monkeypatch.setattr("sys.argv", ["vitrine", "demo"])
    assert exit_status() == 130
    assert capsys.readouterr().err.endswith("vitrine demo\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "nowhere"], "nowhere"),
        (["--model", "nowhere"], "nowhere"),
        (["--device", "warp"], "warp"),
        (["--json", "no/such/file.json"], "no/such"),
        (["--seed", "-1"], "seed=-1"),
    ],
)
def test_invalid_arguments_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(*words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("vitrine: ")
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not Path("demo").exists()
