"""Learning rate of each step: warm-up, then a schedule, as in the released code.

Steps count from 0, and a step's update uses its learning rate. So with warm-up the first update has learning rate 0, as in
the code released with arXiv:2010.11929 (vit_jax, `create_learning_rate_schedule`).
"""

import math

from vitrine.training.config import OptimConfig


def compute_lr(config: OptimConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of a step, before layer-wise scaling."""
    warmup = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
    cooldown = min(1.0, (total_steps - step) / config.cooldown_steps) if config.cooldown_steps else 1.0
    return warmup * cooldown * LR_SCHEDULES[config.decay](config, step, total_steps)


def constant_lr(config: OptimConfig, step: int, total_steps: int) -> float:
    """Return the peak learning rate at every step."""
    return config.learning_rate


def linear_lr(config: OptimConfig, step: int, total_steps: int) -> float:
    """Decay linearly to `final_rate`, not to 0: 1e-5 in the paper's runs on ImageNet-21k."""
    return config.final_rate + (config.learning_rate - config.final_rate) * (1.0 - compute_progress(config, step, total_steps))


def cosine_lr(config: OptimConfig, step: int, total_steps: int) -> float:
    """Decay to 0 along half a cosine."""
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * compute_progress(config, step, total_steps)))


def piecewise_lr(config: OptimConfig, step: int, total_steps: int) -> float:
    """Divide by ten at each fraction of the run in `decay_at`, as BiT does."""
    num_passed = sum(step >= fraction * total_steps for fraction in config.decay_at)
    return config.learning_rate * 0.1**num_passed


def rsqrt_lr(config: OptimConfig, step: int, total_steps: int) -> float:
    """Decay with the inverse square root of the steps since warm-up, as for ViT-g in big_vision, with a cooldown at the end."""
    past = max(step - config.warmup_steps + config.rsqrt_timescale, config.rsqrt_timescale)
    return config.learning_rate * math.sqrt(config.rsqrt_timescale / past)


def compute_progress(config: OptimConfig, step: int, total_steps: int) -> float:
    """Return how far the decay is: 0 at the end of warm-up, 1 at the end of the run."""
    return min(1.0, max(0.0, (step - config.warmup_steps) / (total_steps - config.warmup_steps)))


LR_SCHEDULES = {"constant": constant_lr, "linear": linear_lr, "cosine": cosine_lr, "piecewise": piecewise_lr, "rsqrt": rsqrt_lr}
