"""Learning rates against torch's schedulers and closed forms."""

import math

import pytest
import torch
from torch.optim import SGD, lr_scheduler

from vitrine.training.config import OptimConfig
from vitrine.training.schedule import LR_SCHEDULES, compute_lr

TOTAL = 200


def list_rates(config: OptimConfig, total_steps: int = TOTAL) -> list[float]:
    return [compute_lr(config, step, total_steps) for step in range(total_steps)]


def list_torch_rates(scheduler: type, rate: float, num_steps: int, **settings: object) -> list[float]:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    schedule = scheduler(optimizer, **settings)
    rates = []
    for _ in range(num_steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


def test_cosine_equals_torch() -> None:
    expected = list_torch_rates(lr_scheduler.CosineAnnealingLR, 3e-3, TOTAL, T_max=TOTAL)
    assert list_rates(OptimConfig(learning_rate=3e-3, decay="cosine")) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_linear_equals_torch_and_ends_at_the_final_rate() -> None:
    config = OptimConfig(learning_rate=1e-3, decay="linear", final_rate=1e-5)
    factors = {"start_factor": 1.0, "end_factor": 1e-2, "total_iters": TOTAL}
    expected = list_torch_rates(lr_scheduler.LinearLR, 1e-3, TOTAL, **factors)
    assert list_rates(config) == pytest.approx(expected, rel=1e-9)
    assert compute_lr(config, TOTAL, TOTAL) == pytest.approx(1e-5)


def test_piecewise_equals_torch() -> None:
    expected = list_torch_rates(lr_scheduler.MultiStepLR, 0.03, TOTAL, milestones=[60, 120, 180])
    assert list_rates(OptimConfig(learning_rate=0.03, decay="piecewise")) == pytest.approx(expected, rel=1e-9)


def test_constant_does_not_change() -> None:
    assert set(list_rates(OptimConfig(learning_rate=0.5, decay="constant"))) == {0.5}


def test_rsqrt_decay_and_cooldown() -> None:
    config = OptimConfig(learning_rate=0.8, decay="rsqrt", warmup_steps=10, rsqrt_timescale=50, cooldown_steps=20)
    rates = list_rates(config)
    assert rates[10] == pytest.approx(0.8)
    assert rates[60] == pytest.approx(0.8 / math.sqrt(2))
    assert rates[160] == pytest.approx(0.8 / math.sqrt(4))
    assert rates[190] == pytest.approx(0.8 * math.sqrt(50 / 230) * 10 / 20)
    assert compute_lr(config, TOTAL, TOTAL) == 0


@pytest.mark.parametrize("decay", LR_SCHEDULES)
def test_warm_up_is_linear_from_zero(decay: str) -> None:
    config = OptimConfig(learning_rate=0.4, decay=decay, warmup_steps=20)
    rates = list_rates(config)
    assert rates[0] == 0
    assert rates[:20] == pytest.approx([0.4 * step / 20 for step in range(20)])
    assert rates[20] == pytest.approx(max(rates)) == pytest.approx(0.4)


def test_decays_count_from_the_end_of_warm_up() -> None:
    plain = list_rates(OptimConfig(decay="cosine"), 100)
    later = list_rates(OptimConfig(decay="cosine", warmup_steps=50), 150)
    assert later[50:] == pytest.approx(plain)
