"""Figures of a measurement as people read them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrine.evaluate.uncertainty import Estimate


def format_share(share: float | None) -> str:
    """0.8821 as 88.21 %; None, for what was not measured, as nothing."""
    return "" if share is None else f"{100 * share:.2f} %"


def format_estimate(estimate: "Estimate", unit: str = "") -> tuple[str, str]:
    """The value and its interval; shares in per cent or points."""
    scale, digits = (100, 2) if unit else (1, 4)
    ending = f" {unit}" if unit else ""
    value = f"{scale * estimate.value:.{digits}f}{ending}"
    if estimate.low is None or estimate.high is None:
        return value, ""
    return value, f"{scale * estimate.low:.{digits}f} .. {scale * estimate.high:.{digits}f}{ending}"
