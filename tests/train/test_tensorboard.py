"""TensorBoard's own reader finds what was written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vitrine.train.tensorboard import TensorBoard


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: {event.step: event.value for event in reader.Scalars(tag)} for tag in reader.Tags()["scalars"]}


def test_every_figure_is_a_scalar_under_its_group(tmp_path: Path) -> None:
    with TensorBoard(tmp_path / "events") as board:
        board.write({"step": 10, "loss": 2.5, "rate": 0.125})
        board.write(
            {"step": 20, "loss": 1.5, "rate": 0.25, "waited": 0, "held_out_top1": 0.5, "val_top1": 1, "few_shot_5": 0.75}
        )
    assert read_scalars(tmp_path / "events") == {
        "train/loss": {10: 2.5, 20: 1.5},
        "train/rate": {10: 0.125, 20: 0.25},
        "train/waited": {20: 0.0},
        "evaluation/held_out_top1": {20: 0.5},
        "evaluation/val_top1": {20: 1.0},
        "evaluation/few_shot_5": {20: 0.75},
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_written_too(value: float, tmp_path: Path) -> None:
    with TensorBoard(tmp_path) as board:
        board.write({"step": 1, "loss": value})
    assert str(read_scalars(tmp_path)["train/loss"][1]) == str(value)


def test_steps_that_a_resumed_run_makes_again_are_shown_once(tmp_path: Path) -> None:
    """Of a name too: a step evaluated before the interruption, and not after it, is gone."""
    with TensorBoard(tmp_path, start_step=0) as board:
        for step in (10, 20, 30):
            board.write({"step": step, "loss": float(step)})
        board.write({"step": 30, "val_top1": 0.5})
    with TensorBoard(tmp_path, start_step=20) as board:
        board.write({"step": 25, "loss": 7.0})
    assert read_scalars(tmp_path)["train/loss"] == {10: 10.0, 20: 20.0, 25: 7.0}
    assert read_scalars(tmp_path).get("evaluation/val_top1", {}) == {}


def test_an_error_loses_no_record(tmp_path: Path) -> None:
    def break_off(board: TensorBoard) -> None:
        for step in range(50):
            board.write({"step": step, "loss": 1.0})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), TensorBoard(tmp_path) as board:
        break_off(board)
    assert len(read_scalars(tmp_path)["train/loss"]) == 50


def test_a_missing_package_costs_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)  # which has found it before
    sentence = f"Event files in {tmp_path} need tensorboard, which is not installed: pip install 'vitrine[tensorboard]'."
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        TensorBoard(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_importing_it_does_not_import_tensorboard() -> None:
    code = "import sys, vitrine.train.tensorboard; assert not {'tensorboard', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
