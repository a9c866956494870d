"""What is measured at the end of a fit."""

from pathlib import Path

import pytest

from tests.fitting.colours import save_tiny, write_colours, write_divided
from vitrine.fitting import finish
from vitrine.fitting.config import FitConfig
from vitrine.fitting.fit import fit

QUICK = FitConfig(minutes=0, num_workers=0)


def test_without_a_test_split_the_accuracy_is_cross_validated(tmp_path: Path) -> None:
    data = write_colours(tmp_path / "photos", {"red": 12, "blue": 12})
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", QUICK, show_progress=False)
    assert not result.is_tested
    assert result.result.report.num_images == 24
    assert result.result.report.top1.value > 0.8


def test_a_test_that_takes_too_long_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine becomes slow while images are tested: those read so far count, drawn at random from all classes."""
    monkeypatch.setattr(finish, "thin_out_test", lambda state: None)
    monkeypatch.setattr(finish, "REPORT_S", 3600.0)
    data = write_divided(tmp_path / "photos", num_test=60)
    config = FitConfig(minutes=60, num_workers=0)
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", config, show_progress=False)
    assert result.is_tested
    assert result.images.test is not None
    assert result.result.report.num_images == len(result.images.test) == 64  # the batch with the fiftieth
    assert all(each.num_images > 10 for each in result.result.report.classes)
    assert any("time to test 64 of 180" in note for note in result.notes)
    names = [result.result.source.name(index) for index in result.result.predictions.index.tolist()]
    assert sorted(names) == sorted(result.images.test.name(index) for index in range(64))
