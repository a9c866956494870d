"""Which images heads are cross-validated on, where there are more than time."""

from pathlib import Path

import pytest

from tests.fitting.colours import save_tiny, write_colours
from vitrine.fitting import state
from vitrine.fitting.config import FitConfig
from vitrine.fitting.fit import fit


def test_many_images_are_validated_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_VALIDATED", 40)
    data = write_colours(tmp_path / "photos", {"red": 50, "blue": 50})
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", FitConfig(minutes=0, num_workers=0), show_progress=False)
    assert result.result.report.num_images == 40
    assert len(result.images.train) == 100


def test_few_images_of_a_class_are_all_validated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_VALIDATED", 50)
    data = write_colours(tmp_path / "photos", {"red": 300, "grey": 6, "blue": 60}, noise=80)
    config = FitConfig(minutes=0, balance="off", num_workers=0)
    result = fit(data, save_tiny(tmp_path / "tiny"), tmp_path / "out", config, show_progress=False)
    counts = {each.name: each.num_images for each in result.result.report.classes}
    assert counts["grey"] >= 5
    assert counts["red"] == pytest.approx(4 * counts["blue"], rel=0.5)
    assert sum(counts.values()) == 50
