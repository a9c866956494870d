"""Means against numpy's, and the first step at which something went wrong."""

import math

import numpy as np
import pytest
import torch

from vitrine.core.runtime import Runtime
from vitrine.train.metrics import Meter

ALONE = Runtime(torch.device("cpu"))


def build_meter() -> Meter:
    return Meter(ALONE)


def test_means_are_numpy_s() -> None:
    values = np.random.default_rng(0).normal(size=50)
    meter = build_meter()
    for value in values:
        meter.add({"loss": torch.tensor(value), "accuracy": torch.tensor(value > 0)})
    assert meter.read() == pytest.approx({"loss": values.mean(), "accuracy": (values > 0).mean()}, rel=1e-6)


def test_parts_of_a_step_count_by_their_share() -> None:
    values, shares = np.array([1.0, 2.0, 5.0]), np.array([0.5, 0.25, 0.25])
    meter = build_meter()
    for value, share in zip(values, shares, strict=True):
        meter.add({"loss": torch.tensor(value)}, float(share))
    meter.add({"loss": torch.tensor(10.0)})  # a second step, in one part
    assert meter.read()["loss"] == pytest.approx((np.average(values, weights=shares) + 10) / 2)


def test_a_number_that_was_not_always_given_is_the_mean_of_when_it_was() -> None:
    meter = build_meter()
    for step in range(4):
        meter.add({"loss": torch.tensor(float(step))})
    meter.add({"rare": torch.tensor(7.0)})
    assert meter.read() == {"loss": 1.5, "rare": 7.0}


def test_reading_begins_anew() -> None:
    meter = build_meter()
    meter.add({"loss": torch.tensor(1.0), "once": torch.tensor(1.0)})
    meter.read()
    assert meter.read() == {}
    meter.add({"loss": torch.tensor(3.0)})
    assert meter.read() == {"loss": 3.0}


def test_nothing_of_the_graph_is_held() -> None:
    weight = torch.ones((), requires_grad=True)
    meter = build_meter()
    loss = weight * 2
    meter.add({"loss": loss})
    meter.watch(loss, 0)
    assert not any(total.requires_grad for total in meter.sums.values())
    assert not meter.first_bad_step.requires_grad
    assert meter.read() == {"loss": 2.0}


def test_half_precision_is_summed_in_single() -> None:
    meter = build_meter()
    for _ in range(4096):  # a sum of bfloat16 would stop growing at 256
        meter.add({"loss": torch.tensor(1.0, dtype=torch.bfloat16)})
    assert meter.read() == {"loss": 1.0}


def test_a_number_may_change_in_place_after_it_was_added() -> None:
    """As a gradient norm does, whose memory the next step may use again."""
    meter, value = build_meter(), torch.tensor(1.0)
    meter.add({"norm": value})
    value.fill_(100.0)
    assert meter.read() == {"norm": 1.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_named_even_if_it_is_read_later(bad: float) -> None:
    meter = build_meter()
    for step, loss in enumerate([1.0, 2.0, bad, 3.0, math.nan]):
        meter.add({"loss": torch.tensor(loss)})
        meter.watch(torch.tensor(loss), step)
    with pytest.raises(FloatingPointError, match=r"^the loss or its gradient was not finite at step 2$"):
        meter.read()


def test_step_0_can_be_the_bad_one() -> None:
    meter = build_meter()
    meter.watch(torch.tensor(math.nan), 0)
    meter.watch(torch.tensor(math.nan), 1)
    with pytest.raises(FloatingPointError, match=r"at step 0$"):
        meter.read()


def test_a_bad_step_is_found_after_a_good_reading() -> None:
    meter = build_meter()
    meter.watch(torch.tensor(1.0), 0)
    meter.read()
    meter.watch(torch.tensor(math.inf), 1)
    with pytest.raises(FloatingPointError, match=r"at step 1$"):
        meter.read()


def test_another_number_that_is_not_finite_is_named() -> None:
    meter = build_meter()
    meter.add({"loss": torch.tensor(1.0), "grad_norm": torch.tensor(math.inf)})
    meter.watch(torch.tensor(1.0), 0)
    with pytest.raises(FloatingPointError, match=r"^grad_norm is inf$"):
        meter.read()
