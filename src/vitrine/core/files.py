"""Writing files whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    """Write beside the target and rename, so that a reader never finds half a file."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Cannot write {path}: the folder {path.parent} does not exist. Create it first.")
    if path.is_dir():
        raise IsADirectoryError(f"Cannot write {path}: it is a folder. Give the name of a file in it.")
    text = json.dumps(content, indent=2, allow_nan=False)  # before anything is opened: it may fail
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
