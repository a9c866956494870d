"""The table of formats, and which of them a file is in."""

from collections.abc import Iterable

from vitrine.formats.bit import BIT
from vitrine.formats.config import FormatName
from vitrine.formats.format import Format
from vitrine.formats.google import BIG_VISION, GOOGLE_2020, GOOGLE_LINEN
from vitrine.formats.huggingface import HUGGING_FACE
from vitrine.formats.own import OWN
from vitrine.formats.tensors import Tensors, list_names
from vitrine.formats.timm import TIMM
from vitrine.formats.torchvision import TORCHVISION

FORMATS: dict[FormatName, Format] = {
    form.name: form for form in (OWN, GOOGLE_2020, GOOGLE_LINEN, BIG_VISION, BIT, TIMM, HUGGING_FACE, TORCHVISION)
}

# Where training programs put the network: the optimiser's target, the parameters beside it, what a wrapper holds.
PREFIXES = ("opt/target/", "params/", "module.", "_orig_mod.")


def strip_prefixes(tensors: Tensors) -> Tensors:
    """The network's tensors under their own names; what lies beside it (step, averages) is training state and left out."""
    for prefix in PREFIXES:
        inside = {name.removeprefix(prefix): stored for name, stored in tensors.items() if name.startswith(prefix)}
        if inside:
            return strip_prefixes(inside)  # wrappers can be within wrappers
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
