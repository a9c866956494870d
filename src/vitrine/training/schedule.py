"""The learning rate of each step: warm-up, then a decay, as the released code has them.

A step counts from 0, and its rate is what the update of that step uses; so with warm-up the first update is of rate 0, as in
the code released with arXiv:2010.11929 (vit_jax, `create_learning_rate_schedule`).
"""

import math

from vitrine.training.config import OptimConfig


def compute_lr(config: OptimConfig, step: int, total_steps: int) -> float:
    """The learning rate of a step, before any factor of a layer."""
    warmup = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
    cooldown = min(1.0, (total_steps - step) / config.cooldown_steps) if config.cooldown_steps else 1.0
    return warmup * cooldown * LR_SCHEDULES[config.decay](config, step, total_steps)


def hold(config: OptimConfig, step: int, total_steps: int) -> float:
    return config.learning_rate


def decay_linearly(config: OptimConfig, step: int, total_steps: int) -> float:
    """To `final_rate`, not to 0: 1e-5 in the runs on ImageNet-21k."""
    return config.final_rate + (config.learning_rate - config.final_rate) * (1.0 - compute_progress(config, step, total_steps))


def decay_by_cosine(config: OptimConfig, step: int, total_steps: int) -> float:
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * compute_progress(config, step, total_steps)))


def decay_in_pieces(config: OptimConfig, step: int, total_steps: int) -> float:
    """A tenth from each of the given shares of the run on: BiT's."""
    num_passed = sum(step >= share * total_steps for share in config.decay_at)
    return config.learning_rate * 0.1**num_passed


def decay_by_root(config: OptimConfig, step: int, total_steps: int) -> float:
    """By the square root of the steps since warm-up: ViT-g's, in big_vision, with a cooldown at the end."""
    past = max(step - config.warmup_steps + config.rsqrt_timescale, config.rsqrt_timescale)
    return config.learning_rate * math.sqrt(config.rsqrt_timescale / past)


def compute_progress(config: OptimConfig, step: int, total_steps: int) -> float:
    """Of the decay: 0 at the end of warm-up, 1 at the end of the run."""
    return min(1.0, max(0.0, (step - config.warmup_steps) / (total_steps - config.warmup_steps)))


LR_SCHEDULES = {
    "constant": hold,
    "linear": decay_linearly,
    "cosine": decay_by_cosine,
    "piecewise": decay_in_pieces,
    "rsqrt": decay_by_root,
}
