"""What the main process writes and says in the course of a run; the others are silent."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from vitrine.core.runtime import Runtime
from vitrine.recipe import Recipe
from vitrine.run.folder import RunFolder
from vitrine.train.metrics import Record
from vitrine.train.metrics_file import MetricsFile
from vitrine.train.progress import Progress
from vitrine.train.tensorboard import TensorBoard


class Reporter:
    """metrics.jsonl, TensorBoard's files if they are wanted, and the bar or lines on standard error."""

    def __init__(self, metrics: MetricsFile | None, tensorboard: TensorBoard | None, progress: Progress | None) -> None:
        self.files = [file for file in (metrics, tensorboard) if file is not None]
        self.progress = progress

    def report(self, step: int, record: Record) -> None:
        for file in self.files:
            file.write({"step": step, **record})
        if self.progress is not None and "loss" in record:
            self.progress.update(step, record)

    def say(self, text: str) -> None:
        if self.progress is not None:
            self.progress.say(text)


@contextmanager
def open_reporter(
    recipe: Recipe, folder: RunFolder, runtime: Runtime, title: str, start_step: int, total_steps: int
) -> Iterator[Reporter]:
    if not runtime.is_main:
        yield Reporter(None, None, None)
        return
    with ExitStack() as stack:
        metrics = stack.enter_context(MetricsFile(folder.metrics, start_step))
        tensorboard = TensorBoard(folder.tensorboard, start_step) if recipe.report.tensorboard else None
        if tensorboard is not None:
            stack.enter_context(tensorboard)
        reporter = Reporter(metrics, tensorboard, stack.enter_context(Progress(total_steps, start_step, title)))
        if start_step > 0:
            reporter.say(f"Going on from step {start_step}, saved in {folder.path}.")
        yield reporter
