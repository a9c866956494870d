"""Vitrine: the Vision Transformer paper as a tool.

Public names are listed in `__init__.pyi` and imported on first use, so `import vitrine` does not import torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from vitrine.version import __version__ as __version__


def read_public_names() -> dict[str, str]:
    """Return {public name: module that defines it}, read from the stub beside this file."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


PUBLIC_NAMES = read_public_names()
__all__ = list(PUBLIC_NAMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC_NAMES:
        raise AttributeError(f"module 'vitrine' has no attribute {name!r}; it has: {', '.join(PUBLIC_NAMES)}.")
    return getattr(import_module(PUBLIC_NAMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *PUBLIC_NAMES]
