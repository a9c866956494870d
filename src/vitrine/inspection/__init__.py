"""Looking inside: the paper's figures from any checkpoint, and functions that return what they show as arrays."""

from typing import TYPE_CHECKING

from vitrine.core.lazy import lazy_names

if TYPE_CHECKING:
    from vitrine.inspection.attention import compute_attention, observe_attention, read_query
    from vitrine.inspection.config import InspectConfig, RolloutConfig
    from vitrine.inspection.distance import DistanceMeter, Distances, measure_distances
    from vitrine.inspection.features import PatchFeatures, compute_patch_features
    from vitrine.inspection.filters import Filters, compute_filters
    from vitrine.inspection.inspect import Inspection, inspect_model, write_inspection
    from vitrine.inspection.masked_patches import MaskedPictures, draw_masked_patches, picture_masked_patches
    from vitrine.inspection.positions import Similarities, compute_similarities
    from vitrine.inspection.rollout import Rollout, compute_rollout

__all__ = [
    "DistanceMeter",
    "Distances",
    "Filters",
    "InspectConfig",
    "Inspection",
    "MaskedPictures",
    "PatchFeatures",
    "Rollout",
    "RolloutConfig",
    "Similarities",
    "compute_attention",
    "compute_filters",
    "compute_patch_features",
    "compute_rollout",
    "compute_similarities",
    "draw_masked_patches",
    "inspect_model",
    "measure_distances",
    "observe_attention",
    "picture_masked_patches",
    "read_query",
    "write_inspection",
]

HOMES = {
    "DistanceMeter": "vitrine.inspection.distance",
    "Distances": "vitrine.inspection.distance",
    "Filters": "vitrine.inspection.filters",
    "InspectConfig": "vitrine.inspection.config",
    "Inspection": "vitrine.inspection.inspect",
    "MaskedPictures": "vitrine.inspection.masked_patches",
    "PatchFeatures": "vitrine.inspection.features",
    "Rollout": "vitrine.inspection.rollout",
    "RolloutConfig": "vitrine.inspection.config",
    "Similarities": "vitrine.inspection.positions",
    "compute_attention": "vitrine.inspection.attention",
    "compute_filters": "vitrine.inspection.filters",
    "compute_patch_features": "vitrine.inspection.features",
    "compute_rollout": "vitrine.inspection.rollout",
    "compute_similarities": "vitrine.inspection.positions",
    "draw_masked_patches": "vitrine.inspection.masked_patches",
    "inspect_model": "vitrine.inspection.inspect",
    "measure_distances": "vitrine.inspection.distance",
    "observe_attention": "vitrine.inspection.attention",
    "picture_masked_patches": "vitrine.inspection.masked_patches",
    "read_query": "vitrine.inspection.attention",
    "write_inspection": "vitrine.inspection.inspect",
}


__getattr__ = lazy_names(__name__, HOMES)


def __dir__() -> list[str]:
    return [*globals(), *HOMES]
