"""The folder of a study: one writer, one study, and the same images throughout."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitrine.core.files import write_json
from vitrine.data.open_data import find_data
from vitrine.studies.config import StudyConfig
from vitrine.studies.folder import StudyFolder

CONFIG = StudyConfig(scale="tiny")


def write_images(path: Path, num_images: int) -> str:
    labels = np.arange(num_images) % 2
    arrays = {"x_train": np.zeros((num_images, 8, 8), np.uint8), "y_train": labels}
    np.savez(path, allow_pickle=False, **arrays, x_test=arrays["x_train"], y_test=labels)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    """A study with a finished run."""
    folder = StudyFolder(tmp_path / "new" / "study")
    folder.check("data-size", CONFIG)
    folder.open("data-size", CONFIG, find_data(write_images(tmp_path / "images.npz", 8)))
    (folder.runs / "vit").mkdir(parents=True)
    write_json(folder.runs / "vit" / "summary.json", {})
    return folder


def test_the_same_study_continues_with_other_seeds_and_jobs(folder: StudyFolder, tmp_path: Path) -> None:
    config = replace(CONFIG, seeds=(3, 4), jobs=2)
    folder.check("data-size", config)
    folder.open("data-size", config, find_data(str(tmp_path / "images.npz")))
    assert not folder.is_empty()


@pytest.mark.parametrize(("name", "config"), [("other", CONFIG), ("data-size", StudyConfig(scale="small"))])
def test_another_study_is_refused(folder: StudyFolder, name: str, config: StudyConfig) -> None:
    with pytest.raises(ValueError, match="holds another study"):
        folder.check(name, config)


def test_a_study_without_runs_may_become_another(folder: StudyFolder) -> None:
    (folder.runs / "vit" / "summary.json").unlink()
    assert folder.is_empty()
    folder.check("other", CONFIG)


def test_changed_images_are_refused(folder: StudyFolder, tmp_path: Path) -> None:
    """Runs on other images could not be compared, so there is no way to accept them."""
    with pytest.raises(ValueError, match=r"train has new images.*start a new study") as caught:
        folder.open("data-size", CONFIG, find_data(write_images(tmp_path / "images.npz", 9)))
    assert "accept" not in str(caught.value)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(FileExistsError, match="out"):
        StudyFolder(tmp_path).check("data-size", CONFIG)


def test_damaged_settings_are_named(folder: StudyFolder) -> None:
    folder.settings.write_text("{")
    with pytest.raises(ValueError, match=r"settings\.json"):
        folder.check("data-size", CONFIG)


def test_one_process_at_a_time(folder: StudyFolder) -> None:
    with folder.lock(), pytest.raises(BlockingIOError, match="in use"), StudyFolder(folder.path).lock():
        pass
