"""Commands that write to a disk of any size: one sentence if it is full, and the old or the new files, complete."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.test_folder import make_folder
from tests.filling import build_filled, fill_randomly
from tests.formats.originals import CONFIG
from tests.run.test_run import make_recipe, write_data
from tests.test_fuzz import read_data
from vitrine.cli import main
from vitrine.core.files import write_json
from vitrine.data.preprocessing import build_imagenet_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.run.folder import load_resume_point

PAGE, DISK_BYTES = 4096, 2**26
NUM_SIZES = [3, pytest.param(30, marks=pytest.mark.full)]


@dataclass(frozen=True)
class Disk:
    """A file system in memory, whose size can be changed."""

    path: Path

    def resize(self, num_bytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={num_bytes}", str(self.path)], check=True)

    def clear(self) -> None:
        self.resize(DISK_BYTES)
        for path in self.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def list_files(self) -> list[str]:
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*"))

    def used(self) -> int:
        return shutil.disk_usage(self.path).used


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be made by root on Linux only")
    yield Disk(place)
    subprocess.run(["umount", str(place)], check=True)


@dataclass(frozen=True)
class Case:
    """A command that writes to the disk."""

    words: Callable[[Path, Path], list[object]]
    """The command line, given a folder of inputs and the disk."""
    out: str
    """What it writes, on the disk."""
    read: Callable[[Path], object]
    """Read `out` completely, whatever of it is there; half a file raises."""


def read_npz(path: Path) -> object:
    with np.load(path) as arrays:
        return {name: array.tolist() for name, array in arrays.items()}


def read_weights(path: Path) -> object:
    return {name: tensor.numpy().tobytes() for name, tensor in load_checkpoint(path).model.state_dict().items()}


def read_run(path: Path) -> object:
    """Load every checkpoint and model that is there."""
    steps = sorted((path / "checkpoints").iterdir()) if (path / "checkpoints").exists() else []
    models = [each for each in (path / "best", path / "model") if each.exists()]
    return [load_resume_point(step).progress.step for step in steps], [read_weights(each) for each in models]


CASES: dict[str, Case] = {
    "pack": Case(
        lambda given, disk: ["data", "pack", given / "b", disk / "out", "--size", 32, "--overwrite"], "out", read_data
    ),
    "features": Case(
        lambda given, disk: ["features", given / "m", given / "b", "--no-cache", "--out", disk / "f.npz"], "f.npz", read_npz
    ),
    **{
        f"convert to {name}": Case(
            lambda given, disk, name=name, form=form: ["convert", given / "m", disk / name, "--format", form, "--overwrite"],
            name,
            read_weights,
        )
        for name, form in {
            "own": "vitrine",
            "hf": "hf",
            "a.pth": "timm",
            "a.safetensors": "timm",
            "a.npz": "big-vision",
        }.items()
    },
    "train": Case(lambda given, disk: ["train", given / "recipe.json", "--out", disk / "run"], "run", read_run),
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs of the commands, in two versions: a model, a dataset, a recipe."""
    folder = tmp_path_factory.mktemp("given")
    for number, version in enumerate(("old", "new")):
        make_folder(folder / version / "made").rename(folder / version / "b")
        model = build_filled(CONFIG)
        fill_randomly(model, seed=number)
        checkpoint = Checkpoint(model, build_imagenet_preprocessing(CONFIG.image_size), ("cat", "dog", "eel"))
        save_checkpoint(checkpoint, folder / version / "m")
    for image in (folder / "new" / "b").rglob("*.png"):
        Image.open(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(image)
    write_json(folder / "new" / "recipe.json", make_recipe(write_data(folder / "shades.npz")).to_json())
    return folder


def run(words: list[object], capsys: pytest.CaptureFixture[str]) -> str | None:
    """Return the sentence with which a command ended; None if it succeeded."""
    status: object = 0
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        status = stop.code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitrine: ")]
    if status in (0, 1) and not lines:  # 1: `data check` found something
        return None
    assert (status, len(lines)) == (2, 1), lines
    assert "[Errno" not in lines[0]
    return lines[0]


def read(case: Case, disk: Disk) -> object:
    return case.read(disk.path / case.out) if (disk.path / case.out).exists() else None


@pytest.mark.usefixtures("short_runs")
@pytest.mark.filterwarnings("ignore::vitrine.core.console.VitrineWarning")
@pytest.mark.parametrize("num_sizes", NUM_SIZES)
@pytest.mark.parametrize("name", CASES)
def test_the_old_or_the_new_is_there(
    name: str, num_sizes: int, given: Path, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    case, is_run = CASES[name], name == "train"
    assert run(case.words(given / "new", disk.path), capsys) is None
    new, needed, was_full = read(case, disk), disk.used() + 4 * PAGE, 0  # with the lock files of run, folder and file
    for number in range(num_sizes):
        disk.clear()
        assert is_run or run(case.words(given / "old", disk.path), capsys) is None
        old, before = read(case, disk), disk.list_files()
        disk.resize(max(disk.used() + number * needed // (num_sizes - 1), PAGE))
        sentence = run(case.words(given / "new", disk.path), capsys)
        found = read(case, disk)  # of a run: every checkpoint that is there
        was_full += sentence is not None
        if sentence is None:
            assert found == new
        elif not is_run:
            assert (found, disk.list_files()) == (old, before)
        assert sentence is None or re.search("full|space", sentence), sentence
        disk.resize(DISK_BYTES)
        assert run(case.words(given / "new", disk.path), capsys) is None
        assert read(case, disk) == new
    assert 0 < was_full < num_sizes  # sizes on both sides


@pytest.mark.parametrize("num_sizes", NUM_SIZES)
def test_caches_on_a_full_disk_cost_a_warning(
    num_sizes: int, given: Path, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VITRINE_CACHE", str(disk.path / "cache"))
    command = ["features", given / "new" / "m", given / "new" / "b", "--out", tmp_path / "f.npz"]
    pack = [["data", "pack", given / "new" / "b", tmp_path / "pack", "--size", 32, "--overwrite"]]
    assert all(run(words, capsys) is None for words in [*pack, command, ["data", "check", tmp_path / "pack"]])
    right, needed = read_npz(tmp_path / "f.npz"), disk.used() + PAGE
    for number in range(num_sizes):
        disk.clear()
        disk.resize(max(number * needed // (num_sizes - 1), PAGE))
        for _ in range(2):
            assert run(command, capsys) is None
            assert read_npz(tmp_path / "f.npz") == right
            assert run(["data", "check", tmp_path / "pack"], capsys) is None
            disk.resize(DISK_BYTES)
        assert not any("partial" in name for name in disk.list_files())
