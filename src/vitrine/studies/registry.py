"""The table of studies, for `vitrine study NAME` and `--list`. No torch here: a study is imported when it is run."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from vitrine.core.console import join_names
from vitrine.studies.config import Scale

if TYPE_CHECKING:
    from vitrine.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class StudyEntry:
    """A study of the table."""

    question: str
    paper: str
    """What it repeats of the paper."""
    times: Mapping[Scale, str]
    """Time of each scale."""
    search_time: str
    """Time of `--search` at scale small."""
    home: str
    """Module and name of the `Study`."""


STUDIES: dict[str, StudyEntry] = {
    "data-size": StudyEntry(
        question="With how much pre-training data do ViTs catch up with ResNets?",
        paper="figures 3 and 4, in the regime of figure 4",
        times={
            "tiny": "about 40 s on two cores, too little for a finding",
            "small": "32 minutes on two cores with --jobs 2",
            "paper": "24 runs for each seed; --dry-run lists their exaFLOPs",
        },
        search_time="not measured as a whole; --search --dry-run estimates half an hour on two cores",
        home="vitrine.studies.data_size:DATA_SIZE",
    ),
    "scaling": StudyEntry(
        question="For the same compute, do ViTs reach further than ResNets?",
        paper="figure 5 and table 6",
        times={
            "tiny": "about 15 s on two cores, too little for a finding",
            "small": "not measured yet; --dry-run estimates it on this machine",
            "paper": "16 runs for each seed; --dry-run lists their exaFLOPs",
        },
        search_time="not measured yet; --search --dry-run estimates it on this machine",
        home="vitrine.studies.scaling:SCALING",
    ),
    "self-supervision": StudyEntry(
        question="Does masked patch prediction help, and how much of what labels give?",
        paper="section 4.6 and appendix B.1.2",
        times={
            "tiny": "about 10 s on two cores, too little for a finding",
            "small": "not measured yet; --dry-run estimates it on this machine",
            "paper": "14 runs for each seed; --dry-run lists their exaFLOPs",
        },
        search_time="not measured yet; --search --dry-run estimates it on this machine",
        home="vitrine.studies.self_supervision:SELF_SUPERVISION",
    ),
}


def find_study(name: str) -> StudyEntry:
    """Return the entry of a study; raise ValueError with the nearest names for an unknown one."""
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, n=3, cutoff=0.0)
        raise ValueError(f"Unknown study {name!r}. Nearest: {join_names(near)}. All studies: `vitrine study --list`.")
    return STUDIES[name]


def load_study(name: str) -> "Study":
    """Import the study of a name."""
    module, attribute = find_study(name).home.split(":")
    return getattr(import_module(module), attribute)
