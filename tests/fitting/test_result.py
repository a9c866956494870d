"""FitResult: what may be left out."""

from dataclasses import MISSING, fields

from vitrine.fitting.result import FitResult


def test_only_what_a_fit_may_lack_has_a_default() -> None:
    optional = {each.name for each in fields(FitResult) if each.default is not MISSING or each.default_factory is not MISSING}
    assert optional == {"interrupted_by", "notes", "labels", "suspects", "why_not_tuned", "is_unmeasured"}
