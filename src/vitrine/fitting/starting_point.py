"""Choice of a pretrained model that suits the images, the machine and the time, where the user names none."""

import os
import time
from itertools import pairwise

import torch

from vitrine.core.console import print_notice, summarise_error, warn_user
from vitrine.core.hub import is_model_cached
from vitrine.core.runtime import choose_device
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.formats.pretrained import StartingPoint, choose_starting_point
from vitrine.models.cost import compute_cost
from vitrine.models.registry import build_model, resolve_config

TIMED_MODEL, TIMED_BATCH = "ViT-Ti/16", 16
FEATURE_FRACTION = 0.4  # of the time there is, for one pass over all images
NO_LIMIT_S = 600.0  # the time to assume where the user gives no limit


def load_starting_point(
    num_images: int, seconds: float, image_size: int | None = None, device: str | None = None
) -> tuple[str, Checkpoint]:
    """Choose a model whose features of all images take a part of the time, load it, and tell its name and licence.

    Without a connection to the hub, only models that were downloaded before are considered.
    """
    seconds = FEATURE_FRACTION * max(0.0, min(seconds, NO_LIMIT_S))
    speed = measure_machine(device)
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    point = choose_starting_point(num_images, seconds, speed, is_model_cached if is_offline else None, image_size)
    try:
        checkpoint = load_checkpoint(point.name, image_size=image_size)
    except OSError as error:
        if is_offline:
            raise
        cached = choose_starting_point(num_images, seconds, speed, is_model_cached, image_size)
        warn_user(f"{point.name} cannot be downloaded ({summarise_error(error)}): taking {cached.name}, which is here.")
        point, checkpoint = cached, load_checkpoint(cached.name, image_size=image_size)
    print_notice(describe_point(point))
    return point.name, checkpoint


def describe_point(point: StartingPoint) -> str:
    """Return what the user should know about a model that was chosen for them."""
    figure = "" if point.imagenet_top1 is None else f", {point.imagenet_top1:g} % on ImageNet"
    size = f"{point.num_parameters / 1e6:.0f} million parameters"
    return f"Starting from {point.name}: {point.family} {point.model}, {size}{figure}, licence {point.licence}."


def measure_machine(device: str | None = None) -> float:
    """Return the multiply-accumulates of a small network that the machine computes in a second."""
    config = resolve_config(TIMED_MODEL, num_classes=0)
    where = choose_device(device)
    model, images = build_model(config).to(where).eval(), torch.zeros(TIMED_BATCH, 3, *config.image_size, device=where)
    times = [time.monotonic()]
    with torch.inference_mode():
        for _ in range(3):
            model(images).cpu()  # waits for the device
            times.append(time.monotonic())
    fastest = min(end - start for start, end in pairwise(times[1:]))  # the first pass warms up
    return TIMED_BATCH * compute_cost(config).macs / fastest
