"""The folder of a fit: the best model so far, its report, and the run that fine-tunes it.

fit.json                    the settings of the fit
data.json                   the fingerprint of its images
model/                      the best model so far: a checkpoint like any other
report.html, report.json    what it can do, written at the end
finetune/                   the run of the fine-tuning, if there was time for it
"""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrine.core.console import name_setting, summarise_error
from vitrine.core.files import make_folder, read_json, write_json
from vitrine.data.fingerprint import DataFingerprint
from vitrine.fitting.config import FitConfig
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.run.folder import DataFolder

USED = "images_used"  # key of the minutes and the numbers of images, where there was no time for all
FITTED = "fitted"  # in the provenance of a head on frozen features
# Settings that another call may change: they decide how far a fit gets, not what it is about.
FREE_SETTINGS = ("minutes", "device", "precision", "num_workers", "changed")


class FitFolder(DataFolder):
    """Paths in a fit's folder, and what reads and writes them."""

    kind, changed_setting = "fit", "changed"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.settings, self.model = path / "fit.json", path / "model"
        self.report, self.numbers = path / "report.html", path / "report.json"
        self.finetune = path / "finetune"

    def is_empty(self) -> bool:
        """Return whether nothing has been saved yet that other settings would lose."""
        return not self.model.exists()

    def check(self, model: str | None, data: str, config: FitConfig) -> str | None:
        """Check, before anything is loaded, that the folder is new or holds a fit with these settings.

        Return the model to start from: the given one, else the one that the fit here was begun with, if there is one.
        """
        make_folder(self.path)
        if not self.settings.is_file():
            if any(not path.name.startswith(".") for path in self.path.iterdir()):
                raise FileExistsError(
                    f"{self.path} exists and is not the folder of a fit: choose another one with {name_setting('out')}."
                )
            return model
        before, now = self.read_settings(), describe_settings(model, data, config)
        differences = [
            f"{name} was {before.get(name)!r} and is {now[name]!r}"
            for name in now
            if before.get(name) != now[name] and (name != "model" or model is not None)
        ]
        if self.is_empty():
            return model
        if differences:
            raise ValueError(
                f"{self.path} holds a fit with other settings ({'; '.join(differences)}): use its settings, or another "
                f"{name_setting('out')}."
            )
        return model or str(before["model"])

    def open(
        self,
        model: str,
        data: str,
        config: FitConfig,
        fingerprint: DataFingerprint,
        num_used: tuple[int, int] | None = None,
    ) -> None:
        """Write settings and fingerprint. If the images have changed, which was accepted, the fine-tuning begins anew.

        `num_used` are the training and test images that there is time for, if it is not all of them.
        """
        if self.data.is_file() and self.read_data() != fingerprint:
            shutil.rmtree(self.finetune, ignore_errors=True)
        used = {} if num_used is None else {USED: [config.minutes, *num_used]}
        write_json(self.settings, {**describe_settings(model, data, config), **used})
        write_json(self.data, fingerprint.to_json())

    def read_settings(self) -> dict[str, Any]:
        """Read fit.json; raise ValueError if it is damaged."""
        try:
            return read_json(self.settings)
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{self.settings} cannot be read ({summarise_error(error)}): restore it, or change {name_setting('out')}."
            ) from None

    def read_num_used(self, minutes: float) -> tuple[int, int] | None:
        """Return how many images an earlier call with as many minutes used, so that the same command goes on with them."""
        used = self.read_settings().get(USED) if self.settings.is_file() else None
        if not isinstance(used, list) or len(used) != 3 or used[0] != minutes:
            return None
        return int(used[1]), int(used[2])

    def load_tuned(self) -> Checkpoint | None:
        """Load the best model so far if it is a fine-tuned one; None if there is none or if it is a head on frozen features."""
        if self.is_empty():
            return None
        checkpoint = load_checkpoint(self.model)
        return None if FITTED in checkpoint.provenance else checkpoint

    def save_model(self, checkpoint: Checkpoint) -> None:
        """Replace the best model so far."""
        save_checkpoint(checkpoint, self.model)


def describe_settings(model: str | None, data: str, config: FitConfig) -> dict[str, Any]:
    """Return the settings that make two fits the same."""
    settings = {name: value for name, value in asdict(config).items() if name not in FREE_SETTINGS}
    return {"model": model, "data": data, **settings}
