"""What is found in a folder of tasks: any kind of data, other people's names, and what is missing or not what it seems."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.test_factors import ROWS, write_rows
from tests.data.sources.test_vtab import make_vtab
from vitrine.core.notices import Notice
from vitrine.data.opening import find_data
from vitrine.data.vtab_tasks import TASKS
from vitrine.studies.config import VtabConfig
from vitrine.studies.vtab_survey import Survey, survey_tasks

OUT = Path("nowhere")


def make_arrays(path: Path, num_classes: int, num_train: int = 1250, num_test: int = 30) -> Path:
    """Small images, their class in their brightness."""
    arrays = {}
    for split, count in (("train", num_train), ("test", num_test)):
        labels = np.arange(count) % num_classes
        arrays |= {f"x_{split}": np.tile(labels.astype(np.uint8)[:, None, None], (1, 4, 4)), f"y_{split}": labels}
    np.savez(path, **arrays)
    return path


def make_folder(folder: Path, num_classes: int) -> Path:
    for split in ("train", "test"):
        for label in range(num_classes):
            (folder / split / f"{label:03}").mkdir(parents=True)
            for index in range(2):
                Image.new("RGB", (2, 2), (label, index, 0)).save(folder / split / f"{label:03}" / f"{index}.png")
    return folder


def survey(root: Path, **fields: object) -> Survey:
    return survey_tasks(root, VtabConfig(**fields), OUT)


def test_tasks_of_any_kind_are_found(tmp_path: Path) -> None:
    make_arrays(tmp_path / "cifar.npz", 100)
    make_arrays(tmp_path / "photos.npz", 3)
    make_folder(tmp_path / "oxford-iiit-pet", 37)
    (tmp_path / "dsprites_loc").mkdir()
    write_rows(tmp_path / "dsprites_loc", ROWS)
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.warns(Notice, match="images to learn from instead of 1,000") as told:
        found = survey(tmp_path)
    assert [str(each.message).split()[0] for each in told] == ["cifar100", "pets", "dsprites_location"]
    assert [(each.task.name, each.group, each.num_classes) for each in found.found] == [
        ("cifar100", "natural", 100),
        ("pets", "natural", 37),
        ("dsprites_location", "structured", 16),
        ("photos", "other", 3),
    ]
    assert [(each.num_train_images, each.num_test_images) for each in found.found] == [(925, 30), (74, 74), (3, 1), (1000, 30)]
    assert found.missing == tuple(name for name in TASKS if name not in ("cifar100", "pets", "dsprites_location"))
    source = find_data(found.found[1].source).open("train800val200")
    assert (len(source), source.class_names[36]) == (74, "036")


def test_lists_of_the_community_are_found(tmp_path: Path) -> None:
    """Four classes are not KITTI's by chance."""
    make_vtab(tmp_path / "kitti")
    with pytest.warns(Notice, match="kitti_distance has 6 images to learn from"):
        (found,) = survey(tmp_path).found
    assert (found.task.name, found.group, found.num_classes) == ("kitti_distance", "structured", 4)
    assert (found.num_train_images, found.num_test_images) == (6, 3)


def test_what_has_other_classes_does_not_count(tmp_path: Path) -> None:
    make_arrays(tmp_path / "cifar100.npz", 10, num_train=2000)
    with pytest.warns(Notice, match=r"cifar100 has 10 classes, and VTAB's has 100: it is run, and does not count in the score"):
        (found,) = survey(tmp_path).found
    assert found.group == "other"


def test_generated_tasks_come_when_asked_for(tmp_path: Path) -> None:
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    found = survey(tmp_path, generated=True, tasks=("shapes_count", "svhn")).found
    assert [(each.task.name, each.group, each.num_classes) for each in found] == [
        ("svhn", "natural", 10),
        ("shapes_count", "generated", 5),
    ]
    assert (found[1].num_train_images, found[1].num_test_images) == (1000, 2000)
    with pytest.raises(ValueError, match="--tasks shapes_count is no task of VTAB, and none of the data's"):
        survey(tmp_path, tasks=("shapes_count",))


