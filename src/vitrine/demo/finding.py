"""The finding of a demo as a sentence: what pre-training did for the ViT, and which model is ahead. True for every outcome."""

from collections.abc import Sequence

from vitrine.core.page_parts import format_short_percent
from vitrine.demo.plan import FAMILIES, Family, Kind
from vitrine.demo.results import StepResult, find_accuracy
from vitrine.evaluation.intervals import Estimate


def describe_finding(results: Sequence[StepResult]) -> str:
    """Return the title of the report. Two accuracies are called different only if their intervals are apart."""
    transfer, scratch = (find_accuracy(results, "vit", kind) for kind in ("transfer", "scratch"))
    if transfer is None or scratch is None:
        return "A Vision Transformer, step by step"
    return f"{describe_gain(transfer, scratch)}{describe_leader(results, transfer)}"


def describe_gain(transfer: Estimate, scratch: Estimate) -> str:
    """Return what pre-training did for the ViT."""
    before, after = format_short_percent(scratch.value), format_short_percent(transfer.value)
    if is_above(transfer, scratch):
        return f"Pre-training lifts the ViT from {before} to {after}"
    if is_above(scratch, transfer):
        return f"Pre-training harms the ViT: {after} with it, {before} from scratch"
    return f"Pre-training did not surely change the ViT: {after} with it, {before} from scratch"


def describe_leader(results: Sequence[StepResult], transfer: Estimate) -> str:
    """Return which other model is ahead of the ViT, with or without pre-training, or whether the ViT is ahead of all."""
    kinds: dict[Kind, str] = {"transfer": "pre-trained", "scratch": "from scratch"}
    rivals: list[tuple[Family, Kind, Estimate]] = [
        (family, kind, accuracy)
        for family in FAMILIES
        for kind in kinds
        if family != "vit" and (accuracy := find_accuracy(results, family, kind)) is not None
    ]
    if not rivals:
        return ""
    family, kind, best = max(rivals, key=lambda rival: rival[2].value)
    if is_above(best, transfer):
        return f"; the {FAMILIES[family]}, {kinds[kind]}, is ahead with {format_short_percent(best.value)}"
    return "; it is ahead of ResNet and hybrid" if is_above(transfer, best) else ""


def is_above(first: Estimate, second: Estimate) -> bool:
    """Return whether the interval of the first lies above that of the second."""
    return first.low is not None and second.high is not None and first.low > second.high
