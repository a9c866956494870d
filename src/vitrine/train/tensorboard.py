"""The records of a run as TensorBoard's event files."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from vitrine.train.metrics_file import is_evaluated


class TensorBoard:
    """Writes into `folder`, where `tensorboard --logdir` finds it."""

    def __init__(self, folder: Path, start_step: int | None = None) -> None:
        """`start_step`: where a resumed run begins, so that what an interrupted one wrote of later steps is not shown."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                f"Event files in {folder} need tensorboard, which is not installed: pip install 'vitrine[tensorboard]'."
            ) from None
        self.writer = SummaryWriter(str(folder), purge_step=None if start_step is None else start_step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.writer.close()

    def write(self, record: Mapping[str, float]) -> None:
        """A scalar for each field but the step: evaluation/held_out_top1, train/loss."""
        for name, value in record.items():
            if name != "step":
                group = "evaluation" if is_evaluated(name) else "train"
                self.writer.add_scalar(f"{group}/{name}", value, int(record["step"]))
