"""StudyConfig: the settings of `vitrine study`. No torch here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrine.core.config_checks import is_whole, require_at_least, require_field_types
from vitrine.core.console import name_setting

Scale = Literal["tiny", "small", "paper"]


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Settings of `run_study`."""

    scale: Scale = "small"
    """Seconds on two cores, too little for a finding (tiny); what fits two cores, as --list says (small); the paper's grid."""
    data: str | None = None
    """Images to train on, with a split test or val (default: those of the study, e.g. generated glyphs)."""
    seeds: tuple[int, ...] = ()
    """Train once with each of these seeds (default: 0 1 2, at scales tiny and paper 0)."""
    jobs: int = 1
    """Number of runs at a time, each with one thread; it does not change results."""
    out: Path | None = None
    """Folder of the runs, study.json and study.html (default: studies/NAME-SCALE)."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "jobs")
        if not isinstance(self.seeds, tuple) or not all(is_whole(seed) and seed >= 0 for seed in self.seeds):
            raise ValueError(f"seeds={self.seeds!r} must be whole numbers of at least 0, e.g. {name_setting('seeds')} 0 1 2.")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds={self.seeds} must be distinct.")
        if self.data == "":
            raise ValueError("data='' is empty: give a path or a built-in name, or leave it out.")
