"""Recording of intermediates by name, so that nobody needs to hang hooks on a model."""

import difflib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

Observe = Callable[[str, Tensor], None]


class IntermediateRecorder:
    """Collects or streams the intermediates of one forward pass. A plain forward pass has None instead."""

    def __init__(self, keep: Sequence[str], observe: Observe | None, prefix: str = "") -> None:
        self.keep = keep
        self.observe = observe
        self.prefix = prefix
        self.kept: dict[str, Tensor] = {}

    def under(self, name: str) -> "IntermediateRecorder":
        """Return the same recorder for a submodule, whose names start with `name`."""
        part = IntermediateRecorder(self.keep, self.observe, f"{self.prefix}{name}.")
        part.kept = self.kept
        return part

    def wants(self, name: str) -> bool:
        """Return whether to record an intermediate; blocks ask before they compute one only for that, e.g. attention maps."""
        return self.observe is not None or self._is_kept(self.prefix + name)

    def __call__(self, name: str, tensor: Tensor) -> None:
        full_name = self.prefix + name
        if self.observe is not None:
            self.observe(full_name, tensor)
        if self._is_kept(full_name):
            self.kept[full_name] = tensor

    def _is_kept(self, full_name: str) -> bool:
        return any(fnmatchcase(full_name, pattern) for pattern in self.keep)


def check_known_names(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raise a ValueError if one of the `keep` patterns matches none of a model's intermediates."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3) or [names[0], names[-1]]
            raise ValueError(f"keep={pattern!r} matches no intermediate of this model; nearest: {', '.join(near)}.")
