"""Time of one training step of small networks compared with peers: `python benchmarks/train_step.py`.

A step is forward pass, cross-entropy, backward pass, fused AdamW, clearing of gradients. Two more contestants are what a run of
ours does: a step of `fit` with clipping and an average of the weights, and the part of it after the backward pass. Takes about
8 minutes on two cores; `--json FILE` saves the results.
"""

from pathlib import Path

import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional as F

from measure import FLOOR, Setting, Step, build_floor, compare
from own_step import UPDATE, WHOLE, build_update_step, build_whole_step
from peers import Network, Peer, build_contestants

VIT_TI_16 = Network(image_size=224, patch_size=16, width=192, depth=12, num_heads=3, mlp_dim=768, num_classes=1000)
FOR_32_PIXELS = Network(image_size=32, patch_size=4, width=192, depth=6, num_heads=3, mlp_dim=768, num_classes=10)
FOR_28_PIXELS = Network(image_size=28, patch_size=7, width=64, depth=4, num_heads=4, mlp_dim=256, num_classes=10)
SETTINGS = [
    Setting("training step: ViT-Ti/16 at 224, batch 16", VIT_TI_16, 16),
    Setting("training step: width 192, depth 6, patch 4 at 32, batch 64", FOR_32_PIXELS, 64),
    Setting("training step: width 64, depth 4, patch 7 at 28, batch 256", FOR_28_PIXELS, 256),
]


def main(rounds: int = 20, threads: int = 2, json: Path | None = None) -> None:
    """Compare one training step of each network; print and save the results."""
    compare(SETTINGS, build_steps, rounds, threads, json)


def build_steps(setting: Setting, peers: list[Peer]) -> dict[str, Step]:
    """Build one training step for each contestant and for the floor, the matrix products alone."""
    side = setting.network.image_size
    images = torch.randn(setting.batch_size, 3, side, side)
    labels = torch.randint(setting.network.num_classes, (setting.batch_size,))
    models = build_contestants(setting.network, peers)
    steps = {name: build_step(model.train(), images, labels) for name, model in models.items()}
    own = {WHOLE: build_whole_step(setting), UPDATE: build_update_step(setting)}
    return steps | own | {FLOOR: build_floor(setting, backward=True)}


def build_step(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    """Build a function that runs one training step on the same batch."""
    # A small lr, because every step sees the same batch: once memorised, gradients would become denormal and slow.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.05, fused=True)

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
