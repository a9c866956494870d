"""Small data for tests of the demo: images of three classes in folders, and a checkpoint of a tiny model."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.registry import build_model

SIDE = 16
CLASSES = ("dark", "light", "striped")


def make_images(folder: Path, splits: tuple[str, ...] = ("train", "test"), each: int = 8) -> Path:
    """Write noise images that are dark, light or striped."""
    rng = np.random.default_rng(0)
    for split in splits:
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for index in range(each):
                pixels = rng.integers(0, 90, (SIDE, SIDE + 4, 3)) + (0, 150, 0)[label]
                pixels[::2] += 150 if label == 2 else 0
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / name / f"{index}.png")
    return folder


def make_checkpoint(path: Path, name: str = "ViT-Ti/4") -> Path:
    """Save a model with random weights."""
    torch.manual_seed(0)
    sizes = {"width": 32, "depth": 4, "num_heads": 2, "mlp_dim": 64}
    changes = {"stages": (1,), "width_factor": 0.25} if name.startswith("R") else sizes
    model = build_model(name, image_size=SIDE, num_classes=5, **changes)
    save_checkpoint(Checkpoint(model, build_inception_preprocessing((SIDE, SIDE)), tuple("abcde"), {}), path)
    return path
