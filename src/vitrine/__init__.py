"""Vitrine: the Vision Transformer paper as a tool. The public names are imported when first used, and torch with them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrine.models.config import AxialConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
    from vitrine.models.cost import Cost, compute_cost
    from vitrine.models.model import Encoded, Model
    from vitrine.models.registry import MODELS, build_model

__version__ = "0.1.0"
__all__ = [
    "MODELS",
    "AxialConfig",
    "Cost",
    "Encoded",
    "HybridConfig",
    "Model",
    "ModelConfig",
    "ResNetConfig",
    "ViTConfig",
    "build_model",
    "compute_cost",
]

HOMES = {
    "MODELS": "vitrine.models.registry",
    "AxialConfig": "vitrine.models.config",
    "Cost": "vitrine.models.cost",
    "Encoded": "vitrine.models.model",
    "HybridConfig": "vitrine.models.config",
    "Model": "vitrine.models.model",
    "ModelConfig": "vitrine.models.config",
    "ResNetConfig": "vitrine.models.config",
    "ViTConfig": "vitrine.models.config",
    "build_model": "vitrine.models.registry",
    "compute_cost": "vitrine.models.cost",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'vitrine' has no attribute {name!r}; it has: {', '.join(__all__)}.")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *HOMES]
