"""Sums of counts."""

from vitrine.models.cost_parts import Part


def test_parts_add_up_but_their_peaks_do_not() -> None:
    small, large = Part(parameters=1, macs=2, saved=3, saved_weights=4, peak=5, peak_weights=6), Part(peak=9)
    assert small * 2 + large == Part(parameters=2, macs=4, saved=6, saved_weights=8, peak=9, peak_weights=6)
