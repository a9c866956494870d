"""`vitrine vtab` with a small checkpoint on small tasks: what it prints, writes and rejects."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.commands.test_finetune import SIDE, draw
from tests.run.test_run import interrupt_at
from tests.studies.vtab.test_protocol import make_arrays
from vitrine.cli import main
from vitrine.core.console import VitrineWarning
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.sources.vtab import TASKS
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.registry import build_model
from vitrine.studies.vtab.benchmark import vtab as run_vtab

SHORT = (
    *("--total-steps", 2, "--optim.warmup-steps", 0, "--loader.batch-size", 8, "--loader.num-workers", 0),
    *("--model.image-size", SIDE, "--machine.accumulation-steps", 1, "--device", "cpu"),
)

pytestmark = pytest.mark.usefixtures("short_runs")


def make_lists(folder: Path, num_images: int, num_test: int) -> Path:
    """Write a task as published image lists, with KITTI's four classes."""
    drawn = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    lines: list[str] = []
    for number in range(num_images + num_test):
        Image.fromarray(draw(number % 3, drawn)).save(folder / "images" / f"{number}.png")
        lines.append(f"images/{number}.png {number % 4}\n")
    num_train = num_images * 4 // 5
    for name, part in (
        ("train800", lines[:num_train]),
        ("val200", lines[num_train:num_images]),
        ("train800val200", lines[:num_images]),
        ("test", lines[num_images:]),
    ):
        (folder / f"{name}.txt").write_text("".join(part))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a working folder with the checkpoint `tiny` and the folder `tasks`."""
    folder = tmp_path_factory.mktemp("work")
    torch.manual_seed(0)
    model = build_model("ViT-Ti/16", image_size=SIDE, patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32, num_classes=5)
    save_checkpoint(Checkpoint(model, build_inception_preprocessing((SIDE, SIDE)), tuple("abcde"), {}), folder / "tiny")
    make_lists(folder / "tasks" / "kitti", 20, 10)
    make_arrays(folder / "tasks" / "svhn.npz", 10, num_train=2000, num_test=20)
    make_arrays(folder / "tasks" / "cifar10.npz", 10, num_train=2000, num_test=20)
    return folder


@pytest.fixture(autouse=True)
def working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def run_command(*words: object) -> None:
    main(["vtab", *map(str, words)])


def fail(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one-line message of a command that fails."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        run_command(*words)
    output = capsys.readouterr()
    assert (stop.value.code, output.out) == (2, "")
    assert output.err.count("\n") == 1
    return output.err


def test_results_are_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    run_command("tiny", "tasks", "--seeds", 0, 1, "--json", "all.json", *SHORT)
    output = capsys.readouterr()
    results = json.loads(Path("all.json").read_text())
    assert results == json.loads(Path("runs/tiny-vtab/vtab.json").read_text())
    with Image.open("runs/tiny-vtab/vtab.png") as figure:
        assert figure.width > 300
    tasks = {task["name"]: task for task in results["tasks"]}
    assert [(name, task["group"], task["num_train_images"], task["num_test_images"]) for name, task in tasks.items()] == [
        ("svhn", "natural", 1000, 20),
        ("kitti_distance", "structured", 20, 10),
        ("cifar10", "other", 1000, 20),
    ]
    summaries = [json.loads(Path(f"runs/tiny-vtab/svhn/seed-{seed}/summary.json").read_text()) for seed in (0, 1)]
    assert tasks["svhn"]["accuracies"] == [summary["test_top1"] for summary in summaries]
    score = (tasks["svhn"]["mean"] + tasks["kitti_distance"]["mean"]) / 2
    assert results["score"]["mean"] == pytest.approx(score)
    assert (results["score"]["num_tasks"], results["score"]["num_all"]) == (2, 19)
    assert f"{100 * score:.2f} ± {100 * results['score']['std']:.2f} %, the mean of 2 of 19 tasks" in output.out
    assert results["missing"] == [name for name in TASKS if name not in ("svhn", "kitti_distance")]
    assert f"Missing: {', '.join(results['missing'])}." in output.out
    assert results["is_paper_protocol"] is False
    assert results["protocol"] in output.out
    assert results["protocol"].startswith("Not the paper's protocol")
    assert "total_steps 2 instead of 2500" in results["departures"]
    assert [line.split()[0] for line in output.out.splitlines()[:4]] == ["task", "svhn", "kitti_distance", "cifar10"]
    assert "kitti_distance has 20" in output.err


def test_sweep_chooses_learning_rate_and_length(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tasks", "kitti_distance", "--sweep", "--rates", 0.01, "--lengths", 2, 3, "--out", "swept")
    run_command("tiny", "tasks", *words, *SHORT)
    results = json.loads(Path("swept/vtab.json").read_text())
    assert [(trial["learning_rate"], trial["total_steps"]) for trial in results["sweep"]] == [(0.01, 2), (0.01, 3)]
    (chosen,) = [trial for trial in results["sweep"] if trial["is_chosen"]]
    assert chosen["mean"] == max(trial["mean"] for trial in results["sweep"])
    assert results["recipe"]["total_steps"] == chosen["total_steps"]
    assert results["score"]["std"] is None
    output = capsys.readouterr().out
    assert "chosen" in output
    assert f"{chosen['total_steps']} steps (chosen by the sweep)" in output


def test_no_score_without_a_task_of_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    run_command("tiny", "tasks", "--tasks", "cifar10", "--test-images", 5, "--out", "other", *SHORT)
    output = capsys.readouterr().out
    assert "at most 5 test images instead of all" in output
    assert json.loads(Path("other/vtab.json").read_text())["tasks"][0]["num_test_images"] == 5
    assert "No VTAB score" in output
    assert "Missing" not in output
    assert json.loads(Path("other/vtab.json").read_text())["score"] is None


def test_interrupted_command_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("tiny", "tasks", "--tasks", "kitti_distance", "--out", "stopped", *SHORT)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(1, signal.SIGINT, patch)
        with pytest.raises(SystemExit) as stop:
            run_command(*words)
    assert stop.value.code == 130
    output = capsys.readouterr()
    assert "step 1 of 2" in output.err
    assert not Path("stopped/vtab.json").exists()
    run_command(*words)
    assert "VTAB score" in capsys.readouterr().out


def test_list_has_all_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    run_command("--list")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(TASKS)
    (line,) = [line for line in lines if line.startswith("dsprites_location")]
    assert all(word in line for word in ("structured", "16", "x of 32 // 2", "flip, crop", "80/10/10", "dsprites_loc"))


def test_invalid_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert "MODEL and ROOT" in fail(capsys, "tiny")
    assert "MODEL and ROOT" in fail(capsys, "tiny", "--sweep")
    assert "nowhere" in fail(capsys, "tiny", "nowhere", *SHORT)
    assert "--seeds" in fail(capsys, "tiny", "tasks", "--seed", 1, "--seeds", 0, 1)
    assert "data.subset" in fail(capsys, "tiny", "tasks", "--data.subset", "10%")
    assert "warmup_steps=300" in fail(capsys, "tiny", "tasks", "--total-steps", 60, "--optim.warmup-steps", 300)
    assert "--sweep" in fail(capsys, "tiny", "tasks", "--rates", 0.1)
    assert "no/all.json" in fail(capsys, "tiny", "tasks", "--json", "no/all.json", *SHORT)
    assert not Path("runs/tiny-tasks-vtab").exists()


def test_python_function_returns_what_the_command_writes() -> None:
    run_command("tiny", "tasks", "--tasks", "kitti_distance", "--out", "command", *SHORT)
    changes = {
        "model": {"image_size": SIDE},
        "loader": {"batch_size": 8, "num_workers": 0},
        "optim": {"warmup_steps": 0},
        "machine": {"accumulation_steps": 1},
        "total_steps": 2,
        "device": "cpu",
    }
    with pytest.warns(VitrineWarning, match="kitti_distance has 20"):
        result = run_vtab("tiny", "tasks", "python", tasks=["kitti_distance"], **changes)
    assert result.interrupted_by is None
    assert result.score is not None
    written = json.loads(Path("python/vtab.json").read_text())
    assert (written["score"]["mean"], written["tasks"][0]["name"]) == (result.score.mean, "kitti_distance")
    assert written == json.loads(Path("command/vtab.json").read_text())
