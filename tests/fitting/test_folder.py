"""The folder of a fit: its settings and fingerprint, and what is damaged."""

from pathlib import Path

import pytest

from tests.fitting.colours import TINY, save_tiny, write_colours
from vitrine.data.fingerprint import DataFingerprint
from vitrine.data.open_data import open_data
from vitrine.fitting.config import FitConfig
from vitrine.fitting.folder import FitFolder
from vitrine.formats.load import load_checkpoint

CONFIG = FitConfig()


@pytest.fixture
def folder(tmp_path: Path) -> FitFolder:
    """A folder of a fit that has a model."""
    folder = FitFolder(tmp_path / "out")
    data = write_colours(tmp_path / "photos", {"red": 2, "blue": 2})
    assert folder.check("tiny", "photos", CONFIG) == "tiny"
    folder.open("tiny", "photos", CONFIG, DataFingerprint.compute({"train": open_data(data)}, 0))
    folder.save_model(load_checkpoint(save_tiny(tmp_path / "tiny")))
    return folder


def test_settings_that_decide_only_how_far_it_gets_may_change(folder: FitFolder) -> None:
    assert folder.check("tiny", "photos", FitConfig(minutes=60, device="cpu", num_workers=1, changed="accept")) == "tiny"
    assert folder.check(None, "photos", CONFIG) == "tiny"
    for model, data, config in (("other", "photos", CONFIG), ("tiny", "others", CONFIG), ("tiny", "photos", FitConfig(seed=1))):
        with pytest.raises(ValueError, match="other settings"):
            folder.check(model, data, config)


def test_before_the_first_model_anything_may_change(folder: FitFolder) -> None:
    for path in folder.model.iterdir():
        path.unlink()
    folder.model.rmdir()
    assert folder.check("other", "others", FitConfig(seed=1)) == "other"


def test_damaged_settings(folder: FitFolder) -> None:
    folder.settings.write_text("{")
    with pytest.raises(ValueError, match=r"fit\.json cannot be read"):
        folder.check("tiny", "photos", CONFIG)


def test_a_change_of_the_images_ends_the_fine_tuning(folder: FitFolder, tmp_path: Path) -> None:
    folder.finetune.mkdir()
    same = folder.read_data()
    folder.open("tiny", "photos", CONFIG, same)
    assert folder.finetune.is_dir()
    other = DataFingerprint.compute({"train": open_data(write_colours(tmp_path / "new", {"red": 3, "blue": 2}))}, 0)
    folder.open("tiny", "photos", CONFIG, other)
    assert not folder.finetune.exists()
    assert folder.read_data() == other


def test_the_model_is_replaced(folder: FitFolder) -> None:
    checkpoint = load_checkpoint(folder.model)
    folder.save_model(checkpoint)
    assert load_checkpoint(folder.model).model.config == TINY


def test_the_images_of_a_fit_are_remembered_for_as_many_minutes(folder: FitFolder) -> None:
    assert folder.read_num_used(5) is None
    folder.open("tiny", "photos", FitConfig(minutes=5), folder.read_data(), (300, 40))
    assert folder.read_num_used(5) == (300, 40)
    assert folder.read_num_used(10) is None
    assert folder.check("tiny", "photos", CONFIG) == "tiny"  # it is no difference
    folder.open("tiny", "photos", FitConfig(minutes=5), folder.read_data())
    assert folder.read_num_used(5) is None
