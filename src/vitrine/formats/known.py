"""The table of formats, and which of them a file is in."""

from collections.abc import Iterable

from vitrine.core.sentences import list_names
from vitrine.formats.bit import BIT
from vitrine.formats.config import FormatName
from vitrine.formats.format import Format
from vitrine.formats.google import BIG_VISION, GOOGLE_2020, GOOGLE_LINEN
from vitrine.formats.huggingface import HUGGING_FACE
from vitrine.formats.own import OWN
from vitrine.formats.tensors import Tensors
from vitrine.formats.timm import TIMM
from vitrine.formats.torchvision import TORCHVISION

FORMATS: dict[FormatName, Format] = {
    form.name: form for form in (OWN, GOOGLE_2020, GOOGLE_LINEN, BIG_VISION, BIT, TIMM, HUGGING_FACE, TORCHVISION)
}

# Where training programs put the network: under the optimiser's target, beside its state, behind what a wrapper is called.
PREFIXES = ("opt/target/", "params/", "module.", "_orig_mod.")
# What they put beside it. Anything else stays, and is named as unexpected.
TRAINING_STATE = ("opt/", "step", "epoch", "extra/", "n_averaged")


def strip_prefixes(tensors: Tensors) -> Tensors:
    """The network's tensors under their own names; training state beside it is left out, and nothing else."""
    for prefix in PREFIXES:
        inside = {name.removeprefix(prefix): stored for name, stored in tensors.items() if name.startswith(prefix)}
        if inside:
            beside = {name: stored for name, stored in tensors.items() if not name.startswith((prefix, *TRAINING_STATE))}
            return {**strip_prefixes(inside), **beside}
    return tensors


def recognise(names: Iterable[str], source: str) -> Format:
    """By the names of the tensors, not of the file."""
    names = list(names)
    for form in FORMATS.values():
        if form.recognises(names):
            return form
    raise ValueError(
        f"{source} is in no known format: its {len(names)} tensors are named {list_names(sorted(names), 4)}; "
        f"known are {', '.join(FORMATS)}."
    )
