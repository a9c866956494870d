"""fit: the best classifier of some images in the minutes there are (`vitrine fit`)."""

import time
from pathlib import Path

from vitrine.core.console import print_notice
from vitrine.data.fingerprint import DataFingerprint
from vitrine.data.open_data import DataLike
from vitrine.fitting.budget import Budget
from vitrine.fitting.config import FitConfig
from vitrine.fitting.folder import FitFolder
from vitrine.fitting.images import look_at_images, open_images
from vitrine.fitting.ladder import climb_ladder, fit_into_time, settle_begun
from vitrine.fitting.report import write_fit_report
from vitrine.fitting.result import FitResult
from vitrine.fitting.starting_point import load_starting_point
from vitrine.fitting.state import FitState
from vitrine.formats.load import load_checkpoint
from vitrine.recipes.registry import find_data_once


def fit(
    data: DataLike,
    model: str | Path | None = None,
    out: str | Path | None = None,
    config: FitConfig | None = None,
    *,
    command: str | None = None,
    show_progress: bool = True,
    started: float | None = None,
) -> FitResult:
    """Fit the best classifier of labelled images in the time there is; it is `out`/model, a checkpoint like any other.

    `model` is a checkpoint to start from; without one, a pretrained model on the hub is chosen that suits machine and time.
    `started` is when the time began by time.monotonic() (default: now); `vitrine fit` counts the import of torch.

    With a test split, the result is measured on it, once. Otherwise the accuracy is estimated by cross-validation. Calling it
    again with the same arguments continues a fit that was stopped.
    """
    config = config or FitConfig()
    budget = Budget(60 * config.minutes if config.minutes > 0 else None, time.monotonic() if started is None else started)
    dataset = find_data_once(data)
    folder = FitFolder(Path(out) if out is not None else Path("runs") / f"{Path(dataset.name).resolve().name}-fit")
    name = folder.check(None if model is None else str(model), dataset.name, config)
    with folder.lock():
        with budget.part("looking at the images"):
            images = open_images(dataset)
            fingerprint = DataFingerprint.compute({"train": images.train, "test": images.test}, 0)
            folder.check_data(fingerprint, config.changed)
            images = look_at_images(images, budget.limit_s, show_progress)
        with budget.part("loading the model"):
            if name is None:
                name, start = load_starting_point(len(images), budget.remaining_s(), config.image_size, config.device)
            else:
                start = load_checkpoint(name, image_size=config.image_size)
        tuned = folder.load_tuned() if folder.data.is_file() and folder.read_data() == fingerprint else None
        state = FitState(name, start, dataset.name, images, folder, config, budget, show_progress, tuned)
        settle_begun(state)
        num_used = fit_into_time(state)
        folder.open(name, dataset.name, config, fingerprint, num_used)
        try:
            result = climb_ladder(state)
        except KeyboardInterrupt:
            if not folder.is_empty():
                print_notice(f"Interrupted: the best model so far is in {folder.model}; the same command continues.")
            raise
        with budget.part("report"):
            write_fit_report(result, folder, command)
    return result
