"""The folder of a study: its runs, and what was found.

settings.json               the study, its scale and its data
data.json                   the fingerprint of its images
runs/NAME/, runs/NAME.log   a run like any other, with reading.json, and its output
study.json, study.html      verdicts and runs as numbers and as a page, written at the end
study.png                   the figure
search.json                 in the folder of a search, instead of these: the values that were tried
"""

from pathlib import Path
from typing import Any

from vitrine.core.console import name_setting, summarise_error
from vitrine.core.files import make_folder, read_json, write_json
from vitrine.data.fingerprint import DataFingerprint
from vitrine.data.open_data import DatasetHandle
from vitrine.run.folder import DataFolder, RunFolder
from vitrine.studies.config import StudyConfig

RUNS = "runs"
SPLITS = ("train", "val", "test")


class StudyFolder(DataFolder):
    """Paths in a study's folder, and what reads and writes them."""

    kind, changed_setting = "study", None  # runs on other images could not be compared with the finished ones

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.settings, self.runs = path / "settings.json", path / RUNS
        self.numbers, self.page, self.figure = path / "study.json", path / "study.html", path / "study.png"
        self.search = path / "search.json"

    def is_empty(self) -> bool:
        """Return whether no run has saved anything yet."""
        folders = self.runs.iterdir() if self.runs.is_dir() else iter(())
        return all(RunFolder(folder).is_empty() for folder in folders if folder.is_dir())

    def check(self, name: str, config: StudyConfig) -> None:
        """Check, before anything is trained, that the folder is new or holds the same study, and create it."""
        make_folder(self.path)
        if self.settings.is_file():
            before, now = self.read_settings(), describe_settings(name, config)
            differences = [f"{key} was {before.get(key)!r} and is {now[key]!r}" for key in now if before.get(key) != now[key]]
            if differences and not self.is_empty():
                raise ValueError(
                    f"{self.path} holds another study ({'; '.join(differences)}): use its settings, or another "
                    f"{name_setting('out')}."
                )
        elif any(not path.name.startswith(".") for path in self.path.iterdir()):
            raise FileExistsError(
                f"{self.path} exists and is not the folder of a study: choose another one with {name_setting('out')}."
            )

    def open(self, name: str, config: StudyConfig, dataset: DatasetHandle) -> None:
        """Write settings and fingerprint; raise ValueError if the images are not those of the finished runs."""
        fingerprint = self.check_data(compute_fingerprint(dataset), "refuse")
        write_json(self.settings, describe_settings(name, config))
        write_json(self.data, fingerprint.to_json())

    def read_settings(self) -> dict[str, Any]:
        """Read settings.json; raise ValueError if it is damaged."""
        try:
            return read_json(self.settings)
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{self.settings} cannot be read ({summarise_error(error)}): restore it, or change {name_setting('out')}."
            ) from None


def describe_settings(name: str, config: StudyConfig) -> dict[str, Any]:
    """Return the settings that make two studies the same; another call may have more seeds, or other jobs."""
    return {"study": name, "scale": config.scale, "data": config.data}


def compute_fingerprint(dataset: DatasetHandle) -> DataFingerprint:
    """Compute the fingerprint of all splits that runs of a study may use."""
    return DataFingerprint.compute({split: dataset.open(split) for split in SPLITS if split in dataset.splits}, total_steps=0)
