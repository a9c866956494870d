"""The clock of the file system, which is coarse: files written within a few milliseconds have the same times."""

import tempfile
from pathlib import Path


def wait_for_tick(path: Path) -> None:
    """Wait until a file written now has a later time than `path`."""
    changed = path.stat().st_ctime_ns
    with tempfile.NamedTemporaryFile(dir=path.parent.parent) as probe:
        while Path(probe.name).stat().st_ctime_ns <= changed:
            probe.write(b"x")
            probe.flush()
