"""Checkpoints in anyone's format. The names are imported when first used, so that `formats.config` needs no torch."""

from typing import TYPE_CHECKING

from vitrine.core.lazy import lazy_names

if TYPE_CHECKING:
    from vitrine.formats.checkpoint import Checkpoint
    from vitrine.formats.config import FORMAT_NAMES, Facts
    from vitrine.formats.load import load_checkpoint, load_model
    from vitrine.formats.save import save_checkpoint, save_model
    from vitrine.formats.verify import verify_checkpoint

__all__ = [
    "FORMAT_NAMES",
    "Checkpoint",
    "Facts",
    "load_checkpoint",
    "load_model",
    "save_checkpoint",
    "save_model",
    "verify_checkpoint",
]

HOMES = {
    "FORMAT_NAMES": "vitrine.formats.config",
    "Checkpoint": "vitrine.formats.checkpoint",
    "Facts": "vitrine.formats.config",
    "load_checkpoint": "vitrine.formats.load",
    "load_model": "vitrine.formats.load",
    "save_checkpoint": "vitrine.formats.save",
    "save_model": "vitrine.formats.save",
    "verify_checkpoint": "vitrine.formats.verify",
}

__getattr__ = lazy_names(__name__, HOMES)
