"""The summary of a run as it is kept in its folder."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from vitrine.run.folder import RunFolder
from vitrine.run.summary import Summary

SUMMARY = Summary(
    model="ViT-Ti/16",
    num_parameters=1,
    num_train_images=2,
    seed=0,
    learning_rate=0.1,
    total_steps=3,
    steps=3,
    is_finished=True,
    stopped_early=False,
    interrupted_by=None,
    watched_on=None,
    best=None,
    best_step=None,
    test_top1=0.5,
    test_top5=1.0,
    test_loss=0.7,
    num_test_images=4,
    images=6,
    exaflops=1e-9,
    device="cpu",
    device_hours=0.1,
)


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.summary.write_text(json.dumps(asdict(SUMMARY)))
    assert folder.read_summary() == SUMMARY


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"unknown": 1}'])
def test_a_damaged_one_is_named_with_what_to_do(content: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.summary.write_text(content)
    with pytest.raises(ValueError, match=r"summary\.json cannot be read \(.*remove it, and the run is summed up again\."):
        folder.read_summary()