def test_some_can_be_chosen(tmp_path: Path) -> None:
    for name, num_classes in (("svhn", 10), ("photos", 3), ("eurosat", 10)):
        make_arrays(tmp_path / f"{name}.npz", num_classes, num_train=2000)
    chosen = survey(tmp_path, tasks=("photos", "eurosat", "pets"))
    assert [each.task.name for each in chosen.found] == ["eurosat", "photos"]
    assert chosen.missing == ("pets",)
    with pytest.raises(ValueError, match=r"--tasks eurosatt is no task of VTAB, and none of the data's\. Nearest: eurosat"):
        survey(tmp_path, tasks=("eurosatt",))


def test_what_is_no_data_is_missing(tmp_path: Path) -> None:
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    (tmp_path / "dtd").mkdir()
    with pytest.warns(Notice, match=r"dtd has the name of a task and is no data of a known kind: it is taken as missing"):
        found = survey(tmp_path)
    assert "dtd" in found.missing
    assert len(found.found) == 1


def test_results_in_the_same_folder_are_no_task(tmp_path: Path) -> None:
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    make_folder(tmp_path / "runs" / "vtab" / "pets", 2)
    found = survey_tasks(tmp_path, VtabConfig(), tmp_path / "runs" / "vtab").found
    assert [each.task.name for each in found] == ["svhn"]


def test_real_folders_are_tasks(assets: Path, tmp_path: Path) -> None:
    """Class folders, of which Pets has too few images, and CIFAR-10 is none of the benchmark's."""
    for name, folder in (("flowers102", "flowers102"), ("pets", "pets"), ("cifar10", "cifar10-12k")):
        (tmp_path / name).symlink_to(assets / folder)
    with pytest.warns(Notice, match=r"pets has 740 images to learn from instead of 1,000"):
        found = survey(tmp_path).found
    assert [(each.task.name, each.group, each.num_classes, each.num_train_images, each.num_test_images) for each in found] == [
        ("flowers102", "natural", 102, 1000, 523),
        ("pets", "natural", 37, 740, 444),
        ("cifar10", "other", 10, 1000, 2000),
    ]


def test_mistakes_cost_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"There is no folder .*nothing, and one with a folder for each task was needed"
    ):
        survey(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"has no task: put folders in it that are called as tasks, as pets or dtd"):
        survey(tmp_path)
    make_arrays(tmp_path / "svhn.npz", 10, num_train=2000)
    make_arrays(tmp_path / "svhn_cropped.npz", 10)
    with pytest.raises(ValueError, match=r"svhn\.npz and .*svhn_cropped\.npz are both the task svhn, and one was needed"):
        survey(tmp_path)
    (tmp_path / "svhn_cropped.npz").unlink()
    make_arrays(tmp_path / "photos.npz", 1)
    with pytest.raises(ValueError, match=r"photos\.npz do not have one label each, of two or more classes"):
        survey(tmp_path)


def test_a_folder_that_is_one_data_set_is_not_a_folder_of_tasks(tmp_path: Path) -> None:
    make_folder(tmp_path / "pets", 2)
    with pytest.raises(ValueError, match=r"pets is one data set, and a folder with one for each task was needed"):
        survey(tmp_path / "pets")


@pytest.mark.parametrize("name", ["foo@1", "a:b"])
def test_names_that_mean_something_else_are_refused(name: str, tmp_path: Path) -> None:
    make_arrays(tmp_path / f"{name}.npz", 3)
    with pytest.raises(ValueError, match="cannot be the name of a task"):
        survey(tmp_path)


def test_what_a_sweep_needs_is_opened_before_it(tmp_path: Path) -> None:
    make_vtab(tmp_path / "pets")
    for name in ("train800.txt", "val200.txt"):
        (tmp_path / "pets" / name).unlink()
    with pytest.warns(Notice):
        survey(tmp_path)
    with pytest.raises(ValueError, match="has the splits"):
        survey(tmp_path, sweep=True)
