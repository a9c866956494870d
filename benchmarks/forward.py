"""Inference time of ViT-B/16 at 224 pixels compared with peers: `python benchmarks/forward.py`.

Takes about 6 minutes on two cores; `--json FILE` saves the results.
"""

from pathlib import Path

import torch
import tyro
from torch import Tensor, nn

from measure import FLOOR, Setting, Step, build_floor, compare
from peers import Network, Peer, build_contestants

VIT_B_16 = Network(image_size=224, patch_size=16, width=768, depth=12, num_heads=12, mlp_dim=3072, num_classes=1000)
SETTINGS = [Setting(f"forward: ViT-B/16 at 224, batch {size}", VIT_B_16, size) for size in (1, 8)]


def main(rounds: int = 20, threads: int = 2, json: Path | None = None) -> None:
    """Compare one forward pass at each batch size; print and save the results."""
    compare(SETTINGS, build_steps, rounds, threads, json)


def build_steps(setting: Setting, peers: list[Peer]) -> dict[str, Step]:
    """Build one forward pass for each contestant and for the floor, the matrix products alone."""
    side = setting.network.image_size
    images = torch.randn(setting.batch_size, 3, side, side)
    models = build_contestants(setting.network, peers)
    steps = {name: build_step(model.eval(), images) for name, model in models.items()}
    return steps | {FLOOR: build_floor(setting, backward=False)}


def build_step(model: nn.Module, images: Tensor) -> Step:
    """Build a function that runs one forward pass."""

    @torch.inference_mode()
    def step() -> Tensor:
        return model(images)

    return step


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
