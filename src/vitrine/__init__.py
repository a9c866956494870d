"""Vitrine: the Vision Transformer paper as a tool. The public names are imported when first used, and torch with them."""

from typing import TYPE_CHECKING

from vitrine.core.lazy import lazy_names

if TYPE_CHECKING:
    from vitrine.data.preprocessing import Preprocessing
    from vitrine.formats.checkpoint import Checkpoint
    from vitrine.formats.config import Facts
    from vitrine.formats.load import load_checkpoint, load_model
    from vitrine.formats.save import save_checkpoint, save_model
    from vitrine.models.config import AxialConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
    from vitrine.models.cost import Cost, compute_cost
    from vitrine.models.model import Encoded, Model
    from vitrine.models.registry import MODELS, build_model

__version__ = "0.1.0"
__all__ = [
    "MODELS",
    "AxialConfig",
    "Checkpoint",
    "Cost",
    "Encoded",
    "Facts",
    "HybridConfig",
    "Model",
    "ModelConfig",
    "Preprocessing",
    "ResNetConfig",
    "ViTConfig",
    "build_model",
    "compute_cost",
    "load_checkpoint",
    "load_model",
    "save_checkpoint",
    "save_model",
]

HOMES = {
    "MODELS": "vitrine.models.registry",
    "AxialConfig": "vitrine.models.config",
    "Checkpoint": "vitrine.formats.checkpoint",
    "Cost": "vitrine.models.cost",
    "Encoded": "vitrine.models.model",
    "Facts": "vitrine.formats.config",
    "HybridConfig": "vitrine.models.config",
    "Model": "vitrine.models.model",
    "ModelConfig": "vitrine.models.config",
    "Preprocessing": "vitrine.data.preprocessing",
    "ResNetConfig": "vitrine.models.config",
    "ViTConfig": "vitrine.models.config",
    "build_model": "vitrine.models.registry",
    "compute_cost": "vitrine.models.cost",
    "load_checkpoint": "vitrine.formats.load",
    "load_model": "vitrine.formats.load",
    "save_checkpoint": "vitrine.formats.save",
    "save_model": "vitrine.formats.save",
}


__getattr__ = lazy_names(__name__, HOMES)


def __dir__() -> list[str]:
    return [*globals(), *HOMES]
